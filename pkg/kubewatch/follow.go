package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/mesh"
)

const (
	// longRound is how long a list and watch must have lasted for the next failure to count as the first.
	longRound = 10 * time.Second
	// watchStart is how long the API server may take to begin with a watch. Some proxies pass the beginning
	// on only with the first event, and bookmarks come once a minute.
	watchStart = 90 * time.Second
	// watchMargin is how long a watch may last beyond what was asked for.
	watchMargin = 30 * time.Second
)

// errEnded ends a list and watch whose failure was noted already.
var errEnded = errors.New("the request failed")

// follow lists and watches, again and again, until ctx ends.
func (w *Watcher) follow(ctx context.Context) {
	fresh := func() wait.Backoff {
		return wait.Backoff{Duration: w.options.Pauses.Retry, Cap: w.options.Pauses.MaxRetry, Factor: 2, Jitter: 0.3, Steps: 1 << 30}
	}
	backoff := fresh()
	for ctx.Err() == nil {
		started := time.Now()
		wanted := w.round(ctx)
		if time.Since(started) > longRound {
			backoff = fresh()
		}
		pause := w.options.Pauses.CRD
		switch {
		case wanted:
			continue
		case !w.isMissing():
			pause = backoff.Step()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (w *Watcher) isMissing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missing
}

// round lists once and then watches until that fails, or until another list is wanted, which it reports.
func (w *Watcher) round(ctx context.Context) (wanted bool) {
	current, cancel := context.WithCancel(ctx)
	defer cancel()
	logger := kubeclient.Logger(w.options.Log)
	w.mu.Lock()
	w.relist = nil
	w.mu.Unlock()
	// Each round has a reflector of its own, so that each list is as new as the API server can give.
	err := cache.NewReflectorWithOptions(
		lister{&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}}, nil, intake{w, cancel},
		cache.ReflectorOptions{Name: "metarouters", TypeDescription: "MetaRouter", Logger: &logger},
	).ListAndWatchWithContext(current)
	wanted = current.Err() != nil
	cancel()
	w.listing.Lock() // a list that was cut short has ended
	defer w.listing.Unlock()
	if err != nil && !wanted && !errors.Is(err, errEnded) {
		w.fail(err, "list")
	}
	return wanted && ctx.Err() == nil
}

// lister is a ListWatch that wants lists as lists, not as the beginning of a watch: one form that every API
// server has, for objects that are few.
type lister struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is asked by the reflector.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// list asks for a page of the list. Before the first one it looks which CRD the list will be of.
func (w *Watcher) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	w.listing.Lock()
	defer w.listing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, kubeclient.RequestTimeout)
	defer cancel()
	if o.Continue == "" {
		c, err := w.crds.look(ctx)
		if err != nil {
			c = crd{} // what fails is told by the list
		}
		w.mu.Lock()
		w.listed = c
		w.mu.Unlock()
	}
	if o.ResourceVersion == "0" {
		o.ResourceVersion = "" // not whatever an API server happens to remember
	}
	list, err := w.routers.List(ctx, o)
	if err == nil {
		return list, nil
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return nil, errEnded
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil, err // the reflector asks for the whole list then
	}
	if apierrors.IsNotFound(err) {
		return nil, w.notFound(ctx, err)
	}
	w.fail(err, "list")
	return nil, errEnded
}

// notFound finds out what the API server's 404 for the list means.
func (w *Watcher) notFound(ctx context.Context, notFound error) error {
	c, err := w.crds.look(ctx)
	switch {
	case err != nil:
		w.fail(notFound, "list")
	case c.state == crdMissing:
		w.absentCRD()
	default:
		w.health.fail(kubeclient.Failure{Class: kubeclient.NotFound, Text: fmt.Sprintf(
			"the API server %s has the CRD %s but does not serve %s: the CRD must serve version %s, and a new one takes a moment",
			w.options.Config.Host, kubeclient.MetaRouterCRD, kubeclient.MetaRouters.GroupVersion(), kubeclient.MetaRouters.Version)}, time.Now())
	}
	return errEnded
}

// absentCRD takes in that there is no CRD: nothing is known of MetaRouters then, and that is complete.
func (w *Watcher) absentCRD() {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.ledger.delivered
	w.missing = true
	w.ledger.missing()
	w.health.contact(time.Now())
	if first {
		w.options.Sink.Apply(mesh.Kubernetes, mesh.Batch{Complete: []mesh.Kind{mesh.KindMetaRouter}})
		w.health.synced()
	}
	w.note()
}

// watch begins a watch, which ends by itself if the API server does not end it in time.
func (w *Watcher) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	current, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(watchStart, cancel)
	got, err := w.routers.Watch(current, o)
	late.Stop()
	if err != nil {
		cancel()
		if ctx.Err() == nil {
			w.fail(err, "watch")
		}
		return nil, errEnded
	}
	if o.TimeoutSeconds != nil {
		late.Reset(time.Duration(*o.TimeoutSeconds)*time.Second + watchMargin)
	}
	return &bounded{got, func() {
		late.Stop()
		cancel()
	}}, nil
}

// bounded is a watch that frees what bounds it when it is stopped.
type bounded struct {
	watch.Interface
	free func()
}

func (b *bounded) Stop() {
	b.Interface.Stop()
	b.free()
}

func (w *Watcher) fail(err error, verb string) {
	f := kubeclient.Explain(err, w.options.Config.Host, kubeclient.Access{Verb: verb, Resource: kubeclient.MetaRouters.GroupResource().String()})
	w.health.fail(f, time.Now())
}
