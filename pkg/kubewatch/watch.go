package kubewatch

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
	"k8s.io/client-go/rest"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Sink takes what is delivered.
type Sink interface {
	Apply(mesh.Source, mesh.Batch)
}

// Observer sees the API server's objects just after the Sink took them in, e.g. to write their status. Its
// methods are called one at a time, must be quick, and must not change or keep an object. Of an object only
// metadata and status are as the API server sent them.
type Observer interface {
	Seen(*unstructured.Unstructured)
	// Gone is called when the API server has an object no more, even if that is not believed to be a deletion.
	Gone(mesh.Key)
}

// Pauses are how long to wait; zero stands for the default.
type Pauses struct {
	// Batch is how long deletions are gathered before the CRD is looked at once for all; default 200 ms.
	Batch time.Duration
	// CRD is how often to look whether a missing CRD is there; default 2 s.
	CRD time.Duration
	// Hold is for how long objects stay in force that are not there when their CRD is back, counted from
	// when the last one came; default 30 s.
	Hold time.Duration
	// Retry is the first pause after a failure, and MaxRetry the longest; default 500 ms and 10 s.
	Retry, MaxRetry time.Duration
	// Grace is for how long the API server may be out of reach before that is a Problem; default 5 s.
	Grace time.Duration
}

func (p *Pauses) complete() error {
	err := errors.Join(
		kubeclient.CompletePause("Batch", &p.Batch, 200*time.Millisecond),
		kubeclient.CompletePause("CRD", &p.CRD, 2*time.Second),
		kubeclient.CompletePause("Hold", &p.Hold, 30*time.Second),
		kubeclient.CompletePause("Retry", &p.Retry, 500*time.Millisecond),
		kubeclient.CompletePause("MaxRetry", &p.MaxRetry, 10*time.Second),
		kubeclient.CompletePause("Grace", &p.Grace, 5*time.Second),
	)
	if err != nil {
		return fmt.Errorf("kubewatch: %w", err)
	}
	return nil
}

// Options configure a Watcher.
type Options struct {
	// Config says how to reach the API server. Required.
	Config *rest.Config
	// Sink receives the objects, as of mesh.Kubernetes. Required.
	Sink Sink
	// Problems receives what is wrong with the API server or the CRD under "kubernetes/...". Required.
	Problems *problem.Board
	// Metrics and Log are required.
	Metrics *Metrics
	Log     *slog.Logger
	// Observer may be nil.
	Observer Observer
	// HasValid reports whether the Sink has a valid version of an object from this source. Where it has none,
	// the last valid one in the object's status stands in. Without HasValid that is looked at only when an
	// object is seen for the first time.
	HasValid func(mesh.Key) bool
	// Revision leaves out objects whose label istio.io/rev has another value; those without it are for all
	// revisions. Empty takes in all.
	Revision string
	Pauses   Pauses
}

// Watcher keeps a Sink up to date with an API server.
type Watcher struct {
	options Options
	routers dynamic.NamespaceableResourceInterface
	crds    inspector
	health  health

	changed chan struct{} // the ledger differs, so the time of the next look at the CRD may

	listing sync.Mutex // held by the request for a list, which may outlast its reflector

	mu      sync.Mutex
	ledger  *ledger
	relist  func() // ends the current watch, nil if there is none
	listed  crd    // what was known of the CRD just before the list
	missing bool   // there was no CRD when last listed
	blind   string // why nothing can be found out about the CRD
}

