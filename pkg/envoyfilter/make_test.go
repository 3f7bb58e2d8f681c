package envoyfilter_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/metards/metards/pkg/envoyfilter"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

func options() envoyfilter.Options {
	return envoyfilter.Options{Namespace: "istio-system", Cluster: "metards", Codecs: envoyfilter.Codecs()}
}

func stock() envoyfilter.Options { o := options(); o.HTTP = true; return o }

// entry is a ServiceEntry with a dubbo port 20880 and a selector.
func entry(namespace, name, host string, addresses ...string) envoyfilter.Service {
	s := envoyfilter.Service{
		Object: problem.Object{Kind: "ServiceEntry", Namespace: namespace, Name: name}, Hosts: []string{host},
		Ports:    []envoyfilter.Port{port(20880, "tcp-metaprotocol-dubbo")},
		Selector: map[string]string{"app": name},
	}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, envoyfilter.Address{Text: a})
	}
	return s
}

func port(number uint32, name string) envoyfilter.Port {
	return envoyfilter.Port{Port: mesh.Port{Number: number, Name: name}, Declared: "tcp", Target: number}
}

// check makes the filters and fails if istiod's API would refuse one.
func check(t *testing.T, o envoyfilter.Options, services ...envoyfilter.Service) ([]*networking.EnvoyFilter, []envoyfilter.Document, []problem.Problem) {
	t.Helper()
	documents, problems := envoyfilter.Make(services, o)
	var out []*networking.EnvoyFilter
	for _, d := range documents {
		data, err := json.Marshal(d.Object()["spec"])
		if err != nil {
			t.Fatal(err)
		}
		f := &networking.EnvoyFilter{}
		if err := protojson.Unmarshal(data, f); err != nil {
			t.Fatalf("%s: %v", d.Name, err)
		}
		if len(f.GetConfigPatches()) == 0 {
			t.Errorf("%s has no patch", d.Name)
		}
		for _, p := range f.GetConfigPatches() {
			if p.GetMatch().GetProxy().GetMetadata()["METARDS"] != "v1" {
				t.Errorf("%s reaches proxies without our bootstrap", d.Name)
			}
		}
		out = append(out, f)
	}
	for _, p := range problems {
		if p.Severity != problem.Warning {
			t.Errorf("not a warning: %s", p)
		}
	}
	return out, documents, problems
}

// summary is a line for each patch: namespace/name context listener[:destination port] route or cluster.
func summary(filters []*networking.EnvoyFilter, documents []envoyfilter.Document) string {
	var b strings.Builder
	for i, f := range filters {
		for _, p := range f.GetConfigPatches() {
			l := p.GetMatch().GetListener()
			config := p.GetPatch().GetValue().GetFields()["typed_config"].GetStructValue().GetFields()
			where := config["rds"].GetStructValue().GetFields()["route_config_name"].GetStringValue()
			if value := config["value"].GetStructValue().GetFields(); value != nil {
				where = value["rds"].GetStructValue().GetFields()["routeConfigName"].GetStringValue() +
					value["routeConfig"].GetStructValue().GetFields()["name"].GetStringValue()
			}
			fmt.Fprintf(&b, "%s/%s %s %s", documents[i].Namespace, documents[i].Name, p.GetMatch().GetContext(), l.GetName())
			if port := l.GetFilterChain().GetDestinationPort(); port != 0 {
				fmt.Fprintf(&b, ":%d", port)
			}
			fmt.Fprintf(&b, " %s\n", where)
		}
	}
	return b.String()
}

