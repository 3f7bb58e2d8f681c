package routes_test

import (
	"fmt"
	"testing"

	"github.com/metards/metards/pkg/routes"
)

func TestDecideFindsTheRouteThatAProxyWouldTake(t *testing.T) {
	condition := func(name string, m routes.Match, value string) routes.Condition {
		return routes.Condition{Attribute: name, Match: m, Value: value}
	}
	p := &routes.Plan{Routes: []routes.Route{
		{Name: "exact", Conditions: []routes.Condition{condition("method", routes.Exact, "sayHello"), condition("tier", routes.Present, "")}},
		{Name: "prefix", Conditions: []routes.Condition{condition("Method", routes.Prefix, "get")}},
		{Name: "regex", Conditions: []routes.Condition{condition("method", routes.Regex, "a|ab")}},
	}}
	for _, c := range []struct {
		attributes map[string]string
		want       string
	}{
		{map[string]string{"method": "sayHello", "tier": ""}, "exact"},
		{map[string]string{"METHOD": "sayHello", "Tier": "x"}, "exact"},
		{map[string]string{"method": "sayHello"}, "none"},
		{map[string]string{"method": "sayhello", "tier": "x"}, "none"},
		{map[string]string{"method": "getAll"}, "prefix"},
		{map[string]string{"method": "ge"}, "none"},
		{map[string]string{"method": "ab"}, "regex"},
		{map[string]string{"method": "abc"}, "none"},
		{map[string]string{"method": "ab\n"}, "none"},
		{nil, "none"},
	} {
		got := "none"
		d := p.Decide(c.attributes)
		if d.Route != nil {
			got = d.Route.Name
		}
		if got != c.want {
			t.Errorf("%v goes to %s, want %s", c.attributes, got, c.want)
		}
		if passed := len(d.Passed); d.Route != nil && passed != d.Index || d.Route == nil && passed != len(p.Routes) {
			t.Errorf("%v: %d routes are said to be passed: %v", c.attributes, passed, d.Passed)
		}
	}
}

func TestDecideSaysWhyEarlierRoutesDidNotMatch(t *testing.T) {
	p := &routes.Plan{Routes: []routes.Route{
		{Conditions: []routes.Condition{{Attribute: "tier", Match: routes.Exact, Value: "beta"}}},
		{Conditions: []routes.Condition{{Attribute: "method", Match: routes.Prefix, Value: "get"}}},
		{},
	}}
	got := fmt.Sprint(p.Decide(map[string]string{"method": "put"}).Passed)
	if want := `[tier = "beta", but the request has no tier method = "get"…, but it is "put"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
