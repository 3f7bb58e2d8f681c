package envoyfilter

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Options say what filters to write.
type Options struct {
	// Namespace is where outbound EnvoyFilters go: the root namespace of the mesh, for the proxies of all namespaces.
	Namespace string
	// Cluster is the cluster of the proxies' bootstrap that tables come from.
	Cluster string
	// HTTP is set for HTTP connection managers instead of MetaProtocol filters.
	HTTP bool
	// Codecs are the codecs of application protocols. They are not used with HTTP.
	Codecs map[string]string
}

// Codecs returns the codecs that every MetaProtocol proxy has, by application protocol.
func Codecs() map[string]string {
	return map[string]string{"dubbo": "aeraki.meta_protocol.codec.dubbo", "thrift": "aeraki.meta_protocol.codec.thrift"}
}

// Make returns the EnvoyFilters for the services: the outbound ones by name, then the inbound ones by namespace
// and name. The order of the services does not matter. All Problems are warnings.
func Make(services []Service, o Options) ([]Document, []problem.Problem) {
	m := maker{options: o, listeners: map[listener]claim{}, outbound: map[hostPort]*Document{}}
	ordered := slices.Clone(services)
	slices.SortStableFunc(ordered, olderFirst)
	for i := range ordered {
		m.service(&ordered[i])
	}
	var out []Document
	for _, d := range m.outbound {
		out = append(out, *d)
	}
	slices.SortFunc(out, byName)
	slices.SortFunc(m.inbound, byName)
	return append(out, m.inbound...), problem.Sorted(m.problems)
}

// olderFirst is the order in which istiod takes services, so that of two with one address the same one wins.
func olderFirst(a, b Service) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind))
}

// listener is where proxies listen for a service.
type listener struct {
	address netip.Addr
	port    uint32
}

// hostPort is a folded host and a port.
type hostPort struct {
	host string
	port uint32
}

// claim is who has a listener.
type claim struct {
	hostPort
	application string
	owner       problem.Object
}

type maker struct {
	options   Options
	listeners map[listener]claim
	outbound  map[hostPort]*Document
	inbound   []Document
	problems  []problem.Problem
}

func (m *maker) warn(s *Service, reason problem.Reason, format string, args ...any) {
	m.problems = append(m.problems, problem.Problem{
		Severity: problem.Warning, Object: s.Object, Reason: reason, Detail: fmt.Sprintf(format, args...), File: s.File, Line: s.Line,
	})
}

// service makes the filters of one service.
func (m *maker) service(s *Service) {
	ports := m.ports(s)
	if len(ports) == 0 || len(s.Hosts) == 0 {
		return
	}
	m.makeInbound(s, ports)
	addresses := m.addresses(s)
	for _, p := range ports {
		for _, a := range addresses {
			m.listen(s, p, a)
		}
	}
}

// ports are those that can have a filter.
func (m *maker) ports(s *Service) []Port {
	var out []Port
	for _, p := range s.Ports {
		if !p.Routed() || slices.ContainsFunc(out, func(o Port) bool { return o.Number == p.Number }) {
			continue
		}
		spoken := cmp.Or(p.Declared, strings.ToLower(strings.SplitN(p.Name, "-", 2)[0]))
		switch _, known := m.options.Codecs[p.Application()]; {
		case slices.Contains([]string{"http", "http2", "grpc", "grpc-web", "udp"}, spoken):
			m.warn(s, problem.Contradiction, "port %d: istiod takes %q for %s, so no proxy has a TCP listener to put a filter into: give it the protocol TCP, and a name like tcp-metaprotocol-dubbo", p.Number, p.Name, spoken)
		case m.options.HTTP || known:
			out = append(out, p)
		case p.Application() == "":
			m.warn(s, problem.UnknownCodec, "port %d: the name %q has no third part to say which application protocol it carries: name it like tcp-metaprotocol-dubbo", p.Number, p.Name)
		default:
			m.warn(s, problem.UnknownCodec, "port %d: no codec is known for the application protocol %q: give --codec %s=CODEC", p.Number, p.Application(), p.Application())
		}
	}
	return out
}

// place is an address that proxies listen on.
type place struct {
	text      string // as it is in the listener's name
	address   netip.Addr
	host      string
	allocated bool
}

