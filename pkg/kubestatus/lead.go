package kubestatus

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/metards/metards/pkg/kubeclient"
)

// Election are the times of the Lease; zero stands for the default.
type Election struct {
	// Duration is for how long a holder that does not renew is believed; default 15 s.
	Duration time.Duration
	// Deadline is for how long a holder tries to renew before it stops; default 10 s.
	Deadline time.Duration
	// Retry is how often others try; default 2 s.
	Retry time.Duration
}

func (e *Election) complete() {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&e.Duration, 15 * time.Second}, {&e.Deadline, 10 * time.Second}, {&e.Retry, 2 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.def
		}
	}
}

// leadership is whether this replica holds the Lease.
type leadership struct {
	mu   sync.Mutex
	term context.Context // ends with the term; nil before the first
}

// begin notes a term. One that has ended already, because its goroutine came late, is none.
func (l *leadership) begin(term context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = term
}

func (l *leadership) held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term != nil && l.term.Err() == nil
}

// lead competes for the Lease until ctx ends.
func (w *Writer) lead(ctx context.Context) error {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(w.election())
		if err != nil {
			return err // New made one of the same configuration
		}
		elector.Run(ctx)
		w.options.Metrics.leader.Set(0)
		select {
		case <-ctx.Done():
		case <-time.After(w.options.Election.Retry):
		}
	}
	return nil
}

func (w *Writer) election() leaderelection.LeaderElectionConfig {
	e := w.options.Election
	return leaderelection.LeaderElectionConfig{
		Lock: &lock{w: w, LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: w.options.Namespace, Name: w.options.Lease},
			Client:     w.leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: w.options.Replica},
		}},
		LeaseDuration: e.Duration, RenewDeadline: e.Deadline, RetryPeriod: e.Retry, ReleaseOnCancel: true, Name: w.options.Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) {
				w.leadership.begin(term)
				if w.leadership.held() {
					w.options.Metrics.leader.Set(1)
					w.options.Log.Info("writing the conditions of MetaRouters, as holder of the Lease", "namespace", w.options.Namespace, "lease", w.options.Lease)
				}
			},
			OnStoppedLeading: func() {},
		},
	}
}

// lock is the Lease, with an ear for errors.
type lock struct {
	*resourcelock.LeaseLock
	w *Writer
}

// Get, Create and Update are called by the elector.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if apierrors.IsNotFound(err) {
		l.w.leaseTrouble(ctx, nil, "get")
	} else {
		l.w.leaseTrouble(ctx, err, "get")
	}
	return record, raw, err
}

// Create makes the Lease.
func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Create(ctx, r)
	l.w.leaseTrouble(ctx, err, "create")
	return err
}

// Update renews, takes or releases the Lease.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Update(ctx, r)
	l.w.leaseTrouble(ctx, err, "update")
	return err
}

// leaseTrouble tells what is wrong with the Lease. That others were quicker, or that the API server is out
// of reach, which everything else tells, is not.
func (w *Writer) leaseTrouble(ctx context.Context, err error, verb string) {
	if ctx.Err() != nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return
	}
	w.trouble.set(ownerLease, verb, w.explain(err, kubeclient.Access{Verb: verb, Resource: "leases.coordination.k8s.io"}),
		"this replica does not write the conditions of MetaRouters; tables are not affected")
}

// leasesFor returns a client for Leases whose requests are not delayed by those for statuses.
func leasesFor(o *Options) (coordination.LeasesGetter, error) {
	config := *o.Config
	config.RateLimiter = nil
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	config.Timeout = o.Election.Deadline / 2
	return coordination.NewForConfig(&config)
}
