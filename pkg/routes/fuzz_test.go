package routes_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// mustBeUsable fails unless a proxy can take a table: what it asserts, and what Envoy's rules do not see.
func mustBeUsable(t *testing.T, table *routev3.RouteConfiguration) {
	t.Helper()
	if err := table.ValidateAll(); err != nil {
		t.Errorf("Envoy's rules refuse it: %v", err)
	}
	if len(table.GetVirtualHosts()) != 1 || len(table.GetVirtualHosts()[0].GetRoutes()) == 0 {
		t.Fatalf("it has %d virtual hosts, want 1 with routes", len(table.GetVirtualHosts()))
	}
	for i, r := range table.GetVirtualHosts()[0].GetRoutes() {
		action := r.GetRoute()
		if action == nil || r.GetMatch().GetPrefix() != "/" {
			t.Errorf("route %d has no action, or not the prefix /", i)
		}
		if list := action.GetWeightedClusters(); list != nil {
			sum := uint64(0)
			for _, c := range list.GetClusters() {
				if c.GetWeight() == nil || c.GetName() == "" {
					t.Errorf("route %d has the cluster %v", i, c)
				}
				sum += uint64(c.GetWeight().GetValue())
			}
			if len(list.GetClusters()) < 2 || sum == 0 || sum > math.MaxUint32 {
				t.Errorf("route %d has %d clusters of weight %d", i, len(list.GetClusters()), sum)
			}
		} else if action.GetCluster() == "" {
			t.Errorf("route %d has no cluster", i)
		}
		for _, m := range action.GetRequestMirrorPolicies() {
			if n := m.GetRuntimeFraction().GetDefaultValue().GetNumerator(); m.GetCluster() == "" || n == 0 || n > 1_000_000 {
				t.Errorf("route %d has the mirror %v", i, m)
			}
		}
		keys := map[string]bool{}
		for _, h := range action.GetHashPolicy() {
			if key := h.GetHeader().GetHeaderName(); keys[key] {
				t.Errorf("route %d hashes by %q twice", i, key)
			} else {
				keys[key] = true
			}
		}
	}
}

// mustCompile compiles orders.example with a MetaRouter and checks the table and that it is made of the
// MetaRouter exactly if that has no fault.
func mustCompile(t *testing.T, o *mesh.Object, others ...*mesh.Object) {
	t.Helper()
	faulty := problem.HasError(o.Faults) || problem.HasError(routes.Validate(o, routes.Limits{}))
	var before proto.Message
	m, _ := o.Spec.(*mesh.MetaRouter)
	if m != nil {
		before = proto.Clone(m.MetaRouter)
	}
	storeOf(t, append(others, orders(), o)...).Read(mesh.View{Namespace: "cli"}, func(l *mesh.Lens) {
		p, _ := routes.Compile(l, "orders.example_20880")
		if p == nil {
			t.Fatal("a service has no plan")
		}
		if faulty && p.MetaRouter.Name != "" {
			t.Errorf("a faulty MetaRouter is used")
		}
		if p.MetaRouter.Name != "" && len(p.Routes) != len(m.GetRoutes()) {
			t.Errorf("%d routes became %d", len(m.GetRoutes()), len(p.Routes))
		}
		table, err := routes.RouteConfiguration(p, "orders.example_20880")
		if err != nil {
			t.Fatalf("the last gate refuses it: %v", err)
		}
		mustBeUsable(t, table)
		if lines := p.Lines(); len(lines) != len(p.Routes) {
			t.Errorf("%d routes have %d lines", len(p.Routes), len(lines))
		}
	})
	if m != nil && !proto.Equal(before, m.MetaRouter) {
		t.Error("compiling changed the MetaRouter")
	}
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		`null`, `[]`, `[{}]`, `[null]`,
		`[{"name":"a","match":{"attributes":{"method":{"exact":"x"},"Method":{"prefix":""},"r":{"regex":"(a|b)*"},"n":null}},"route":[{"destination":{"host":"orders.example","subset":"own","port":{"number":81}}}]}]`,
		`[{"route":[{"destination":{"host":"h"},"weight":1},{"destination":{"host":"orders.example","subset":"plain"},"weight":"0"}],"mirror":{"host":"m"},"mirrorPercentage":{"value":0.57}}]`,
		`[{"route":[{"destination":{"host":"h"},"weight":4294967295},{"destination":{"host":"h"},"weight":1}],"requestMutation":[{"key":"k","value":"v"}],"responseMutation":[{"key":""}]}]`,
		`[{"route":[{"destination":{"host":"*"}}],"match":{"attributes":{"":{"exact":""}}},"mirror":{"host":"m|\u0000"},"mirrorPercentage":{"value":"NaN"}}]`,
		`[{"route":[{"destination":{"host":"\u212a"}}],"match":{"attributes":{"p":{"regex":"\\p{Letter}|(?<x>y)"}}}}]`,
	} {
		f.Add(seed, "Rule")
	}
	f.Add(`[]`, "a\nb")
	f.Fuzz(func(t *testing.T, text, header string) {
		var list any
		if json.Unmarshal([]byte(text), &list) != nil {
			return
		}
		o, err := mesh.Decode(map[string]any{
			"apiVersion": "metaprotocol.aeraki.io/v1alpha1", "kind": "MetaRouter", "metadata": map[string]any{"name": "orders", "namespace": "shop"},
			"spec": map[string]any{"hosts": []any{"orders.example"}, "routes": list},
		})
		if err != nil {
			t.Fatal(err)
		}
		hash := &mesh.Object{
			Key:  mesh.Key{Kind: mesh.KindDestinationRule, Namespace: "shop", Name: "orders"},
			Spec: &mesh.DestinationRule{Host: "orders.example", Policy: &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: header}}, Subsets: []mesh.Subset{{Name: "own"}}},
		}
		mustCompile(t, o, hash)
	})
}

