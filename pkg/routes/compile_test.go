package routes_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func service(ref, host string, ports ...mesh.Port) *mesh.Object {
	namespace, name, _ := strings.Cut(ref, "/")
	return &mesh.Object{
		Key:  mesh.Key{Kind: mesh.KindServiceEntry, Namespace: namespace, Name: name},
		Spec: &mesh.ServiceEntry{Hosts: []string{host}, Ports: ports},
	}
}

var dubbo = mesh.Port{Number: 20880, Name: "tcp-metaprotocol-Dubbo"}

// orders is the service shop/orders, as most tests use it.
func orders() *mesh.Object { return service("shop/orders", "orders.example", dubbo) }

// compile compiles a name for a sidecar in namespace cli.
func compile(t testing.TB, name string, objects ...*mesh.Object) (p *routes.Plan, problems []problem.Problem) {
	t.Helper()
	storeOf(t, objects...).Read(mesh.View{Namespace: "cli"}, func(l *mesh.Lens) { p, problems = routes.Compile(l, name) })
	return p, problems
}

// plan compiles the table of orders.example with a MetaRouter of the given routes.
func plan(t testing.TB, list string, objects ...*mesh.Object) (*routes.Plan, []problem.Problem) {
	t.Helper()
	p, problems := compile(t, "orders.example_20880", append(objects, orders(), router(t, list))...)
	if p == nil || p.MetaRouter.Name != "orders" {
		t.Fatalf("the MetaRouter is not used: %+v", p)
	}
	return p, problems
}

func TestWithoutMetaRouterThereIsOneDefaultRoute(t *testing.T) {
	p, problems := compile(t, "Orders.Example_20880", orders())
	same(t, "plan", p, &routes.Plan{
		Service: "orders.example", Port: 20880, Protocol: "metaprotocol", Application: "Dubbo",
		Routes: []routes.Route{{Name: "default", Destinations: []routes.Destination{{Host: "orders.example", Port: 20880}}}},
	})
	same(t, "problems", len(problems), 0)
}

func TestAnUnknownNameHasNoPlan(t *testing.T) {
	hidden := service("shop/hidden", "hidden.example", dubbo)
	hidden.Spec.(*mesh.ServiceEntry).ExportTo = []string{"."}
	for _, name := range []string{"", "orders.example", "orders.example_20881", "orders.example_81", "orders_20880", "hidden.example_20880", "orders.example_020880"} {
		p, problems := compile(t, name, service("shop/orders", "orders.example", dubbo, mesh.Port{Number: 81, Name: "tcp"}), hidden)
		if p != nil || len(problems) > 0 {
			t.Errorf("%s has the plan %+v, problems %v", name, p, problems)
		}
	}
}

func TestAGatewayAsksWithItsOwnPort(t *testing.T) {
	for name, c := range map[string]struct {
		ports []mesh.Port
		ask   uint32
		want  uint32 // 0 if the name is unknown
	}{
		"the only MetaProtocol port":                 {[]mesh.Port{dubbo}, 8443, 20880},
		"beside others":                              {[]mesh.Port{{Number: 80, Name: "http"}, dubbo}, 8443, 20880},
		"also where another has the gateway's":       {[]mesh.Port{{Number: 8443, Name: "https"}, dubbo}, 8443, 20880},
		"the port of that number":                    {[]mesh.Port{{Number: 8443, Name: "tcp-metaprotocol"}, dubbo}, 8443, 8443},
		"of two MetaProtocol ports neither is meant": {[]mesh.Port{{Number: 1, Name: "tcp-metaprotocol"}, dubbo}, 8443, 0},
		"no MetaProtocol port":                       {[]mesh.Port{{Number: 80, Name: "http"}}, 80, 0},
	} {
		s := storeOf(t, service("shop/orders", "orders.example", c.ports...))
		for gateway, want := range map[bool]uint32{true: c.want, false: 0} {
			if !gateway && c.want == c.ask {
				want = c.want
			}
			s.Read(mesh.View{Namespace: "cli", Gateway: gateway}, func(l *mesh.Lens) {
				got := uint32(0)
				if p, _ := routes.Compile(l, routes.Name("orders.example", c.ask)); p != nil {
					got = p.Port
					same(t, name, p.Routes[0].Destinations[0].Cluster(), fmt.Sprintf("outbound|%d||orders.example", want))
				}
				same(t, fmt.Sprintf("%s, gateway %t", name, gateway), got, want)
			})
		}
	}
}

