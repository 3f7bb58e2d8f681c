package istiowatch

import (
	"math/rand/v2"
	"time"
)

// slowFrom is where the pauses begin after a failure that only a person can end.
const slowFrom = 10 * time.Second

// backoff yields the pauses between connections: each between min and max, and about twice the one before.
type backoff struct {
	min, max time.Duration
	bound    time.Duration // upper bound of the pause before; zero at first
}

// next returns the next pause. The lower half of its range is left out, so that it grows, and the upper is
// random, so that replicas do not come back in step.
func (b *backoff) next(slow bool) time.Duration {
	b.bound *= 2
	if b.bound == 0 {
		b.bound = 2 * b.min
	}
	if slow {
		b.bound = max(b.bound, slowFrom)
	}
	b.bound = min(b.bound, b.max)
	low := max(b.bound/2, b.min)
	return low + rand.N(b.bound-low+1)
}

// reset starts over. Only a good response is a reason: a server that accepts connections and refuses
// requests would otherwise be asked twice a second for ever.
func (b *backoff) reset() { b.bound = 0 }
