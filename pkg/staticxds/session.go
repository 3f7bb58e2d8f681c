package staticxds

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Tables is where a stream gets the routes that the file does not have. *cachemgr.Stream is one.
type Tables interface {
	// Set makes the names all that the stream is subscribed to of a type.
	Set(typeURL string, names []string)
	// Change subscribes to and unsubscribes from names of a type; what is subscribed to already is sent again.
	Change(typeURL string, add, remove []string)
	// Known reports whether there is a table of the name.
	Known(typeURL, name string) bool
}

// Peer is whose stream it is.
type Peer struct {
	Stream   uint64 // its number
	Node     string // id
	Identity string
	Delta    bool // the form of the stream; else it is state of the world
}

// Session is what one stream asks for and was sent. Its methods are for one goroutine at a time, but for those
// of the debug page.
type Session struct {
	source *Source
	tables Tables
	peer   Peer
	wake   func()

	mu    sync.Mutex
	set   *Set // as of the last look
	types [kinds]subscription
	whole time.Time // when all is known of what the client holds
}

// gather is how long nothing is taken away after a client has said what it holds of a type: it sends its first requests
// at once, but they are read one by one, and what it holds of listeners may need what it holds of clusters.
const gather = time.Second

// Open adds a stream. wake is called when there may be something to send because the file changed; it must not
// block nor call back.
func (s *Source) Open(p Peer, tables Tables, wake func()) *Session {
	x := &Session{source: s, tables: tables, peer: p, wake: wake}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[x] = struct{}{}
	x.set = s.set
	return x
}

// Close forgets the stream.
func (x *Session) Close() {
	x.source.mu.Lock()
	defer x.source.mu.Unlock()
	delete(x.source.sessions, x)
}

// Holds notes what a client says that it got from an earlier stream, with its first request of a type. It returns how
// many of these names the file does not have: the others are no more than it has.
func (x *Session) Holds(typeURL string, versions map[string]string) (others int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k, ok := kindOf(typeURL)
	sub := &x.types[k]
	if !ok || sub.open || len(versions) == 0 {
		return 0
	}
	sub.held = make(map[string]*Resource, len(versions))
	for name, version := range versions {
		sub.held[name] = &Resource{Name: name, Version: version}
		if !x.set.has(k, name) {
			others++
		}
	}
	if others > 0 {
		x.whole = time.Now().Add(gather)
		time.AfterFunc(gather, x.wake)
	}
	switch k {
	case routes: // of the file or tables, the proxy goes on with them
		sub.drop(x.set)
	case endpoints:
		for _, c := range x.types[clusters].held { // those that were sent on this stream wait for their endpoints
			sub.again(c.endpoints)
		}
	}
	return others
}

// Set makes the names all that the stream is subscribed to of a type, as in state of the world. No names in a
// first request stand for all of a whole kind, and so they do until there are some.
func (x *Session) Set(typeURL string, names []string) {
	k, ok := kindOf(typeURL)
	if !ok {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.look()
	sub := &x.types[k]
	wanted := make(map[string]struct{}, len(names))
	star := len(names) == 0 && (!sub.open || sub.wildcard)
	for _, n := range names {
		if n == "*" {
			star = true
			continue
		}
		wanted[n] = struct{}{}
	}
	star = star && k.whole()
	if sub.open && star == sub.wildcard && maps.Equal(wanted, sub.names) {
		return
	}
	sub.open, sub.wildcard, sub.names = true, star, wanted
	sub.due = k.whole() && sub.wants()
	sub.forget()
	if k == routes {
		x.tables.Set(RouteType, x.forTables(wanted))
		x.warn(wanted)
	}
}

// Change subscribes to and unsubscribes from names of a type, as in delta. A first request without names
// stands for all of a whole kind.
func (x *Session) Change(typeURL string, add, remove []string) {
	k, ok := kindOf(typeURL)
	if !ok {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.look()
	sub := &x.types[k]
	first := !sub.open
	if first {
		sub.open, sub.names = true, map[string]struct{}{}
		sub.wildcard = k.whole() && len(add) == 0
		sub.due = sub.wildcard && len(sub.held) == 0
	}
	gone := make(map[string]struct{}, len(remove))
	for _, n := range remove {
		delete(sub.names, n)
		gone[n] = struct{}{}
		sub.wildcard = sub.wildcard && n != "*"
	}
	added := make(map[string]struct{}, len(add))
	for _, n := range add {
		if n == "*" {
			sub.due = sub.due || k.whole() && !sub.wildcard && len(sub.held) == 0
			sub.wildcard = k.whole()
			continue
		}
		if !first {
			sub.again(n)
		}
		sub.names[n], added[n] = struct{}{}, struct{}{}
		// Of routes an unknown name waits, as it does for tables. What is only held from an earlier stream is a removal.
		if k != routes && (!first || sub.held[n] == nil) {
			if sub.unknown == nil {
				sub.unknown = map[string]struct{}{}
			}
			sub.unknown[n] = struct{}{}
		}
	}
	sub.forget()
	if k == routes {
		x.tables.Change(RouteType, x.forTables(added), x.forTables(gone))
		x.warn(added)
	}
}

// Wants reports whether the stream is subscribed to anything of a type.
func (x *Session) Wants(typeURL string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	k, ok := kindOf(typeURL)
	return ok && x.types[k].wants()
}

// Count returns how many names of all types the stream is subscribed to, without those of tables.
func (x *Session) Count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for k := range routes {
		n += len(x.types[k].names)
	}
	if x.set == nil {
		return n + len(x.types[routes].names)
	}
	return n + len(x.subscribed(routes))
}

// forTables are the names that the file does not have: none before it was read, so that nothing is sent that it
// hides.
func (x *Session) forTables(names map[string]struct{}) []string {
	if x.set == nil {
		return nil
	}
	out := make([]string, 0, len(names))
	for n := range names {
		if x.set.types[routes].byName[n] == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// goesOn reports whether the proxy goes on with routes that the file dropped, and that no table replaces.
func (x *Session) goesOn() bool {
	for n := range x.types[routes].dropped {
		if !x.tables.Known(RouteType, n) {
			return true
		}
	}
	return false
}

// warn tells of tables that the file hides.
func (x *Session) warn(names map[string]struct{}) {
	if x.set == nil {
		return
	}
	for n := range names {
		if x.set.types[routes].byName[n] != nil && x.tables.Known(RouteType, n) {
			x.source.hide(n)
		}
	}
}

// look goes on to what the file says now, and moves names of routes between the file and the tables.
func (x *Session) look() {
	now := x.source.current()
	if now == x.set {
		return
	}
	before := x.set
	x.set = now
	var toTables, toFile []string
	moved := map[string]struct{}{}
	x.types[routes].drop(now)
	for k := range kinds {
		sub := &x.types[k]
		if k.whole() || x.peer.Delta {
			continue
		}
		dropOthers(sub.held, func(n string) bool { return now.has(k, n) }) // there is no way to take it back
	}
	for n := range x.types[routes].names {
		switch was, is := before.has(routes, n), now.has(routes, n); {
		case (was || before == nil) && !is:
			toTables = append(toTables, n)
		case !was && is:
			toFile, moved[n] = append(toFile, n), struct{}{}
		}
	}
	if len(toTables) > 0 || len(toFile) > 0 {
		x.tables.Change(RouteType, toTables, toFile)
		x.warn(moved)
	}
}
