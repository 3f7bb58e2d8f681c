package cachemgr_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// cache is a Manager over a store that a test fills.
type cache struct {
	*cachemgr.Manager
	t        testing.TB
	store    *mesh.Store
	registry *prometheus.Registry
	problems *problem.Board
}

func newCache(t testing.TB, changes ...func(*cachemgr.Options)) *cache {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c := &cache{t: t, registry: prometheus.NewRegistry(), problems: problem.NewBoard(log)}
	var err error
	c.store, err = mesh.NewStore(mesh.Options{
		Settings: mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"},
		Judge:    func(o *mesh.Object) []problem.Problem { return routes.Validate(o, routes.Limits{}) },
		Expect:   []mesh.Feed{{Source: mesh.Directory, Kind: mesh.KindMetaRouter}}, Problems: c.problems,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := cachemgr.Options{
		Store: c.store, Problems: c.problems, Metrics: cachemgr.NewMetrics(c.registry), Log: log, Compiler: routes.Compile,
		Spellings: map[string]cachemgr.Spelling{routes.RouteConfigurationType: func(p *routes.Plan, name string) (proto.Message, error) {
			return routes.RouteConfiguration(p, name)
		}},
	}
	for _, change := range changes {
		change(&o)
	}
	if c.Manager, err = cachemgr.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// deliver makes these objects all there is, put adds or changes some.
func (c *cache) deliver(objects ...*mesh.Object) {
	c.store.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: objects})
}

func (c *cache) put(objects ...*mesh.Object) {
	c.store.Apply(mesh.Directory, mesh.Batch{Objects: objects})
}

// stream is an open stream that signals when it is woken.
type stream struct {
	*cachemgr.Stream
	t     testing.TB
	woken chan struct{}
}

func (c *cache) open(node, namespace string, gateway bool) *stream {
	s := &stream{t: c.t, woken: make(chan struct{}, 1)}
	s.Stream = c.Open(cachemgr.Peer{Node: node, Identity: "spiffe://cluster.local/ns/" + namespace + "/sa/a", View: mesh.View{Namespace: namespace, Gateway: gateway}}, func() {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	})
	return s
}

const patience = 20 * time.Second

// wait waits for the next table.
func (s *stream) wait() *cachemgr.Table {
	s.t.Helper()
	timeout := time.After(patience)
	for {
		if t := s.Next(routes.RouteConfigurationType); t != nil {
			return t
		}
		select {
		case <-s.woken:
		case <-timeout:
			s.t.Fatal("no table came")
		}
	}
}

func (c *cache) metric(name string) float64 {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	c.t.Fatalf("no metric %s", name)
	return 0
}

func service(namespace, name string, exportTo ...string) *mesh.Object {
	return &mesh.Object{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: namespace, Name: name}, Spec: &mesh.ServiceEntry{
		Hosts: []string{name + ".example"}, ExportTo: exportTo, Ports: []mesh.Port{{Number: 1, Name: "tcp-metaprotocol-dubbo"}},
	}}
}

func router(namespace, name, to string, exportTo ...string) *mesh.Object {
	return &mesh.Object{Key: mesh.Key{Kind: mesh.KindMetaRouter, Namespace: namespace, Name: name}, Spec: &mesh.MetaRouter{MetaRouter: &v1alpha1.MetaRouter{
		Hosts: []string{name + ".example"}, ExportTo: exportTo,
		Routes: []*v1alpha1.MetaRoute{{Route: []*v1alpha1.MetaRouteDestination{{Destination: &v1alpha1.Destination{Host: to}}}}},
	}}}
}

func rule(namespace, host, key string) *mesh.Object {
	return &mesh.Object{Key: mesh.Key{Kind: mesh.KindDestinationRule, Namespace: namespace, Name: strings.Trim(host, "*.")}, Spec: &mesh.DestinationRule{
		Host: host, Policy: &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: key}},
	}}
}

func hashKeys(t *cachemgr.Table) string { return strings.Join(t.Plan.Routes[0].HashKeys, ",") }
func target(t *cachemgr.Table) string   { return t.Plan.Routes[0].Destinations[0].Host }

func TestViewsThatSeeTheSameInputsShareOneCompilationAndItsBytes(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"), router("shop", "orders", "orders.example"))
	var tables []*cachemgr.Table
	for i := range 50 {
		s := c.open("node", fmt.Sprintf("ns%d", i), false)
		s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
		tables = append(tables, s.wait())
	}
	for _, table := range tables {
		if table != tables[0] {
			t.Fatal("two Views that see the same have two tables")
		}
	}
	if n := c.metric("metards_compilations_total"); n != 1 {
		t.Errorf("%v compilations for 50 Views that see the same, want 1", n)
	}
}

