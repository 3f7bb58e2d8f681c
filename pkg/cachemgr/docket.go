package cachemgr

import (
	"slices"

	"github.com/metards/metards/pkg/problem"
)

// standing is whether a variant's table may be served.
type standing int

const (
	passed  standing = iota // as everything is without a gate
	pending                 // it waits for the gate's verdict
	refused
)

// judgement is what the gate says of a table, and its objection: why it is refused, or why it could not be
// judged so far. A refused table that is to be judged again is pending, and the objection stands until then.
type judgement struct {
	standing  standing
	reason    problem.Reason
	objection string
}

// maxVerdicts bounds how many verdicts are remembered, so that a reconnecting proxy causes no run.
const maxVerdicts = 1 << 16

// docket holds the candidates and the verdicts that are known. Without a gate it is nil, and nothing is ever
// kept back. manager.mu is held.
type docket struct {
	waits      chan struct{}         // signalled when take may return something
	candidates map[string]*candidate // by version
	queue      []*candidate          // in the order of their coming; some may be abandoned
	// verdicts by version. When the younger half is full, the older one is forgotten.
	young, old map[string]judgement
}

// candidate is a version that waits for its verdict.
type candidate struct {
	table  *Table
	users  int  // entries that wait for it; without any it is abandoned
	queued bool // else it is being judged, or was put off
	hard   bool // it was put off once, so it is judged alone
	off    bool // it was put off
}

func newDocket() *docket {
	return &docket{
		waits: make(chan struct{}, 1), candidates: map[string]*candidate{},
		young: map[string]judgement{}, old: map[string]judgement{},
	}
}

func (d *docket) signal() {
	select {
	case d.waits <- struct{}{}:
	default:
	}
}

// join notes that an entry waits for a variant's table.
func (d *docket) join(v *variant) {
	if v.standing != pending {
		return
	}
	c := d.candidates[v.table.Version]
	if c == nil {
		c = &candidate{table: v.table, queued: true}
		d.candidates[v.table.Version] = c
		if len(d.queue) > 64+2*len(d.candidates) { // while the gate takes nothing, edits abandon one after the other
			d.queue = slices.DeleteFunc(d.queue, d.abandoned)
		}
		d.queue = append(d.queue, c)
		d.signal()
	}
	c.users++
}

// leave takes back join.
func (d *docket) leave(v *variant) {
	if v.standing != pending {
		return
	}
	c := d.candidates[v.table.Version]
	if c.users--; c.users == 0 {
		delete(d.candidates, v.table.Version)
	}
}

func (d *docket) abandoned(c *candidate) bool { return d.candidates[c.table.Version] != c }

// take returns candidates that entries still wait for: the first, and those after it up to a number and a
// sum of bytes. One that is hard to judge comes alone.
func (d *docket) take(most, bytes int) []*Table {
	var out []*Table
	for ; len(d.queue) > 0 && len(out) < most; d.queue = d.queue[1:] {
		c := d.queue[0]
		if d.abandoned(c) {
			continue
		}
		bytes -= len(c.table.Any.GetValue())
		if len(out) > 0 && (c.hard || bytes < 0) {
			break
		}
		out = append(out, c.table)
		c.queued = false
		if c.hard {
			most = 1
		}
	}
	if len(d.queue) > 0 {
		d.signal()
	}
	return out
}

// giveBack puts back, in front, what was taken and not judged.
func (d *docket) giveBack(list []*Table) {
	var front []*candidate
	for _, t := range list {
		if c := d.candidates[t.Version]; c != nil && !c.queued {
			c.queued = true
			front = append(front, c)
		}
	}
	d.queue = append(front, d.queue...)
	d.signal()
}

// again queues what was put off.
func (d *docket) again() {
	for _, c := range d.candidates {
		if c.off {
			c.off, c.queued = false, true
			d.queue = append(d.queue, c)
			d.signal()
		}
	}
}

// remember keeps the verdict on a version.
func (d *docket) remember(version string, j judgement) {
	if len(d.young) >= maxVerdicts/2 {
		d.young, d.old = map[string]judgement{}, d.young
	}
	d.young[version] = j
}

// known returns the verdict on a version, if it is remembered.
func (d *docket) known(version string) (judgement, bool) {
	if j, ok := d.young[version]; ok {
		return j, true
	}
	j, ok := d.old[version]
	if ok {
		d.remember(version, j)
	}
	return j, ok
}

// forget drops all verdicts.
func (d *docket) forget() {
	d.young, d.old = map[string]judgement{}, map[string]judgement{}
}
