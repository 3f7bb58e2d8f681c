package cachemgr

import (
	"cmp"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// familyKey is a name as sidecars, or as gateways, ask for it. The Views within a family differ in their
// namespace only.
type familyKey struct {
	Name
	gateway bool
}

// family holds the Tables of one name: most often the same one for every namespace.
type family struct {
	familyKey
	entries  map[string]*entry // by namespace
	variants []*variant        // in use, each once
	hosts    []string          // folded hosts that any variant looked at
}

// variant is the outcome of one compilation, for every View that sees the same inputs.
type variant struct {
	table    *Table     // nil if the name is not known
	trace    mesh.Trace // what it was compiled from
	problems []problem.Problem
	kept     bool // the compilation failed, table is what the View had before
	users    int  // entries that have it
	judgement
}

// entry is one name as one View sees it.
type entry struct {
	family      *family
	view        mesh.View
	variant     *variant // what the View's inputs give; nil before there is truth
	served      *Table   // the variant's table, or the one before it while the gate keeps that back
	subscribers map[*subscription]struct{}
}

// wanted is the table that the View's inputs give, served or not.
func (e *entry) wanted() *Table {
	if e.variant == nil {
		return nil
	}
	return e.variant.table
}

// keptBack reports whether wanted is not served.
func (e *entry) keptBack() bool { return e.variant != nil && e.variant.standing != passed }

// use exchanges an entry's variant; nil is none. m.mu is held.
func (m *Manager) use(e *entry, v *variant) {
	if v != nil {
		v.users++
		m.docket.join(v)
	}
	if e.variant != nil {
		e.variant.users--
		m.docket.leave(e.variant)
	}
	e.variant = v
}

// refresh brings all entries of a family up to date and wakes the subscribers of those whose bytes
// differ. m.mu is held.
func (m *Manager) refresh(f *family) (differs bool) {
	for _, e := range f.sorted() {
		differs = m.update(e) || differs
	}
	m.settle(f)
	return differs
}

// update gives an entry the variant for what its View sees now, and reports whether its table differs. settle
// has to follow where the variant was not in use before, or where the one before is not any more. m.mu is held.
func (m *Manager) update(e *entry) (differs bool) {
	m.use(e, m.variantFor(e))
	return e.serve()
}

// serve makes the variant's table the one that is served, unless the gate keeps it back.
func (e *entry) serve() (differs bool) {
	before, after := e.served, e.variant.table
	if e.keptBack() {
		return false
	}
	e.served = after
	if after == nil || before != nil && before.Version == after.Version {
		return before != nil && after == nil
	}
	for s := range e.subscribers {
		s.enqueue()
		s.stream.wake()
	}
	return true
}

// variantFor finds the variant that was compiled from what the View sees now, or compiles it.
func (m *Manager) variantFor(e *entry) *variant {
	var out *variant
	m.store.Read(e.view, func(l *mesh.Lens) {
		for _, v := range e.family.variants {
			if !v.kept && l.Same(v.trace) {
				out = v
				return
			}
		}
		out = m.compile(e, l)
		e.family.variants = append(e.family.variants, out)
	})
	return out
}

// compile makes the variant of an entry. A failure is a Problem, and leaves the entry's table as it was.
func (m *Manager) compile(e *entry, l *mesh.Lens) (v *variant) {
	m.metrics.compilations.Inc()
	v = &variant{table: e.served, trace: l.Trace()}
	var plan *routes.Plan
	defer func() {
		if r := recover(); r != nil {
			v.kept = true
			v.problems = []problem.Problem{m.internal(e, plan, fmt.Sprintf("compiling the table of %s failed: %v", e.family.Name.Name, r))}
			m.log.Error("compiler panic", "name", e.family.Name.Name, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	plan, v.problems = m.compiler(l, e.family.Name.Name)
	if plan == nil {
		v.table = nil
		return v
	}
	table, err := newTable(e.family.Name, plan, m.spellings[e.family.Type])
	if err != nil {
		v.kept = true
		v.problems = append(v.problems, m.internal(e, plan, err.Error()))
		return v
	}
	v.table = m.shared(e, table)
	v.judgement = m.standing(e, v.table)
	return v
}

// shared returns a known table with the same bytes and the same Plan, or the new one. Two MetaRouters may have the same
// bytes: then only these are shared, and each is told about its own table.
func (m *Manager) shared(e *entry, t *Table) *Table {
	known := make([]*Table, 0, len(e.family.variants)+1)
	for _, v := range e.family.variants {
		known = append(known, v.table)
	}
	for _, k := range append(known, e.served) {
		switch {
		case k == nil || k.Version != t.Version:
		case reflect.DeepEqual(k.Plan, t.Plan):
			return k
		default:
			t.Any = k.Any
		}
	}
	return t
}

func (m *Manager) internal(e *entry, p *routes.Plan, detail string) problem.Problem {
	out := problem.Problem{
		Severity: problem.Error, Reason: problem.Internal, Detail: detail,
		Consequence: "the table that was served before stays",
	}
	if p != nil {
		out.Object = p.MetaRouter
	}
	if e.served == nil {
		out.Consequence = "nothing is served under this name"
	}
	return out
}

// settle renews what is derived from a family's variants: which are in use, the index by host, and the
// Problems. m.mu is held.
func (m *Manager) settle(f *family) {
	var problems []problem.Problem
	hosts := map[string]struct{}{}
	f.variants = slices.DeleteFunc(f.variants, func(v *variant) bool { return v.users == 0 })
	for _, v := range f.variants {
		problems = append(problems, v.problems...)
		problems = append(problems, f.objections(v)...)
		for _, h := range v.trace.Hosts() {
			hosts[h] = struct{}{}
		}
	}
	m.unindex(f)
	f.hosts = make([]string, 0, len(hosts))
	for h := range hosts {
		f.hosts = append(f.hosts, h)
		if m.byHost[h] == nil {
			m.byHost[h] = map[*family]struct{}{}
		}
		m.byHost[h][f] = struct{}{}
	}
	m.problems.Set(f.owner(), problems)
}

func (m *Manager) unindex(f *family) {
	for _, h := range f.hosts {
		delete(m.byHost[h], f)
		if len(m.byHost[h]) == 0 {
			delete(m.byHost, h)
		}
	}
	f.hosts = nil
}

func (f *family) sorted() []*entry {
	out := make([]*entry, 0, len(f.entries))
	for _, e := range f.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *entry) int { return cmp.Compare(a.view.Namespace, b.view.Namespace) })
	return out
}

func (f *family) owner() string { return fmt.Sprintf("table/%s/%s/%t", f.Type, f.Name.Name, f.gateway) }
