package istiowatch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
)

const allKinds = "[DestinationRule MeshConfig ServiceEntry]"

func TestServicesAndRulesComeInWhicheverVersionTheServerHasThem(t *testing.T) {
	for name, set := range map[string]func(*istiod){
		"v1 only": func(s *istiod) {
			s.set(entries, entry("shop/a"), entry("shop/b"))
			s.set(rules, rule("shop/r", "a", "user"))
		},
		"v1alpha3 only": func(s *istiod) {
			s.set(olderEntries, entry("shop/a"), entry("shop/b"))
			s.set(olderRules, rule("shop/r", "a", "user"))
		},
		"both, merged": func(s *istiod) {
			s.set(entries, entry("shop/a"))
			s.set(olderEntries, entry("shop/b"))
			s.set(olderRules, rule("shop/r", "a", "user"))
		},
		"an object in both, of which v1 counts": func(s *istiod) {
			s.set(entries, entry("shop/a"), entry("shop/b"))
			s.set(olderEntries, resource("shop/a", service("other", dubbo)))
			s.set(rules, rule("shop/r", "a", "user"))
			s.set(olderRules, rule("shop/r", "a", "other"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, nil)
			set(s)
			b := watch(t, s.address)
			b.expect(t, "shop/a=a shop/b=b shop/r=a?user")
		})
	}
}

func TestAnEmptyMeshIsComplete(t *testing.T) {
	s := start(t, nil)
	b := watch(t, s.address)
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
	b.expectProblem(t, "the server has no core/v1alpha1/MeshConfig")
	if b.sink.size() != 0 || b.sink.applies() != 3 {
		t.Errorf("%d objects in %d batches", b.sink.size(), b.sink.applies())
	}
}

func TestMetaRoutersAreAskedForOnlyWhereWanted(t *testing.T) {
	router := &v1alpha1.MetaRouter{Hosts: []string{"a", "b"}}
	asJSON := must(structpb.NewStruct(map[string]any{"hosts": []any{"c"}}))
	s := start(t, nil)
	s.set(routers, resource("shop/m", router), resource("shop/s", asJSON))
	without := watch(t, s.address)
	eventually(t, "all kinds complete", func() bool { return without.sink.completed() == allKinds })
	if n := s.asked()[routers]; n != 0 {
		t.Errorf("asked %d times", n)
	}
	with := watch(t, s.address, func(o *Options) { o.MetaRouters = true })
	with.expect(t, "shop/m=a+b shop/s=c")
	before := with.sink.applies()
	s.waitForAnswer(t, routers, func() {
		s.update(routers, resource("shop/s", asJSON), resource("shop/m", router))
	})
	if with.sink.applies() != before {
		t.Error("equal MetaRouters were delivered again")
	}
}

func TestTheMeshesSettingsAreToldWhenTheyDiffer(t *testing.T) {
	config := func(c *meshconfig.MeshConfig) *anypb.Any { return must(anypb.New(c)) }
	s := start(t, nil)
	first := &meshconfig.MeshConfig{
		RootNamespace: "istio-system", TrustDomain: "td", TrustDomainAliases: []string{"b", "a"},
		DefaultServiceExportTo: []string{"x", "."}, DefaultDestinationRuleExportTo: []string{"*"},
	}
	s.set(meshConfigType, config(first))
	b := watch(t, s.address)
	want := MeshConfig{
		RootNamespace: "istio-system", TrustDomain: "td", TrustDomainAliases: []string{"a", "b"},
		DefaultServiceExportTo: []string{".", "x"}, DefaultRuleExportTo: []string{"*"},
	}
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
	if got := b.told(); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Fatalf("got %+v", got)
	}

	first.AccessLogFile = "elsewhere" // nothing that we look at
	s.waitForAnswer(t, meshConfigType, func() { s.update(meshConfigType, config(first)) })
	s.waitForAnswer(t, meshConfigType, func() { s.update(meshConfigType) })
	s.update(meshConfigType, &anypb.Any{TypeUrl: resourceTypes + "istio.mesh.v1alpha1.MeshConfig", Value: []byte{0xff}})
	b.expectProblem(t, "MeshConfig cannot be decoded")
	if n := len(b.told()); n != 1 {
		t.Errorf("told %d times", n)
	}
	s.update(meshConfigType, config(&meshconfig.MeshConfig{TrustDomain: "other"}))
	eventually(t, "the change told", func() bool { return len(b.told()) == 2 })
	if got := b.told()[1]; got.TrustDomain != "other" || b.problems() != "" {
		t.Errorf("got %+v, problems %s", got, b.problems())
	}
}

