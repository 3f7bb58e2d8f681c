package staticxds

import "time"

// subscription is one kind on one stream.
type subscription struct {
	open     bool // there was a request
	wildcard bool
	names    map[string]struct{} // asked for by name

	due      bool                 // an answer is owed although there may be nothing to say
	unknown  map[string]struct{}  // delta: asked for, and the proxy is to be told that there are none
	held     map[string]*Resource // as sent last, whatever the proxy said to it
	taken    map[string]*Resource // state of the world, whole kinds: what the proxy accepted last
	complete string               // version that was sent last without anything that is going
	refused  map[string]string    // version, by name, that the proxy refused last; empty if it was a removal or a table

	// dropped are routes that the file had and has not, while the proxy goes on with them: a listener that is replaced
	// drains, and what its connections go on with stays subscribed.
	dropped map[string]struct{}

	sent, accepted, rejected fact
}

// fact is a version, since when it holds, and the proxy's reason of a rejection.
type fact struct {
	version, reason string
	at              time.Time
}

func (u *subscription) wants() bool { return u.wildcard || len(u.names) > 0 }

// has reports whether a name is subscribed to.
func (u *subscription) has(name string) bool {
	_, ok := u.names[name]
	return ok || u.wildcard
}

// again makes what was sent under a name be sent once more.
func (u *subscription) again(name string) {
	if r := u.held[name]; r != nil {
		u.held[name] = &Resource{Name: name, Any: r.Any} // without its version; that it is there still counts for Removal
	}
}

// forget drops what is known of names that are not subscribed to any more.
func (u *subscription) forget() {
	dropOthers(u.held, u.has)
	dropOthers(u.taken, u.has)
	dropOthers(u.refused, u.has)
	dropOthers(u.unknown, u.has)
	dropOthers(u.dropped, u.has)
}

func dropOthers[V any](m map[string]V, keep func(string) bool) {
	for name := range m {
		if !keep(name) {
			delete(m, name)
		}
	}
}

// drop notes which routes are held that a set does not have, and forgets those that it has.
func (u *subscription) drop(now *Set) {
	for n := range u.held {
		if u.dropped == nil {
			u.dropped = map[string]struct{}{}
		}
		u.dropped[n] = struct{}{}
	}
	dropOthers(u.dropped, func(n string) bool { return !now.has(routes, n) })
}

func (u *subscription) refuse(name, version string) {
	if u.refused == nil {
		u.refused = map[string]string{}
	}
	if u.has(name) {
		u.refused[name] = version
	}
}
