package istiowatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// large is a list of 20,000 services, 20 MB.
func large() []*anypb.Any {
	out := make([]*anypb.Any, 20_000)
	for i := range out {
		s := service(fmt.Sprintf("service-%d.shop.svc.cluster.local", i), dubbo)
		s.SubjectAltNames = []string{strings.Repeat("x", 750)}
		out[i] = resource(fmt.Sprintf("shop/synthetic-service-%d", i), s)
	}
	return out
}

func TestTwentyThousandServicesAreTakenInSoonAndTheirRepetitionSooner(t *testing.T) {
	list := large()
	s := start(t, nil)
	s.set(entries, list...)
	b := watch(t, s.address)
	started := time.Now()
	eventually(t, "all there", func() bool { return b.sink.size() == len(list) && b.sink.completed() == allKinds })
	t.Logf("first list: %v", time.Since(started))
	if size := b.metric(t, "metards_mcp_list_bytes"); size < 18e6 {
		t.Errorf("only %v bytes", size)
	}
	before := b.sink.applies()
	started = time.Now()
	for range 2 {
		s.waitForAnswer(t, entries, s.push)
	}
	t.Logf("each repetition, sending included: %v", time.Since(started)/2)
	if b.sink.applies() != before {
		t.Error("a repetition was delivered")
	}
}

func TestAListBeyondTheLimitIsToldAndOneOfHalfOfItIsWarnedOf(t *testing.T) {
	s := start(t, nil)
	s.set(entries, many(100)...)
	b := watch(t, s.address, func(o *Options) { o.MaxReceive = 20_000 })
	eventually(t, "all there", func() bool { return b.sink.size() == 100 })
	b.expectProblem(t, "more than half as large")
	s.update(entries, many(300)...)
	b.expectError(t, "larger than what is taken in (20000 bytes): raise the limit")
	if b.sink.size() != 100 {
		t.Errorf("%d objects", b.sink.size())
	}
	s.set(entries, many(5)...)
	eventually(t, "connected again", func() bool { return b.Status().Connected })
	eventually(t, "no warning", func() bool { return !strings.Contains(b.problems(), "half") })
}

// BenchmarkUnchangedList is what a push costs in which only endpoints moved: 20,000 services, 20 MB, from the
// wire on.
func BenchmarkUnchangedList(b *testing.B) {
	wire := must(proto.Marshal(&discovery.DiscoveryResponse{TypeUrl: entries, Resources: large()}))
	w := &bench{}
	o := w.optionsFor("127.0.0.1:1")
	check(b, o.validate())
	l := newList("ServiceEntry", &o, entries)
	take := func() {
		var response discovery.DiscoveryResponse
		check(b, proto.Unmarshal(wire, &response))
		now := time.Now()
		l.take(0, response.GetResources(), now, now)
	}
	take()
	b.SetBytes(int64(len(wire)))
	b.ReportAllocs()
	for b.Loop() {
		take()
	}
	if w.sink.applies() != 1 {
		b.Fatal("an unchanged list was delivered")
	}
}

// BenchmarkChangedList is what the first list costs.
func BenchmarkChangedList(b *testing.B) {
	list := large()
	w := &bench{}
	o := w.optionsFor("127.0.0.1:1")
	check(b, o.validate())
	b.ReportAllocs()
	for b.Loop() {
		now := time.Now()
		newList("ServiceEntry", &o, entries).take(0, list, now, now)
	}
}
