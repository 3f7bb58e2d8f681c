package kubestatus

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/mesh"
)

// maxLastValid bounds the last valid spec in a status, in bytes of JSON.
const maxLastValid = 64 << 10

// maxFirstError bounds a proxy's error in a report, in bytes.
const maxFirstError = 512

// tracked is one MetaRouter of the API server: what its status says, what is known, and what was written.
type tracked struct {
	uid        string
	generation int64
	conditions []metav1.Condition
	replicas   map[string]report
	beats      map[string]beat
	lastValid  string // JSON of the last valid spec in the status, empty if none

	facts   Facts
	factsOf int64  // the generation that facts are of, 0 if there are none
	valid   string // JSON of facts.LastValid

	reported   report // the own report as written last
	reportedAt time.Time
	unsaved    bool    // writing it failed
	verdict    verdict // as written last
	verdictAt  time.Time
}

// beat is a replica's report as a sign of life.
type beat struct {
	at    string    // its own time
	since time.Time // when we saw that, by our clock
}

// verdict is what the holder of the Lease writes.
type verdict struct {
	conditions []metav1.Condition
	lastValid  string
}

// see takes in an object of the API server.
func (t *tracked) see(u *unstructured.Unstructured, now time.Time) {
	t.uid, t.generation = string(u.GetUID()), u.GetGeneration()
	status, _ := u.Object["status"].(map[string]any)
	t.conditions, t.replicas, t.lastValid = nil, nil, ""
	recode(status["conditions"], &t.conditions)
	recode(status["replicas"], &t.replicas)
	if spec, ok := kubeclient.LastValid(u); ok {
		t.lastValid = canonical(spec)
	}
	beats := make(map[string]beat, len(t.replicas))
	for id, r := range t.replicas {
		beats[id] = beat{r.At, now}
		if b, ok := t.beats[id]; ok && b.at == r.At {
			beats[id] = b
		}
	}
	t.beats = beats
}

// recode decodes a part of a status; what somebody else wrote there and cannot be decoded counts as absent.
func recode(tree, into any) {
	if data, err := json.Marshal(tree); err == nil {
		_ = json.Unmarshal(data, into)
	}
}

func canonical(tree any) string {
	data, err := json.Marshal(tree)
	if err != nil {
		return ""
	}
	return string(data)
}

// learn takes in the facts, which are of a generation or a later one.
func (t *tracked) learn(f Facts, generation int64) {
	if f.LastValid != t.facts.LastValid || t.factsOf == 0 {
		t.valid = specJSON(f.LastValid)
	}
	t.facts, t.factsOf = f, generation
}

// specJSON is the spec of an object as JSON, the same for the same spec; empty if there is none.
func specJSON(o *mesh.Object) string {
	if o == nil {
		return ""
	}
	spec, ok := o.Spec.(*mesh.MetaRouter)
	if !ok {
		return ""
	}
	data, err := protojson.Marshal(spec.MetaRouter) // it puts spaces in as it likes
	if err != nil {
		return ""
	}
	var tree map[string]any
	if json.Unmarshal(data, &tree) != nil {
		return ""
	}
	return canonical(tree)
}

// ownReport is what the own report should say, but for its time. The zero report stands for none.
func (t *tracked) ownReport() report {
	f := t.facts
	switch {
	case f.Pending:
		return t.reported
	case f.Proxies == 0:
		return report{}
	}
	return report{
		Generation: t.factsOf, Proxies: f.Proxies, UpToDate: f.UpToDate, Rejected: f.Rejected,
		FirstError: bounded(f.FirstError, maxFirstError),
	}
}

// reportDue reports whether the own report is to be written now.
func (t *tracked) reportDue(id string, p Pauses, refresh time.Duration, now time.Time) bool {
	if t.factsOf == 0 || t.unsaved && t.facts.Pending {
		return false
	}
	wanted := t.ownReport()
	_, there := t.replicas[id]
	since := now.Sub(t.reportedAt)
	switch {
	case t.unsaved:
		return true
	case wanted == (report{}) && t.reported == (report{}):
		return there && since >= refresh // left by a former life of this replica
	case !wanted.sameFacts(t.reported):
		return differsInKind(wanted, t.reported) || since >= p.Count
	}
	return wanted != (report{}) && since >= refresh
}

// differsInKind reports whether two reports differ in more than numbers: in what the conditions say of them.
func differsInKind(a, b report) bool {
	return a.Generation != b.Generation || (a.Proxies == 0) != (b.Proxies == 0) ||
		(a.Rejected == 0) != (b.Rejected == 0) || (a.UpToDate == a.Proxies) != (b.UpToDate == b.Proxies)
}

// expired returns the replicas whose reports are no more believed.
func (t *tracked) expired(expiry time.Duration, now time.Time) []string {
	var out []string
	for id, b := range t.beats {
		if now.Sub(b.since) > expiry {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// wantedVerdict is what the holder of the Lease should write.
func (t *tracked) wantedVerdict(expiry time.Duration, now time.Time) verdict {
	alive := maps.Clone(t.replicas)
	for _, id := range t.expired(expiry, now) {
		delete(alive, id)
	}
	used := accepted(t.facts.Problems)
	v := verdict{}
	if refusals, _, _ := split(t.facts.Problems); len(refusals) > 0 {
		switch {
		case t.valid == "":
			v.lastValid = t.lastValid // what another holder knew
		case len(t.valid) <= maxLastValid:
			v.lastValid = t.valid
		}
	}
	v.conditions = settle(
		[]metav1.Condition{used, programmed(used, t.factsOf, alive)}, t.conditions, t.factsOf, metav1.NewTime(now.UTC().Truncate(time.Second)))
	return v
}

// verdictDue reports whether the verdict is to be written now. One that the API server did not keep as it was
// written is written again only after a while.
func (t *tracked) verdictDue(refresh, expiry time.Duration, now time.Time) bool {
	if t.factsOf == 0 || t.facts.Pending {
		return false
	}
	v := t.wantedVerdict(expiry, now)
	if alike(v.conditions, t.conditions) && v.lastValid == t.lastValid {
		return false
	}
	written := alike(v.conditions, t.verdict.conditions) && v.lastValid == t.verdict.lastValid
	return !written || now.Sub(t.verdictAt) >= refresh
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