func TestEachAddressIsAListenerAndEachPortADocument(t *testing.T) {
	s := entry("shop", "orders", "Orders.shop.example", "240.240.0.1", "2001:db8::1", "240.240.0.2/32")
	s.Ports = append(s.Ports, port(9090, "tcp-metaprotocol-thrift"), port(80, "http"), port(7000, "tcp-redis"))
	s.Ports[0].Target = 21000
	filters, documents, problems := check(t, options(), s)
	const want = `istio-system/metards-outbound-orders.shop.example-20880 SIDECAR_OUTBOUND 240.240.0.1_20880 Orders.shop.example_20880
istio-system/metards-outbound-orders.shop.example-20880 SIDECAR_OUTBOUND 2001:db8::1_20880 Orders.shop.example_20880
istio-system/metards-outbound-orders.shop.example-20880 SIDECAR_OUTBOUND 240.240.0.2_20880 Orders.shop.example_20880
istio-system/metards-outbound-orders.shop.example-9090 SIDECAR_OUTBOUND 240.240.0.1_9090 Orders.shop.example_9090
istio-system/metards-outbound-orders.shop.example-9090 SIDECAR_OUTBOUND 2001:db8::1_9090 Orders.shop.example_9090
istio-system/metards-outbound-orders.shop.example-9090 SIDECAR_OUTBOUND 240.240.0.2_9090 Orders.shop.example_9090
shop/metards-inbound-serviceentry-orders-20880 SIDECAR_INBOUND virtualInbound:21000 inbound|21000||
shop/metards-inbound-serviceentry-orders-9090 SIDECAR_INBOUND virtualInbound:9090 inbound|9090||
`
	if got := summary(filters, documents); got != want || len(problems) > 0 {
		t.Errorf("got:\n%s%v\nwant:\n%s", got, problems, want)
	}
	if labels := filters[2].GetWorkloadSelector().GetLabels(); labels["app"] != "orders" || filters[0].GetWorkloadSelector() != nil {
		t.Errorf("the inbound filter selects %v, the outbound one %v", labels, filters[0].GetWorkloadSelector())
	}
}

func TestAStockEnvoyTakesTheHTTPFilter(t *testing.T) {
	s := entry("shop", "orders", "orders.shop.example", "240.240.0.1")
	s.Ports[0].Name = "tcp-metaprotocol-unknown"
	filters, documents, problems := check(t, stock(), s)
	if len(filters) != 1 || len(problems) > 0 {
		t.Fatalf("%s%v", summary(filters, documents), problems)
	}
	data, err := filters[0].GetConfigPatches()[0].GetPatch().GetValue().GetFields()["typed_config"].MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var config anypb.Any
	var manager hcmv3.HttpConnectionManager
	if err := protojson.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	if err := config.UnmarshalTo(&manager); err != nil {
		t.Fatal(err)
	}
	if err := manager.ValidateAll(); err != nil {
		t.Error(err)
	}
	if manager.GetStatPrefix() != "outbound|20880||orders.shop.example" || manager.GetRds().GetRouteConfigName() != "orders.shop.example_20880" {
		t.Errorf("got %v", &manager)
	}
	asksUs(t, manager.GetRds().GetConfigSource())
}

func asksUs(t *testing.T, source *corev3.ConfigSource) {
	t.Helper()
	if err := source.ValidateAll(); err != nil {
		t.Error(err)
	}
	api := source.GetApiConfigSource()
	if api.GetApiType() != corev3.ApiConfigSource_GRPC || api.GetGrpcServices()[0].GetEnvoyGrpc().GetClusterName() != "metards" ||
		!api.GetSetNodeOnFirstMessageOnly() || source.GetInitialFetchTimeout().AsDuration() != 15*time.Second {
		t.Errorf("got %v", source)
	}
}

