package kubestatus

import (
	"context"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/mesh"
)

// task is what to write.
type task string

const (
	taskReport  task = "report"
	taskVerdict task = "conditions"
	taskExpire  task = "expiry"
)

// item is one thing to write: the queue holds each once.
type item struct {
	key  mesh.Key
	task task
}

// managerLeader is the field manager of conditions, whoever holds the Lease. Reports have one per replica.
const managerLeader = "metards"

// timeFormat is RFC 3339, fine enough that no two reports have the same time.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func managerOf(replica string) string { return bounded("metards-"+replica, 128) }

// write does what is in the queue, one after the other, until the queue is shut down.
func (w *Writer) write(ctx context.Context) {
	for {
		i, end := w.queue.Get()
		if end {
			return
		}
		if ctx.Err() == nil {
			w.do(ctx, i)
		}
		w.queue.Done(i)
	}
}

// do writes one thing if it is still due.
func (w *Writer) do(ctx context.Context, i item) {
	p := w.prepare(i)
	if p == nil {
		w.queue.Forget(i)
		return
	}
	err := w.send(ctx, i.key, p)
	switch {
	case err == nil, isGone(err, i.key.Name):
		w.trouble.set(ownerStatus, "patch", nil, "")
		w.options.Metrics.writes.WithLabelValues(string(i.task), resultWritten).Inc()
		w.queue.Forget(i)
	case ctx.Err() != nil:
	default:
		w.options.Metrics.writes.WithLabelValues(string(i.task), resultFailed).Inc()
		if !apierrors.IsConflict(err) {
			w.trouble.set(ownerStatus, "patch", w.explain(err, kubeclient.Access{Verb: "patch", Resource: "metarouters.metaprotocol.aeraki.io/status"}),
				"the status of MetaRouters is out of date; tables are not affected")
		}
		w.failed(i)
		w.queue.AddRateLimited(i)
	}
}

// isGone reports whether the API server says that it has no object of a name, as happens to one just deleted.
func isGone(err error, name string) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Name == name
}

// patch is a change of a status.
type patch struct {
	kind    types.PatchType
	manager string
	uid     string
	status  map[string]any
}

// prepare makes the patch of an item and notes it as written, nil if there is nothing to write any more.
func (w *Writer) prepare(i item) *patch {
	now := time.Now()
	leads := w.leadership.held()
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.objects[i.key]
	refresh, expiry := w.periods()
	switch {
	case t == nil:
	case i.task == taskReport && t.reportDue(w.options.Replica, w.options.Pauses, refresh, now):
		r := t.ownReport()
		if r != (report{}) {
			r.At = now.UTC().Format(timeFormat)
		}
		t.reported, t.reportedAt, t.unsaved = r, now, false
		return w.reportPatch(t.uid, r)
	case i.task == taskVerdict && leads && t.verdictDue(refresh, expiry, now):
		t.verdict, t.verdictAt = t.wantedVerdict(expiry, now), now
		return verdictPatch(t.uid, t.verdict)
	case i.task == taskExpire && leads && len(t.expired(expiry, now)) > 0:
		gone := map[string]any{}
		for _, id := range t.expired(expiry, now) {
			gone[id] = nil
		}
		// Applying cannot remove what others applied, merging can. A replica that lives after all comes back.
		return &patch{kind: types.MergePatchType, manager: managerLeader, status: map[string]any{"replicas": gone}}
	}
	return nil
}

// reportPatch applies a report, or withdraws it if it is the zero report.
func (w *Writer) reportPatch(uid string, r report) *patch {
	p := &patch{kind: types.ApplyPatchType, manager: managerOf(w.options.Replica), uid: uid, status: map[string]any{}}
	if r != (report{}) {
		p.status["replicas"] = map[string]any{w.options.Replica: r}
	}
	return p
}

func verdictPatch(uid string, v verdict) *patch {
	p := &patch{kind: types.ApplyPatchType, manager: managerLeader, uid: uid, status: map[string]any{"conditions": v.conditions}}
	if v.lastValid != "" {
		p.status[kubeclient.FieldLastValid] = json.RawMessage(v.lastValid)
	}
	return p
}

// failed takes back that an item counts as written.
func (w *Writer) failed(i item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.objects[i.key]
	switch {
	case t == nil:
	case i.task == taskReport:
		t.unsaved = true
	case i.task == taskVerdict:
		t.verdict, t.verdictAt = verdict{}, time.Time{}
	}
}

// send sends a patch to the status of an object.
func (w *Writer) send(ctx context.Context, k mesh.Key, p *patch) error {
	ctx, cancel := context.WithTimeout(ctx, kubeclient.RequestTimeout)
	defer cancel()
	tree := map[string]any{"status": p.status}
	options := metav1.PatchOptions{FieldManager: p.manager}
	if p.kind == types.ApplyPatchType {
		force := true
		options.Force = &force
		meta := map[string]any{"name": k.Name, "namespace": k.Namespace}
		if p.uid != "" { // not another object of the same name
			meta["uid"] = p.uid
		}
		tree["apiVersion"], tree["kind"], tree["metadata"] = kubeclient.MetaRouters.GroupVersion().String(), string(k.Kind), meta
	}
	body, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	_, err = w.routers.Namespace(k.Namespace).Patch(ctx, k.Name, p.kind, body, options, "status")
	return err
}

// farewell withdraws the reports of this replica, as many as there is time for; the rest expires. Its proxies
// go to other replicas, and would be counted twice until then.
func (w *Writer) farewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.options.Pauses.Farewell)
	defer cancel()
	for k, uid := range w.reports() {
		if err := w.send(ctx, k, w.reportPatch(uid, report{})); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			w.options.Log.Debug("reports of this replica are left to expire", "error", err)
			return
		}
	}
}

// reports returns the objects, with their UIDs, that have a report of this replica.
func (w *Writer) reports() map[mesh.Key]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[mesh.Key]string{}
	for k, t := range w.objects {
		if _, there := t.replicas[w.options.Replica]; there || t.reported != (report{}) {
			out[k] = t.uid
		}
	}
	return out
}
