package mesh

// Lens answers lookups as a View sees the mesh, and remembers what was asked and answered: what a table
// was compiled from. It is valid during Store.Read only, its answers are read-only and stay valid.
type Lens struct {
	store *Store
	view  View
	trace Trace
}

// Trace is what was asked through a Lens and what the answers were.
type Trace map[question]any

type question struct {
	kind            Kind
	host, namespace string
}

// Hosts returns the folded hosts that were asked for: a change of one of them may change the answers.
func (t Trace) Hosts() []string {
	seen := make(map[string]struct{}, len(t))
	out := make([]string, 0, len(t))
	for q := range t {
		if _, ok := seen[q.host]; !ok {
			seen[q.host] = struct{}{}
			out = append(out, q.host)
		}
	}
	return out
}

func ask[T any](l *Lens, q question, answer func() T) T {
	if known, ok := l.trace[q]; ok {
		return known.(T)
	}
	a := answer()
	l.trace[q] = a
	return a
}

// View is whose view it is.
func (l *Lens) View() View { return l.view }

// Settings are the mesh-wide values. A change of them counts as a change of every host.
func (l *Lens) Settings() Settings { return l.store.settings }

// Trace returns what was asked so far.
func (l *Lens) Trace() Trace { return l.trace }

// Service returns the service of a host that the View's namespace sees, nil if none.
func (l *Lens) Service(host string) *Service {
	return ask(l, question{KindServiceEntry, Fold(host), ""}, func() *Service {
		return l.store.services.lookup(&l.store.settings, l.view.Namespace, host)
	})
}

// MetaRouter returns the MetaRouter in force for a service, nil if none.
func (l *Lens) MetaRouter(s *Service) *Object {
	return ask(l, question{KindMetaRouter, Fold(s.Host), s.Namespace}, func() *Object {
		return l.store.routers.lookup(l.view.Namespace, s.Namespace, s.Host)
	})
}

// Rule returns the rule that istiod gives to the View's cluster of a host whose service is declared in
// the given namespace (empty if there is no such service), nil if none.
func (l *Lens) Rule(host, serviceNamespace string) *Rule {
	return ask(l, question{KindDestinationRule, Fold(host), serviceNamespace}, func() *Rule {
		return l.store.rules.lookup(&l.store.settings, l.view.Namespace, serviceNamespace, Fold(host))
	})
}

// Same asks everything in a Trace again, for this Lens's View, and reports whether the answers are the
// same: then whatever was compiled from them is the same too. Its own Trace stays as it is.
func (l *Lens) Same(t Trace) bool {
	s, client := l.store, l.view.Namespace
	for q, known := range t {
		same := false
		switch known := known.(type) {
		case *Service:
			same = s.services.lookup(&s.settings, client, q.host).equal(known)
		case *Object:
			same = s.routers.lookup(client, q.namespace, q.host) == known
		case *Rule:
			same = s.rules.lookup(&s.settings, client, q.namespace, q.host).equal(known)
		}
		if !same {
			return false
		}
	}
	return true
}
