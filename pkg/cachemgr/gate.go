package cachemgr

import (
	"fmt"

	"github.com/metards/metards/pkg/problem"
)

// The methods below are for the gate of a Manager that is Gated: they hand out candidates, the Tables that
// are kept back, and take the verdicts on them. A candidate that an edit has superseded is never handed out,
// and a verdict on it changes nothing.

// Waiting is signalled when Unjudged may return something. It has one consumer.
func (m *Manager) Waiting() <-chan struct{} { return m.docket.waits }

// Unjudged takes candidates, longest waiting first: at most so many, and of so many bytes together if it is
// more than one. Each has to come back by Judged, PutOff or GiveBack.
func (m *Manager) Unjudged(most, bytes int) []*Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.docket.take(most, bytes)
}

// Candidates returns how many versions wait for a verdict.
func (m *Manager) Candidates() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.docket.candidates)
}

// Pass serves Tables to those who wait for them. Between them the lock is free.
func (m *Manager) Pass(tables []*Table) {
	defer m.factsChanged()
	var changed []string
	for _, t := range tables {
		m.mu.Lock()
		if m.judged(t, judgement{}) {
			changed = append(changed, t.Name.Name)
		}
		m.mu.Unlock()
	}
	m.logChanged(changed)
}

// Refuse keeps a Table from being served, for a reason that becomes a Problem.
func (m *Manager) Refuse(t *Table, objection string) {
	defer m.factsChanged()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judged(t, judgement{refused, problem.RefusedByEnvoy, objection})
}

// PutOff keeps a Table waiting until Again, for a reason that becomes a Problem: it alone could not be judged.
func (m *Manager) PutOff(t *Table, objection string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.docket.candidates[t.Version]; c != nil && !c.queued {
		c.hard, c.off = true, true
	}
	for _, f := range m.familiesOf(t) {
		for _, v := range f.pending(t) {
			v.reason, v.objection = problem.Unjudged, objection
		}
		m.settle(f)
	}
}

// Again lets everything that was put off be taken once more.
func (m *Manager) Again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.docket.again()
}

// GiveBack returns candidates that were taken and could not be judged, as nothing can.
func (m *Manager) GiveBack(tables []*Table) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.docket.giveBack(tables)
}

// Forget drops all verdicts. What is served stays, what was refused is a candidate again.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.docket.forget()
	for _, f := range m.families {
		for _, v := range f.variants {
			if v.standing != refused {
				continue
			}
			v.standing = pending
			for range v.users {
				m.docket.join(v)
			}
		}
	}
}

// judged gives the verdict on a Table to all entries that wait for it, and reports whether one of them had
// another table before. m.mu is held.
func (m *Manager) judged(t *Table, j judgement) (differs bool) {
	m.docket.remember(t.Version, j)
	for _, f := range m.familiesOf(t) {
		for _, v := range f.pending(t) {
			for range v.users {
				m.docket.leave(v)
			}
			v.judgement = j
			for _, e := range f.entries {
				if e.variant == v {
					had := e.served != nil
					differs = e.serve() && had || differs
				}
			}
		}
		m.settle(f)
	}
	return differs
}

// familiesOf returns the families of a Table's name.
func (m *Manager) familiesOf(t *Table) []*family {
	var out []*family
	for _, gateway := range []bool{false, true} {
		if f := m.families[familyKey{t.Name, gateway}]; f != nil {
			out = append(out, f)
		}
	}
	return out
}

// pending returns the variants that wait for the verdict on a Table.
func (f *family) pending(t *Table) []*variant {
	var out []*variant
	for _, v := range f.variants {
		if v.standing == pending && v.table.Version == t.Version {
			out = append(out, v)
		}
	}
	return out
}

// standing returns what is known of a table that was compiled for an entry. What is served has passed.
func (m *Manager) standing(e *entry, t *Table) judgement {
	if m.docket == nil || e.served != nil && e.served.Version == t.Version {
		return judgement{}
	}
	for _, v := range e.family.variants {
		if v.table != nil && v.table.Version == t.Version {
			return v.judgement
		}
	}
	if j, ok := m.docket.known(t.Version); ok {
		return j
	}
	return judgement{standing: pending}
}

// objections returns the Problem that the gate makes of a variant, if it makes one.
func (f *family) objections(v *variant) []problem.Problem {
	if v.objection == "" {
		return nil
	}
	p := problem.Problem{
		Severity: problem.Error, Object: v.table.Plan.MetaRouter, Reason: v.reason,
		Detail:      fmt.Sprintf("Envoy refuses the table %s: %s", f.Name.Name, v.objection),
		Consequence: "the table that was served before stays",
	}
	if v.reason == problem.Unjudged {
		p.Detail = fmt.Sprintf("Envoy could not judge the table %s, and is asked again: %s", f.Name.Name, v.objection)
	}
	had, bare := false, false
	for _, e := range f.entries {
		if e.variant == v {
			had, bare = had || e.served != nil, bare || e.served == nil
		}
	}
	switch {
	case had && bare:
		p.Consequence = "where a table was served before it stays, elsewhere nothing is served under this name"
	case bare:
		p.Consequence = "nothing is served under this name"
	}
	return []problem.Problem{p}
}
