package istiowatch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// wanted is the object as the lists have it: of the first API version whose item can be decoded.
func (it *item) wanted() *mesh.Object {
	var out *mesh.Object
	for _, s := range it.seen {
		if s.object != nil && s.object.Spec != nil {
			return s.object
		}
		if out == nil {
			out = s.object
		}
	}
	return out
}

// willRoute reports whether the service gets a table once an object is delivered. One that cannot be decoded
// leaves the previous version in force.
func (it *item) willRoute(o *mesh.Object) bool {
	if o != nil && o.Spec == nil {
		return it.routed
	}
	return o != nil && routed(o)
}

// deliver notes that the Sink got an object, nil for its deletion.
func (it *item) deliver(o *mesh.Object) {
	it.routed, it.delivered = it.willRoute(o), o
}

// adopt keeps the object that the Sink has in the place of one that is alike.
func (it *item) adopt() {
	for v := range it.seen {
		if alike(it.seen[v].object, it.delivered) {
			it.seen[v].object = it.delivered
		}
	}
}

// difference is what there is to deliver, by key.
type difference struct {
	gains  []string // new, or changed
	losses []string // gone, or a service no more
	before size     // as delivered
	after  size     // as the lists have it
}

// difference compares what is wanted with what is delivered.
func (l *list) difference() difference {
	var d difference
	for key, it := range l.items {
		want := it.wanted()
		routes := it.willRoute(want)
		d.before.count(it.delivered != nil, it.routed)
		d.after.count(want != nil, routes)
		switch {
		case want == it.delivered:
			if want == nil {
				delete(l.items, key)
			}
		case want == nil, it.routed && !routes:
			d.losses = append(d.losses, key)
		case alike(want, it.delivered):
			it.adopt()
		default:
			d.gains = append(d.gains, key)
		}
	}
	slices.Sort(d.gains)
	slices.Sort(d.losses)
	return d
}

// settle delivers what differs, once every API version has answered at all. Nothing is believed gone until
// they all have on this stream: another istiod may serve the objects in another version.
func (l *list) settle(now time.Time) {
	basis := now
	for _, v := range l.versions {
		if v.round == 0 {
			return
		}
		if v.basis.Before(basis) {
			basis = v.basis
		}
	}
	if l.delivered && !l.differs {
		return
	}
	d := l.difference()
	take := d.gains
	waiting := len(d.losses) > 0
	if !l.delivered {
		d.before = l.savedSize()
		waiting = d.before.objects > 0
	}
	if waiting && !basis.IsZero() {
		waiting = !l.suspicion.believes(d.before, d.after, basis, now)
	}
	if waiting && !l.delivered {
		l.reportHeld() // nothing is delivered: a part of a list is no complete one
		return
	}
	if !waiting {
		take = append(take, d.losses...)
		l.suspicion.clear()
	}
	l.differs = waiting
	l.reportHeld()
	l.deliver(take)
}

// savedSize is the size of what an earlier process had.
func (l *list) savedSize() size {
	var out size
	if l.saved != nil {
		for _, o := range l.saved(l.kind) {
			out.count(true, routed(o))
		}
	}
	return out
}

// deliver brings the Sink up to date for some keys; the first time for all.
func (l *list) deliver(keys []string) {
	var b mesh.Batch
	if !l.delivered {
		b.Complete = []mesh.Kind{l.kind}
		l.delivered = true
	}
	for _, key := range keys {
		it := l.items[key]
		want := it.wanted()
		if want == nil {
			b.Deleted = append(b.Deleted, it.delivered.Key)
			delete(l.items, key)
			continue
		}
		it.deliver(want)
		b.Objects = append(b.Objects, want)
	}
	if len(b.Complete)+len(b.Objects)+len(b.Deleted) == 0 {
		return
	}
	// By namespace and name, as the Sink may log in that order.
	slices.SortFunc(b.Objects, func(a, b *mesh.Object) int { return compareKeys(a.Key, b.Key) })
	slices.SortFunc(b.Deleted, compareKeys)
	l.sink.Apply(mesh.MCP, b)
}

func compareKeys(a, b mesh.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// reportHeld brings the board up to date with the suspicion.
func (l *list) reportHeld() {
	var list []problem.Problem
	if s := &l.suspicion; s.held() {
		list = append(list, problem.Problem{
			Severity: problem.Warning, Reason: problem.Ignored,
			Detail: fmt.Sprintf("istiod's list of %ss shrank all at once, from %s to %s: held for %s, until istiod confirms it",
				l.kind, s.before, s.after, s.hold),
			Consequence: "what is missing stays in force",
		})
	}
	l.problems.Set("mcp/held/"+string(l.kind), list)
}
