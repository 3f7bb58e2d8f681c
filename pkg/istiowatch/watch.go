package istiowatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Status is how the watch on istiod does.
type Status struct {
	// Connected is true while a stream is open that has brought a good response.
	Connected bool
	// LastProof is when istiod answered last; zero if it never did.
	LastProof time.Time
	// Error says in one sentence why there is no connection and what to do; empty while all is well.
	Error string
}

// Watcher keeps a Sink up to date with istiod.
type Watcher struct {
	options       Options
	log           *slog.Logger
	lists         []*list
	subscriptions []*subscription
	backoff       backoff
	silent        int // connections in a row that ended for want of an answer

	mu     sync.Mutex
	status Status
}

// New returns a Watcher. It fails if options are missing or wrong; files are read when they are used.
func New(o Options) (*Watcher, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	w := &Watcher{options: o, log: o.Log, backoff: backoff{min: o.MinBackoff, max: o.MaxBackoff}}
	if o.MeshConfig != nil {
		w.subscriptions = append(w.subscriptions, &subscription{typeURL: meshConfigType, feed: newSettings(&w.options)})
	}
	// istiod has its own kinds in v1 from 1.24 on, and in v1alpha3 before. It answers the other with an empty list.
	w.watch(mesh.KindServiceEntry, "networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1alpha3/ServiceEntry")
	w.watch(mesh.KindDestinationRule, "networking.istio.io/v1/DestinationRule", "networking.istio.io/v1alpha3/DestinationRule")
	if o.MetaRouters {
		w.watch(mesh.KindMetaRouter, "metaprotocol.aeraki.io/v1alpha1/MetaRouter")
	}
	return w, nil
}

func (w *Watcher) watch(kind mesh.Kind, typeURLs ...string) {
	l := newList(kind, &w.options, typeURLs...)
	w.lists = append(w.lists, l)
	for v, t := range typeURLs {
		w.subscriptions = append(w.subscriptions, &subscription{typeURL: t, feed: l, version: v})
	}
}

// Run delivers until ctx ends, and then returns nil. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.options.Metrics.connected.Set(0)
	for {
		err := w.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := time.NewTimer(w.ended(err))
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// Status returns the current status. It may be called concurrently.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// alive notes a response.
func (w *Watcher) alive(good bool, now time.Time) {
	held := 0
	for _, l := range w.lists {
		if l.suspicion.held() {
			held++
		}
	}
	w.options.Metrics.held.Set(float64(held))
	w.mu.Lock()
	w.status.LastProof = now
	if good {
		w.status.Connected, w.status.Error = true, ""
	}
	w.mu.Unlock()
	if good {
		w.backoff.reset()
		w.silent = 0
		w.options.Metrics.connected.Set(1)
		w.options.Problems.Set("mcp/connection", nil)
	}
}

// ended notes why a connection ended and returns for how long to pause.
func (w *Watcher) ended(err error) time.Duration {
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{reason: reasonOther, text: err.Error()}
	}
	if f.reason == reasonSilent {
		w.silent++
	}
	w.options.Metrics.reconnects.WithLabelValues(f.reason).Inc()
	w.options.Metrics.connected.Set(0)
	w.mu.Lock()
	ordinary := f.brief && w.status.Connected
	w.status.Connected, w.status.Error = false, f.text
	w.mu.Unlock()
	pause := w.backoff.next(f.slow)
	if ordinary { // only if it cannot be replaced is that worth a word
		w.log.Debug("the stream to istiod ended", "error", f.text, "retry_in", pause)
		return pause
	}
	w.options.Problems.Set("mcp/connection", []problem.Problem{{
		Severity: problem.Error, Reason: problem.Unreadable, Detail: f.text,
		Consequence: "what istiod said last stays in force",
	}})
	return pause
}