func TestAMetaProtocolFilterHasTheProtocolItsCodecAndOurCluster(t *testing.T) {
	o := options()
	o.Codecs["mine"] = "aeraki.meta_protocol.codec.mine"
	s := entry("shop", "orders", "orders.shop.example", "240.240.0.1")
	s.Ports[0].Name = "tcp-MetaProtocol-mine-more"
	filters, _, _ := check(t, o, s)
	for i, source := range []string{"rds", "routeConfig"} {
		value := filters[i].GetConfigPatches()[0].GetPatch().GetValue().GetFields()["typed_config"].GetStructValue().GetFields()["value"].GetStructValue().AsMap()
		codec, _ := value["codec"].(map[string]any)
		if value["applicationProtocol"] != "mine" || codec["name"] != "aeraki.meta_protocol.codec.mine" || value[source] == nil {
			t.Errorf("got %v", value)
		}
		if rds, ok := value["rds"].(map[string]any); ok {
			data, err := json.Marshal(rds["configSource"])
			if err != nil {
				t.Fatal(err)
			}
			var c corev3.ConfigSource
			if err := protojson.Unmarshal(data, &c); err != nil {
				t.Fatal(err)
			}
			asksUs(t, &c)
		}
	}
}

func TestAServiceThatCannotHaveAFilterIsAWarningThatSaysWhatToDo(t *testing.T) {
	with := func(change func(*envoyfilter.Service)) envoyfilter.Service {
		s := entry("shop", "orders", "orders.shop.example", "240.240.0.1")
		s.Selector = nil
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		service envoyfilter.Service
		want    string
	}{
		"no address":           {with(func(s *envoyfilter.Service) { s.Addresses = nil }), "ServiceEntry shop/orders: it has no address that a listener is named by: write one"},
		"unspecified address":  {with(func(s *envoyfilter.Service) { s.Addresses[0].Text = "0.0.0.0" }), "no address that a listener is named by"},
		"a range":              {with(func(s *envoyfilter.Service) { s.Addresses[0].Text = "10.0.0.0/8" }), "the address 10.0.0.0/8 is a range"},
		"no IP address":        {with(func(s *envoyfilter.Service) { s.Addresses[0].Text = "/run/socket" }), `the address "/run/socket" is no IP address`},
		"headless":             {with(func(s *envoyfilter.Service) { s.Kind, s.Headless, s.Addresses = "Service", true, nil }), "a Service that is headless, or of type ExternalName, has no address"},
		"a Service of a file":  {with(func(s *envoyfilter.Service) { s.Kind, s.Addresses = "Service", nil }), "it has no cluster IP"},
		"an unknown protocol":  {with(func(s *envoyfilter.Service) { s.Ports[0].Name = "tcp-metaprotocol-mine" }), "port 20880: no codec is known for the application protocol \"mine\": give --codec mine=CODEC"},
		"no third part":        {with(func(s *envoyfilter.Service) { s.Ports[0].Name = "tcp-metaprotocol" }), "has no third part"},
		"HTTP by its protocol": {with(func(s *envoyfilter.Service) { s.Ports[0].Declared = "http" }), "for http, so no proxy has a TCP listener"},
		"gRPC by its port name": {with(func(s *envoyfilter.Service) {
			s.Ports[0] = port(1, "grpc-metaprotocol-dubbo")
			s.Ports[0].Declared = ""
		}), "for grpc, so no proxy"},
	} {
		filters, documents, problems := check(t, options(), c.service)
		if len(filters) != 0 || len(problems) != 1 || !strings.Contains(problems[0].String(), c.want) {
			t.Errorf("%s: %s%v", name, summary(filters, documents), problems)
		}
	}
}

func TestAServiceWithoutAMetaProtocolPortIsNoWarning(t *testing.T) {
	s := entry("shop", "orders", "orders.shop.example")
	s.Ports[0].Name = "tcp-mysql"
	if filters, _, problems := check(t, options(), s); len(filters)+len(problems) > 0 {
		t.Errorf("%v %v", filters, problems)
	}
}

func TestTheInboundFilterNeedsASelectorAndAPortNumber(t *testing.T) {
	unselected, named := entry("a", "x", "x.example", "240.240.0.1"), entry("b", "y", "y.example", "240.240.0.2")
	unselected.Selector = nil
	named.Ports[0].Target, named.Ports[0].TargetName = 0, "dubbo"
	filters, documents, problems := check(t, options(), unselected, named)
	if got := summary(filters, documents); strings.Contains(got, "INBOUND") {
		t.Errorf("got:\n%s", got)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].String(), `its target port is "dubbo"`) {
		t.Errorf("got %v", problems)
	}
}

