package mesh

import (
	"cmp"
	"slices"
	"strings"
)

// Service is a host as the clients of a namespace see it: the ports that one namespace declares for it.
type Service struct {
	Host      string // as the ServiceEntry spells it
	Namespace string
	Ports     []Port // by number, each number once
}

// Port returns the port of a number.
func (s *Service) Port(number uint32) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number {
			return p, true
		}
	}
	return Port{}, false
}

func (s *Service) equal(o *Service) bool {
	return s == o || s != nil && o != nil &&
		s.Host == o.Host && s.Namespace == o.Namespace && slices.Equal(s.Ports, o.Ports)
}

// declaration is one ServiceEntry's word about one host.
type declaration struct {
	object  *Object
	service *Service
}

func newDeclaration(o *Object, host string) declaration {
	return declaration{o, &Service{Host: host, Namespace: o.Namespace, Ports: joinPorts(o.Spec.(*ServiceEntry).Ports)}}
}

// synthetic reports whether istiod made the ServiceEntry of a Kubernetes Service.
func (d declaration) synthetic() bool { return strings.HasPrefix(d.object.Name, "synthetic-") }

// serviceIndex holds the declarations of each folded host, oldest first.
type serviceIndex map[string][]declaration

func (x serviceIndex) add(o *Object) {
	for _, host := range o.Spec.(*ServiceEntry).Hosts {
		h := Fold(host)
		if slices.ContainsFunc(x[h], func(d declaration) bool { return d.object == o }) {
			continue // the same host twice, or in two spellings
		}
		list := append(slices.Clone(x[h]), newDeclaration(o, host))
		slices.SortStableFunc(list, func(a, b declaration) int { return olderFirst(a.object, b.object) })
		x[h] = list
	}
}

func (x serviceIndex) remove(o *Object) {
	for _, host := range o.Spec.(*ServiceEntry).Hosts {
		h := Fold(host)
		x[h] = slices.DeleteFunc(slices.Clone(x[h]), func(d declaration) bool { return d.object == o })
		if len(x[h]) == 0 {
			delete(x, h)
		}
	}
}

// lookup returns the service that a client sees, nil if none. A client sees the declarations of one
// namespace: its own, else that of the Kubernetes Service, else that of the oldest one exported to it.
func (x serviceIndex) lookup(settings *Settings, client, host string) *Service {
	var seen []declaration
	for _, d := range x[Fold(host)] {
		if visible(d.object.Spec.(*ServiceEntry).ExportTo, settings.DefaultServiceExportTo, d.object.Namespace, client) {
			seen = append(seen, d)
		}
	}
	if len(seen) == 0 {
		return nil
	}
	first := seen[0]
	if i := slices.IndexFunc(seen, declaration.synthetic); i >= 0 {
		first = seen[i]
	}
	if i := slices.IndexFunc(seen, func(d declaration) bool { return d.object.Namespace == client }); i >= 0 {
		first = seen[i]
	}
	seen = slices.DeleteFunc(seen, func(d declaration) bool { return d.object.Namespace != first.object.Namespace })
	if len(seen) == 1 {
		return seen[0].service
	}
	joined := &Service{Host: seen[0].service.Host, Namespace: first.object.Namespace}
	for _, d := range seen {
		joined.Ports = append(joined.Ports, d.service.Ports...)
	}
	joined.Ports = joinPorts(joined.Ports)
	return joined
}

// joinPorts orders by number and keeps the first of each number.
func joinPorts(ports []Port) []Port {
	out := slices.Clone(ports)
	slices.SortStableFunc(out, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return slices.CompactFunc(out, func(a, b Port) bool { return a.Number == b.Number })
}
