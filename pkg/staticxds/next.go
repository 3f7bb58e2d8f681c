package staticxds

import (
	"cmp"
	"slices"
	"time"
)

// Next returns what is new of a type for the proxy, nil if nothing is, and notes it as sent. Everything that was
// sent of the type before must have been answered. What the file does not have any more is left to Removal.
func (x *Session) Next(typeURL string) *Response {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.look()
	k, ok := kindOf(typeURL)
	sub := &x.types[k]
	if !ok || x.set == nil || !sub.wants() {
		return nil
	}
	if k.whole() && !x.peer.Delta {
		if len(x.changed(k)) == 0 && !sub.due && !x.withdrawn(k) {
			return nil
		}
		return x.sent(x.full(k, false))
	}
	r := &Response{Resources: x.changed(k), kind: k}
	for name := range sub.unknown {
		if x.set.has(k, name) {
			continue
		}
		r.Removed = append(r.Removed, name)
		if sub.held[name] != nil {
			r.missing = append(r.missing, name)
			delete(sub.held, name)
		}
	}
	for name, h := range sub.held {
		if k == listeners && !x.set.has(k, name) && x.set.displaces(h) {
			r.Removed, r.missing = append(r.Removed, name), append(r.missing, name)
			delete(sub.held, name)
		}
	}
	slices.Sort(r.Removed)
	if len(r.Resources)+len(r.Removed) == 0 && !sub.due {
		return nil
	}
	if k == routes && len(r.Resources) > 1 {
		r.Resources = r.Resources[:1] // a MetaProtocol proxy takes no more at once, and a refusal names one
	}
	sub.unknown = nil
	if sub.held == nil {
		sub.held = map[string]*Resource{}
	}
	for _, resource := range r.Resources {
		sub.held[resource.Name] = resource
	}
	r.changed = r.Names()
	return x.sent(r)
}

// Removal returns the next response that takes something away, nil if there is none, and notes it as sent. It
// comes after everything that Next has, once all of that was answered: routes first and clusters last, and nothing
// while the proxy refuses what was sent of the type or of a later one, since it may go on with what is going. For the
// same reason clusters stay, and their endpoints, while it is subscribed to routes that the file dropped.
func (x *Session) Removal() *Response {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.look()
	if x.set == nil || time.Now().Before(x.whole) {
		return nil
	}
	for k := kinds - 1; k >= 0; k-- {
		if x.refuses(k) || k <= endpoints && x.goesOn() {
			return nil
		}
		if r := x.removal(k); r != nil {
			return x.sent(r)
		}
	}
	return nil
}

// refuses reports whether the proxy refuses what the file says of a kind, or that it says nothing.
func (x *Session) refuses(k kind) bool {
	for name, version := range x.types[k].refused {
		if x.set.versionOf(k, name) == version {
			return true
		}
	}
	return false
}

func (x *Session) removal(k kind) *Response {
	sub := &x.types[k]
	var going []string
	for name, r := range sub.held {
		switch {
		case x.set.has(k, name):
		case k == routes && r.Any == nil: // it may have been a table
			delete(sub.held, name)
		default:
			going = append(going, name)
		}
	}
	switch {
	case len(going) == 0:
		return nil
	case !x.peer.Delta:
		return x.full(k, true)
	}
	for _, name := range going {
		delete(sub.held, name)
	}
	slices.Sort(going)
	return &Response{Removed: going, missing: going, kind: k}
}

// changed returns what is subscribed to of a kind and differs from what was sent, by name.
func (x *Session) changed(k kind) []*Resource {
	held := x.types[k].held
	return slices.DeleteFunc(x.subscribed(k), func(r *Resource) bool {
		h := held[r.Name]
		return h != nil && h.Version == r.Version
	})
}