func TestSettingsThatCannotBeDecodedAreWaitedForAtFirst(t *testing.T) {
	s := start(t, nil)
	s.set(meshConfigType, entry("shop/a"))
	b := watch(t, s.address)
	b.expectProblem(t, "waiting for settings that can")
	eventually(t, "the other kinds complete", func() bool { return b.sink.completed() == "[DestinationRule ServiceEntry]" })
	s.update(meshConfigType, must(anypb.New(&meshconfig.MeshConfig{})))
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
}

func TestTheFirstRequestSaysWhoWeAre(t *testing.T) {
	s := start(t, nil)
	b := watch(t, s.address)
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
	var requests []*discovery.DiscoveryRequest
	s.change(func() { requests = slices.Clone(s.requests) })
	node := requests[0].GetNode()
	if want := "waypoint~10.1.2.3~metards-0.istio-system~istio-system.svc.cluster.local"; node.GetId() != want {
		t.Errorf("node id %q, want %q", node.GetId(), want)
	}
	want := map[string]any{"GENERATOR": "api", "NAMESPACE": "istio-system"}
	if got := node.GetMetadata().AsMap(); !maps.Equal(got, want) || node.GetCluster() != "" {
		t.Errorf("metadata %v", got)
	}
	for _, r := range requests[1:] {
		if r.GetNode() != nil {
			t.Error("the node was sent again")
		}
	}
}

func TestListsThatSayTheSameAreNeverDelivered(t *testing.T) {
	exported := func(order ...string) *anypb.Any {
		s := service("x", dubbo)
		s.ExportTo, s.Addresses = order, order
		return resource("shop/x", s)
	}
	s := start(t, nil)
	s.set(entries, append(many(50), exported("a", "b", "c"))...)
	s.set(rules, rule("shop/r", "s1", "user"))
	b := watch(t, s.address)
	eventually(t, "all there", func() bool { return b.sink.size() == 52 && b.sink.completed() == allKinds })
	before := b.sink.applies()
	for range 20 { // the server's lists are in random order, with new versions of lists and items
		s.waitForAnswer(t, entries, func() {
			order := []string{"a", "b", "c"}
			rand.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
			s.update(entries, append(many(50), exported(order...))...)
		})
	}
	if got := b.sink.applies(); got != before {
		t.Errorf("%d batches without a difference", got-before)
	}
	list := many(50)
	list[7] = resource("shop/s7", service("s7", "tcp"))
	s.waitForAnswer(t, entries, func() { s.update(entries, append(list, exported("a"))...) })
	if got := b.sink.applies(); got != before+1 {
		t.Errorf("%d batches for one difference", got-before)
	}
}

func TestOnlyWhatDiffersIsDelivered(t *testing.T) {
	s := start(t, nil)
	s.set(entries, entry("shop/a"), entry("shop/b"), entry("shop/c"))
	b := watch(t, s.address)
	b.expect(t, "shop/a=a shop/b=b shop/c=c")
	s.update(entries, entry("shop/a"), resource("shop/b", service("b", "tcp-metaprotocol-thrift")), entry("shop/d"))
	b.expect(t, "shop/a=a shop/b=b:tcp-metaprotocol-thrift shop/d=d")
	s.update(entries, entry("shop/a"), entry("shop/b"), entry("shop/d"))
	b.expect(t, "shop/a=a shop/b=b shop/d=d")
}

func TestAnItemThatCannotBeDecodedKeepsItsPreviousValue(t *testing.T) {
	s := start(t, nil)
	s.set(entries, entry("shop/a"), entry("shop/b"))
	b := watch(t, s.address)
	b.expect(t, "shop/a=a shop/b=b")
	for name, item := range map[string]*anypb.Any{
		"bytes that are no message": entry("shop/a", garbled),
		"another type":              rule("shop/a", "a", "x"),
	} {
		t.Run(name, func(t *testing.T) {
			s.update(entries, item, entry("shop/b"), entry("shop/c"))
			b.expect(t, "shop/a=a shop/b=b shop/c=c")
			eventually(t, "the fault", func() bool { return strings.Contains(fmt.Sprint(b.sink.faults), "its body is") })
			eventually(t, "the metric", func() bool { return b.metric(t, "metards_mcp_undecodable_items") == 1 })
			s.update(entries, entry("shop/a"), entry("shop/b"))
			b.expect(t, "shop/a=a shop/b=b")
			eventually(t, "the fault gone", func() bool { b.sink.mu.Lock(); defer b.sink.mu.Unlock(); return len(b.sink.faults) == 0 })
		})
	}
}