func TestAGatewaysPortIsTheDefaultForDestinations(t *testing.T) {
	s := storeOf(t, orders(), service("x/two", "two.example", dubbo, mesh.Port{Number: 20881}), router(t, `{route: [{destination: {host: two.example}}]}`))
	s.Read(mesh.View{Namespace: "cli", Gateway: true}, func(l *mesh.Lens) {
		p, _ := routes.Compile(l, "orders.example_443")
		same(t, "cluster", p.Routes[0].Destinations[0].Cluster(), "outbound|20880||two.example")
	})
}

func TestADestinationIsNamedAsIstiosClusterIs(t *testing.T) {
	others := []*mesh.Object{
		service("x/one", "One.Example", mesh.Port{Number: 7, Name: "http"}),
		service("x/two", "two.example", mesh.Port{Number: 7, Name: "http"}, mesh.Port{Number: 8}),
		service("shop/synthetic-s", "short.shop.svc.cluster.local", mesh.Port{Number: 9}),
		service("x/synthetic-s", "short.x.svc.cluster.local", mesh.Port{Number: 10}),
		service("x/bare", "bare", mesh.Port{Number: 11}),
	}
	for destination, want := range map[string]string{
		`{host: orders.example}`:                      "outbound|20880||orders.example",
		`{host: ORDERS.example, subset: V1}`:          "outbound|20880|V1|orders.example",
		`{host: one.example}`:                         "outbound|7||One.Example",
		`{host: one.example, port: {}}`:               "outbound|7||One.Example",
		`{host: one.example, port: {number: 0}}`:      "outbound|7||One.Example",
		`{host: one.example, port: {number: 99}}`:     "outbound|99||One.Example",
		`{host: two.example}`:                         "outbound|20880||two.example",
		`{host: two.example, port: {number: 8}}`:      "outbound|8||two.example",
		`{host: short}`:                               "outbound|9||short.shop.svc.cluster.local",
		`{host: Short}`:                               "outbound|9||short.shop.svc.cluster.local",
		`{host: short.x}`:                             "outbound|20880||short.x",
		`{host: bare}`:                                "outbound|11||bare",
		`{host: BARE, subset: a}`:                     "outbound|11|a|bare",
		`{host: Gone}`:                                "outbound|20880||Gone.shop.svc.cluster.local",
		`{host: Gone.Example, port: {number: 70000}}`: "outbound|70000||Gone.Example",
	} {
		p, _ := plan(t, `{route: [{destination: `+destination+`}], mirror: `+destination+`}`, others...)
		same(t, destination, p.Routes[0].Destinations[0].Cluster(), want)
		same(t, "mirror "+destination, p.Routes[0].Mirror.Cluster(), want)
	}
}

func TestConditionsAreSortedAndWhatIsAlwaysTrueIsPresence(t *testing.T) {
	p, _ := plan(t, `{match: {attributes: {b: {exact: v}, B: {prefix: p}, a: {}, c: null, d: {exact: ""}, e: {prefix: ""}, f: {regex: "*"}, g: {regex: "a|b"}, h: {exact: "*"}}}, `+dest+`},
		{match: {}, `+dest+`}, {match: {attributes: {}}, `+dest+`}, {`+dest+`}`)
	same(t, "conditions", p.Routes[0].Conditions, []routes.Condition{
		{Attribute: "B", Match: routes.Prefix, Value: "p"}, {Attribute: "a", Match: routes.Present}, {Attribute: "b", Match: routes.Exact, Value: "v"},
		{Attribute: "c", Match: routes.Present}, {Attribute: "d", Match: routes.Present}, {Attribute: "e", Match: routes.Present}, {Attribute: "f", Match: routes.Present},
		{Attribute: "g", Match: routes.Regex, Value: "a|b"}, {Attribute: "h", Match: routes.Exact, Value: "*"},
	})
	for i := 1; i < 4; i++ {
		same(t, "conditions of what matches everything", len(p.Routes[i].Conditions), 0)
	}
}

