package istiowatch

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// maxVersions is of API versions of one kind.
const maxVersions = 2

// list is what istiod has of one kind: the union of the lists of the kind's API versions, since an istiod
// has its objects in one of them and answers the other with an empty list. It keeps of each object a hash and
// a pointer that it shares with the Sink.
type list struct {
	kind     mesh.Kind
	revision string
	sink     Sink
	problems *problem.Board
	log      *slog.Logger
	saved    func(mesh.Kind) []*mesh.Object // what an earlier process had; may be nil

	versions  []version
	items     map[string]*item // by NAMESPACE/NAME, as far as that is unique
	suspicion suspicion
	delivered bool // the first complete list was
	differs   bool // what is wanted may differ from what is delivered
}

// version is one API version of the kind; the one that counts most is first.
type version struct {
	typeURL string
	round   uint32 // number of the list received last
	items   int    // that it has
	// basis is when that was asked for which the latest list answers or follows; zero if there was no answer
	// on the current stream.
	basis time.Time
}

// item is what is known of one object.
type item struct {
	seen      [maxVersions]sighting
	delivered *mesh.Object // nil if the Sink does not have it
	routed    bool         // of the latest decodable version that was delivered
}

// sighting is an object as the list of one API version has it.
type sighting struct {
	round  uint32
	hash   uint64
	object *mesh.Object // nil if it is not in the list
}

// verdict is what there is to say of one response.
type verdict struct {
	faulty     int    // items that were not understood
	unreadable int    // of them those that may be any object
	complaint  string // about one of them, the same whatever their order
}

func (v *verdict) add(complaint string) {
	v.faulty++
	if v.complaint == "" || complaint < v.complaint {
		v.complaint = complaint
	}
}

func newList(kind mesh.Kind, o *Options, typeURLs ...string) *list {
	l := &list{
		kind: kind, revision: o.Revision, sink: o.Sink, problems: o.Problems, log: o.Log, items: map[string]*item{},
		saved: o.Saved, suspicion: suspicion{hold: o.Hold},
	}
	for _, t := range typeURLs {
		l.versions = append(l.versions, version{typeURL: t})
	}
	return l
}

// take takes in the complete list of one API version and delivers what differs. basis is when it was asked
// for, or an earlier list that it follows.
func (l *list) take(v int, resources []*anypb.Any, basis, now time.Time) verdict {
	verdict := l.note(v, resources)
	l.versions[v].basis = basis
	l.settle(now)
	return verdict
}

// newStream forgets what the server of the last stream answered, but not what it said.
func (l *list) newStream() {
	for v := range l.versions {
		l.versions[v].basis = time.Time{}
	}
}

// due is when one API version must be asked for again to end a suspicion; zero if there is no need.
func (l *list) due(v int) time.Time { return l.suspicion.due(l.versions[v].basis) }

// note brings the sightings up to date with the list of one API version.
func (l *list) note(v int, resources []*anypb.Any) verdict {
	ver := &l.versions[v]
	ver.round++
	glances, out := l.glances(v, resources)
	twins := l.mark(v, glances)
	seen, fresh := 0, 0
	see := func(key string, it *item, g *glance) {
		s := &it.seen[v]
		seen++
		if s.object == nil {
			fresh++
		}
		l.see(v, key, s, g)
		if s.object.Spec == nil {
			out.add(fmt.Sprintf("%s: %s", s.object.Ref(), s.object.Faults[0].Detail))
		}
	}
	for i := range glances {
		g := &glances[i]
		if _, twin := twins[string(g.name)]; !twin {
			see("", l.items[string(g.name)], g)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(twins)) {
		for key, g := range l.rename(v, name, twins[name]) {
			see(key, l.items[key], g)
		}
	}
	ver.items += fresh
	if ver.items > seen && out.unreadable == 0 { // an item without a name might be any that is missing
		l.sweep(v)
		ver.items = seen
	}
	return out
}

// glances looks at all items and leaves out those of other revisions.
func (l *list) glances(v int, resources []*anypb.Any) ([]glance, verdict) {
	out := make([]glance, 0, len(resources))
	var bad verdict
	for _, r := range resources {
		g, err := look(r)
		switch {
		case err != nil:
			bad.add(err.Error())
			bad.unreadable++
		case mesh.OfRevision(string(g.revision), l.revision):
			out = append(out, g)
		}
	}
	l.reportUnreadable(l.versions[v].typeURL, bad)
	return out, bad
}

func (l *list) reportUnreadable(typeURL string, bad verdict) {
	var list []problem.Problem
	if bad.faulty > 0 {
		list = append(list, problem.Problem{
			Severity: problem.Error, Reason: problem.Undecodable,
			Detail:      fmt.Sprintf("istiod's list %s has items that cannot be told apart: %s", typeURL, bad.complaint),
			Consequence: "nothing that is missing in that list is taken for deleted",
		})
	}
	l.problems.Set("mcp/items/"+typeURL, list)
}

// mark notes which names are in the list, and returns those that are there more than once.
func (l *list) mark(v int, glances []glance) map[string][]*glance {
	var twins map[string][]*glance
	for i := range glances {
		name := glances[i].name
		it := l.items[string(name)]
		if it == nil {
			it = &item{}
			l.items[string(name)] = it
		}
		if it.seen[v].round == l.versions[v].round {
			if twins == nil {
				twins = map[string][]*glance{}
			}
			twins[string(name)] = nil
		}
		it.seen[v].round = l.versions[v].round
	}
	for i := range glances {
		if _, twin := twins[string(glances[i].name)]; twin {
			twins[string(glances[i].name)] = append(twins[string(glances[i].name)], &glances[i])
		}
	}
	return twins
}

// rename gives objects of one name different ones, whatever their order: a Service has a twin of the same
// name with host *.clusterset.local where istiod supports several clusters. The first by host keeps its name.
func (l *list) rename(v int, name string, twins []*glance) map[string]*glance {
	slices.SortFunc(twins, func(a, b *glance) int {
		return cmp.Or(bytes.Compare(a.firstHost(), b.firstHost()), bytes.Compare(a.body, b.body))
	})
	out := map[string]*glance{name: twins[0]}
	for _, g := range twins[1:] {
		base := name + "#" + strings.ToValidUTF8(string(g.firstHost()), "?")
		key := base
		for n := 2; out[key] != nil; n++ {
			key = fmt.Sprintf("%s#%d", base, n)
		}
		out[key] = g
		if l.items[key] == nil {
			l.items[key] = &item{}
		}
		l.items[key].seen[v].round = l.versions[v].round
	}
	return out
}

// see takes in one item, decoding it if it differs. An empty key is the item's name.
func (l *list) see(v int, key string, s *sighting, g *glance) {
	hash := g.hash()
	if s.object != nil && s.hash == hash {
		return
	}
	s.hash = hash
	namespace, name, _ := strings.Cut(cmp.Or(key, string(g.name)), "/")
	object := decode(mesh.Key{Kind: l.kind, Namespace: namespace, Name: name}, l.versions[v].typeURL, g)
	if !alike(s.object, object) {
		s.object, l.differs = object, true
	}
}

// sweep forgets what was not in the latest list of one API version.
func (l *list) sweep(v int) {
	for _, it := range l.items {
		if s := &it.seen[v]; s.object != nil && s.round != l.versions[v].round {
			*s = sighting{}
			l.differs = true
		}
	}
}