func TestAnEditIsCompiledOnceForAllViewsThatSeeTheSame(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"), router("shop", "orders", "orders.example"), router("web", "orders", "web.example", "."))
	var all []*stream
	for i := range 20 {
		s := c.open("node", fmt.Sprintf("ns%d", i), false)
		s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
		s.wait()
		all = append(all, s)
	}
	before := c.metric("metards_compilations_total")
	c.put(router("shop", "orders", "elsewhere.example"))
	for _, s := range all {
		if got := target(s.wait()); got != "elsewhere.example" {
			t.Errorf("routes to %s", got)
		}
	}
	if n := c.metric("metards_compilations_total") - before; n != 1 {
		t.Errorf("%v compilations, want 1", n)
	}
}

func TestATableDependsOnEverythingThatCompilingLookedAt(t *testing.T) {
	base := []*mesh.Object{service("shop", "orders"), service("shop", "stock"), router("shop", "orders", "stock.example")}
	cases := map[string]struct {
		change *mesh.Object
		want   func(*cachemgr.Table) bool
	}{
		"the destination's rule":      {rule("shop", "stock.example", "k1"), func(t *cachemgr.Table) bool { return hashKeys(t) == "k1" }},
		"a wildcard of the namespace": {rule("shop", "*.example", "k2"), func(t *cachemgr.Table) bool { return hashKeys(t) == "k2" }},
		"a rule of the mesh's root":   {rule("istio-system", "*", "k3"), func(t *cachemgr.Table) bool { return hashKeys(t) == "k3" }},
		"a rule of the client":        {rule("web", "STOCK.example", "k4"), func(t *cachemgr.Table) bool { return hashKeys(t) == "k4" }},
		"the destination's spelling": {&mesh.Object{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "stock"}, Spec: &mesh.ServiceEntry{
			Hosts: []string{"Stock.Example"}, Ports: []mesh.Port{{Number: 1, Name: "tcp-metaprotocol-dubbo"}}}},
			func(t *cachemgr.Table) bool { return target(t) == "Stock.Example" }},
		"the destination's only port": {&mesh.Object{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "stock"}, Spec: &mesh.ServiceEntry{
			Hosts: []string{"stock.example"}, Ports: []mesh.Port{{Number: 7, Name: "tcp"}}}},
			func(t *cachemgr.Table) bool { return t.Plan.Routes[0].Destinations[0].Port == 7 }},
		"a MetaRouter that comes first": {&mesh.Object{Key: mesh.Key{Kind: mesh.KindMetaRouter, Namespace: "shop", Name: "a"}, Spec: router("shop", "orders", "first.example").Spec},
			func(t *cachemgr.Table) bool { return target(t) == "first.example" }},
		"the service in the client's own namespace": {service("web", "orders"), nil},
	}
	for name, x := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCache(t)
			c.deliver(base...)
			s := c.open("node", "web", false)
			s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
			s.wait()
			before := c.metric("metards_compilations_total")
			c.put(x.change)
			if x.want == nil { // it is looked at, and changes no byte
				c.eventually("it was compiled", func() bool { return c.metric("metards_compilations_total") > before })
				return
			}
			if table := s.wait(); !x.want(table) {
				t.Errorf("the table after the change is %v", table.Plan.Lines())
			}
		})
	}
}

func (c *cache) eventually(what string, holds func() bool) {
	c.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !holds(); {
		select {
		case <-tick.C:
		case <-timeout:
			c.t.Fatalf("never: %s", what)
		}
	}
}

func TestWhatNobodyLooksAtCompilesNothing(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"), service("shop", "the-fence"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1", "the-fence.example_1"})
	s.wait()
	s.wait()
	before := c.metric("metards_compilations_total")
	c.put(service("shop", "stock"), router("shop", "stock", "stock.example"), rule("shop", "*.elsewhere", "k"), rule("shop", "stock.example", "k"))
	c.put(router("shop", "the-fence", "stock.example"))
	s.wait()
	if n := c.metric("metards_compilations_total") - before; n != 1 {
		t.Errorf("%v compilations, want that of the fence alone", n)
	}
}

func TestGatewaysAndSidecarsOfANamespaceAreTwoViews(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"))
	gateway, sidecar := c.open("gw", "web", true), c.open("sc", "web", false)
	gateway.Set(routes.RouteConfigurationType, []string{"orders.example_8080"})
	sidecar.Set(routes.RouteConfigurationType, []string{"orders.example_8080"})
	if got := gateway.wait(); got.Plan.Routes[0].Destinations[0].Port != 1 || got.Name.Name != "orders.example_8080" {
		t.Errorf("the gateway gets %s %v", got.Name.Name, got.Plan.Lines())
	}
	if got := sidecar.Next(routes.RouteConfigurationType); got != nil {
		t.Errorf("the sidecar gets %s, which is no port of the service", got.Name.Name)
	}
}

