package rdsserver_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	routeservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/tlsboot"
)

// wantEnd checks the status with which the stream ended.
func (x *proxy) wantEnd(code codes.Code, parts ...string) {
	x.t.Helper()
	got := status.Convert(x.ended())
	if got.Code() != code {
		x.t.Fatalf("the stream ended with %v %q, want %v", got.Code(), got.Message(), code)
	}
	for _, part := range parts {
		if !strings.Contains(got.Message(), part) {
			x.t.Errorf("the stream ended with %q, which does not say %q", got.Message(), part)
		}
	}
}

func TestANodeThatCannotBeUsedIsInvalid(t *testing.T) {
	withNamespace := func(id, namespace string) *corev3.Node {
		return &corev3.Node{Id: id, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAMESPACE": structpb.NewStringValue(namespace)}}}
	}
	cases := map[string]struct {
		node *corev3.Node
		says string
	}{
		"no node":                           {nil, "no node id"},
		"no id":                             {withNamespace("", "shop"), "no node id"},
		"not of Istio's form":               {withNamespace("envoy-1", "shop"), "has not the form"},
		"of a type that is not served":      {withNamespace("ztunnel~1.2.3.4~a.shop~shop.svc.cluster.local", "shop"), "ztunnel"},
		"its metadata disagree with its id": {withNamespace("sidecar~1.2.3.4~a.shop~shop.svc.cluster.local", "web"), `"web"`},
		"names no namespace":                {&corev3.Node{Id: "sidecar~1.2.3.4~a.shop~local"}, "names no namespace"},
	}
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				x := p.openOn(p.dial("shop"), form, c.node)
				x.t = t
				x.want(table("orders"))
				x.wantEnd(codes.InvalidArgument, c.says)
			})
		}
	})
}

func TestAProxySpeaksOnlyForItself(t *testing.T) {
	account := sampleproxy.Node("sidecar", "app", "shop")
	account.Metadata.Fields["SERVICE_ACCOUNT"] = structpb.NewStringValue("boss")
	gateway := sampleproxy.Node("router", "gw", "shop")
	gateway.Metadata.Fields["SERVICE_ACCOUNT"] = structpb.NewStringValue("boss")
	shop := sampleproxy.Node("sidecar", "app", "shop")
	cases := map[string]struct {
		as   tlsboot.IssueOptions
		node *corev3.Node
		says string
	}{
		"of another namespace":               {tlsboot.IssueOptions{Namespace: "web", ServiceAccount: "app"}, shop, `says namespace "shop", its certificate spiffe://cluster.local/ns/web/sa/app is for "web"`},
		"a gateway of another one":           {tlsboot.IssueOptions{Namespace: "web", ServiceAccount: "app"}, sampleproxy.Node("router", "gw", "shop"), `"web"`},
		"of another service account":         {tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"}, account, `says service account "boss", its certificate spiffe://cluster.local/ns/shop/sa/app is for "app"`},
		"a gateway of another one's account": {tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"}, gateway, `service account "boss"`},
		"with the CA bit":                    {tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app", IsCA: true}, shop, "CA certificate"},
		"of another trust domain":            {tlsboot.IssueOptions{URIs: []string{"spiffe://elsewhere/ns/shop/sa/app"}}, shop, `"elsewhere"`},
		"without URI SAN":                    {tlsboot.IssueOptions{URIs: []string{}, DNSNames: []string{"app"}}, shop, "URI"},
		"with two URI SANs":                  {tlsboot.IssueOptions{URIs: []string{"spiffe://cluster.local/ns/shop/sa/app", "spiffe://cluster.local/ns/web/sa/app"}}, shop, "URI"},
		"with another path":                  {tlsboot.IssueOptions{URIs: []string{"spiffe://cluster.local/workload/app"}}, shop, "workload"},
	}
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				for range 2 {
					x := p.openOn(p.dialAs(c.as), form, c.node)
					x.t = t
					x.want(table("orders"))
					x.wantEnd(codes.PermissionDenied, c.says)
				}
			})
		}
		if n := p.metric("metards_streams_refused_total"); n != float64(2*len(cases)) {
			t.Errorf("%v refusals counted, want %d", n, 2*len(cases))
		}
		if n := strings.Count(p.log.String(), "stream refused"); n >= 2*len(cases) {
			t.Errorf("%d refusals logged, want each identity and reason once", n)
		}
	})
}

