package rdsserver_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/tlsboot"
)

func limits(l rdsserver.Limits) change {
	return func(o *rdsserver.Options, _ *cachemgr.Options) { o.Limits = l }
}

// served opens a stream and checks that it gets the table of orders.
func (p *pipeline) served(form sampleproxy.Form, pod string) *proxy {
	p.t.Helper()
	x := p.openOn(p.dial("shop"), form, sampleproxy.Node("sidecar", pod, "shop"))
	x.want(table("orders"))
	x.accepted()
	return x
}

// wantLimit checks how often a limit was reached, and that no other was.
func (p *pipeline) wantLimit(limit string, times float64) {
	p.t.Helper()
	if n := p.metric("metards_limits_reached_total", limit); n != times {
		p.t.Errorf("limit %s was reached %v times, want %v", limit, n, times)
	}
	if n := p.metric("metards_limits_reached_total"); n != p.metric("metards_limits_reached_total", limit) {
		p.t.Errorf("other limits than %s were reached too", limit)
	}
}

// wantPush checks that bystanders are served as ever.
func (p *pipeline) wantPush(bystanders ...*proxy) {
	p.t.Helper()
	p.put(router("orders", "pushed"))
	for _, x := range bystanders {
		x.wantAccepted(table("orders"), cluster("orders", "pushed"))
	}
}

func TestAProxyWithTooManyStreamsGetsNoFurtherOne(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, limits(rdsserver.Limits{StreamsPerProxy: 2}))
		p.deliver(service("orders"))
		first, second := p.served(form, "app"), p.served(form, "app")
		for range 2 {
			x := p.open(form, "shop")
			x.want(table("orders"))
			x.wantEnd(codes.ResourceExhausted, "app.shop~shop", "spiffe://cluster.local/ns/shop/sa/app", "has 2 streams")
		}
		p.wantLimit("streams_per_proxy", 2)
		if n := strings.Count(p.log.String(), "limit=streams_per_proxy"); n != 1 {
			t.Errorf("the limit was logged %d times, want once for the identity", n)
		}
		bystander := p.served(form, "other") // of the same service account
		first.cancel()
		p.eventually("a stream is gone", func() bool { return p.metric("metards_streams") == 2 })
		third := p.served(form, "app")
		p.wantPush(second, third, bystander)
		p.wantLimit("streams_per_proxy", 2)
	})
}

func TestStreamsBeyondWhatAReplicaTakesAreShed(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, limits(rdsserver.Limits{Streams: 2}))
		p.deliver(service("orders"))
		first, second := p.served(form, "a"), p.served(form, "b")
		x := p.openOn(p.dial("shop"), form, sampleproxy.Node("sidecar", "c", "shop"))
		x.wantEnd(codes.Unavailable, "2 streams are open")
		p.wantLimit("streams", 1)
		p.wantPush(first, second)
		first.cancel()
		cc := p.dial("shop")
		p.eventually("there is room again", func() bool {
			x := p.openOn(cc, form, sampleproxy.Node("sidecar", "c", "shop"))
			_ = x.Want(table("orders")) // fails where it is shed
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := x.Next(ctx)
			return err == nil
		})
	})
}

func TestAStreamThatNeverSaysWhoseItIsEnds(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, limits(rdsserver.Limits{FirstRequest: time.Second}))
		p.deliver(service("orders"))
		bystander := p.served(form, "app")
		mute := p.open(form, "shop")
		mute.wantEnd(codes.DeadlineExceeded, "no request", "1s")
		p.wantLimit("first_request", 1)
		p.wantPush(bystander) // which was quiet for longer than that
	})
}

func TestARequestThatIsTooLargeEndsItsStreamOnly(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, limits(rdsserver.Limits{RequestBytes: 64 << 10}))
		p.deliver(service("orders"))
		cc := p.dial("shop")
		open := func(bytes int) *proxy {
			node := sampleproxy.Node("sidecar", fmt.Sprint("app", bytes), "shop")
			node.UserAgentName = strings.Repeat("e", bytes)
			x := p.openOn(cc, form, node)
			x.want(table("orders"))
			return x
		}
		bystander := open(60 << 10)
		bystander.accepted()
		open(80<<10).wantEnd(codes.ResourceExhausted, "larger than max", "65536")
		p.eventually("it is counted", func() bool { return p.metric("metards_limits_reached_total") == 1 })
		p.wantLimit("request_bytes", 1)
		p.wantPush(bystander)
	})
}

