package kubestatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/util/workqueue"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

const (
	// refreshRate is how many reports that did not change this replica writes per second at most, to keep
	// them alive. With many MetaRouters the time between two refreshes of one grows instead.
	refreshRate = 5
	// refreshes is how many refreshes of a report may fail to appear before it has expired.
	refreshes = 3
)

// Pauses are how long to wait; zero stands for the default.
type Pauses struct {
	// Interval is how often to look whether something is to be written; default 1 s. So proxies have time to
	// answer before it is told that they did not.
	Interval time.Duration
	// Count is how often to write a report in which only numbers differ; default 10 s.
	Count time.Duration
	// Refresh is how often to write a report that did not change, so that it does not expire; default 1 min.
	Refresh time.Duration
	// Farewell is how long to withdraw reports at the end; default 2 s.
	Farewell time.Duration
	// Retry is the first pause after a failed write, MaxRetry the longest; default 1 s and 1 min.
	Retry, MaxRetry time.Duration
}

func (p *Pauses) complete() error {
	err := errors.Join(
		kubeclient.CompletePause("Interval", &p.Interval, time.Second),
		kubeclient.CompletePause("Count", &p.Count, 10*time.Second),
		kubeclient.CompletePause("Refresh", &p.Refresh, time.Minute),
		kubeclient.CompletePause("Farewell", &p.Farewell, 2*time.Second),
		kubeclient.CompletePause("Retry", &p.Retry, time.Second),
		kubeclient.CompletePause("MaxRetry", &p.MaxRetry, time.Minute),
	)
	if err != nil {
		return fmt.Errorf("kubestatus: %w", err)
	}
	return nil
}

// Options configure a Writer.
type Options struct {
	// Config says how to reach the API server. Required. Rate, not taken from it, is how many statuses may be
	// written per second; default 10, with bursts of twice as many.
	Config *rest.Config
	Rate   float32
	// Source knows the facts. Required.
	Source Source
	// Replica is the name of this replica, e.g. its pod's. Required; two replicas must not share one.
	Replica string
	// Namespace is where the Lease is. Required. Lease is its name; default "metards".
	Namespace, Lease string
	// Problems receives what keeps statuses from being written under "kubernetes/...". Required.
	Problems *problem.Board
	// Metrics and Log are required.
	Metrics  *Metrics
	Log      *slog.Logger
	Pauses   Pauses
	Election Election
}

func (o *Options) complete() error {
	if o.Config == nil || o.Source == nil || o.Problems == nil || o.Metrics == nil || o.Log == nil {
		return errors.New("kubestatus: Config, Source, Problems, Metrics and Log are required")
	}
	if o.Replica == "" || o.Namespace == "" {
		return errors.New("kubestatus: the name of this replica and the namespace of the Lease are required (in a pod, POD_NAME and POD_NAMESPACE)")
	}
	if o.Lease == "" {
		o.Lease = "metards"
	}
	if o.Rate == 0 {
		o.Rate = 10
	}
	o.Election.complete()
	return o.Pauses.complete()
}

// Writer writes statuses. It is an Observer of the API server's objects.
type Writer struct {
	options    Options
	routers    dynamic.NamespaceableResourceInterface
	leases     coordination.LeasesGetter
	queue      workqueue.TypedRateLimitingInterface[item]
	leadership leadership
	trouble    trouble

	mu      sync.Mutex
	objects map[mesh.Key]*tracked
	stale   bool // facts were not read since an object came or changed
}

// New returns a Writer. It fails if options are missing or unusable.
func New(o Options) (*Writer, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(o.Config)
	config.RateLimiter, config.QPS, config.Burst = nil, o.Rate, int(2*o.Rate)
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the API server's client: %w", err)
	}
	leases, err := leasesFor(&o)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the API server's client: %w", err)
	}
	w := &Writer{
		options: o, routers: objects.Resource(kubeclient.MetaRouters), leases: leases,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[item](o.Pauses.Retry, o.Pauses.MaxRetry)),
		trouble: trouble{problems: o.Problems, verb: map[string]string{}}, objects: map[mesh.Key]*tracked{},
	}
	if _, err := leaderelection.NewLeaderElector(w.election()); err != nil {
		return nil, fmt.Errorf("kubestatus: times of the Lease: %w", err)
	}
	return w, nil
}

// Run writes until ctx ends, then withdraws this replica's reports, and returns nil. It may be called once.
func (w *Writer) Run(ctx context.Context) error {
	ctx = kubeclient.Quiet(ctx, w.options.Log)
	var g errgroup.Group
	g.Go(func() error { return w.lead(ctx) })
	g.Go(func() error {
		w.write(ctx)
		w.farewell(context.WithoutCancel(ctx))
		return nil
	})
	g.Go(func() error {
		w.look(ctx)
		w.queue.ShutDown()
		return nil
	})
	return g.Wait()
}

// Leads reports whether this replica writes the conditions.
func (w *Writer) Leads() bool { return w.leadership.held() }

// Seen takes in an object of the API server.
func (w *Writer) Seen(u *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := mesh.Key{Kind: mesh.KindMetaRouter, Namespace: u.GetNamespace(), Name: u.GetName()}
	t := w.objects[k]
	if t == nil || t.uid != string(u.GetUID()) {
		t = &tracked{}
		w.objects[k] = t
	}
	w.stale = w.stale || t.generation != u.GetGeneration()
	t.see(u, time.Now())
}

// Gone takes in that the API server has an object no more.
func (w *Writer) Gone(k mesh.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, k)
}

// look reads the facts when they changed, and puts what is to be written into the queue, until ctx ends.
func (w *Writer) look(ctx context.Context) {
	tick := time.NewTicker(w.options.Pauses.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.learn()
		for _, i := range w.due(time.Now()) {
			if w.queue.NumRequeues(i) == 0 { // else it waits for its next attempt already
				w.queue.Add(i)
			}
		}
	}
}

// learn reads the facts if they may differ. The generations are read before them: so facts are never taken
// for those of a version that they do not know.
func (w *Writer) learn() {
	changed := false
	select {
	case <-w.options.Source.Changed():
		changed = true
	default:
	}
	w.mu.Lock()
	changed = changed || w.stale
	w.stale = false
	generations := make(map[mesh.Key]int64, len(w.objects))
	for k, t := range w.objects {
		generations[k] = t.generation
	}
	w.mu.Unlock()
	if !changed {
		return
	}
	facts := w.options.Source.Facts()
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, generation := range generations {
		if t := w.objects[k]; t != nil && t.generation >= generation {
			if f, ok := facts[k]; ok {
				t.learn(f, generation)
				w.stale = w.stale || f.Pending // that it ends may not be signalled
			}
		}
	}
}

// periods returns how often reports are refreshed, and when one has expired.
func (w *Writer) periods() (refresh, expiry time.Duration) {
	refresh = max(w.options.Pauses.Refresh, time.Duration(len(w.objects))*time.Second/refreshRate)
	return refresh, refreshes * refresh
}

// due returns what is to be written.
func (w *Writer) due(now time.Time) []item {
	leads := w.leadership.held()
	w.mu.Lock()
	defer w.mu.Unlock()
	refresh, expiry := w.periods()
	var out []item
	for k, t := range w.objects {
		if t.reportDue(w.options.Replica, w.options.Pauses, refresh, now) {
			out = append(out, item{k, taskReport})
		}
		if leads && t.verdictDue(refresh, expiry, now) {
			out = append(out, item{k, taskVerdict})
		}
		if leads && len(t.expired(expiry, now)) > 0 {
			out = append(out, item{k, taskExpire})
		}
	}
	return out
}
