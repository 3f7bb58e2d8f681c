package rdsserver_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
)

func TestNothingIsPushedDuringTheStop(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.GracePeriod = time.Second })
		p.deliver(service("a"), service("b"))
		streams := make([]*proxy, 8) // they are ended one by one over the grace period
		held := make([]sampleproxy.Response, len(streams))
		for i := range streams {
			streams[i] = p.open(form, "shop")
			streams[i].want(table("a"), table("b"))
			held[i] = streams[i].next()
		}
		p.stop()
		p.eventually("the stop has begun", p.server.Draining)
		for i, x := range streams {
			_ = x.Accept(held[i]) // the other table is due; that fails where the stream has ended
		}
		for _, x := range streams {
			x.wantEnd(codes.Unavailable, "shutting down")
		}
		if n := p.metric("metards_responses_sent_total"); n != float64(len(streams)) {
			t.Errorf("%v responses were sent, want the %d of before the stop", n, len(streams))
		}
	})
}

// An Envoy whose last subscription of a type went away ignores a response that is on its way, and answers
// nothing. It keeps the nonce for its next request.
func TestAProxyThatWantsNothingAnyMoreOwesNoAnswer(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		const limit = 700 * time.Millisecond
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.ResponseTimeout = limit })
		p.deliver(service("a"), service("b"))
		x, other := p.open(form, "shop"), p.open(form, "shop")
		ignored := [2]sampleproxy.Response{}
		for i, y := range []*proxy{x, other} {
			y.want(table("a"))
			ignored[i] = y.next()
			y.want()
		}
		p.eventually("nothing is subscribed to", func() bool { return p.metric("metards_subscriptions") == 0 })
		clock := p.open(form, "shop")
		clock.want(table("a"))
		clock.wantEnd(codes.DeadlineExceeded) // so the time of the others is over too
		if err := x.Send(sampleproxy.Request{Nonce: ignored[0].Nonce, Names: []string{table("b")}}); err != nil {
			t.Fatal(err)
		}
		x.want(table("b"))
		x.wantAccepted(table("b"), cluster("b", ""))
		other.want(table("b")) // without the nonce its time runs anew
		other.wantEnd(codes.DeadlineExceeded, limit.String())
	})
}

func TestANameDroppedWhileItsResponseIsOnItsWayHoldsUpNoOther(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("a"), service("b"))
		x := p.open(form, "shop")
		x.want(table("a"), table("b"))
		r := x.next()
		dropped, kept := "a", "b"
		if r.Names[0] == table("b") {
			dropped, kept = kept, dropped
		}
		x.want(table(kept))
		x.accept(r) // of a name that it does not subscribe to any more
		x.wantAccepted(table(kept), cluster(kept, ""))
		x.want(table("a"), table("b"))
		x.wantAccepted(table(dropped), cluster(dropped, ""))
		p.eventually("both are accepted", func() bool {
			list := p.cache.Proxies()[0].Tables
			return len(list) == 2 && list[0].State == cachemgr.Accepted && list[1].State == cachemgr.Accepted
		})
	})
}

func TestInDeltaANameDroppedAndAddedInOneRequestIsSentAgain(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("a"), service("fence"))
		x := p.open(form, "shop")
		x.want(table("a"))
		x.wantAccepted(table("a"), cluster("a", ""))
		if err := x.Send(sampleproxy.Request{Names: []string{table("a")}, Dropped: []string{table("a")}}); err != nil {
			t.Fatal(err)
		}
		if form.Delta {
			x.wantAccepted(table("a"), cluster("a", ""))
		}
		x.want(table("a"), table("fence"))
		x.wantAccepted(table("fence"), cluster("fence", ""))
	})
}

func TestWhatIsKeptOfAProxysWordsIsBounded(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		x.reject(x.next(), long)
		p.eventually("the rejection is noted", func() bool { return p.metric("metards_responses_rejected_total") == 1 })
		if n := len(p.cache.Proxies()[0].Tables[0].Rejected.Error); n < 1000 || n > 10_000 {
			t.Errorf("%d bytes of the proxy's error are kept, want some thousand", n)
		}
		if err := x.Send(sampleproxy.Request{Names: []string{table("orders"), long}}); err != nil {
			t.Fatal(err)
		}
		x.wantEnd(codes.InvalidArgument, "name")
		y := p.open(form, "shop")
		if err := y.Send(sampleproxy.Request{Node: sampleproxy.Node("sidecar", "app", "shop"), Type: long}); err != nil {
			t.Fatal(err)
		}
		y.wantEnd(codes.InvalidArgument)
		z := p.openOn(p.dial("shop"), form, sampleproxy.Node("sidecar", long, "shop"))
		z.want(table("orders"))
		z.wantEnd(codes.InvalidArgument, "node")
		p.eventually("the streams are gone", func() bool { return p.metric("metards_streams") == 0 })
		if n := len(p.log.String()); n > 100_000 {
			t.Errorf("the log has %d bytes", n)
		}
	})
}

// BenchmarkMemoryPerStream reports what a quiet stream of a connection with many costs, the sample proxy's end of
// it included, as KB/stream. It is well above what the server's end alone costs.
func BenchmarkMemoryPerStream(b *testing.B) {
	const streams = 500
	for _, form := range sampleproxy.Forms() {
		b.Run(form.Name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(memoryPerStream(b, form, streams)/1024, "KB/stream")
			}
			b.ReportMetric(0, "ns/op") // means nothing here
		})
	}
}

// Both ends together take half of the bound, with the race detector three quarters. It catches what is kept by
// mistake, such as node messages.
func TestAQuietStreamTakesLittleMemory(t *testing.T) {
	const bound = 80 << 10
	if got := memoryPerStream(t, sampleproxy.Forms()[0], 300); got > bound {
		t.Errorf("a stream takes %.0f bytes at both ends together, want at most %d", got, bound)
	}
}

// memoryPerStream is the growth of heap and stacks for each of many streams on one connection, each of another
// node, whose message is of a real Envoy's size.
func memoryPerStream(t testing.TB, form sampleproxy.Form, streams int) float64 {
	t.Helper()
	p := newPipeline(t)
	p.deliver(service("orders"))
	cc := p.dial("shop")
	open := func(i int) {
		node := sampleproxy.Node("sidecar", fmt.Sprintf("app%d", i), "shop")
		node.UserAgentName = strings.Repeat("e", 50<<10)
		x := p.openOn(cc, form, node)
		x.want(table("orders"))
		x.accepted()
	}
	open(0) // the connection itself, and what is made once
	before := memoryInUse()
	for i := range streams {
		open(i + 1)
	}
	p.eventually("all have answered", func() bool { return p.metric("metards_responses_accepted_total") == float64(streams+1) })
	return float64(memoryInUse()-before) / float64(streams)
}

func memoryInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first only marks what pools hold
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
