package kubewatch

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// intake is the store that the reflector fills. It passes everything on and keeps nothing but names.
type intake struct {
	w      *Watcher
	relist func() // ends the watch that follows
}

// Replace takes in a complete list.
func (i intake) Replace(list []any, _ string) error {
	objects := make([]*unstructured.Unstructured, 0, len(list))
	for _, item := range list {
		if u, ok := item.(*unstructured.Unstructured); ok && i.w.ours(u) {
			objects = append(objects, u)
		}
	}
	i.w.replace(objects, i.relist)
	return nil
}

// Add takes in an object that is new.
func (i intake) Add(object any) error { return i.Update(object) }

// Update takes in a version of an object.
func (i intake) Update(object any) error {
	u, ok := object.(*unstructured.Unstructured)
	switch {
	case !ok:
	case i.w.ours(u):
		i.w.update(u)
	default: // it may have been ours before
		i.w.remove(keyOf(u))
	}
	return nil
}

// Delete takes in that an object is gone.
func (i intake) Delete(object any) error {
	if u, ok := object.(*unstructured.Unstructured); ok {
		i.w.remove(keyOf(u))
	}
	return nil
}

// Bookmark takes in that nothing happened.
func (i intake) Bookmark(string) error {
	i.w.health.contact(time.Now())
	return nil
}

// Resync has nothing to do.
func (intake) Resync() error { return nil }

func (w *Watcher) replace(list []*unstructured.Unstructured, relist func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.relist = relist
	batch := mesh.Batch{}
	if !w.ledger.delivered {
		batch.Complete = []mesh.Kind{mesh.KindMetaRouter}
	}
	keys := make([]mesh.Key, 0, len(list))
	for _, u := range list {
		keys = append(keys, keyOf(u))
		batch.Objects = append(batch.Objects, w.versions(u)...)
	}
	w.missing = false
	w.ledger.list(keys, w.listed, now)
	if len(batch.Objects)+len(batch.Complete) > 0 {
		w.options.Sink.Apply(mesh.Kubernetes, batch)
	}
	w.health.contact(now)
	w.health.synced()
	if w.options.Observer != nil {
		for _, u := range list {
			w.options.Observer.Seen(u)
		}
		for k := range w.ledger.absent {
			w.options.Observer.Gone(k)
		}
	}
	w.note()
}

func (w *Watcher) update(u *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	objects := w.versions(u)
	w.ledger.put(keyOf(u), now)
	w.options.Sink.Apply(mesh.Kubernetes, mesh.Batch{Objects: objects})
	w.health.contact(now)
	if w.options.Observer != nil {
		w.options.Observer.Seen(u)
	}
	w.note()
}

func (w *Watcher) remove(k mesh.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.ledger.remove(k, now)
	w.health.contact(now)
	if w.options.Observer != nil {
		w.options.Observer.Gone(k)
	}
	w.note()
}

// ours reports whether an object is for our revision.
func (w *Watcher) ours(u *unstructured.Unstructured) bool {
	return mesh.OfRevision(u.GetLabels()[mesh.RevisionLabel], w.options.Revision)
}

// keyOf returns the key as the decoder makes it.
func keyOf(u *unstructured.Unstructured) mesh.Key {
	k := mesh.Key{Kind: mesh.KindMetaRouter, Namespace: u.GetNamespace(), Name: u.GetName()}
	if k.Namespace == "" {
		k.Namespace = mesh.DefaultNamespace
	}
	return k
}

// versions returns the object as the Sink should take it in: after its last valid version, if the status has
// one and the Sink has none; a refused object is served alike by a replica that never saw better times. It may
// change the spec. w.mu is held.
func (w *Watcher) versions(u *unstructured.Unstructured) []*mesh.Object {
	var out []*mesh.Object
	if stored, ok := kubeclient.LastValid(u); ok && w.needsValid(keyOf(u)) {
		o, err := mesh.Decode(map[string]any{
			"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": u.Object["metadata"], "spec": runtime.DeepCopyJSON(stored),
		})
		if err == nil && o.Spec != nil && !problem.HasError(o.Faults) {
			out = append(out, o)
		}
	}
	return append(out, decode(u))
}

func (w *Watcher) needsValid(k mesh.Key) bool {
	if w.options.HasValid != nil {
		return !w.options.HasValid(k)
	}
	_, known := w.ledger.objects[k]
	return !known
}

// decode always returns an object, so that one that cannot be understood does not look deleted.
func decode(u *unstructured.Unstructured) *mesh.Object {
	o, err := mesh.Decode(u.Object)
	if err == nil && o.Key == keyOf(u) {
		return o
	}
	o = &mesh.Object{Key: keyOf(u)}
	detail := "it is not a MetaRouter"
	if err != nil {
		detail = err.Error()
	}
	o.Faults = []problem.Problem{{Severity: problem.Error, Object: o.Ref(), Reason: problem.Undecodable, Detail: detail}}
	return o
}
