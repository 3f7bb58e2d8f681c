package cachemgr

import (
	"container/list"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

// Peer is whose stream it is. The streams of one node and identity are one proxy.
type Peer struct {
	Node     string // id
	Identity string // SPIFFE id of its certificate
	View     mesh.View
}

// Stream holds the subscriptions of one stream; closing it affects no other. Set, Change and Close are for one
// goroutine at a time, the other methods may be called concurrently.
type Stream struct {
	manager *Manager
	peer    Peer
	opened  time.Time
	wake    func()

	// guarded by manager.mu
	subscriptions map[Name]*subscription
	due           list.List // of *subscription to be sent, longest waiting first, each at most once
}

// subscription is one name on one stream, with the facts about it.
type subscription struct {
	name   Name
	stream *Stream
	entry  *entry
	due    *list.Element // in stream.due, nil if it is not there

	sent     fact
	acked    fact
	rejected fact
	reason   string // the proxy's error text of the rejection
}

// fact is a version and since when it holds.
type fact struct {
	version string
	at      time.Time
}

// Open adds a stream. wake is called when Next may have something because the mesh changed; it must not
// block nor call back.
func (m *Manager) Open(p Peer, wake func()) *Stream {
	s := &Stream{manager: m, peer: p, opened: time.Now(), wake: wake, subscriptions: map[Name]*subscription{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams[s] = struct{}{}
	m.metrics.streams.Inc()
	return s
}

// Close drops the stream's subscriptions and frees the Tables that nobody else is subscribed to.
func (s *Stream) Close() {
	defer s.manager.factsChanged()
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	for n := range s.subscriptions {
		s.drop(n)
	}
	delete(s.manager.streams, s)
	s.manager.metrics.streams.Dec()
}

// Set makes the names all that the stream is subscribed to of a type.
func (s *Stream) Set(typeURL string, names []string) {
	wanted := make(map[string]struct{}, len(names))
	for _, n := range names {
		wanted[n] = struct{}{}
	}
	s.manager.mu.Lock()
	for n := range s.subscriptions {
		if _, ok := wanted[n.Name]; !ok && n.Type == typeURL {
			s.drop(n)
		}
	}
	s.manager.mu.Unlock()
	for _, n := range names {
		s.add(Name{typeURL, n}, false)
	}
}

// Change subscribes to and unsubscribes from names of a type. A name that is already subscribed to is
// sent again: the proxy asks for it.
func (s *Stream) Change(typeURL string, add, remove []string) {
	s.manager.mu.Lock()
	for _, n := range remove {
		s.drop(Name{typeURL, n})
	}
	s.manager.mu.Unlock()
	for _, n := range add {
		s.add(Name{typeURL, n}, true)
	}
}

// Count returns how many names of all types the stream is subscribed to.
func (s *Stream) Count() int {
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	return len(s.subscriptions)
}

// Wants reports whether the stream is subscribed to any name of a type.
func (s *Stream) Wants(typeURL string) bool {
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	for n := range s.subscriptions {
		if n.Type == typeURL {
			return true
		}
	}
	return false
}

// Known reports whether there is a Table of a name, whether or not the stream is subscribed to it.
func (s *Stream) Known(typeURL, name string) bool {
	m := s.manager
	m.mu.Lock()
	defer m.mu.Unlock()
	if sub := s.subscriptions[Name{typeURL, name}]; sub != nil {
		return sub.entry.served != nil
	}
	var plan *routes.Plan
	if m.truth && m.Serves(typeURL) {
		m.store.Read(s.peer.View, func(l *mesh.Lens) {
			defer func() { _ = recover() }() // it is a Problem once somebody subscribes
			plan, _ = m.compiler(l, name)
		})
	}
	return plan != nil
}

// Next returns the next Table of a type that the proxy has to be sent, nil if there is none, and notes it
// as sent.
func (s *Stream) Next(typeURL string) *Table {
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	for at := s.due.Front(); at != nil; {
		sub := at.Value.(*subscription)
		at = at.Next()
		if sub.name.Type != typeURL {
			continue
		}
		sub.unqueue()
		if t := sub.entry.served; t != nil && t.Version != sub.sent.version {
			sub.sent = fact{t.Version, time.Now()}
			return t
		}
	}
	return nil
}

// Accepted notes that the proxy took a Table.
func (s *Stream) Accepted(t *Table) {
	defer s.manager.factsChanged()
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	if sub := s.subscriptions[t.Name]; sub != nil {
		sub.acked = fact{t.Version, time.Now()}
		if sub.rejected.version == t.Version {
			sub.rejected, sub.reason = fact{}, ""
		}
	}
}

// Rejected notes that the proxy refused a Table, and why. It is not sent again until its bytes differ.
func (s *Stream) Rejected(t *Table, reason string) {
	defer s.manager.factsChanged()
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	if sub := s.subscriptions[t.Name]; sub != nil {
		sub.rejected, sub.reason = fact{t.Version, time.Now()}, reason
	}
}

// add subscribes to a name. Between names the lock is free: of a large subscription each may be compiled.
func (s *Stream) add(n Name, again bool) {
	defer s.manager.factsChanged()
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	sub := s.subscriptions[n]
	if sub == nil {
		e := s.manager.entry(n, s.peer.View)
		sub = &subscription{name: n, stream: s, entry: e}
		e.subscribers[sub] = struct{}{}
		s.subscriptions[n] = sub
		s.manager.metrics.subscriptions.Inc()
	} else if !again {
		return
	}
	sub.sent = fact{}
	if sub.entry.served != nil {
		sub.enqueue()
	}
}

// drop unsubscribes from a name. manager.mu is held.
func (s *Stream) drop(n Name) {
	sub := s.subscriptions[n]
	if sub == nil {
		return
	}
	delete(s.subscriptions, n)
	sub.unqueue()
	delete(sub.entry.subscribers, sub)
	s.manager.release(sub.entry)
	s.manager.metrics.subscriptions.Dec()
}

// enqueue notes that the subscription's Table is to be sent. manager.mu is held.
func (s *subscription) enqueue() {
	if s.due == nil {
		s.due = s.stream.due.PushBack(s)
	}
}

// unqueue takes back enqueue. manager.mu is held.
func (s *subscription) unqueue() {
	if s.due != nil {
		s.stream.due.Remove(s.due)
		s.due = nil
	}
}
