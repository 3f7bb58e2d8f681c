package routes

import (
	"fmt"
	"strings"
)

// Lines is the Plan for people: a line for each route, with conditions, destinations and their shares, and
// what else happens to a request. Of the Plan's own service only the subset is named.
func (p *Plan) Lines() []string {
	out := make([]string, len(p.Routes))
	for i := range p.Routes {
		out[i] = p.line(&p.Routes[i])
	}
	return out
}

// Spoken is the protocol of the port, as in metaprotocol/dubbo.
func (p *Plan) Spoken() string {
	if p.Application == "" {
		return p.Protocol
	}
	return p.Protocol + "/" + p.Application
}

// From says where the routes come from.
func (p *Plan) From() string {
	if p.MetaRouter.Name == "" {
		return "default, no MetaRouter"
	}
	return p.MetaRouter.String()
}

func (p *Plan) line(r *Route) string {
	var b strings.Builder
	name := r.Name
	if name == "" {
		name = "(unnamed)"
	}
	fmt.Fprintf(&b, "%s: ", name)
	if len(r.Conditions) == 0 {
		b.WriteString("any request")
	}
	for i, c := range r.Conditions {
		if i > 0 {
			b.WriteString(" and ")
		}
		b.WriteString(c.String())
	}
	fmt.Fprintf(&b, " -> %s", p.shares(r.Destinations))
	if r.Mirror != nil {
		fmt.Fprintf(&b, ", %s mirrored to %s", percent(uint64(r.Mirror.Millionths), million), p.target(r.Mirror.Destination))
	}
	if len(r.HashKeys) > 0 {
		fmt.Fprintf(&b, ", sticky by %s", strings.Join(r.HashKeys, "+"))
	}
	for _, kv := range r.Requests {
		fmt.Fprintf(&b, ", request %s=%q", kv.Key, kv.Value)
	}
	for _, kv := range r.Responses {
		fmt.Fprintf(&b, ", response %s=%q", kv.Key, kv.Value)
	}
	return b.String()
}

func (p *Plan) shares(list []Destination) string {
	if len(list) == 1 {
		return p.target(list[0])
	}
	sum := uint64(0)
	for _, d := range list {
		sum += uint64(d.Weight)
	}
	parts := make([]string, len(list))
	for i, d := range list {
		parts[i] = percent(uint64(d.Weight), sum) + " " + p.target(d)
	}
	return strings.Join(parts, ", ")
}

func (p *Plan) target(d Destination) string {
	switch own := d.Host == p.Service && d.Port == p.Port; {
	case own && d.Subset == "":
		return "all endpoints"
	case own:
		return "subset " + d.Subset
	case d.Subset == "":
		return fmt.Sprintf("%s:%d", d.Host, d.Port)
	default:
		return fmt.Sprintf("subset %s of %s:%d", d.Subset, d.Host, d.Port)
	}
}

func percent(part, whole uint64) string {
	if part == 0 {
		return "0%"
	}
	switch value := float64(part) * 100 / float64(whole); {
	case value < 0.0001:
		return "<0.0001%"
	case value >= 99.995 && part < whole:
		return ">99.99%" // and not all of them
	default:
		return fmt.Sprintf("%.4g%%", value)
	}
}

// String is as in method = "sayHello".
func (c Condition) String() string {
	switch c.Match {
	case Present:
		return c.Attribute + " present"
	case Exact:
		return fmt.Sprintf("%s = %q", c.Attribute, c.Value)
	case Prefix:
		return fmt.Sprintf("%s = %q…", c.Attribute, c.Value)
	default:
		return fmt.Sprintf("%s ~ %q", c.Attribute, c.Value)
	}
}
