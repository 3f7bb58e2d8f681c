package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/metards/metards/pkg/problem"
)

// Options configure a Store.
type Options struct {
	Settings Settings
	// Judge returns the faults of a decoded MetaRouter. Required.
	Judge func(*Object) []problem.Problem
	// Expect lists what must have been delivered completely before there is truth. Required.
	Expect []Feed
	// Problems receives the Problems of all objects. Required.
	Problems *problem.Board
}

// Feed is one kind from one source.
type Feed struct {
	Source Source
	Kind   Kind
}

// String is for people, as in "ServiceEntries of the directory".
func (f Feed) String() string { return fmt.Sprintf("%s list of %s", f.Kind, f.Source) }

// Batch is what a source delivers at once; its effects become visible together.
type Batch struct {
	// Complete lists the kinds whose complete set is in Objects: those of the source that are not in it
	// are gone. An empty Complete deletes nothing.
	Complete []Kind
	Objects  []*Object
	Deleted  []Key
}

// Store holds the mesh. Its methods may be called concurrently.
type Store struct {
	judge    func(*Object) []problem.Problem
	problems *problem.Board
	changed  chan struct{}

	mu         sync.RWMutex
	settings   Settings
	missing    []Feed
	delivered  []Feed      // completely, at least once
	stoodIn    []Feed      // a remembered state is in their place
	remembered *remembered // what an earlier process saved, nil once it is of no use
	generation uint64
	records    map[Key]*record
	services   serviceIndex
	rules      *ruleIndex
	routers    routerIndex
	dirty      map[string]struct{} // folded hosts and wildcards, since TakeChanges
}

// NewStore returns an empty store.
func NewStore(o Options) (*Store, error) {
	if o.Judge == nil || o.Problems == nil || len(o.Expect) == 0 {
		return nil, errors.New("mesh: Judge, Problems and Expect are required")
	}
	return &Store{
		judge: o.Judge, problems: o.Problems, settings: o.Settings, missing: slices.Clone(o.Expect),
		changed: make(chan struct{}, 1), records: map[Key]*record{},
		services: serviceIndex{}, rules: newRuleIndex(), routers: routerIndex{}, dirty: map[string]struct{}{},
	}, nil
}

// Changed is signalled when TakeChanges has something to tell, or when the last missing list arrived.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// TakeChanges returns, sorted, the folded hosts and wildcard patterns whose tables may differ since the
// last call. It has one consumer.
func (s *Store) TakeChanges() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.dirty))
	for h := range s.dirty {
		out = append(out, h)
	}
	s.dirty = map[string]struct{}{} // clearing one that was large once would cost as much each time
	slices.Sort(out)
	return out
}

// Missing returns the lists that were not delivered yet; there is truth once it is empty.
func (s *Store) Missing() []Feed {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.missing)
}

// Read calls f with a Lens on the current mesh. f must not keep the Lens nor call the Store.
func (s *Store) Read(v View, f func(*Lens)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(&Lens{store: s, view: v, trace: make(Trace, 4)})
}

// Objects returns the objects in force, ordered by kind, namespace and name.
func (s *Store) Objects() []*Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*Object
	for _, r := range s.records {
		if o := r.inForce(); o != nil {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *Object) int { return compareKeys(a.Key, b.Key) })
	return out
}

// Count returns how many objects of a kind are in force.
func (s *Store) Count(kind Kind) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for k, r := range s.records {
		if k.Kind == kind && r.inForce() != nil {
			n++
		}
	}
	return n
}

// Settings returns the mesh-wide values in force.
func (s *Store) Settings() Settings {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.settings
}

// Held is how an object of one source stands.
type Held struct {
	Refused bool    // its latest version is not in force
	Valid   *Object // the last valid version, nil if there is none
}

// Held returns how the objects of a kind from a source stand.
func (s *Store) Held(source Source, kind Kind) map[Key]Held {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[Key]Held{}
	for k, r := range s.records {
		if h := r[source]; h != nil && k.Kind == kind {
			out[k] = Held{Refused: h.latest != h.valid, Valid: h.valid}
		}
	}
	return out
}

// Untaken reports whether there are changes that TakeChanges has not told yet.
func (s *Store) Untaken() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.dirty) > 0
}

// HasValid reports whether there is a valid version of an object from a source, remembered ones included.
func (s *Store) HasValid(source Source, k Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.records[k]; r != nil && r[source] != nil && r[source].valid != nil {
		return true
	}
	return s.recall(source, k) != nil
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Apply takes in a batch of a source.
func (s *Store) Apply(source Source, b Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := effects{}
	present := make(map[Key]struct{}, len(b.Objects))
	for _, o := range b.Objects {
		present[o.Key] = struct{}{}
		s.put(source, o, e)
	}
	for _, k := range b.Deleted {
		s.remove(source, k, e)
	}
	if len(b.Complete) > 0 {
		for k, r := range s.records {
			if _, ok := present[k]; !ok && r[source] != nil && slices.Contains(b.Complete, k.Kind) {
				s.remove(source, k, e)
			}
		}
	}
	s.finish(e, s.deliver(source, b.Complete))
}

// finish concludes a change: truth tells that there is truth by it for the first time. mu is held.
func (s *Store) finish(e effects, truth bool) {
	if truth || e["*"] {
		for h := range s.routers { // before there was truth, "no service declares it" meant nothing
			e.add([]string{h}, false)
		}
	}
	if len(s.missing) == 0 {
		s.judgeConflicts(e)
	}
	s.announce(e, truth)
}

// SetSettings changes the mesh-wide values; every table may differ by that.
func (s *Store) SetSettings(settings Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := effects{}
	s.configure(settings, e)
	s.finish(e, false)
}

// configure is SetSettings without its conclusion; mu is held.
func (s *Store) configure(settings Settings, e effects) {
	if s.settings.equal(settings) {
		return
	}
	s.settings = settings
	s.generation++
	s.rules = newRuleIndex()
	for k, r := range s.records {
		if o := r.inForce(); o != nil && k.Kind == KindDestinationRule {
			s.rules.add(&s.settings, o)
		}
	}
	e.add([]string{"*"}, true)
}

// announce notes what differs for TakeChanges and signals that.
func (s *Store) announce(e effects, delivered bool) {
	for h, differs := range e {
		if differs {
			s.dirty[h] = struct{}{}
		}
	}
	if len(s.dirty) > 0 || delivered {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// deliver notes complete lists and reports whether there is truth by them for the first time.
func (s *Store) deliver(source Source, kinds []Kind) bool {
	waiting := len(s.missing) > 0
	for _, k := range kinds {
		f := Feed{source, k}
		is := func(o Feed) bool { return o == f }
		s.missing = slices.DeleteFunc(s.missing, is)
		s.stoodIn = slices.DeleteFunc(s.stoodIn, is)
		if !slices.Contains(s.delivered, f) {
			s.delivered = append(s.delivered, f)
			s.generation++
		}
	}
	if len(kinds) > 0 && len(s.missing) == 0 && len(s.stoodIn) == 0 {
		s.remembered = nil // everything was delivered: nothing is recalled any more
	}
	return waiting && len(s.missing) == 0
}