func TestALaterNodeMustBeTheFirstOne(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		r := x.next()
		same := sampleproxy.Node("sidecar", "app", "shop") // a real Envoy repeats it in every request
		if err := x.Send(sampleproxy.Request{Node: same, Nonce: r.Nonce, Names: r.Names}); err != nil {
			t.Fatal(err)
		}
		if err := x.Send(sampleproxy.Request{Node: sampleproxy.Node("sidecar", "other", "shop"), Names: r.Names}); err != nil {
			t.Fatal(err)
		}
		x.wantEnd(codes.InvalidArgument, "other")
	})
}

func TestAnotherTypeIsRefusedOnRDSAndParkedOnADS(t *testing.T) {
	const clusters = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"))
		x := p.open(form, "shop")
		if err := x.Send(sampleproxy.Request{Node: sampleproxy.Node("sidecar", "app", "shop"), Type: clusters}); err != nil {
			t.Fatal(err)
		}
		if !form.ADS {
			x.wantEnd(codes.InvalidArgument, clusters)
			return
		}
		if err := x.Send(sampleproxy.Request{Names: []string{table("orders")}}); err != nil {
			t.Fatal(err)
		}
		if r := x.next(); r.Type != sampleproxy.RouteType {
			t.Errorf("answered with type %s", r.Type)
		}
		if n := strings.Count(p.log.String(), clusters); n != 1 {
			t.Errorf("the parked type was logged %d times, want once", n)
		}
	})
}

func TestTooManyNamesAreRefused(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.MaxNames = 10_000 })
		p.deliver(service("orders"))
		bystander := p.open(form, "shop")
		bystander.want(table("orders"))
		bystander.accepted()
		names := make([]string, 100_000)
		for i := range names {
			names[i] = fmt.Sprintf("s%d_1", i)
		}
		x := p.open(form, "shop")
		x.want(names...)
		x.wantEnd(codes.ResourceExhausted, "100000", "10000")
		big := make([]string, 10)
		for i := range big {
			big[i] = strings.Repeat("x", 1<<20)
		}
		y := p.open(form, "shop")
		y.want(big...)
		y.wantEnd(codes.ResourceExhausted)
		p.put(router("orders", "v2"))
		bystander.wantAccepted(table("orders"), cluster("orders", "v2"))
		p.eventually("the refused streams left nothing", func() bool { return p.metric("metards_subscriptions") == 1 })
	})
}

func TestPollingIsUnimplementedWithASentence(t *testing.T) {
	p := newPipeline(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := routeservicev3.NewRouteDiscoveryServiceClient(p.dial("shop")).FetchRoutes(ctx, &discoveryv3.DiscoveryRequest{})
	if s := status.Convert(err); s.Code() != codes.Unimplemented || !strings.Contains(s.Message(), "StreamRoutes") {
		t.Errorf("got %v", err)
	}
}

func TestAProxyThatNeverAnswersLosesItsStreamAndDelaysNobody(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.ResponseTimeout = 2 * time.Second })
		p.deliver(service("orders"), router("orders", "v0"))
		deaf, good := p.open(form, "shop"), p.open(form, "shop")
		deaf.want(table("orders"))
		good.want(table("orders"))
		good.wantAccepted(table("orders"), cluster("orders", "v0"))
		for i := 1; i < 20; i++ {
			p.put(router("orders", fmt.Sprintf("v%d", i)))
			good.wantAccepted(table("orders"), cluster("orders", fmt.Sprintf("v%d", i)))
		}
		deaf.wantEnd(codes.DeadlineExceeded, "2s")
		p.eventually("its stream is gone", func() bool { return p.metric("metards_streams") == 1 })
	})
}

