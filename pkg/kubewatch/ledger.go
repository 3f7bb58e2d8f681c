package kubewatch

import (
	"time"

	"github.com/metards/metards/pkg/mesh"
)

// phase tells what the absence of an object means.
type phase int

const (
	// settled: the CRD is the one that the objects came with. An object that is absent was deleted.
	settled phase = iota
	// away: the CRD is gone or going, or another one has come whose list was not seen yet. Absence means nothing.
	away
	// back: the CRD was away and its list was seen. Objects that did not come back with it are held for a while.
	back
)

// ledger holds which objects the Sink was given, and which of them the API server does not have any more. It
// decides when to ask about the CRD, and what to believe then:
//
//	phase    the CRD is     absent objects are
//	settled  there          deleted
//	any      gone, going    held (away)
//	any      another one    held (away), and a new list is due
//	away     there          held, and a new list is due; once seen: back
//	back     there          held until some time after the last one came back, then deleted (settled)
type ledger struct {
	pauses Pauses

	delivered bool // the Sink was given a complete list
	objects   map[mesh.Key]struct{}
	absent    map[mesh.Key]uint64 // the part of objects that the API server does not have, each with its mark
	marks     uint64
	phase     phase
	uid       string    // of the CRD that the objects came with, empty if unknown
	due       time.Time // when to ask about the CRD, zero if there is no reason to
}

func newLedger(p Pauses) *ledger {
	return &ledger{pauses: p, objects: map[mesh.Key]struct{}{}, absent: map[mesh.Key]uint64{}}
}

// list takes in a complete list; c is what was known of the CRD just before.
func (l *ledger) list(keys []mesh.Key, c crd, now time.Time) {
	first := !l.delivered
	l.delivered = true
	present := make(map[mesh.Key]struct{}, len(keys))
	for _, k := range keys {
		present[k] = struct{}{}
		l.objects[k] = struct{}{}
		delete(l.absent, k)
	}
	l.marks++
	for k := range l.objects {
		if _, ok := present[k]; !ok {
			l.absent[k] = l.marks
		}
	}
	switch {
	case c.state == crdGoing:
		l.phase = away
	case l.phase == away, !first && c.differs(l.uid):
		l.phase = back
		l.due = now.Add(l.pauses.Hold)
	}
	if c.state != crdGoing && (c.uid != "" || l.phase != settled) {
		l.uid = c.uid
	}
	l.schedule(now)
}

// put takes in that an object is there.
func (l *ledger) put(k mesh.Key, now time.Time) {
	l.objects[k] = struct{}{}
	if _, ok := l.absent[k]; !ok {
		return
	}
	delete(l.absent, k)
	if l.phase == back { // somebody is applying them again
		l.due = now.Add(l.pauses.Hold)
	}
	l.schedule(now)
}

// remove takes in that the API server has an object no more.
func (l *ledger) remove(k mesh.Key, now time.Time) {
	if _, ok := l.objects[k]; !ok {
		return
	}
	l.marks++
	l.absent[k] = l.marks
	l.schedule(now)
}

// missing takes in that a list failed because there is no CRD. Lists will tell when there is one.
func (l *ledger) missing() {
	l.delivered, l.phase, l.due = true, away, time.Time{}
}

// checked takes in what was found out about the CRD after the given mark was the latest. It returns the
// objects that are believed deleted, and whether a new list is needed.
func (l *ledger) checked(c crd, mark uint64, now time.Time) (deleted []mesh.Key, relist bool) {
	until := l.due
	l.due = now.Add(l.pauses.CRD)
	switch {
	case c.state != crdThere:
		l.phase = away
	case l.phase == away, c.differs(l.uid):
		l.phase, relist = away, true
	case l.phase == back && now.Before(until): // one came back meanwhile
		l.due = until
	default:
		deleted = l.believe(mark)
		if l.uid == "" {
			l.uid = c.uid
		}
		l.phase, l.due = settled, time.Time{}
	}
	l.schedule(now)
	return deleted, relist
}

// believe forgets the objects that were absent at the time of a mark, and returns them.
func (l *ledger) believe(mark uint64) []mesh.Key {
	var out []mesh.Key
	for k, at := range l.absent {
		if at <= mark {
			delete(l.absent, k)
			delete(l.objects, k)
			out = append(out, k)
		}
	}
	return out
}

// unknown takes in that nothing could be found out about the CRD.
func (l *ledger) unknown(now time.Time) { l.due = now.Add(l.pauses.CRD) }

// schedule sets due to what the phase asks for.
func (l *ledger) schedule(now time.Time) {
	if l.phase == back && len(l.absent) == 0 {
		l.phase = settled
	}
	switch {
	case l.phase == settled && len(l.absent) == 0:
		l.due = time.Time{}
	case l.phase == settled && l.due.IsZero():
		l.due = now.Add(l.pauses.Batch)
	case l.phase == away && l.due.Before(now):
		l.due = now.Add(l.pauses.CRD)
	}
}

// held returns how many objects stay in force although the API server does not have them.
func (l *ledger) held() int {
	if l.phase == settled {
		return 0
	}
	return len(l.absent)
}
