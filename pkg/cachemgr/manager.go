package cachemgr

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// Store is what the manager asks of the mesh. *mesh.Store is one.
type Store interface {
	Changed() <-chan struct{}
	TakeChanges() []string
	Missing() []mesh.Feed
	Read(mesh.View, func(*mesh.Lens))
}

// Options configure a Manager. All fields are required but the two durations.
type Options struct {
	Store     Store
	Spellings map[string]Spelling // by type URL
	// After a first change goes out at once, later ones wait until there was none for QuietPeriod, but
	// not longer than MaxDelay.
	QuietPeriod time.Duration
	MaxDelay    time.Duration
	Problems    *problem.Board
	Metrics     *Metrics
	Log         *slog.Logger
	// Compiler is routes.Compile but in tests.
	Compiler func(routes.Mesh, string) (*routes.Plan, []problem.Problem)
	// Gated keeps each Table back until a gate says by Pass that it may be served.
	Gated bool
}

// Manager is the cache. Its methods may be called concurrently.
type Manager struct {
	store     Store
	spellings map[string]Spelling
	pace      pace
	problems  *problem.Board
	metrics   *Metrics
	log       *slog.Logger
	compiler  func(routes.Mesh, string) (*routes.Plan, []problem.Problem)

	facts    chan struct{} // signalled when Programmed may differ
	renewing atomic.Bool

	mu       sync.Mutex
	truth    bool // every list was delivered once; before, nothing is compiled
	families map[familyKey]*family
	byHost   map[string]map[*family]struct{}
	streams  map[*Stream]struct{}
	docket   *docket // nil without a gate
}

// New returns a Manager without subscriptions.
func New(o Options) (*Manager, error) {
	if o.Store == nil || len(o.Spellings) == 0 || o.Problems == nil || o.Metrics == nil || o.Log == nil || o.Compiler == nil {
		return nil, errors.New("cachemgr: an option is missing")
	}
	m := &Manager{
		store: o.Store, spellings: o.Spellings, pace: pace{o.QuietPeriod, o.MaxDelay}, problems: o.Problems,
		metrics: o.Metrics, log: o.Log, compiler: o.Compiler,
		facts:    make(chan struct{}, 1),
		families: map[familyKey]*family{}, byHost: map[string]map[*family]struct{}{}, streams: map[*Stream]struct{}{},
	}
	if o.Gated {
		m.docket = newDocket()
	}
	return m, nil
}

// Serves reports whether Tables of a type can be asked for.
func (m *Manager) Serves(typeURL string) bool {
	_, ok := m.spellings[typeURL]
	return ok
}

// Run keeps the Tables up to date until the context ends.
func (m *Manager) Run(ctx context.Context) error {
	for m.pace.next(ctx, m.store.Changed()) {
		m.renew()
	}
	return nil
}

// maxLogged bounds how many names of changed tables are logged at once.
const maxLogged = 10

// renew compiles what the store's changes concern. Between families the lock is free, so that newcomers
// do not wait for all of them.
func (m *Manager) renew() {
	began := time.Now()
	m.renewing.Store(true)
	defer m.factsChanged()
	defer m.renewing.Store(false)
	changes := m.store.TakeChanges()
	families := m.concerned(changes)
	var changed []string
	for _, f := range families {
		m.mu.Lock()
		if m.families[f.familyKey] == f && m.refresh(f) { // it may have lost its last subscriber
			changed = append(changed, f.Name.Name)
		}
		m.mu.Unlock()
	}
	m.logChanged(changed)
	m.metrics.renewals.Observe(time.Since(began).Seconds())
}

func (m *Manager) logChanged(names []string) {
	if len(names) > 0 {
		m.log.Info("tables changed", "count", len(names), "names", names[:min(len(names), maxLogged)])
	}
}

// Renewing reports whether changes that were taken from the store have not all reached the Tables.
func (m *Manager) Renewing() bool { return m.renewing.Load() }

// FactsChanged is signalled when what Programmed returns may differ. It has one consumer.
func (m *Manager) FactsChanged() <-chan struct{} { return m.facts }

func (m *Manager) factsChanged() {
	select {
	case m.facts <- struct{}{}:
	default:
	}
}

// concerned returns the families that looked at one of the hosts: all of them once there is truth for the
// first time.
func (m *Manager) concerned(changes []string) []*family {
	m.mu.Lock()
	defer m.mu.Unlock()
	set := map[*family]struct{}{}
	switch {
	case !m.truth && len(m.store.Missing()) > 0:
		return nil
	case !m.truth:
		m.truth = true
		for _, f := range m.families {
			set[f] = struct{}{}
		}
	}
	for _, host := range changes {
		if !strings.HasPrefix(host, "*") {
			for f := range m.byHost[host] {
				set[f] = struct{}{}
			}
			continue
		}
		for h, families := range m.byHost {
			if mesh.Covers(host, h) {
				for f := range families {
					set[f] = struct{}{}
				}
			}
		}
	}
	out := make([]*family, 0, len(set))
	for f := range set {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *family) int {
		return cmp.Or(strings.Compare(a.Name.Name, b.Name.Name), strings.Compare(a.Type, b.Type))
	})
	return out
}

// entry returns the entry of a name as a View sees it, and compiles it if it is new. m.mu is held.
func (m *Manager) entry(n Name, v mesh.View) *entry {
	k := familyKey{n, v.Gateway}
	f := m.families[k]
	if f == nil {
		f = &family{familyKey: k, entries: map[string]*entry{}}
		m.families[k] = f
	}
	e := f.entries[v.Namespace]
	if e == nil {
		e = &entry{family: f, view: v, subscribers: map[*subscription]struct{}{}}
		f.entries[v.Namespace] = e
		if m.truth {
			m.update(e)
			if e.variant.users == 1 || e.keptBack() { // it is new: nobody else sees the same; or its Problem may differ
				m.settle(f)
			}
		}
		m.metrics.tables.Inc()
	}
	return e
}

// release frees an entry that has no subscriber any more. m.mu is held.
func (m *Manager) release(e *entry) {
	if len(e.subscribers) > 0 {
		return
	}
	f, last := e.family, e.variant != nil && e.variant.users == 1
	m.use(e, nil)
	delete(f.entries, e.view.Namespace)
	m.metrics.tables.Dec()
	if len(f.entries) > 0 {
		if last {
			m.settle(f)
		}
		return
	}
	m.unindex(f)
	m.problems.Set(f.owner(), nil)
	delete(m.families, f.familyKey)
}