func TestOfTwoHostsAtOneAddressTheOlderHasTheListener(t *testing.T) {
	young, old := entry("a", "young", "young.example", "240.240.0.1", "240.240.0.3"), entry("z", "old", "old.example", "240.240.0.1")
	young.Created, old.Created = time.Unix(2000, 0), time.Unix(1000, 0)
	filters, documents, problems := check(t, stock(), young, old)
	const want = `istio-system/metards-outbound-old.example-20880 SIDECAR_OUTBOUND 240.240.0.1_20880 old.example_20880
istio-system/metards-outbound-young.example-20880 SIDECAR_OUTBOUND 240.240.0.3_20880 young.example_20880
`
	if got := summary(filters, documents); got != want {
		t.Errorf("got:\n%s", got)
	}
	if len(problems) != 1 || problems[0].Object.Name != "young" || !strings.Contains(problems[0].Detail, "ServiceEntry z/old is older") {
		t.Errorf("got %v", problems)
	}
}

func TestAHostOfSeveralNamespacesIsOneDocumentWithTheListenersOfAll(t *testing.T) {
	a, b := entry("a", "orders", "orders.example", "240.240.0.1", "240.240.0.2"), entry("b", "orders", "orders.example", "240.240.0.2", "240.240.0.3")
	filters, documents, problems := check(t, stock(), b, a)
	if got := summary(filters, documents); len(filters) != 1 || strings.Count(got, "orders.example_20880\n") != 3 || len(problems) > 0 {
		t.Errorf("%s%v", got, problems)
	}
	if got := documents[0].Comment(); got != "Outbound to orders.example port 20880, for ServiceEntry a/orders, ServiceEntry b/orders" {
		t.Error(got)
	}
}

func TestHostsThatShareAddressesTakeTheRoutesOfTheFirst(t *testing.T) {
	s := entry("a", "both", "one.example", "240.240.0.1")
	s.Hosts = append(s.Hosts, "two.example")
	filters, documents, problems := check(t, stock(), s)
	if got := summary(filters, documents); len(filters) != 1 || !strings.Contains(got, " one.example_20880") {
		t.Errorf("got:\n%s", got)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Detail, "requests to two.example take the routes of one.example") {
		t.Errorf("got %v", problems)
	}
}

func TestTheOrderOfTheServicesDoesNotMatter(t *testing.T) {
	var services []envoyfilter.Service
	for i := range 12 {
		services = append(services, entry(fmt.Sprintf("ns%d", i%3), fmt.Sprintf("s%d", i%5), fmt.Sprintf("h%d.example", i%4), fmt.Sprintf("240.240.0.%d", i%7)))
	}
	text := func() string {
		documents, problems := envoyfilter.Make(services, options())
		var b bytes.Buffer
		if err := envoyfilter.Write(&b, documents); err != nil {
			t.Fatal(err)
		}
		return b.String() + fmt.Sprint(problems)
	}
	want := text()
	for range 20 {
		rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		if got := text(); got != want {
			t.Fatalf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

func TestWhatIsInAnObjectCannotBecomeYAMLOfItsOwn(t *testing.T) {
	s := entry("a", "evil", "x\n---\nkind: Secret\u2028kind: Secret\r# ", "240.240.0.1")
	documents, _ := envoyfilter.Make([]envoyfilter.Service{s}, stock())
	var b bytes.Buffer
	if err := envoyfilter.Write(&b, documents); err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(b.String(), "\n")
	if strings.Contains(rest, "\n---") || strings.Contains(rest, "\nkind: Secret") || strings.ContainsAny(first, "\r\u2028") || !strings.HasPrefix(rest, "apiVersion:") {
		t.Errorf("got:\n%s", &b)
	}
}
