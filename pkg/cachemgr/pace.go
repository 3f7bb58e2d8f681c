package cachemgr

import (
	"context"
	"time"
)

// pace coalesces changes: the first after calm goes out at once, later ones wait until there was none for
// the quiet period, but not longer than the maximum delay.
type pace struct {
	quiet time.Duration
	max   time.Duration
}

// next waits for a change and then as long as it should wait. It reports false when the context ends.
// Changes that came while the caller was busy are one. The quiet period counts from the return of the
// call before: a caller that comes back later than that finds calm.
func (p *pace) next(ctx context.Context, changed <-chan struct{}) bool {
	calm := time.NewTimer(p.quiet)
	defer calm.Stop()
	busy := p.quiet > 0
	for {
		select {
		case <-ctx.Done():
			return false
		case <-calm.C:
			busy = false
		case <-changed:
			if !busy {
				return true
			}
			return p.settle(ctx, changed)
		}
	}
}

// settle waits for the quiet period without change, at most for the maximum delay.
func (p *pace) settle(ctx context.Context, changed <-chan struct{}) bool {
	limit := time.NewTimer(p.max)
	defer limit.Stop()
	quiet := time.NewTimer(p.quiet)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return true
		case <-quiet.C:
			return true
		case <-changed:
			quiet.Reset(p.quiet)
		}
	}
}
