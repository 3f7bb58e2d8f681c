package routes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// destination resolves host and port as Istio's clusters are named, and warns of what nobody declares.
// i is its place in the route's list, mirrored for the mirror.
func (c *compiler) destination(d *v1alpha1.Destination, i int) Destination {
	where := func(rest string) string {
		if i == mirrored {
			return ".mirror" + rest
		}
		return fmt.Sprintf(".route[%d].destination%s", i, rest)
	}
	host, service := c.resolve(d.GetHost())
	out := Destination{Host: host, Subset: d.GetSubset(), Port: c.port}
	switch {
	case d.GetPort().GetNumber() != 0:
		out.Port = d.GetPort().GetNumber()
	case service != nil && len(service.Ports) == 1:
		out.Port = service.Ports[0].Number
	}
	if service == nil {
		c.warn(problem.UnknownHost, where(".host"), fmt.Sprintf("no service that this client sees declares the host %q; requests to it fail", host))
		return out
	}
	if _, ok := service.Port(out.Port); !ok {
		c.warn(problem.UnknownPort, where(".port"), fmt.Sprintf("the service %s has no port %d; requests to it fail", host, out.Port))
	}
	if out.Subset != "" {
		if rule := c.mesh.Rule(host, service.Namespace); rule == nil || !declares(rule, out.Subset) {
			c.warn(problem.UnknownSubset, where(".subset"), fmt.Sprintf(
				"no DestinationRule for %s declares the subset %q; requests to it fail", host, out.Subset))
		}
	}
	return out
}

const mirrored = -1

func declares(r *mesh.Rule, subset string) bool {
	_, ok := r.Subset(subset)
	return ok
}

// resolve returns a destination's host as the ServiceEntry spells it, and the service if the client sees
// one. A host without a dot that no ServiceEntry declares is a Kubernetes short name.
func (c *compiler) resolve(host string) (string, *mesh.Service) {
	if s := c.mesh.Service(host); s != nil {
		return s.Host, s
	}
	if strings.Contains(host, ".") {
		return host, nil
	}
	full := c.mesh.Settings().Qualify(host, c.object.Namespace)
	if s := c.mesh.Service(full); s != nil {
		return s.Host, s
	}
	return full, nil
}

// hashKeys returns the destinations' keys in order, each once: the proxy hashes the values of all keys
// together, so a repeated key would give another hash.
func (c *compiler) hashKeys(destinations []Destination) []string {
	var out []string
	for _, d := range destinations {
		key := c.hashKey(d)
		if key != "" && !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

// hashKey is the header by which istiod lets the destination's cluster hash, empty if it does not.
func (c *compiler) hashKey(d Destination) string {
	namespace := ""
	if s := c.mesh.Service(d.Host); s != nil {
		namespace = s.Namespace
	}
	rule := c.mesh.Rule(d.Host, namespace)
	if rule == nil {
		return ""
	}
	balancer := portBalancer(rule.Policy, d.Port, nil)
	if d.Subset != "" {
		subset, declared := rule.Subset(d.Subset)
		if !declared {
			return ""
		}
		balancer = portBalancer(subset.Policy, d.Port, balancer)
	}
	if balancer == nil {
		return ""
	}
	return balancer.HashHeader
}

// portBalancer is what a policy says for a port: an entry for the port replaces the policy whole, even
// where it says nothing; a policy without a balancer leaves what is in force.
func portBalancer(p *mesh.Policy, port uint32, inForce *mesh.Balancer) *mesh.Balancer {
	if p == nil {
		return inForce
	}
	for _, entry := range p.Ports {
		if entry.Number == port {
			return entry.Balancer
		}
	}
	if p.Balancer != nil {
		return p.Balancer
	}
	return inForce
}
