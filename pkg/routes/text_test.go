package routes_test

import (
	"testing"

	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func TestAPlanReadsAsALineForEachRoute(t *testing.T) {
	p, _ := plan(t, `
		{name: canary, match: {attributes: {user: {exact: "jane"}, method: {prefix: get}, region: {regex: "eu-.*"}, trace: {}}},
		 route: [{destination: {host: orders.example, subset: v2}, weight: 1}, {destination: {host: orders.example}, weight: 2}, {destination: {host: other.example, port: {number: 7}}, weight: 0}]},
		{route: [{destination: {host: other.example, subset: v1}}], mirror: {host: orders.example, subset: v3}, mirrorPercentage: {value: 0.57}},
		{name: rest, route: [{destination: {host: orders.example}}], mirror: {host: orders.example, port: {number: 7}},
		 requestMutation: [{key: tier, value: gold}, {key: none}], responseMutation: [{key: by, value: "a b"}]}`, objects(t, rules)...)
	same(t, "lines", p.Lines(), []string{
		`canary: method = "get"… and region ~ "eu-.*" and trace present and user = "jane" -> 33.33% subset v2, 66.67% all endpoints, 0% other.example:7, sticky by Rule`,
		`(unnamed): any request -> subset v1 of other.example:20880, 0.57% mirrored to subset v3`,
		`rest: any request -> all endpoints, 100% mirrored to orders.example:7, sticky by Rule, request tier="gold", request none="", response by="a b"`,
	})
	same(t, "from", p.From(), "MetaRouter shop/orders")
}

func TestAPlanWithoutMetaRouterSaysSo(t *testing.T) {
	p, _ := compile(t, "orders.example_20880", orders())
	same(t, "lines", p.Lines(), []string{"default: any request -> all endpoints"})
	same(t, "from", p.From(), "default, no MetaRouter")
	p.MetaRouter = problem.Object{Kind: "MetaRouter", Namespace: "a", Name: "b"}
	same(t, "from", p.From(), "MetaRouter a/b")
}

func TestSharesThatAreNoRoundNumberAreTold(t *testing.T) {
	p := routes.Plan{Service: "s", Port: 1, Routes: []routes.Route{{Name: "r", Destinations: []routes.Destination{
		{Host: "s", Subset: "a", Port: 1, Weight: 4294967294}, {Host: "s", Subset: "b", Port: 1, Weight: 1},
	}}, {Name: "none", Destinations: []routes.Destination{{Host: "a", Port: 1}, {Host: "b", Port: 1}}}}}
	same(t, "lines", p.Lines(), []string{
		"r: any request -> >99.99% subset a, <0.0001% subset b",
		"none: any request -> 0% a:1, 0% b:1",
	})
}
