package routes

import (
	"fmt"
	"regexp"
	"strings"
)

// Decision is where a request with certain attributes goes, and why.
type Decision struct {
	Route *Route // the first that matches, nil if none does: the request then fails
	Index int    // of that route
	// Passed tells of each route before it, in order, the condition that did not hold.
	Passed []string
}

// Decide finds the route of a request, as the proxies do: attribute names match without regard to ASCII case,
// and a regex must match the whole value. A Plan of a valid MetaRouter never fails here.
func (p *Plan) Decide(attributes map[string]string) Decision {
	folded := make(map[string]string, len(attributes))
	for name, value := range attributes {
		folded[lowerASCII(name)] = value
	}
	d := Decision{Index: -1}
	for i := range p.Routes {
		why := p.Routes[i].fails(folded)
		if why == "" {
			d.Route, d.Index = &p.Routes[i], i
			return d
		}
		d.Passed = append(d.Passed, why)
	}
	return d
}

// fails returns the first condition that does not hold and what the request has instead, empty if all hold.
func (r *Route) fails(folded map[string]string) string {
	for _, c := range r.Conditions {
		value, there := folded[lowerASCII(c.Attribute)]
		switch {
		case !there:
			return fmt.Sprintf("%s, but the request has no %s", c, c.Attribute)
		case !c.holds(value):
			return fmt.Sprintf("%s, but it is %q", c, value)
		}
	}
	return ""
}

// holds reports whether a value that is there meets the condition.
func (c Condition) holds(value string) bool {
	switch c.Match {
	case Exact:
		return value == c.Value
	case Prefix:
		return strings.HasPrefix(value, c.Value)
	case Regex:
		re, err := regexp.Compile(`\A(?:` + c.Value + `)\z`)
		return err == nil && re.MatchString(value)
	default:
		return true
	}
}