// New returns a Watcher. It fails if options are missing or the configuration cannot be used at all; whether
// the API server answers is Run's business.
func New(o Options) (*Watcher, error) {
	if o.Config == nil || o.Sink == nil || o.Problems == nil || o.Metrics == nil || o.Log == nil {
		return nil, errors.New("kubewatch: Config, Sink, Problems, Metrics and Log are required")
	}
	if err := o.Pauses.complete(); err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(o.Config)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the API server's client: %w", err)
	}
	objects, err := dynamic.NewForConfigAndClient(o.Config, client)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the API server's client: %w", err)
	}
	raw, err := rest.UnversionedRESTClientForConfigAndClient(dynamic.ConfigFor(o.Config), client)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the API server's client: %w", err)
	}
	return &Watcher{
		options: o, routers: objects.Resource(kubeclient.MetaRouters),
		crds:    inspector{crds: objects.Resource(crdResource), raw: raw},
		health:  health{problems: o.Problems, metrics: o.Metrics, grace: o.Pauses.Grace},
		changed: make(chan struct{}, 1), ledger: newLedger(o.Pauses),
	}, nil
}

// Run delivers until ctx ends, and then returns nil. The API server may come, go and refuse at any time. It
// may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	ctx = kubeclient.Quiet(ctx, w.options.Log)
	var g errgroup.Group
	g.Go(func() error {
		w.follow(ctx)
		return nil
	})
	g.Go(func() error {
		w.settle(ctx)
		return nil
	})
	return g.Wait()
}

// Status returns how it goes with the API server.
func (w *Watcher) Status() Status { return w.health.get() }

// settle looks at the CRD when the ledger asks for it, until ctx ends.
func (w *Watcher) settle(ctx context.Context) {
	for {
		w.mu.Lock()
		due := w.ledger.due
		w.mu.Unlock()
		var timer <-chan time.Time
		if !due.IsZero() {
			timer = time.After(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-timer:
			w.check(ctx)
		}
	}
}

// check looks at the CRD once, and delivers the deletions that are believed then.
func (w *Watcher) check(ctx context.Context) {
	w.mu.Lock()
	mark := w.ledger.marks
	w.mu.Unlock()
	c, err := w.crds.look(ctx)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		f := kubeclient.Explain(err, w.options.Config.Host, kubeclient.Access{Verb: "get", Resource: crdResource.GroupResource().String()})
		if f.Class == kubeclient.Unreachable { // the watch tells as well
			f.Text = ""
		}
		w.blind = f.Text
		w.ledger.unknown(time.Now())
		w.report()
		return
	}
	w.blind = ""
	deleted, relist := w.ledger.checked(c, mark, time.Now())
	if len(deleted) > 0 {
		w.options.Sink.Apply(mesh.Kubernetes, mesh.Batch{Deleted: deleted})
	}
	if relist && w.relist != nil {
		w.relist()
	}
	w.report()
}

const ownerCRD = "kubernetes/crd"

// report tells what keeps objects in force, or keeps them out; w.mu is held.
func (w *Watcher) report() {
	w.options.Metrics.held.Set(float64(w.ledger.held()))
	text, consequence := "", "the MetaRouters known from it stay in force until it is back with its list, or metards restarts"
	switch name := kubeclient.MetaRouterCRD; {
	case w.ledger.phase == away && w.missing && len(w.ledger.objects) == 0:
		text = fmt.Sprintf("the CRD %s is not installed at the API server (kubectl apply -k manifests installs it)", name)
		consequence = "there are no MetaRouters from it until it is"
	case w.ledger.phase == away && len(w.ledger.objects) > 0:
		text = fmt.Sprintf("the CRD %s is gone from the API server, or about to go", name)
	case w.ledger.phase == back:
		text = fmt.Sprintf("the CRD %s is back, but not all of its MetaRouters are", name)
		consequence = fmt.Sprintf("those that are not stay in force until %s after the last one came", w.options.Pauses.Hold)
	case w.blind != "" && len(w.ledger.absent) > 0:
		text = "MetaRouters were deleted, but not whether their CRD is still there can be seen: " + w.blind
		consequence = "they stay in force until that is known"
	}
	var list []problem.Problem
	if text != "" {
		list = []problem.Problem{{Severity: problem.Warning, Reason: problem.Unreadable, Detail: text, Consequence: consequence}}
	}
	w.options.Problems.Set(ownerCRD, list)
}

// note tells settle that the ledger differs; w.mu is held.
func (w *Watcher) note() {
	w.report()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
