package routes

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// maxFaults bounds the Problems of one object; one more says how many were left out.
const maxFaults = 50

// Validate returns all faults of a MetaRouter, a property of the object alone: each is an Error with path
// and route, without file and line. A MetaRouter without faults never gives a table that a proxy refuses.
func Validate(o *mesh.Object, l Limits) []problem.Problem {
	m, ok := o.Spec.(*mesh.MetaRouter)
	if !ok {
		return nil
	}
	v := validator{object: o.Ref(), limits: l.withDefaults()}
	if n := entries(m.MetaRouter); n > v.limits.Entries {
		v.fault(problem.TooLarge, "spec", "%d hosts, routes, destinations, attributes and mutations, at most %d are allowed", n, v.limits.Entries)
		return v.faults
	}
	v.hosts(m.GetHosts())
	for i, r := range m.GetRoutes() {
		v.route(r, fmt.Sprintf("spec.routes[%d]", i))
	}
	if n := len(v.faults); n > maxFaults {
		v.faults = v.faults[:maxFaults]
		v.routeName = ""
		v.fault(problem.Invalid, "", "%d more faults", n-maxFaults)
	}
	return v.faults
}

func entries(m *v1alpha1.MetaRouter) int {
	n := len(m.GetHosts()) + len(m.GetRoutes())
	for _, r := range m.GetRoutes() {
		n += len(r.GetRoute()) + len(r.GetMatch().GetAttributes()) + len(r.GetRequestMutation()) + len(r.GetResponseMutation())
	}
	return n
}

type validator struct {
	object    problem.Object
	limits    Limits
	routeName string
	program   int // instructions of all regexes so far
	faults    []problem.Problem
}

func (v *validator) fault(reason problem.Reason, path, format string, args ...any) {
	v.faults = append(v.faults, problem.Problem{
		Severity: problem.Error, Object: v.object, Path: path, Route: v.routeName,
		Reason: reason, Detail: fmt.Sprintf(format, args...),
	})
}

func (v *validator) invalid(path, format string, args ...any) {
	v.fault(problem.Invalid, path, format, args...)
}

func (v *validator) hosts(hosts []string) {
	if len(hosts) == 0 {
		v.invalid("spec.hosts", "no host: name the services that the rules are for")
	}
	for i, h := range hosts {
		v.host(h, fmt.Sprintf("spec.hosts[%d]", i))
	}
}

func (v *validator) host(host, path string) {
	switch {
	case host == "":
		v.invalid(path, "the host is empty")
	case controls(host):
		v.invalid(path, "the host %q has a NUL, CR or LF in it", host)
	}
}

func (v *validator) route(r *v1alpha1.MetaRoute, path string) {
	v.routeName = r.GetName()
	attributes := r.GetMatch().GetAttributes()
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		v.attribute(name, attributes[name], fmt.Sprintf("%s.match.attributes[%s]", path, name))
	}
	v.destinations(r.GetRoute(), path+".route")
	if r.GetMirror() != nil {
		v.destination(r.GetMirror(), path+".mirror")
	}
	if p := r.GetMirrorPercentage(); p != nil && !(p.GetValue() >= 0 && p.GetValue() <= 100) { // NaN fails both
		v.invalid(path+".mirrorPercentage.value", "the mirror percentage %v is not between 0 and 100", p.GetValue())
	}
	v.mutations(r.GetRequestMutation(), path+".requestMutation")
	v.mutations(r.GetResponseMutation(), path+".responseMutation")
	v.routeName = ""
}

func (v *validator) attribute(name string, m *v1alpha1.StringMatch, path string) {
	switch {
	case name == "":
		v.invalid(path, "the attribute's name is empty")
	case controls(name):
		v.invalid(path, "the attribute's name %q has a NUL, CR or LF in it", name)
	}
	regex, ok := m.GetMatchType().(*v1alpha1.StringMatch_Regex)
	switch {
	case !ok || regex.Regex == "*":
	case regex.Regex == "":
		v.invalid(path+".regex", `the regex is empty; write {} if the attribute need only be there`)
	default:
		v.regex(regex.Regex, path+".regex")
	}
}

func (v *validator) regex(expr, path string) {
	most := manyRegexes * v.limits.RegexProgram
	if v.program > most {
		return // said before
	}
	size, err := v.limits.checkRegex(expr)
	if err != nil {
		v.invalid(path, "%v", err)
	}
	if v.program += size; v.program > most {
		v.fault(problem.TooLarge, path, "the regexes up to this one compile to %d instructions together, at most %d are allowed", v.program, most)
	}
}

func (v *validator) destinations(list []*v1alpha1.MetaRouteDestination, path string) {
	if len(list) == 0 {
		v.invalid(path, "no destination")
	}
	sum := uint64(0)
	for i, d := range list {
		at := fmt.Sprintf("%s[%d].destination", path, i)
		if d.GetDestination() == nil {
			v.invalid(at, "the destination is missing")
		} else {
			v.destination(d.GetDestination(), at)
		}
		sum += uint64(d.GetWeight())
	}
	switch {
	case len(list) < 2: // the weight of a single destination means nothing
	case sum == 0:
		v.invalid(path, "the weights sum to 0: at least one must be above 0")
	case sum > math.MaxUint32:
		v.invalid(path, "the weights sum to %d, at most %d is possible", sum, uint32(math.MaxUint32))
	}
}

func (v *validator) destination(d *v1alpha1.Destination, path string) {
	v.host(d.GetHost(), path+".host")
	if controls(d.GetSubset()) {
		v.invalid(path+".subset", "the subset %q has a NUL, CR or LF in it", d.GetSubset())
	}
}

// Envoy's bounds for headers to add, which is how mutations travel.
const (
	maxMutations     = 1000
	maxMutationBytes = 16384
)

func (v *validator) mutations(list []*v1alpha1.KeyValue, path string) {
	if len(list) > maxMutations {
		v.invalid(path, "%d mutations, at most %d are possible", len(list), maxMutations)
	}
	for i, kv := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if kv.GetKey() == "" {
			v.invalid(at+".key", "the key is empty")
		}
		for _, part := range []struct{ name, text string }{{"key", kv.GetKey()}, {"value", kv.GetValue()}} {
			if len(part.text) > maxMutationBytes {
				v.invalid(at+"."+part.name, "the %s has %d bytes, at most %d are possible", part.name, len(part.text), maxMutationBytes)
			}
			if controls(part.text) {
				v.invalid(at+"."+part.name, "the %s has a NUL, CR or LF in it", part.name)
			}
		}
	}
}

func controls(s string) bool { return strings.ContainsAny(s, "\x00\r\n") }
