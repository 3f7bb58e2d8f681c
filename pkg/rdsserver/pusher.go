package rdsserver

import (
	"context"
	"sync"
)

// pusher sends what streams have due, on few goroutines for all of them: a stream's own one waits for the
// proxy's next request. A stream is queued at most once, so the queue is bounded by the open streams.
type pusher struct {
	mu    sync.Mutex
	queue []*stream
	waked chan struct{}
}

func newPusher() *pusher { return &pusher{waked: make(chan struct{}, 1)} }

// push queues a stream. It never blocks.
func (p *pusher) push(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.queued {
		return
	}
	s.queued = true
	p.queue = append(p.queue, s)
	p.signal()
}

func (p *pusher) signal() {
	select {
	case p.waked <- struct{}{}:
	default:
	}
}

func (p *pusher) pop() *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		return nil
	}
	s := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	s.queued = false
	if len(p.queue) > 0 {
		p.signal() // another worker may help
	}
	return s
}

// run is one worker.
func (p *pusher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.waked:
			for s := p.pop(); s != nil; s = p.pop() {
				s.advance()
			}
		}
	}
}