func TestAClientThatNeverReadsLosesItsStreamAndDelaysNobody(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.ResponseTimeout = 2 * time.Second })
		wide := router("orders", strings.Repeat("s", 1<<20)) // more than any window
		p.deliver(service("orders"), service("stock"), wide)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		cs, err := p.dial("shop", grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10)).NewStream(
			ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, form.Method)
		if err != nil {
			t.Fatal(err)
		}
		node := sampleproxy.Node("sidecar", "app", "shop")
		var request any = &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: sampleproxy.RouteType, ResourceNames: []string{table("orders")}}
		if form.Delta {
			request = &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: sampleproxy.RouteType, ResourceNamesSubscribe: []string{table("orders")}}
		}
		if err := cs.SendMsg(request); err != nil {
			t.Fatal(err)
		}
		p.eventually("the stream is open", func() bool { return p.metric("metards_streams") == 1 })
		good := p.open(form, "shop")
		good.want(table("stock"))
		good.wantAccepted(table("stock"), cluster("stock", ""))
		p.eventually("the deaf stream is gone", func() bool { return p.metric("metards_streams") == 1 })
	})
}

func TestAProxyThatRejectsEverythingGetsEachContentOnce(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), router("orders", "v0"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		for i := range 10 {
			r := x.next()
			if c := clusterOf(t, r); c != cluster("orders", fmt.Sprintf("v%d", i)) {
				t.Fatalf("response %d is for %s", i, c)
			}
			x.reject(r, "never")
			p.eventually("it is noted", func() bool { return p.metric("metards_responses_rejected_total") == float64(i+1) })
			p.put(router("orders", fmt.Sprintf("v%d", i+1)))
		}
	})
}

func TestTheStopHasADeadlineAndPushesNothing(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), router("orders", "v1"))
		streams := make([]*proxy, 5)
		for i := range streams {
			streams[i] = p.open(form, "shop")
			streams[i].want(table("orders"))
			streams[i].wantAccepted(table("orders"), cluster("orders", "v1"))
		}
		before := p.metric("metards_responses_sent_total")
		began := time.Now()
		p.end()
		for _, x := range streams {
			x.wantEnd(codes.Unavailable)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the stop took %v with a grace period of 50 ms", took)
		}
		if n := p.metric("metards_responses_sent_total"); n != before {
			t.Errorf("%v responses were sent during the stop", n-before)
		}
		if !p.server.Draining() {
			t.Error("a stopped server says that it is not draining")
		}
	})
}

func TestClosedStreamsLeaveNoGoroutine(t *testing.T) {
	p := newPipeline(t)
	p.deliver(service("orders"))
	cc := p.dial("shop")
	first := p.openOn(cc, sampleproxy.Forms()[0], sampleproxy.Node("sidecar", "app", "shop"))
	first.want(table("orders"))
	first.accepted()
	before := runtime.NumGoroutine()
	for range 20 {
		for _, form := range sampleproxy.Forms() {
			x := p.openOn(cc, form, sampleproxy.Node("sidecar", "app", "shop"))
			x.want(table("orders"))
			x.accepted()
			x.cancel()
			y := p.openOn(cc, form, nil) // refused
			y.want(table("orders"))
			_ = y.ended()
		}
	}
	p.eventually("the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func TestTheEventLogTellsTheProtocol(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), router("orders", "v1"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		x.accepted()
		p.put(router("orders", "v2"))
		x.reject(x.next(), "not that one")
		p.eventually("the rejection is logged", func() bool { return strings.Contains(p.events.String(), "not that one") })
		x.cancel()
		p.eventually("the end is logged", func() bool { return strings.Contains(p.events.String(), "stream_closed") })
		var kinds []string
		events := p.protocol()
		for _, e := range events {
			kinds = append(kinds, e.Event)
			if e.Time.IsZero() {
				t.Errorf("%+v has no time", e)
			}
		}
		const want = "server_started stream_opened request sent ack sent nack stream_closed"
		if got := strings.Join(kinds, " "); got != want {
			t.Errorf("the events are\n%s, want\n%s", got, want)
		}
		if first := events[2]; first.Version != "" || len(first.Names) != 1 || first.Names[0] != table("orders") {
			t.Errorf("the first request is %+v, want the name and an empty version", first)
		}
	})
}