func TestExportToIsHonouredPerView(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders", "."), service("shop", "stock"), router("shop", "stock", "canary.example", "web"))
	shop, web := c.open("a", "shop", false), c.open("b", "web", false)
	for _, s := range []*stream{shop, web} {
		s.Set(routes.RouteConfigurationType, []string{"orders.example_1", "stock.example_1"})
	}
	if got := shop.wait(); got.Name.Name != "orders.example_1" {
		t.Errorf("shop gets %s first", got.Name.Name)
	}
	if got := target(shop.wait()); got != "stock.example" {
		t.Errorf("shop, which does not see the MetaRouter, is routed to %s", got)
	}
	if got := web.wait(); target(got) != "canary.example" {
		t.Errorf("web gets %s to %s", got.Name.Name, target(got))
	}
	if got := web.Next(routes.RouteConfigurationType); got != nil {
		t.Errorf("web gets %s, which is not exported to it", got.Name.Name)
	}
}

// The fence is compiled after what it is a fence for: families are in the order of their names.
func TestAPanicOfTheCompilerIsAProblemAndTheTableStays(t *testing.T) {
	panics := false
	c := newCache(t, func(o *cachemgr.Options) {
		o.Compiler = func(m routes.Mesh, name string) (*routes.Plan, []problem.Problem) {
			plan, problems := routes.Compile(m, name)
			if panics && strings.HasPrefix(name, "orders") {
				panic("out of range")
			}
			return plan, problems
		}
	})
	c.deliver(service("shop", "orders"), service("shop", "the-fence"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1", "the-fence.example_1"})
	s.wait()
	s.wait()
	panics = true
	c.put(router("shop", "orders", "a.example"), router("shop", "the-fence", "b.example"))
	if got := s.wait(); got.Name.Name != "the-fence.example_1" {
		t.Errorf("the panic let %s out", got.Name.Name)
	}
	internal := 0
	for _, p := range c.problems.All() {
		if p.Reason == problem.Internal {
			internal++
		}
	}
	if internal != 1 {
		t.Errorf("%d internal Problems, want 1: %v", internal, c.problems.All())
	}
}

func TestATableThatTheLastGateRefusesIsNotServed(t *testing.T) {
	bad := false
	c := newCache(t, func(o *cachemgr.Options) {
		spell := o.Spellings[routes.RouteConfigurationType]
		o.Spellings = map[string]cachemgr.Spelling{routes.RouteConfigurationType: func(p *routes.Plan, name string) (proto.Message, error) {
			if bad && strings.HasPrefix(name, "orders") {
				return nil, fmt.Errorf("spell %s: the field rules refuse it", name)
			}
			return spell(p, name)
		}}
	})
	c.deliver(service("shop", "orders"), service("shop", "the-fence"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1", "the-fence.example_1"})
	s.wait()
	s.wait()
	bad = true
	c.put(router("shop", "orders", "a.example"), router("shop", "the-fence", "b.example"))
	if got := s.wait(); got.Name.Name != "the-fence.example_1" {
		t.Errorf("%s was let out", got.Name.Name)
	}
	bad = false
	c.put(router("shop", "orders", "c.example"))
	if got := s.wait(); target(got) != "c.example" {
		t.Errorf("after the fault is gone the table is to %s", target(got))
	}
}

func TestTheFactsTellWhatEachProxyHas(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "a"), service("shop", "b"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"a.example_1", "b.example_1", "unknown.example_1"})
	states := func() string {
		var out []string
		for _, p := range c.Proxies() {
			for _, table := range p.Tables {
				out = append(out, string(table.State))
			}
		}
		return strings.Join(out, ", ")
	}
	steps := []struct {
		do   func()
		want string
	}{
		{func() {
			c.eventually("there is truth", func() bool { return c.metric("metards_compilations_total") == 3 })
		}, "waiting, waiting, nothing to send"},
		{func() { s.wait() }, "sent, waiting, nothing to send"},
		{func() { s.Accepted(c.Tables("a.example_1")[0].Table) }, "accepted, waiting, nothing to send"},
		{func() { s.Rejected(s.wait(), "no") }, "accepted, rejected, nothing to send"},
	}
	for i, step := range steps {
		step.do()
		if got := states(); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	s.Close()
	if got := c.Proxies(); len(got) != 0 {
		t.Errorf("after the last stream %v is still known", got)
	}
}