func TestAListOfGarbageTakesNothingAway(t *testing.T) {
	s := start(t, nil)
	s.set(entries, entry("shop/a"), entry("shop/b"))
	b := watch(t, s.address, func(o *Options) { o.Hold = time.Millisecond })
	b.expect(t, "shop/a=a shop/b=b")
	for name, list := range map[string][]*anypb.Any{
		"other types":       {must(anypb.New(service("a", dubbo)))},
		"no messages":       {{TypeUrl: resourceTypes + resourceType, Value: []byte("\x0a\xffxyz")}},
		"no types":          {{Value: []byte("abc")}, {}},
		"no names":          {resource("", service("a", dubbo)), resource("shop/", service("b")), resource("/a", service("a"))},
		"one without names": {entry("shop/a"), resource("b", service("b"))},
	} {
		t.Run(name, func(t *testing.T) {
			s.waitForAnswer(t, entries, func() { s.update(entries, list...) })
			b.expectProblem(t, "items that cannot be told apart")
			if got := b.sink.content(); got != "shop/a=a shop/b=b" || b.sink.losses() > 0 {
				t.Errorf("got %s, lost %d", got, b.sink.losses())
			}
		})
	}
	s.update(entries, entry("shop/a"))
	b.expect(t, "shop/a=a")
	eventually(t, "no problem", func() bool { return !strings.Contains(b.problems(), "told apart") })
}

func TestFieldsThatAreNotKnownAreLeftOutOfServicesAndRefusedInMetaRouters(t *testing.T) {
	newer := []byte{0xf8, 0x3f, 1} // field 1023
	unknownService := service("a", dubbo)
	unknownService.ProtoReflect().SetUnknown(newer)
	match := &v1alpha1.StringMatch{}
	match.ProtoReflect().SetUnknown(newer)
	router := &v1alpha1.MetaRouter{Hosts: []string{"b"}, Routes: []*v1alpha1.MetaRoute{{
		Match: &v1alpha1.MetaRouteMatch{Attributes: map[string]*v1alpha1.StringMatch{"k": match}},
		Route: []*v1alpha1.MetaRouteDestination{{Destination: &v1alpha1.Destination{Host: "b"}, Weight: 1}},
	}}}
	s := start(t, nil)
	s.set(entries, resource("shop/a", unknownService))
	s.set(routers, resource("shop/m", router), resource("shop/n", &v1alpha1.MetaRouter{Hosts: []string{"n"}}))
	b := watch(t, s.address, func(o *Options) { o.MetaRouters = true })
	b.expect(t, "shop/a=a shop/n=n")
	if !strings.Contains(fmt.Sprint(b.sink.faults), "fields that are not known") {
		t.Errorf("faults: %v", b.sink.faults)
	}
}

func TestTwoObjectsOfOneNameAreTwoObjectsWhateverTheirOrder(t *testing.T) {
	twins := func() []*anypb.Any {
		return []*anypb.Any{
			resource("shop/synthetic-a", service("a.shop.svc.clusterset.local", dubbo)),
			resource("shop/synthetic-a", service("a.shop.svc.cluster.local", dubbo)), entry("shop/b"),
			resource("shop/synthetic-a", service("a.shop.svc.clusterset.local", "tcp")),
		}
	}
	s := start(t, nil)
	s.set(entries, twins()...)
	b := watch(t, s.address)
	const all = "shop/b=b shop/synthetic-a#a.shop.svc.clusterset.local#2=a.shop.svc.clusterset.local " +
		"shop/synthetic-a#a.shop.svc.clusterset.local=a.shop.svc.clusterset.local:tcp shop/synthetic-a=a.shop.svc.cluster.local"
	b.expect(t, all)
	eventually(t, "all complete", func() bool { return b.sink.completed() == allKinds })
	before := b.sink.applies()
	for range 10 {
		s.waitForAnswer(t, entries, func() { s.update(entries, twins()...) })
	}
	if b.sink.applies() != before || b.sink.content() != all {
		t.Errorf("%d batches for the same: %s", b.sink.applies()-before, b.sink.content())
	}
	s.update(entries, twins()[1:3]...)
	b.expect(t, "shop/b=b shop/synthetic-a=a.shop.svc.cluster.local")
}

func TestObjectsOfAnotherRevisionAreLeftOut(t *testing.T) {
	list := []*anypb.Any{entry("shop/a"), entry("shop/b", revision("canary")), entry("shop/c", revision("stable")), entry("shop/d", revision(""))}
	s := start(t, nil)
	s.set(entries, list...)
	watch(t, s.address, func(o *Options) { o.Revision = "stable" }).expect(t, "shop/a=a shop/c=c shop/d=d")
	b := watch(t, s.address)
	b.expect(t, "shop/a=a shop/b=b shop/c=c shop/d=d")
}