func TestAMirrorsShareIsRoundedHalfUp(t *testing.T) {
	for percent, want := range map[string]uint32{
		"100": 1_000_000, "50": 500_000, "0.57": 5700, "0.0001": 1, "0.00005": 1, "0.00004": 0, "0.00015": 2, "0.00145": 15, "99.99995": 1_000_000, "99.99994": 999_999,
		"33.333333": 333_333, "66.666666": 666_667, "0": 0, "-0.0": 0, "1e-300": 0, "1.00005": 10_001,
	} {
		p, _ := plan(t, `{`+dest+`, mirror: {host: m.example}, mirrorPercentage: {value: `+percent+`}}`)
		got := uint32(0)
		if m := p.Routes[0].Mirror; m != nil {
			got = m.Millionths
			if got == 0 {
				t.Errorf("%s %%: a mirror of nothing", percent)
			}
		}
		same(t, percent+" %", got, want)
	}
	p, _ := plan(t, `{`+dest+`, mirror: {host: m.example}}, {`+dest+`, mirror: {host: m.example}, mirrorPercentage: {}}, {`+dest+`, mirrorPercentage: {value: 50}}`)
	same(t, "no percentage", p.Routes[0].Mirror.Millionths, uint32(1_000_000))
	same(t, "an empty percentage is 0", p.Routes[1].Mirror, (*routes.Mirror)(nil))
	same(t, "no mirror", p.Routes[2].Mirror, (*routes.Mirror)(nil))
}

func TestEveryHalfMillionthIsRoundedUp(t *testing.T) {
	for k := 1; k < 1_000_000; k += 997 {
		m := &v1alpha1.MetaRouter{Hosts: []string{"orders.example"}, Routes: []*v1alpha1.MetaRoute{{Route: to(1), Mirror: &v1alpha1.Destination{Host: "m.example"}}}}
		value, err := strconv.ParseFloat(fmt.Sprintf("%d.%04d5", k/10_000, k%10_000), 64)
		if err != nil {
			t.Fatal(err)
		}
		m.Routes[0].MirrorPercentage = &v1alpha1.Percent{Value: value}
		p, _ := compile(t, "orders.example_20880", orders(), routerOf(m))
		if got := p.Routes[0].Mirror.Millionths; got != uint32(k+1) {
			t.Fatalf("%v %% is %d, want %d", value, got, k+1)
		}
	}
}

const rules = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec:
  host: ORDERS.example
  trafficPolicy:
    loadBalancer: {consistentHash: {httpHeaderName: Rule}}
    portLevelSettings:
    - {port: {number: 81}, loadBalancer: {consistentHash: {httpHeaderName: port}}}
    - {port: {number: 82}, connectionPool: {}}
  subsets:
  - {name: plain}
  - {name: silent, trafficPolicy: {connectionPool: {}}}
  - {name: random, trafficPolicy: {loadBalancer: {simple: RANDOM}}}
  - {name: cookie, trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: c, ttl: 1s}}}}}
  - {name: own, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: own}}}}
  - name: ported
    trafficPolicy:
      portLevelSettings:
      - {port: {number: 20880}, loadBalancer: {consistentHash: {httpHeaderName: subset-port}}}
      - {port: {number: 82}, connectionPool: {}}
