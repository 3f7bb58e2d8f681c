package routes

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Mesh is what the compiler asks of the mesh, as one View sees it. *mesh.Lens is one.
type Mesh interface {
	View() mesh.View
	Settings() mesh.Settings
	Service(host string) *mesh.Service
	MetaRouter(*mesh.Service) *mesh.Object
	Rule(host, serviceNamespace string) *mesh.Rule
}

// Compile returns the Plan of a resource name, nil if the View knows no such name, with warnings about
// the MetaRouter that it was made of. The MetaRouter must be valid.
func Compile(m Mesh, name string) (*Plan, []problem.Problem) {
	host, port, ok := ParseName(name)
	if !ok {
		return nil, nil
	}
	service := m.Service(host)
	if service == nil {
		return nil, nil
	}
	routed, ok := routedPort(service, port, m.View().Gateway)
	if !ok {
		return nil, nil
	}
	c := compiler{mesh: m, service: service, port: routed.Number}
	p := &Plan{Service: service.Host, Port: routed.Number, Protocol: routed.Protocol(), Application: routed.Application()}
	if o := m.MetaRouter(service); o != nil {
		c.object, p.MetaRouter = o, o.Ref()
		p.Routes = c.routes(o.Spec.(*mesh.MetaRouter).GetRoutes())
	} else {
		d := Destination{Host: service.Host, Port: routed.Number}
		p.Routes = []Route{{Name: "default", Destinations: []Destination{d}, HashKeys: c.hashKeys([]Destination{d})}}
	}
	return p, c.problems
}

// routedPort finds the MetaProtocol port that a table is for. A gateway asks with its own port's number:
// if the service does not have it, its only MetaProtocol port is meant.
func routedPort(s *mesh.Service, number uint32, gateway bool) (mesh.Port, bool) {
	if p, ok := s.Port(number); ok && p.Routed() {
		return p, true
	}
	if !gateway {
		return mesh.Port{}, false
	}
	var only []mesh.Port
	for _, p := range s.Ports {
		if p.Routed() {
			only = append(only, p)
		}
	}
	if len(only) != 1 {
		return mesh.Port{}, false
	}
	return only[0], true
}

// compiler is the state of one Compile.
type compiler struct {
	mesh     Mesh
	service  *mesh.Service
	port     uint32
	object   *mesh.Object // the MetaRouter, nil for the default route
	problems []problem.Problem

	index int    // of the route that is compiled
	name  string // its name
}

// warn reports what may surprise at a path within the current route.
func (c *compiler) warn(reason problem.Reason, path, detail string) {
	c.problems = append(c.problems, problem.Problem{
		Severity: problem.Warning, Object: c.object.Ref(), Path: fmt.Sprintf("spec.routes[%d]%s", c.index, path), Route: c.name,
		Reason: reason, Detail: detail, File: c.object.File, Line: c.object.Line,
	})
}

func (c *compiler) routes(routes []*v1alpha1.MetaRoute) []Route {
	out := make([]Route, len(routes))
	for i, r := range routes {
		c.index, c.name = i, r.GetName()
		out[i] = c.route(r)
	}
	return out
}

func (c *compiler) route(r *v1alpha1.MetaRoute) Route {
	out := Route{
		Name:       r.GetName(),
		Conditions: conditions(r.GetMatch()),
		Requests:   keyValues(r.GetRequestMutation()),
		Responses:  keyValues(r.GetResponseMutation()),
	}
	out.Destinations = make([]Destination, len(r.GetRoute()))
	for i, d := range r.GetRoute() {
		out.Destinations[i] = c.destination(d.GetDestination(), i)
		out.Destinations[i].Weight = d.GetWeight()
	}
	if millionths := millionths(r.GetMirrorPercentage()); r.GetMirror() != nil && millionths > 0 {
		out.Mirror = &Mirror{Destination: c.destination(r.GetMirror(), mirrored), Millionths: millionths}
	}
	out.HashKeys = c.hashKeys(out.Destinations)
	if len(out.HashKeys) > 1 {
		c.warn(problem.SeveralHashKeys, "", fmt.Sprintf(
			"the destinations hash by different keys %q; the proxy hashes all of them together, so none is sticky on its own key alone", out.HashKeys))
	}
	c.warnCollisions(out.Conditions)
	return out
}

// warnCollisions tells of attributes that differ in letter case only: to the proxy they are one.
func (c *compiler) warnCollisions(conditions []Condition) {
	if len(conditions) < 2 {
		return
	}
	seen := make(map[string]string, len(conditions))
	for _, condition := range conditions {
		folded := lowerASCII(condition.Attribute)
		if other, ok := seen[folded]; ok {
			c.warn(problem.NeverMatches, ".match", fmt.Sprintf(
				"the attributes %q and %q are one to the proxy; the route matches only when both conditions hold", other, condition.Attribute))
		}
		seen[folded] = condition.Attribute
	}
}

func lowerASCII(s string) string {
	b := []byte(s)
	for i, ch := range b {
		if 'A' <= ch && ch <= 'Z' {
			b[i] = ch + 'a' - 'A'
		}
	}
	return string(b)
}

// conditions returns the demands sorted by attribute: their order has no meaning, but changes the bytes.
func conditions(m *v1alpha1.MetaRouteMatch) []Condition {
	out := make([]Condition, 0, len(m.GetAttributes()))
	for name, match := range m.GetAttributes() {
		out = append(out, condition(name, match))
	}
	slices.SortFunc(out, func(a, b Condition) int { return cmp.Compare(a.Attribute, b.Attribute) })
	return out
}

// condition turns what is true of every value into presence: an exact "" (as documented in the API), a
// prefix "", and "*", which is written for "any" and is no regex.
func condition(name string, m *v1alpha1.StringMatch) Condition {
	c := Condition{Attribute: name}
	switch m := m.GetMatchType().(type) {
	case *v1alpha1.StringMatch_Exact:
		c.Match, c.Value = Exact, m.Exact
	case *v1alpha1.StringMatch_Prefix:
		c.Match, c.Value = Prefix, m.Prefix
	case *v1alpha1.StringMatch_Regex:
		c.Match, c.Value = Regex, m.Regex
	}
	if c.Match == "" || c.Value == "" || c.Match == Regex && c.Value == "*" {
		c.Match, c.Value = Present, ""
	}
	return c
}

func keyValues(list []*v1alpha1.KeyValue) []KeyValue {
	if len(list) == 0 {
		return nil
	}
	out := make([]KeyValue, len(list))
	for i, kv := range list {
		out[i] = KeyValue{kv.GetKey(), kv.GetValue()}
	}
	return out
}

// millionths rounds a percentage half up; absent means all. The last summand is above what a percentage
// loses by being no decimal: 0.00015 × 10,000 is a little less than 1.5.
func millionths(p *v1alpha1.Percent) uint32 {
	if p == nil {
		return million
	}
	return uint32(p.GetValue()*(million/100) + 0.5 + 1e-9)
}

const million = 1_000_000
