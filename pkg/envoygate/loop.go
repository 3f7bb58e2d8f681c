package envoygate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/metards/metards/pkg/problem"
)

// Run judges what waits in the queue until ctx ends; then no process of it is left.
func (g *Gate) Run(ctx context.Context, q Queue) error {
	l := &loop{Gate: g, queue: q, ended: make(chan error), pause: g.look}
	tick := time.NewTicker(g.look)
	defer tick.Stop()
	for ctx.Err() == nil {
		l.start(ctx)
		g.metrics.waiting.Set(float64(q.Candidates()))
		select {
		case <-ctx.Done():
		case err := <-l.ended:
			l.running--
			l.learn(ctx, err)
		case <-q.Waiting():
		case <-tick.C:
			l.lookAround()
		}
	}
	for ; l.running > 0; l.running-- {
		l.learn(ctx, <-l.ended)
	}
	return nil
}

// loop is the state of Run.
type loop struct {
	*Gate
	queue   Queue
	running int        // goroutines
	ended   chan error // of a goroutine: nil, or why the binary does not work

	works   bool        // the binary did when it was probed last, and nobody has found otherwise
	probing bool        // the one goroutine is a probe
	seen    os.FileInfo // the binary as it was probed last, nil if it was not there
	judged  os.FileInfo // the binary whose verdicts are remembered
	pause   time.Duration
	due     time.Time // when to probe what does not work
	again   time.Time // when to try again what was put off
}

// start starts what can be started: a probe while nothing is known to work, else judging.
func (l *loop) start(ctx context.Context) {
	if !l.works {
		if l.running == 0 && !time.Now().Before(l.due) {
			l.seen, l.probing = l.binary(), true
			l.spawn(func() error { return l.probe(ctx) })
		}
		return
	}
	for l.running < l.runs {
		tables := l.queue.Unjudged(l.batch, maxBatchBytes)
		if len(tables) == 0 {
			return
		}
		probed := l.seen
		l.spawn(func() error { return l.judge(ctx, l.queue, probed, tables) })
	}
}

func (l *loop) spawn(work func() error) {
	l.running++
	go func() { l.ended <- work() }()
}

// learn takes in the end of a goroutine.
func (l *loop) learn(ctx context.Context, err error) {
	probed := l.probing
	l.probing = false
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errReplaced):
		l.works, l.due, l.pause = false, time.Now(), l.look
	case err != nil:
		l.works = false
		l.due = time.Now().Add(l.pause)
		l.pause = min(2*l.pause, l.maxPause)
		l.fail(err)
	case probed:
		l.works, l.pause = true, l.look
		if l.judged != nil && !same(l.judged, l.seen) {
			l.queue.Forget()
		}
		l.judged = l.seen
		l.setTrouble("")
		l.problems.Set(owner, nil)
	}
}

func (l *loop) fail(err error) {
	p := problem.Problem{
		Severity: problem.Error, Reason: problem.Unjudged, Detail: fmt.Sprintf("Envoy at %s cannot judge tables: %v", l.path, err),
		Consequence: "new tables wait until it can, what was served stays",
	}
	if l.Trouble() != "" {
		l.setTrouble(p.Detail)
	}
	l.problems.Set(owner, []problem.Problem{p})
}

// lookAround notices a replaced binary, and lets what was put off have another try when it is time.
func (l *loop) lookAround() {
	now := time.Now()
	if !l.probing && !same(l.binary(), l.seen) {
		l.works, l.due, l.pause = false, now, l.look
	}
	if now.After(l.again) {
		l.again = now.Add(l.maxPause)
		l.queue.Again()
	}
}

// binary returns the binary as a file, nil if it is not there.
func (g *Gate) binary() os.FileInfo {
	info, err := os.Stat(g.path)
	if err != nil {
		return nil
	}
	return info
}

// same reports whether a file was not replaced, nor written to.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