`

func TestTheHashKeyIsTheOneOfTheDestinationsCluster(t *testing.T) {
	ports := service("shop/more", "orders.example", mesh.Port{Number: 81}, mesh.Port{Number: 82})
	for destinations, want := range map[string]string{
		`{}`:                                           "Rule",
		`{port: {number: 81}}`:                         "port",
		`{port: {number: 82}}`:                         "", // the entry replaces the policy whole
		`{subset: plain}`:                              "Rule",
		`{subset: silent}`:                             "Rule",
		`{subset: random}`:                             "",
		`{subset: cookie}`:                             "",
		`{subset: own}`:                                "own",
		`{subset: own, port: {number: 82}}`:            "own",
		`{subset: plain, port: {number: 81}}`:          "port",
		`{subset: ported}`:                             "subset-port",
		`{subset: ported, port: {number: 81}}`:         "port",
		`{subset: ported, port: {number: 82}}`:         "",
		`{subset: undeclared}`:                         "",
		`{subset: Own}`:                                "",
		`{subset: own} {subset: plain} {}`:             "own Rule",
		`{subset: random} {subset: own} {subset: own}`: "own",
	} {
		var list []string
		for _, d := range strings.Split(strings.ReplaceAll(destinations, "} {", "}\n{"), "\n") {
			list = append(list, `{weight: 1, destination: `+strings.Replace(d, "{", "{host: orders.example, ", 1)+`}`)
		}
		p, _ := plan(t, `{route: [`+strings.Join(list, ",")+`]}`, append(objects(t, rules), ports)...)
		same(t, destinations, strings.Join(p.Routes[0].HashKeys, " "), want)
	}
}

func TestTheKeyIsNotThatOfTheServiceWhoseRoutesTheseAre(t *testing.T) {
	p, _ := plan(t, `{route: [{destination: {host: other.example}}]}`, append(objects(t, rules), service("x/other", "other.example", dubbo))...)
	same(t, "keys", p.Routes[0].HashKeys, []string(nil))
}

func TestTheDefaultRouteHasTheServicesKey(t *testing.T) {
	p, _ := compile(t, "orders.example_20880", append(objects(t, rules), orders())...)
	same(t, "keys", p.Routes[0].HashKeys, []string{"Rule"})
}

func TestWhatMaySurpriseIsWarnedOf(t *testing.T) {
	for list, want := range map[string][]string{
		`{name: r, ` + dest + `}`:                                                                                                         {"routes[0].route[0].destination.host r UnknownHost"},
		`{name: r, route: [{destination: {host: orders.example}}]}`:                                                                       nil,
		`{name: r, route: [{destination: {host: orders.example, subset: own}}]}`:                                                          nil,
		`{name: r, route: [{destination: {host: orders.example, subset: none}}]}`:                                                         {"routes[0].route[0].destination.subset r UnknownSubset"},
		`{name: r, route: [{destination: {host: orders.example, port: {number: 1}}}]}`:                                                    {"routes[0].route[0].destination.port r UnknownPort"},
		`{name: r, route: [{destination: {host: two.example}}]}`:                                                                          {"routes[0].route[0].destination.port r UnknownPort"},
		`{name: r, route: [{destination: {host: one.example}}]}`:                                                                          nil,
		`{name: r, route: [{destination: {host: one.example, subset: v1}}]}`:                                                              {"routes[0].route[0].destination.subset r UnknownSubset"},
		`{name: r, route: [{destination: {host: orders.example}}], mirror: {host: none.example}}`:                                         {"routes[0].mirror.host r UnknownHost"},
		`{name: r, route: [{destination: {host: orders.example}}], mirror: {host: none.example}, mirrorPercentage: {}}`:                   nil,
		`{}, {name: s, route: [{destination: {host: orders.example, subset: own}, weight: 1}, {destination: {host: orders.example}}]}`:    {"routes[1] s SeveralHashKeys"},
		`{name: r, match: {attributes: {Method: {exact: a}, method: {exact: b}, x: {}}}, route: [{destination: {host: orders.example}}]}`: {"routes[0].match r NeverMatches"},
		`{name: r, match: {attributes: {Ä: {}, ä: {}}}, route: [{destination: {host: orders.example}}]}`:                                  nil, // the proxy folds ASCII only
	} {
		list = strings.Replace(list, "{}, {name: s", `{route: [{destination: {host: orders.example}}]}, {name: s`, 1)
		_, problems := plan(t, list, append(objects(t, rules),
			service("x/one", "one.example", mesh.Port{Number: 7}), service("x/two", "two.example", mesh.Port{Number: 7}, mesh.Port{Number: 8}))...)
		var got []string
		for _, p := range problems {
			if p.Severity != problem.Warning || p.Object.Name != "orders" || p.Detail == "" {
				t.Errorf("the warning %+v is incomplete", p)
			}
			got = append(got, strings.TrimPrefix(fmt.Sprintf("%s %s %s", p.Path, p.Route, p.Reason), "spec."))
		}
		same(t, list, got, want)
	}
}

func TestTheTableHasWhatTheProxyAssertsAndTheFieldsThatEveryProxyKnows(t *testing.T) {
	p, _ := plan(t, `{name: canary, match: {attributes: {e: {exact: v}, p: {prefix: v}, r: {regex: v}, x: {}}},
		route: [{destination: {host: orders.example}, weight: 0}, {destination: {host: orders.example, subset: v2}, weight: 5}],
		mirror: {host: orders.example}, mirrorPercentage: {value: 0.5}, requestMutation: [{key: a, value: b}, {key: a}], responseMutation: [{key: c, value: d}]}`)
	table, err := routes.RouteConfiguration(p, "Asked_20880")
	if err != nil {
		t.Fatal(err)
	}
	host := table.GetVirtualHosts()[0]
	same(t, "envelope", []any{table.GetName(), len(table.GetVirtualHosts()), host.GetName() != "", host.GetDomains()[0], host.GetRoutes()[0].GetMatch().GetPrefix()},
		[]any{"Asked_20880", 1, true, "*", "/"})
	r := host.GetRoutes()[0]
	for i, h := range r.GetMatch().GetHeaders() {
		kind := fmt.Sprintf("%T", h.GetHeaderMatchSpecifier())
		same(t, "kind of "+h.GetName(), kind[strings.LastIndex(kind, "_")+1:], []string{"ExactMatch", "PrefixMatch", "SafeRegexMatch", "PresentMatch"}[i])
	}
	if r.GetMatch().GetHeaders()[2].GetSafeRegexMatch().GetGoogleRe2() == nil { //nolint:staticcheck // older proxies demand it
		t.Error("the regex has no engine")
	}
	clusters := r.GetRoute().GetWeightedClusters()
	if clusters.GetTotalWeight() != nil {
		t.Error("the deprecated total weight is set")
	}
	if clusters.GetClusters()[0].GetWeight() == nil {
		t.Error("a weight of 0 is not explicit")
	}
	mirror := r.GetRoute().GetRequestMirrorPolicies()[0].GetRuntimeFraction().GetDefaultValue()
	same(t, "mirror", fmt.Sprint(mirror.GetNumerator(), mirror.GetDenominator()), "5000 MILLION")
	for _, h := range r.GetRequestHeadersToAdd() {
		if h.GetAppendAction() != 0 || h.GetAppend() != nil { //nolint:staticcheck // it must not be set
			t.Error("the append action is set")
		}
	}
	same(t, "reduced", reduce(r).Request, [][2]string{{"a", "b"}, {"a", ""}})
}

func TestTheLastGateRefusesWhatAProxyWould(t *testing.T) {
	for name, p := range map[string]*routes.Plan{
		"no routes":           {},
		"no destination":      {Routes: []routes.Route{{}}},
		"weights sum to 0":    {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}, {Host: "b"}}}}},
		"an empty attribute":  {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}}, Conditions: []routes.Condition{{Match: routes.Present}}}}},
		"an empty regex":      {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}}, Conditions: []routes.Condition{{Attribute: "a", Match: routes.Regex}}}}},
		"a broken hash key":   {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}}, HashKeys: []string{"a\nb"}}}},
		"an empty mutation":   {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}}, Requests: []routes.KeyValue{{}}}}},
		"too large a value":   {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}}, Responses: []routes.KeyValue{{"a", strings.Repeat("v", 16385)}}}}},
		"too many of them":    {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a"}}, Requests: make([]routes.KeyValue, 1001)}}},
		"weights above limit": {Routes: []routes.Route{{Destinations: []routes.Destination{{Host: "a", Weight: math.MaxUint32}, {Host: "b", Weight: 1}}}}},
	} {
		if table, err := routes.RouteConfiguration(p, "n_1"); err == nil {
			t.Errorf("%s: %v", name, table)
		}
	}
}

func TestCompilingDoesNotChangeItsInput(t *testing.T) {
	for _, dir := range vectors(t) {
		s, reading := newMesh(t, dir)
		before := map[*mesh.MetaRouter]proto.Message{}
		for _, o := range reading.Objects {
			if m, ok := o.Spec.(*mesh.MetaRouter); ok {
				before[m] = proto.Clone(m.MetaRouter)
			}
		}
		first, second := tablesOf(t, s, "cli"), tablesOf(t, s, "cli")
		for m, clone := range before {
			if !proto.Equal(m.MetaRouter, clone) {
				t.Errorf("%s: a MetaRouter changed", dir)
			}
		}
		for name := range first {
			if !proto.Equal(first[name], second[name]) {
				t.Errorf("%s: compiled again, %s is another", dir, name)
			}
		}
	}
}

func TestTheBytesOfATableAreAlwaysTheSame(t *testing.T) {
	var want []byte
	for range 20 { // the attributes are a map
		p, _ := plan(t, `{match: {attributes: {a: {exact: v}, b: {exact: v}, c: {exact: v}, d: {exact: v}, A: {exact: v}}}, `+dest+`}`)
		table, err := routes.RouteConfiguration(p, "n_1")
		if err != nil {
			t.Fatal(err)
		}
		got := marshal(t, table)
		if want == nil {
			want = got
		}
		same(t, "bytes", got, want)
	}
}

func marshal(t testing.TB, table *routev3.RouteConfiguration) []byte {
	t.Helper()
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