func TestEveryResponseIsAnsweredAndAComplaintIsToldOnce(t *testing.T) {
	s := start(t, nil)
	s.change(func() { s.again = true })
	s.set(entries, entry("shop/a"), entry("shop/b", garbled))
	b := watch(t, s.address)
	b.expect(t, "shop/a=a")
	for range 5 {
		s.waitForAnswer(t, entries, s.push)
	}
	if total, refusals := s.acknowledged(entries); total < 6 || len(refusals) != 1 || !strings.Contains(refusals[0], "shop/b") {
		t.Errorf("%d answers, refusals %q", total, refusals)
	}
	s.change(func() {
		for _, r := range s.requests {
			if r.GetErrorDetail() != nil && r.GetVersionInfo() != "" {
				t.Errorf("refused as version %q, where none was accepted", r.GetVersionInfo())
			}
		}
	})
}

func TestAResponseThatWasNotAskedForIsNotAnswered(t *testing.T) {
	s := start(t, nil)
	s.change(func() { s.unasked = true })
	b := watch(t, s.address)
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
	s.waitForAnswer(t, entries, s.push)
	if n, _ := s.acknowledged("x/v1/Unasked"); n != 0 || s.streamCount() != 1 {
		t.Errorf("%d answers, %d streams", n, s.streamCount())
	}
}

func TestEverythingIsAskedForAgainNowAndThen(t *testing.T) {
	s := start(t, nil)
	b := watch(t, s.address, func(o *Options) { o.Resync = 20 * time.Millisecond })
	eventually(t, "three requests of each type", func() bool {
		asked := s.asked()
		return len(asked) == 5 && slices.Min(slices.Collect(maps.Values(asked))) >= 3
	})
	proof := b.Status().LastProof
	s.set(entries, entry("shop/a")) // and no push
	b.expect(t, "shop/a=a")
	if !b.Status().LastProof.After(proof) || s.streamCount() != 1 {
		t.Errorf("status %+v, %d streams", b.Status(), s.streamCount())
	}
}

func TestMetricsTellOfListsAndConnection(t *testing.T) {
	s := start(t, nil)
	s.set(entries, many(10)...)
	b := watch(t, s.address)
	eventually(t, "complete", func() bool { return b.sink.completed() == allKinds && b.Status().Connected })
	eventually(t, "five responses", func() bool { return b.metric(t, "metards_mcp_responses_total") == 5 })
	if b.metric(t, "metards_mcp_connected") != 1 || b.metric(t, "metards_mcp_list_bytes") < 1000 {
		t.Errorf("connected %v, bytes %v", b.metric(t, "metards_mcp_connected"), b.metric(t, "metards_mcp_list_bytes"))
	}
	if age := float64(time.Now().Unix()) - b.metric(t, "metards_mcp_last_response_timestamp_seconds"); age < -1 || age > 20 {
		t.Errorf("the last response is %v s old", age)
	}
	s.endStreams()
	eventually(t, "a reconnect", func() bool { return b.metric(t, "metards_mcp_reconnects_total") == 1 })
	b.stop()
	if b.metric(t, "metards_mcp_connected") != 0 {
		t.Error("connected after the end")
	}
}

func TestNothingOfAWatcherIsLeftAfterRun(t *testing.T) {
	stacks := func() int {
		buffer := make([]byte, 1<<20)
		text := string(buffer[:runtime.Stack(buffer, true)])
		return strings.Count(text, "istiowatch.(*Watcher)") + strings.Count(text, "istiowatch.receive") + strings.Count(text, "grpc/internal/transport.(*http2Client)")
	}
	s := start(t, nil)
	s.set(entries, many(100)...)
	for _, state := range []string{"in the middle", "while the server is silent"} {
		s.change(func() { s.mute = state != "in the middle" })
		b := &bench{}
		w := must(New(b.optionsFor(s.address)))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		eventually(t, "requests", func() bool { return len(s.asked()) == 5 })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		eventually(t, "no goroutines left "+state, func() bool { return stacks() == 0 })
	}
}

func TestOptionsThatAreWrongAreToldAtOnce(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"required":          func(o *Options) { o.Sink = nil },
		"not HOST:PORT":     func(o *Options) { o.Address = "istiod" },
		"root-cert.pem":     func(o *Options) { o.Plaintext = false },
		"pod and namespace": func(o *Options) { o.Node.Pod = "" },
		"not an IP address": func(o *Options) { o.Node.IP = "pod" },
		"negative":          func(o *Options) { o.Hold = -1 },
		"above MaxBackoff":  func(o *Options) { o.MinBackoff = time.Hour },
	} {
		b := &bench{}
		o := b.optionsFor("127.0.0.1:1")
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}
