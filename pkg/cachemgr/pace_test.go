package cachemgr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// returns runs next in a bubble of its own clock and returns when its n calls returned, counted from the
// start, where changes come at the given times.
func returns(t *testing.T, p pace, n int, changes ...time.Duration) []time.Duration {
	t.Helper()
	var out []time.Duration
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		changed := make(chan struct{}, 1)
		for _, at := range changes {
			time.AfterFunc(at, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
		}
		for range n {
			if !p.next(t.Context(), changed) {
				t.Fatal("next says that the context has ended")
			}
			out = append(out, time.Since(began))
		}
	})
	return out
}

func TestChangesAreCoalesced(t *testing.T) {
	const ms = time.Millisecond
	p := pace{quiet: 100 * ms, max: 1000 * ms}
	lasting := make([]time.Duration, 60)
	for i := range lasting {
		lasting[i] = 500*ms + time.Duration(i)*51*ms
	}
	cases := map[string]struct {
		changes []time.Duration
		want    []time.Duration
	}{
		"the first after calm goes out at once":          {[]time.Duration{500 * ms}, []time.Duration{500 * ms}},
		"a second one soon after waits for quiet":        {[]time.Duration{500 * ms, 520 * ms}, []time.Duration{500 * ms, 620 * ms}},
		"each further one prolongs the quiet period":     {[]time.Duration{500 * ms, 520 * ms, 580 * ms, 650 * ms}, []time.Duration{500 * ms, 750 * ms}},
		"a second one after calm goes out at once":       {[]time.Duration{500 * ms, 700 * ms}, []time.Duration{500 * ms, 700 * ms}},
		"under lasting changes the maximum delay counts": {lasting, []time.Duration{500 * ms, 1551 * ms, 2571 * ms}},
		"right after the start a change waits for quiet": {[]time.Duration{10 * ms}, []time.Duration{110 * ms}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := returns(t, p, len(c.want), c.changes...)
			for i := range c.want {
				if got[i] != c.want[i] {
					t.Errorf("call %d returned after %v, want %v", i, got[i], c.want[i])
				}
			}
		})
	}
}

func TestWithoutQuietPeriodNothingWaits(t *testing.T) {
	got := returns(t, pace{}, 2, 10*time.Millisecond, 20*time.Millisecond)
	if got[0] != 10*time.Millisecond || got[1] != 20*time.Millisecond {
		t.Errorf("returned after %v", got)
	}
}

func TestTheEndOfTheContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p := pace{quiet: time.Hour, max: time.Hour}
		changed := make(chan struct{}, 1)
		changed <- struct{}{}
		if p.next(ctx, changed) {
			t.Error("next says that there is something to do")
		}
		if p.next(ctx, make(chan struct{})) {
			t.Error("next says that there is something to do after the end")
		}
	})
}
