package istiowatch

import (
	"fmt"
	"time"
)

// size is of a list.
type size struct {
	objects int
	routed  int // services with a MetaProtocol port
}

func (s *size) count(exists, routed bool) {
	if exists {
		s.objects++
	}
	if routed {
		s.routed++
	}
}

func (s size) String() string {
	return fmt.Sprintf("%d (%d of them MetaProtocol services)", s.objects, s.routed)
}

// suspicion decides whether what a list lacks is gone. A server that has just started, or lost its own
// source, has short lists too. So a list that lost everything, or more than half of its MetaProtocol
// services, is held: asked for again at once, in case it was a slip, and once more when the hold is over;
// only the answer to that is believed.
type suspicion struct {
	hold  time.Duration
	since time.Time // zero if there is none
	// before and after are the sizes when it arose.
	before, after size
}

// believes judges a list that lacks something. basis is when that was asked for which it answers.
func (s *suspicion) believes(before, after size, basis, now time.Time) bool {
	if after.objects > 0 && 2*after.routed >= before.routed {
		return true
	}
	if !s.held() {
		s.since, s.before, s.after = now, before, after
	}
	return !basis.Before(s.since.Add(s.hold))
}

func (s *suspicion) held() bool { return !s.since.IsZero() }

func (s *suspicion) clear() { s.since = time.Time{} }

// due is when to ask again, where the last answer was to a question of the time basis; zero if there is no need.
func (s *suspicion) due(basis time.Time) time.Time {
	switch end := s.since.Add(s.hold); {
	case !s.held(), !basis.Before(end):
		return time.Time{}
	case basis.Before(s.since):
		return s.since
	default:
		return end
	}
}