func TestAHeaderThatIsTooLargeIsRefused(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, limits(rdsserver.Limits{HeaderBytes: 4 << 10}))
		p.deliver(service("orders"))
		cc := p.dial("shop")
		with := func(bytes int) (*sampleproxy.Stream, error) {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("h", bytes))
			return sampleproxy.Open(ctx, cc, form, sampleproxy.Node("sidecar", "app", "shop"))
		}
		if _, err := with(8 << 10); err == nil || !strings.Contains(err.Error(), "header list size") {
			t.Errorf("a header of 8 KiB: %v, want that the limit is known to the client", err)
		}
		x := &proxy{Stream: must(with(2 << 10)), t: t}
		x.want(table("orders"))
		x.accepted()
	})
}

func TestTooManyStreamsOnAConnectionWait(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, limits(rdsserver.Limits{StreamsPerConnection: 2}))
		p.deliver(service("orders"))
		cc := p.dial("shop")
		node := sampleproxy.Node("sidecar", "app", "shop")
		first, second := p.openOn(cc, form, node), p.openOn(cc, form, node)
		for _, x := range []*proxy{first, second} {
			x.want(table("orders"))
			x.accepted()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := sampleproxy.Open(ctx, cc, form, node); err == nil {
			t.Error("a third stream was opened")
		}
		bystander := p.served(form, "other")
		first.cancel()
		third := p.openOn(cc, form, node)
		third.want(table("orders"))
		third.accepted()
		p.wantPush(second, third, bystander)
	})
}

func TestTooManyNamesAreCounted(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.MaxNames = 2 })
		p.deliver(service("orders"))
		bystander := p.served(form, "other")
		x := p.open(form, "shop")
		x.want("a_1", "b_1", "c_1")
		x.wantEnd(codes.ResourceExhausted, "3 names")
		p.wantLimit("names", 1)
		p.wantPush(bystander)
	})
}

// All proxies come back at once, as after a restart of the only replica. Some must wait, for the rate allows a
// burst of 80; BenchmarkReconnectStorm has ten times
// as many.
func TestAReconnectStormLosesNobody(t *testing.T) {
	const proxies = 100
	p := newPipeline(t, limits(rdsserver.Limits{HandshakeRate: 40, HandshakeTime: time.Minute}))
	p.deliver(service("orders"))
	p.storm(proxies)
	if n := p.metric("metards_limits_reached_total") + p.metric("metards_handshakes_failed_total"); n != 0 {
		t.Errorf("%v were turned away", n)
	}
	p.eventually("all are there", func() bool { return p.metric("metards_responses_accepted_total") == proxies })
	if n := p.metric("metards_connections"); n != proxies {
		t.Errorf("%v connections are counted, want %d", n, proxies)
	}
}

// storm connects many proxies at once, each with a connection of its own, and returns when all have their table.
func (p *pipeline) storm(proxies int) {
	p.t.Helper()
	var wg sync.WaitGroup
	forms := sampleproxy.Forms()
	config := must(p.ca.ClientConfig(must(p.ca.Issue(tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"})), "localhost"))
	for i := range proxies {
		cc := must(grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(credentials.NewTLS(config))))
		p.t.Cleanup(func() { _ = cc.Close() })
		wg.Go(func() {
			s, err := sampleproxy.Open(p.t.Context(), cc, forms[i%len(forms)], sampleproxy.Node("sidecar", fmt.Sprint("app", i), "shop"))
			if err == nil {
				err = s.Want(table("orders"))
			}
			var r sampleproxy.Response
			if err == nil {
				ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
				defer cancel()
				r, err = s.Next(ctx)
			}
			if err == nil {
				err = s.Accept(r)
			}
			if err != nil {
				p.t.Errorf("proxy %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// BenchmarkReconnectStorm is 1,000 proxies that connect at once, until the last has its table.
func BenchmarkReconnectStorm(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		p := newPipeline(b)
		p.deliver(service("orders"))
		b.StartTimer()
		p.storm(1000)
		b.StopTimer()
		p.end()
		b.StartTimer()
	}
}