// anyRouter makes a MetaRouter of values that are often, but not always, valid.
func anyRouter(r *rand.Rand) *v1alpha1.MetaRouter {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	rarely := func() bool { return r.IntN(12) == 0 }
	destination := func() *v1alpha1.Destination {
		if rarely() {
			return nil
		}
		d := &v1alpha1.Destination{Host: pick("orders.example", "ORDERS.example", "one", "x.y", "*", "ö.example", "a|b"), Subset: pick("", "own", "v1", "a|b")}
		if rarely() {
			d.Host = pick("", "a\nb", "\x00")
		}
		if r.IntN(2) == 0 {
			d.Port = &v1alpha1.PortSelector{Number: []uint32{0, 1, 80, 20880, 65536, math.MaxUint32}[r.IntN(6)]}
		}
		return d
	}
	match := func() *v1alpha1.StringMatch {
		value := pick("", "*", "v", "a.*", "é", "^x$")
		if rarely() {
			value = pick("[", "a\nb", `\p{Letter}`)
		}
		return []*v1alpha1.StringMatch{
			nil, {}, {MatchType: &v1alpha1.StringMatch_Exact{Exact: value}}, {MatchType: &v1alpha1.StringMatch_Prefix{Prefix: value}},
			{MatchType: &v1alpha1.StringMatch_Regex{Regex: value + pick("", "x")}},
		}[r.IntN(5)]
	}
	m := &v1alpha1.MetaRouter{Hosts: []string{"orders.example"}}
	for range r.IntN(4) {
		route := &v1alpha1.MetaRoute{Name: pick("", "r", "r")}
		for range r.IntN(4) {
			if route.Match == nil {
				route.Match = &v1alpha1.MetaRouteMatch{Attributes: map[string]*v1alpha1.StringMatch{}}
			}
			route.Match.Attributes[pick("a", "A", "b", ":c", "d e", "é")] = match()
		}
		for range 1 + r.IntN(3) - r.IntN(2) {
			route.Route = append(route.Route, &v1alpha1.MetaRouteDestination{Destination: destination(), Weight: []uint32{0, 1, 50, math.MaxUint32 - 1}[r.IntN(4)]})
		}
		if r.IntN(2) == 0 {
			route.Mirror = destination()
		}
		if r.IntN(2) == 0 {
			route.MirrorPercentage = &v1alpha1.Percent{Value: []float64{0, 1e-9, 0.57, 100, 99.999999, 100.1, math.NaN()}[r.IntN(7)]}
		}
		for range r.IntN(3) {
			route.RequestMutation = append(route.RequestMutation, &v1alpha1.KeyValue{Key: pick("k", "K", "k"), Value: pick("", "v")})
			route.ResponseMutation = append(route.ResponseMutation, &v1alpha1.KeyValue{Key: pick("k", "k", "k", "k", "k", ""), Value: "v"})
		}
		m.Routes = append(m.Routes, route)
	}
	return m
}

func TestAMetaRouterWithoutFaultsAlwaysGivesAUsableTable(t *testing.T) {
	valid, others := 0, objects(t, rules)
	for seed := range uint64(1500) {
		m := anyRouter(rand.New(rand.NewPCG(seed, 7)))
		o := routerOf(m)
		if len(routes.Validate(o, routes.Limits{})) == 0 && len(m.GetRoutes()) > 0 {
			valid++
		}
		mustCompile(t, o, others...)
		if t.Failed() {
			t.Fatalf("the MetaRouter of seed %d: %v", seed, m)
		}
	}
	if valid < 150 {
		t.Errorf("only %d of the MetaRouters were valid, so this says little", valid)
	}
}

func TestEveryVectorsTablesAreUsable(t *testing.T) {
	for _, dir := range vectors(t) {
		s, _ := newMesh(t, dir)
		for namespace := range expected(t, dir) {
			for _, table := range tablesOf(t, s, namespace) {
				mustBeUsable(t, table)
			}
		}
	}
}