// subscribed returns what the file has of what is subscribed to, by name. It looks through the shorter of the two: it
// is called for every answer, and of routes most may be tables.
func (x *Session) subscribed(k kind) []*Resource {
	sub, l := &x.types[k], &x.set.types[k]
	if sub.wildcard {
		return slices.Clone(l.sorted)
	}
	var out []*Resource
	if len(l.sorted) <= len(sub.names) {
		for _, r := range l.sorted {
			if sub.has(r.Name) {
				out = append(out, r)
			}
		}
		return out
	}
	for name := range sub.names {
		if r := l.byName[name]; r != nil {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// withdrawn reports whether the last response had something that the proxy never took, and that is gone.
func (x *Session) withdrawn(k kind) bool {
	for name := range x.types[k].held {
		if !x.set.has(k, name) && x.types[k].taken[name] == nil {
			return true
		}
	}
	return false
}

// full is a response in state of the world. But for the final one it still has what is going, as the proxy took
// it last, under a version that says so; without the listeners whose address another one takes, for Envoy has no two
// at one address.
func (x *Session) full(k kind, final bool) *Response {
	sub, r := &x.types[k], &Response{Resources: x.subscribed(k), kind: k}
	for _, resource := range r.Resources {
		if t := sub.taken[resource.Name]; t == nil || t.Version != resource.Version {
			r.changed = append(r.changed, resource.Name)
		}
	}
	for name, t := range sub.taken {
		switch {
		case x.set.has(k, name):
		case final || k == listeners && x.set.displaces(t):
			r.missing = append(r.missing, name)
		default:
			r.Resources, r.going = append(r.Resources, t), true
		}
	}
	slices.SortFunc(r.Resources, func(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) })
	if r.going {
		r.Version = sub.complete + ".." + x.set.types[k].version
	}
	sub.held = byName(r.Resources)
	return r
}

func byName(list []*Resource) map[string]*Resource {
	out := make(map[string]*Resource, len(list))
	for _, r := range list {
		out[r.Name] = r
	}
	return out
}

// sent completes a response, and notes it.
func (x *Session) sent(r *Response) *Response {
	sub := &x.types[r.kind]
	r.Type = r.kind.typeURL()
	r.Version = cmp.Or(r.Version, x.set.types[r.kind].version)
	sub.due = false
	sub.sent = fact{version: r.Version, at: time.Now()}
	if r.kind == clusters { // Envoy takes a changed cluster into use once it gets its endpoints again
		for _, resource := range r.Resources {
			if resource.endpoints != "" && slices.Contains(r.changed, resource.Name) {
				x.types[endpoints].again(resource.endpoints)
			}
		}
	}
	return r
}

// Accepted notes that the proxy took a response.
func (x *Session) Accepted(r *Response) {
	x.mu.Lock()
	defer x.mu.Unlock()
	sub := &x.types[r.kind]
	sub.accepted = fact{version: r.Version, at: time.Now()}
	if r.kind.whole() && !x.peer.Delta {
		sub.taken, sub.refused = byName(r.Resources), nil
		dropOthers(sub.taken, sub.has)
		if !r.going {
			sub.complete = r.Version
		}
	}
	for _, name := range slices.Concat(r.changed, r.Removed) {
		delete(sub.refused, name)
	}
	if len(sub.refused) == 0 {
		sub.rejected = fact{}
	}
}

// Rejected notes that the proxy refused a response, and why. It is not sent again until its content differs.
func (x *Session) Rejected(r *Response, reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	sub := &x.types[r.kind]
	sub.rejected = fact{version: r.Version, reason: reason, at: time.Now()}
	for _, resource := range r.Resources {
		if slices.Contains(r.changed, resource.Name) {
			sub.refuse(resource.Name, resource.Version)
		}
	}
	for _, name := range r.missing {
		sub.refuse(name, "")
	}
}

// TableSent notes that a table goes out under a name, and what the file said of it is nothing to the proxy any more.
func (x *Session) TableSent(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.types[routes].held, name)
}

// TableAnswered notes the proxy's answer to a table. A refused one keeps clusters from being taken away, as a
// refused route of the file does.
func (x *Session) TableAnswered(name string, accepted bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	sub := &x.types[routes]
	if accepted {
		delete(sub.refused, name)
	} else {
		sub.refuse(name, "")
	}
}
