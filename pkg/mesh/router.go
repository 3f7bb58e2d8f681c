package mesh

import (
	"fmt"
	"slices"

	"github.com/metards/metards/pkg/problem"
)

// routerIndex holds the MetaRouters of each folded host, oldest first.
type routerIndex map[string][]*Object

func routerHosts(o *Object) []string {
	hosts := o.Spec.(*MetaRouter).GetHosts()
	out := make([]string, 0, len(hosts))
	for _, h := range hosts {
		out = append(out, Fold(h))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (x routerIndex) add(o *Object) {
	for _, h := range routerHosts(o) {
		list := append(slices.Clone(x[h]), o)
		slices.SortFunc(list, olderRouterFirst)
		x[h] = list
	}
}

func (x routerIndex) remove(o *Object) {
	for _, h := range routerHosts(o) {
		x[h] = slices.DeleteFunc(slices.Clone(x[h]), func(p *Object) bool { return p == o })
		if len(x[h]) == 0 {
			delete(x, h)
		}
	}
}

// lookup returns the MetaRouter that a client sees for a host, nil if none: one in the service's
// namespace first, then the oldest.
func (x routerIndex) lookup(client, service, host string) *Object {
	var first *Object
	for _, o := range x[Fold(host)] {
		if !o.counts() || !visible(o.Spec.(*MetaRouter).GetExportTo(), nil, o.Namespace, client) {
			continue
		}
		if o.Namespace == service {
			return o
		}
		if first == nil {
			first = o
		}
	}
	return first
}

// winners returns, each once, the MetaRouters that any client sees for a folded host.
func (s *Store) winners(host string) []*Object {
	var out []*Object
	for _, client := range s.clientsOf(host) {
		service := ""
		if declared := s.services.lookup(&s.settings, client, host); declared != nil {
			service = declared.Namespace
		} else if len(s.services[host]) > 0 {
			continue // this client does not see the service
		}
		if w := s.routers.lookup(client, service, host); w != nil && !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// conflicts judges a valid MetaRouter against the rest of the mesh: hosts that no service declares, and
// whether it wins anywhere.
func (s *Store) conflicts(o *Object, winners func(host string) []*Object) []problem.Problem {
	var out []problem.Problem
	report := func(sev problem.Severity, reason problem.Reason, path, detail string) {
		out = append(out, problem.Problem{Severity: sev, Object: o.Ref(), Path: path, Reason: reason, Detail: detail, File: o.File, Line: o.Line})
	}
	wins, winner := !o.counts(), (*Object)(nil)
	for i, host := range o.Spec.(*MetaRouter).GetHosts() {
		path := fmt.Sprintf("spec.hosts[%d]", i)
		switch declared := s.services[Fold(host)]; {
		case len(declared) == 0:
			report(problem.Warning, problem.UnknownHost, path, fmt.Sprintf("no service declares the host %q, so nobody asks for its table", host))
		case !slices.ContainsFunc(declared, func(d declaration) bool { return slices.ContainsFunc(d.service.Ports, Port.Routed) }):
			report(problem.Warning, problem.NotMetaProtocol, path,
				fmt.Sprintf("the service %q has no MetaProtocol port (a port named like tcp-metaprotocol-dubbo), so nobody asks for its table", host))
		}
		list := winners(Fold(host))
		wins = wins || slices.Contains(list, o)
		if winner == nil && len(list) > 0 {
			winner = list[0]
		}
	}
	switch {
	case wins:
	case winner != nil:
		report(problem.Error, problem.Conflicted, "", fmt.Sprintf("not used: %s has the same host and comes first", winner.Ref()))
	default:
		report(problem.Error, problem.Ignored, "spec.exportTo", "not used: no namespace that sees the service sees this MetaRouter")
	}
	return out
}

// Clients returns, sorted, the namespaces whose clients can differ in what service and MetaRouter they see
// for a host, and one ("") that stands for all others.
func (s *Store) Clients(host string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.clientsOf(Fold(host))
}

// Overlaps returns a warning for each host that several namespaces declare: each client sees one of them.
func (s *Store) Overlaps() []problem.Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []problem.Problem
	for _, declared := range s.services {
		for _, d := range declared[1:] {
			first := declared[0].object
			if d.object.Namespace == first.Namespace {
				continue
			}
			out = append(out, problem.Problem{
				Severity: problem.Warning, Object: d.object.Ref(), Reason: problem.SeveralServices, File: d.object.File, Line: d.object.Line,
				Detail: fmt.Sprintf("the host %q is declared in namespace %s too, by %s; each client sees the ports of one namespace only",
					d.service.Host, first.Namespace, first.Ref()),
			})
		}
	}
	return problem.Sorted(out)
}

// clientsOf is Clients for a folded host; s.mu is held.
func (s *Store) clientsOf(host string) []string {
	out := []string{""}
	scope := func(o *Object, exportTo []string) {
		out = append(out, o.Namespace)
		for _, to := range exportTo {
			if to != "*" && to != "." {
				out = append(out, to)
			}
		}
	}
	for _, d := range s.services[host] {
		scope(d.object, d.object.Spec.(*ServiceEntry).ExportTo)
	}
	for _, o := range s.routers[host] {
		if !o.counts() {
			continue
		}
		scope(o, o.Spec.(*MetaRouter).GetExportTo())
	}
	for _, to := range s.settings.DefaultServiceExportTo {
		if to != "*" && to != "." {
			out = append(out, to)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
