package routes_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// objects decodes the documents of a YAML text.
func objects(t testing.TB, text string) []*mesh.Object {
	t.Helper()
	var out []*mesh.Object
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var tree map[string]any
		switch err := d.Decode(&tree); {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatal(err)
		}
		o, err := mesh.Decode(tree)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, o)
	}
}

// router makes the MetaRouter shop/orders of the host orders.example from the YAML of its routes, in flow
// style and without the brackets around them.
func router(t testing.TB, list string) *mesh.Object {
	t.Helper()
	return objects(t, "apiVersion: metaprotocol.aeraki.io/v1alpha1\nkind: MetaRouter\nmetadata: {name: orders, namespace: shop}\n"+
		"spec: {hosts: [orders.example], routes: ["+list+"]}")[0]
}

// routerOf makes a MetaRouter without going through YAML.
func routerOf(m *v1alpha1.MetaRouter) *mesh.Object {
	return &mesh.Object{Key: mesh.Key{Kind: mesh.KindMetaRouter, Namespace: "shop", Name: "orders"}, Spec: &mesh.MetaRouter{MetaRouter: m}}
}

func to(weights ...uint32) []*v1alpha1.MetaRouteDestination {
	var out []*v1alpha1.MetaRouteDestination
	for _, w := range weights {
		out = append(out, &v1alpha1.MetaRouteDestination{Destination: &v1alpha1.Destination{Host: "orders.example"}, Weight: w})
	}
	return out
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// judged returns "path (route) Reason" of each fault.
func judged(t testing.TB, o *mesh.Object, l routes.Limits) []string {
	t.Helper()
	out := []string{}
	for _, p := range routes.Validate(o, l) {
		if p.Severity != problem.Error || p.Object != o.Ref() || p.Detail == "" {
			t.Errorf("the fault %+v is incomplete", p)
		}
		out = append(out, strings.TrimPrefix(fmt.Sprintf("%s (%s) %s", p.Path, p.Route, p.Reason), "spec."))
	}
	return out
}

const dest = `route: [{destination: {host: h}}]`

func TestEveryInvalidThingIsToldWithItsPathRouteAndReason(t *testing.T) {
	for list, want := range map[string][]string{
		`{name: r}`:                    {"routes[0].route (r) Invalid"},
		`{name: r, route: []}`:         {"routes[0].route (r) Invalid"},
		`{name: r, mirror: {host: h}}`: {"routes[0].route (r) Invalid"},
		`{name: r, route: [{}]}`:       {"routes[0].route[0].destination (r) Invalid"},
		`{name: r, route: [{destination: null, weight: 1}, {destination: {host: h}}]}`: {"routes[0].route[0].destination (r) Invalid"},
		`{name: r, route: [{destination: {}}]}`:                                        {"routes[0].route[0].destination.host (r) Invalid"},
		`{name: r, route: [{destination: {host: "a\nb"}}]}`:                            {"routes[0].route[0].destination.host (r) Invalid"},
		`{name: r, route: [{destination: {host: h, subset: "\0"}}]}`:                   {"routes[0].route[0].destination.subset (r) Invalid"},
		`{name: r, ` + dest + `, mirror: {}}`:                                          {"routes[0].mirror.host (r) Invalid"},
		`{name: r, ` + dest + `, mirror: {host: "a\r"}}`:                               {"routes[0].mirror.host (r) Invalid"},

		`{name: r, route: [{destination: {host: h}}, {destination: {host: h}}]}`:                                {"routes[0].route (r) Invalid"},
		`{name: r, route: [{destination: {host: h}, weight: 0}, {destination: {host: h}, weight: 0}]}`:          {"routes[0].route (r) Invalid"},
		`{name: r, route: [{destination: {host: h}, weight: 4294967295}, {destination: {host: h}, weight: 1}]}`: {"routes[0].route (r) Invalid"},

		`{` + dest + `}, {name: second, ` + dest + `, match: {attributes: {"": {exact: v}}}}`: {"routes[1].match.attributes[] (second) Invalid"},
		`{name: r, ` + dest + `, match: {attributes: {"a\nb": {}}}}`:                          {"routes[0].match.attributes[a\nb] (r) Invalid"},
		`{name: r, ` + dest + `, match: {attributes: {a: {regex: ""}}}}`:                      {"routes[0].match.attributes[a].regex (r) Invalid"},
		`{name: r, ` + dest + `, match: {attributes: {a: {regex: "**"}}}}`:                    {"routes[0].match.attributes[a].regex (r) Invalid"},
		`{name: r, ` + dest + `, match: {attributes: {a: {regex: "(?=x)"}}}}`:                 {"routes[0].match.attributes[a].regex (r) Invalid"},
		`{name: r, ` + dest + `, match: {attributes: {a: {regex: "["}, b: {regex: "("}}}}`: {
			"routes[0].match.attributes[a].regex (r) Invalid", "routes[0].match.attributes[b].regex (r) Invalid"},

		`{name: r, ` + dest + `, mirror: {host: h}, mirrorPercentage: {value: -0.1}}`:   {"routes[0].mirrorPercentage.value (r) Invalid"},
		`{name: r, ` + dest + `, mirror: {host: h}, mirrorPercentage: {value: 100.01}}`: {"routes[0].mirrorPercentage.value (r) Invalid"},
		`{name: r, ` + dest + `, mirror: {host: h}, mirrorPercentage: {value: "NaN"}}`:  {"routes[0].mirrorPercentage.value (r) Invalid"},
		`{name: r, ` + dest + `, mirrorPercentage: {value: "Infinity"}}`:                {"routes[0].mirrorPercentage.value (r) Invalid"},

		`{name: r, ` + dest + `, requestMutation: [{key: a}, {value: v}]}`: {"routes[0].requestMutation[1].key (r) Invalid"},
		`{name: r, ` + dest + `, responseMutation: [{key: "a\0", value: "b\nc"}]}`: {
			"routes[0].responseMutation[0].key (r) Invalid", "routes[0].responseMutation[0].value (r) Invalid"},
		`{name: r, ` + dest + `, requestMutation: [{key: "` + strings.Repeat("k", 16385) + `", value: "` + strings.Repeat("v", 16385) + `"}]}`: {
			"routes[0].requestMutation[0].key (r) Invalid", "routes[0].requestMutation[0].value (r) Invalid"},
		`{name: r, ` + dest + `, requestMutation: [` + strings.Repeat("{key: k},", 1001) + `]}`: {"routes[0].requestMutation (r) Invalid"},

		`{name: a, match: {attributes: {x: {regex: "["}}}}, {name: b, ` + dest + `}, {route: [{}], mirror: {}, mirrorPercentage: {value: 101}, requestMutation: [{}]}`: {
			"routes[0].match.attributes[x].regex (a) Invalid", "routes[0].route (a) Invalid", "routes[2].route[0].destination () Invalid",
			"routes[2].mirror.host () Invalid", "routes[2].mirrorPercentage.value () Invalid", "routes[2].requestMutation[0].key () Invalid"},
	} {
		same(t, list, judged(t, router(t, list), routes.Limits{}), want)
	}
}

func TestWhatIsOnlyUnusualIsValid(t *testing.T) {
	for _, list := range []string{
		``,
		`{` + dest + `}`,
		`{name: r, ` + dest + `}, {name: r, ` + dest + `}`,
		`{route: [{destination: {host: h}, weight: 0}]}`,
		`{route: [{destination: {host: h}, weight: 1}, {destination: {host: h}, weight: 0}, {destination: {host: h}, weight: 2}]}`,
		`{route: [{destination: {host: h}, weight: 4294967295}, {destination: {host: h}}]}`,
		`{route: [{destination: {host: h}, weight: 4294967294}, {destination: {host: h}, weight: 1}]}`,
		`{` + dest + `, mirror: {host: h}, mirrorPercentage: {value: 0}}`,
		`{` + dest + `, mirror: {host: h}, mirrorPercentage: {value: 100}}`,
		`{` + dest + `, mirror: {host: h}, mirrorPercentage: {}}`,
		`{` + dest + `, mirrorPercentage: {value: 7}}`,
		`{` + dest + `, match: {}}`,
		`{` + dest + `, match: {attributes: {a: {}, b: null, c: {exact: ""}, d: {prefix: ""}, e: {regex: "*"}, ":f x.Ö": {exact: "a\nb"}}}}`,
		`{` + dest + `, requestMutation: [{key: k}, {key: k}, {key: ` + strings.Repeat("k", 16384) + `, value: ` + strings.Repeat("v", 16384) + `}]}`,
		`{` + dest + `, responseMutation: [` + strings.Repeat("{key: k},", 1000) + `]}`,
		`{route: [{destination: {host: h, subset: "", port: {number: 0}}}]}`,
		`{route: [{destination: {host: H.Example, subset: "a b", port: {number: 65535}}}]}`,
	} {
		same(t, list, judged(t, router(t, list), routes.Limits{}), []string{})
	}
}

func TestAMetaRouterNamesAtLeastOneHost(t *testing.T) {
	for want, hosts := range map[string][]string{
		"hosts () Invalid": nil, "hosts[1] () Invalid": {"a", ""}, "hosts[0] () Invalid": {"a\nb", "c"},
	} {
		same(t, want, judged(t, routerOf(&v1alpha1.MetaRouter{Hosts: hosts}), routes.Limits{}), []string{want})
	}
}

func TestNilElementsAreJudgedNotDereferenced(t *testing.T) {
	o := routerOf(&v1alpha1.MetaRouter{Hosts: []string{"h"}, Routes: []*v1alpha1.MetaRoute{nil, {
		Match: &v1alpha1.MetaRouteMatch{Attributes: map[string]*v1alpha1.StringMatch{"a": nil}},
		Route: []*v1alpha1.MetaRouteDestination{nil}, RequestMutation: []*v1alpha1.KeyValue{nil},
	}}})
	same(t, "faults", judged(t, o, routes.Limits{}), []string{
		"routes[0].route () Invalid", "routes[1].route[0].destination () Invalid", "routes[1].requestMutation[0].key () Invalid"})
}

func TestOtherObjectsHaveNothingToJudge(t *testing.T) {
	if got := routes.Validate(&mesh.Object{Spec: &mesh.ServiceEntry{}}, routes.Limits{}); got != nil {
		t.Errorf("faults: %v", got)
	}
}

func regexFault(t testing.TB, l routes.Limits, exprs ...string) []problem.Problem {
	t.Helper()
	attributes := map[string]*v1alpha1.StringMatch{}
	for i, e := range exprs {
		attributes[fmt.Sprintf("a%05d", i)] = &v1alpha1.StringMatch{MatchType: &v1alpha1.StringMatch_Regex{Regex: e}}
	}
	return routes.Validate(routerOf(&v1alpha1.MetaRouter{Hosts: []string{"h"}, Routes: []*v1alpha1.MetaRoute{
		{Match: &v1alpha1.MetaRouteMatch{Attributes: attributes}, Route: to(1)}}}), l)
}

func TestARegexIsWhatEveryProxysRE2Takes(t *testing.T) {
	for expr, valid := range map[string]bool{
		`a.*`: true, `(?i)abc`: true, `(?P<n>a)\1`: false, `(?P<n>a)`: true, `^a$`: true, `\bword\b`: true, `\Aa\z`: true,
		`[[:alpha:]]+`: true, `\x{10FFFF}`: true, `a{2,1000}`: true, `a{1001}`: false, `(a{100}){100}`: false, `a**`: false,
		`a(?!b)`: false, `(?>a)`: false, `a++`: false, `\Z`: false, `[b-a]`: false, `\`: false, "\xff": false, ``: false, `*`: true, `**`: false,
		`\pL`: true, `\p{L}`: true, `\P{Lu}`: true, `\p{^Greek}`: true, `\p{Any}`: true, `[\p{Han}\d]`: true, `\Q\p{letter}\E`: true, `\\p{letter}`: true,
		// Go takes these, RE2 does not.
		`\p{Letter}`: false, `\p{ASCII}`: false, `\p{greek}`: false, `\p{Cn}`: false, `\P{LC}`: false, `\pl`: false, `[a\p{lu}]`: false,
		`\Qa\E\p{^Letter}`: false, `\p{L}\p{Letter}`: false,
		`(?<n>a)`: false, `[(?<n>]`: true, `(?P<n>a)(?<m>b)`: false, `\(?<n>`: true,
	} {
		got := regexFault(t, routes.Limits{}, expr)
		if (len(got) == 0) != valid {
			t.Errorf("%s: valid should be %t, faults are %v", expr, valid, got)
		}
	}
}

func TestARegexIsBoundedInLengthAndProgram(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	for name, c := range map[string]struct {
		expr  string
		l     routes.Limits
		fault string
	}{
		"the default length":              {long(4096), routes.Limits{}, ""},
		"beyond the default length":       {long(4097), routes.Limits{}, "4097 bytes"},
		"a length":                        {long(10), routes.Limits{RegexLength: 10}, ""},
		"beyond a length":                 {long(11), routes.Limits{RegexLength: 10}, "at most 10"},
		"the default program":             {strings.Repeat("a{1000}", 9), routes.Limits{}, ""},
		"beyond the default program":      {strings.Repeat("a{1000}", 10), routes.Limits{}, "at most 10000"},
		"beyond a program":                {`a{100}`, routes.Limits{RegexProgram: 50}, "at most 50"},
		"small to Go, too large as bytes": {`\p{L}{900}`, routes.Limits{}, "character classes"},
		"large classes of plain text":     {`[^/]{1000}\w+[^a-z]*`, routes.Limits{}, ""},
		"letters of all languages":        {`[\p{L}\p{N}_]+@\p{L}+\.\p{L}+`, routes.Limits{}, ""},
	} {
		got := regexFault(t, c.l, c.expr)
		if c.fault == "" && len(got) > 0 || c.fault != "" && (len(got) != 1 || !strings.Contains(got[0].Detail, c.fault)) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAllRegexesOfAnObjectTogetherAreBounded(t *testing.T) {
	exprs := make([]string, 20_000)
	for i := range exprs {
		exprs[i] = fmt.Sprintf("(a{100}){10}%d", i)
	}
	began := time.Now()
	got := regexFault(t, routes.Limits{}, exprs...)
	if len(got) != 1 || got[0].Reason != problem.TooLarge {
		t.Errorf("%d faults, first %v", len(got), got[:min(len(got), 1)])
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("judging them took %v", d)
	}
}

func TestEntriesAreBounded(t *testing.T) {
	m := &v1alpha1.MetaRouter{Hosts: []string{"h"}, Routes: []*v1alpha1.MetaRoute{{
		Match: &v1alpha1.MetaRouteMatch{Attributes: map[string]*v1alpha1.StringMatch{"a": {}}}, Route: to(1, 2),
		RequestMutation: []*v1alpha1.KeyValue{{Key: "k"}}, ResponseMutation: []*v1alpha1.KeyValue{{Key: "k"}},
	}}}
	same(t, "at the limit", judged(t, routerOf(m), routes.Limits{Entries: 7}), []string{})
	same(t, "beyond the limit", judged(t, routerOf(m), routes.Limits{Entries: 6}), []string{"spec () TooLarge"})
}

func TestAMillionEntriesAreRefusedQuickly(t *testing.T) {
	o := routerOf(&v1alpha1.MetaRouter{Hosts: []string{"h"}, Routes: []*v1alpha1.MetaRoute{{RequestMutation: make([]*v1alpha1.KeyValue, 1_000_000)}}})
	began := time.Now()
	same(t, "faults", judged(t, o, routes.Limits{}), []string{"spec () TooLarge"})
	if d := time.Since(began); d > time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestAtMostFiftyFaultsAreToldAndHowManyMore(t *testing.T) {
	for n, more := range map[int]string{50: "", 51: "1 more faults", 2000: "1950 more faults"} {
		got := routes.Validate(routerOf(&v1alpha1.MetaRouter{Hosts: []string{"h"}, Routes: make([]*v1alpha1.MetaRoute, n)}), routes.Limits{})
		last := got[len(got)-1]
		if more == "" && len(got) != n || more != "" && (len(got) != 51 || last.Detail != more || last.Path != "" || last.Route != "") {
			t.Errorf("%d faults give %d, the last is %v", n, len(got), last)
		}
	}
}

func TestFaultsComeInOneOrder(t *testing.T) {
	attributes := map[string]*v1alpha1.StringMatch{}
	for i := range 30 {
		attributes[fmt.Sprintf("%c", 'a'+i)] = &v1alpha1.StringMatch{MatchType: &v1alpha1.StringMatch_Regex{Regex: "("}}
	}
	o := routerOf(&v1alpha1.MetaRouter{Hosts: []string{"h"}, Routes: []*v1alpha1.MetaRoute{{
		Match: &v1alpha1.MetaRouteMatch{Attributes: attributes}, Route: to(math.MaxUint32, 1), Mirror: &v1alpha1.Destination{}}}})
	want := routes.Validate(o, routes.Limits{})
	for range 10 {
		same(t, "faults", routes.Validate(o, routes.Limits{}), want)
	}
}