// addresses are those that name a listener.
func (m *maker) addresses(s *Service) []place {
	var out []place
	for _, a := range s.Addresses {
		p := place{text: a.Text, host: cmp.Or(a.Host, s.Hosts[0]), allocated: a.Host != ""}
		if prefix, err := netip.ParsePrefix(a.Text); err == nil {
			if !prefix.IsSingleIP() {
				m.warn(s, problem.NoAddress, "the address %s is a range, for which proxies have no listener of its own: give the service one address", a.Text)
				continue
			}
			p.text = prefix.Addr().String() // as istiod does
		}
		var err error
		if p.address, err = netip.ParseAddr(p.text); err != nil {
			m.warn(s, problem.NoAddress, "the address %q is no IP address", a.Text)
			continue
		}
		if !p.address.IsUnspecified() {
			out = append(out, p)
		}
	}
	if len(out) == 0 && !slices.ContainsFunc(m.problems, func(p problem.Problem) bool { return p.Object == s.Object && p.Reason == problem.NoAddress }) {
		m.warn(s, problem.NoAddress, "%s", withoutAddress(s))
	}
	if len(s.Hosts) > 1 && len(out) > 0 && !out[0].allocated {
		m.warn(s, problem.SeveralServices, "its hosts have the same addresses, so requests to %s take the routes of %s: declare each host in a ServiceEntry of its own", strings.Join(s.Hosts[1:], ", "), s.Hosts[0])
	}
	return out
}

func withoutAddress(s *Service) string {
	switch {
	case s.Headless:
		return "a Service that is headless, or of type ExternalName, has no address that a listener is named by: give it a cluster IP, or declare a ServiceEntry with an address for another host"
	case s.Kind == "Service":
		return "it has no cluster IP that a listener is named by: read it from the API server, which has given it one, or write spec.clusterIP"
	default:
		return "it has no address that a listener is named by: write one that is unique in the mesh into spec.addresses, as 240.240.0.1, or let istiod allocate one and read it from the API server"
	}
}

// listen makes, or extends, the outbound filter of a host's port.
func (m *maker) listen(s *Service, p Port, at place) {
	key := hostPort{mesh.Fold(at.host), p.Number}
	mine := claim{key, p.Application(), s.Object}
	l := listener{at.address.Unmap(), p.Number}
	if other, taken := m.listeners[l]; taken {
		if other.hostPort != key || other.application != mine.application && !m.options.HTTP {
			m.warn(s, problem.Contradiction, "port %d at %s: %s is older, or first by name, and has the same address and port for %s; a listener can serve only one, so give the service an address of its own", p.Number, at.text, other.owner, other.spoken())
			return
		}
		m.outbound[key].note(s.Object)
		return
	}
	m.listeners[l] = mine
	d := m.outbound[key]
	if d == nil {
		d = newDocument(m.options.Namespace, outboundName(key))
		d.what = fmt.Sprintf("Outbound to %s port %d", at.host, p.Number)
		m.outbound[key] = d
	}
	d.note(s.Object)
	if at.allocated {
		d.allocated = true
	}
	d.patches = append(d.patches, patch("SIDECAR_OUTBOUND", map[string]any{
		"name":        fmt.Sprintf("%s_%d", at.text, p.Number),
		"filterChain": map[string]any{"filter": map[string]any{"name": tcpProxy}},
	}, m.outboundFilter(at.host, p)))
}

func (c claim) spoken() string {
	if c.application == "" {
		return c.host
	}
	return c.host + " (" + c.application + ")"
}

// makeInbound makes the inbound filters of the workloads behind a service. They let the workload's proxy count and
// limit requests, which it can only if it understands them. An HTTP connection manager would add nothing to the
// tcp_proxy of a stock sidecar, so there is none.
func (m *maker) makeInbound(s *Service, ports []Port) {
	if m.options.HTTP || len(s.Selector) == 0 {
		return
	}
	targets := map[uint32]bool{}
	for _, p := range ports {
		if p.Target == 0 {
			m.warn(s, problem.Ignored, "port %d: its target port is %q, whose number only the pods tell, so there is no inbound filter: write the number", p.Number, p.TargetName)
			continue
		}
		if targets[p.Target] {
			continue // the proxy has one filter chain for a port of the workload
		}
		targets[p.Target] = true
		// istiod applies a selector in the root namespace to the workloads of all namespaces.
		d := newDocument(s.Namespace, inboundName(s.Object, p.Number))
		d.what = fmt.Sprintf("Inbound to the workloads of %s port %d", s.Hosts[0], p.Number)
		d.note(s.Object)
		d.selector = s.Selector
		d.patches = append(d.patches, patch("SIDECAR_INBOUND", map[string]any{
			"name":        "virtualInbound",
			"filterChain": map[string]any{"destinationPort": p.Target, "filter": map[string]any{"name": tcpProxy}},
		}, m.inboundFilter(s.Hosts[0], p)))
		m.inbound = append(m.inbound, *d)
	}
}
