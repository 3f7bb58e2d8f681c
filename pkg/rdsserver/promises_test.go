package rdsserver_test

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/rdsserver"
)

// A test shows that nothing is sent by a fence: it causes a change of another name on the same stream,
// and the response to that must be the very next one.

func TestNothingIsSentBeforeEveryKindWasDeliveredOnce(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		x := p.open(form, "shop")
		x.want(table("orders"))
		p.eventually("the stream is subscribed", func() bool { return p.metric("metards_subscriptions") == 1 })
		p.store.Apply(mesh.Directory, mesh.Batch{Complete: []mesh.Kind{mesh.KindServiceEntry}, Objects: []*mesh.Object{service("orders")}})
		p.store.Apply(mesh.Directory, mesh.Batch{Complete: []mesh.Kind{mesh.KindDestinationRule}})
		if n := p.metric("metards_compilations_total"); n != 0 {
			t.Errorf("%v tables compiled before there was truth", n)
		}
		// A default table here would cancel a canary.
		p.store.Apply(mesh.Directory, mesh.Batch{Complete: []mesh.Kind{mesh.KindMetaRouter}, Objects: []*mesh.Object{router("orders", "canary")}})
		x.wantAccepted(table("orders"), cluster("orders", "canary"))
	})
}

func TestAnEmptyListCountsAsDelivered(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		x := p.open(form, "shop")
		x.want(table("orders"))
		p.deliver(service("orders"))
		x.wantAccepted(table("orders"), cluster("orders", ""))
	})
}

func TestOnlyStreamsWhoseBytesDifferReceiveAnything(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), service("stock"), service("fence"), router("orders", "v1"))
		concerned, other := p.open(form, "shop"), p.open(form, "web")
		concerned.want(table("orders"))
		other.want(table("stock"), table("fence"))
		concerned.wantAccepted(table("orders"), cluster("orders", "v1"))
		other.accepted()
		other.accepted()

		// Another host's edit, a re-listing, a rewritten object with equal content.
		p.put(router("orders", "v2"))
		concerned.wantAccepted(table("orders"), cluster("orders", "v2"))
		p.deliver(service("orders"), service("stock"), service("fence"), router("orders", "v2"))
		p.put(service("stock"), service("fence"))
		p.put(router("fence", "v9"))
		other.wantAccepted(table("fence"), cluster("fence", "v9"))
		p.put(router("orders", "v3"))
		concerned.wantAccepted(table("orders"), cluster("orders", "v3"))
		if n := p.metric("metards_responses_sent_total"); n != 6 {
			t.Errorf("%v responses were sent, want 6", n)
		}
	})
}

func TestAChangeThatLeavesTheBytesAlikeIsNotSent(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), router("orders", "v1"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		x.wantAccepted(table("orders"), cluster("orders", "v1"))
		withLimit := router("orders", "v1")
		withLimit.Spec.(*mesh.MetaRouter).LocalRateLimit = &v1alpha1.LocalRateLimit{}
		before := p.metric("metards_compilations_total")
		p.put(withLimit)
		p.eventually("the edit was compiled", func() bool { return p.metric("metards_compilations_total") > before })
		p.put(router("orders", "v2"))
		x.wantAccepted(table("orders"), cluster("orders", "v2"))
	})
}

func TestEveryKnownNameOfANewStreamIsAnswered(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("a"), service("b"), service("c"))
		x := p.open(form, "shop")
		// As after a reconnect: the proxy says what it holds, and is answered all the same.
		first := sampleproxy.Request{
			Node: sampleproxy.Node("sidecar", "app", "shop"), Names: []string{table("a"), table("b"), table("c")}, Version: "0123",
		}
		if form.Delta {
			first.Held = map[string]string{table("a"): "0123", table("b"): "4567"}
		}
		if err := x.Send(first); err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for range 3 {
			r := x.next()
			got[r.Names[0]] = true
			answer := sampleproxy.Request{Nonce: r.Nonce, Version: r.Version}
			if !form.Delta {
				answer.Names = first.Names
			}
			if err := x.Send(answer); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != 3 {
			t.Errorf("answered were %v, want all three names", got)
		}
	})
}

func TestReplicasGiveTheSameVersionWhateverTheOrderOfArrival(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		list := []*mesh.Object{service("orders"), service("stock"), routerOf("orders", manyAttributes())}
		versions := map[string]bool{}
		for i := range 3 {
			p := newPipeline(t)
			p.deliver(append(list[i:len(list):len(list)], list[:i]...)...)
			x := p.open(form, "shop")
			x.want(table("orders"))
			r := x.next()
			versions[r.Version+string(r.Resources[0].GetValue())] = true
		}
		if len(versions) != 1 {
			t.Errorf("three replicas gave %d different tables", len(versions))
		}
	})
}

func manyAttributes() *v1alpha1.MetaRoute {
	attributes := map[string]*v1alpha1.StringMatch{}
	for i := range 12 {
		attributes[fmt.Sprintf("a%d", i)] = &v1alpha1.StringMatch{MatchType: &v1alpha1.StringMatch_Exact{Exact: "v"}}
	}
	return &v1alpha1.MetaRoute{Match: &v1alpha1.MetaRouteMatch{Attributes: attributes}, Route: []*v1alpha1.MetaRouteDestination{
		{Destination: &v1alpha1.Destination{Host: host("orders"), Subset: "v1"}},
	}}
}

func TestTheNewestTableIsSentOnceTheOneBeforeItIsAnswered(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), service("fence"), router("orders", "v0"))
		x, y := p.open(form, "shop"), p.open(form, "shop")
		x.want(table("orders"))
		y.want(table("orders"))
		held := x.next()
		y.accept(y.next())
		for i := 1; i <= 5; i++ { // y sees each, so that each was compiled on its own
			p.put(router("orders", fmt.Sprintf("v%d", i)))
			y.wantAccepted(table("orders"), cluster("orders", fmt.Sprintf("v%d", i)))
		}
		x.accept(held)
		x.wantAccepted(table("orders"), cluster("orders", "v5"))
	})
}

func TestALargeSubscriptionComesOneTableAtATime(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		var objects []*mesh.Object
		var names []string
		for i := range 200 {
			name := fmt.Sprintf("s%d", i)
			objects, names = append(objects, service(name)), append(names, table(name))
		}
		p.deliver(objects...)
		x := p.open(form, "shop")
		x.want(names...)
		got := map[string]bool{}
		for range names {
			name, _ := x.accepted()
			got[name] = true
		}
		if len(got) != len(names) {
			t.Errorf("%d names answered, want %d", len(got), len(names))
		}
	})
}

func TestClosingOneStreamLeavesTheOthersOfTheNodeAlone(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), router("orders", "v1"))
		cc := p.dial("shop")
		old := p.openOn(cc, form, sampleproxy.Node("sidecar", "app", "shop"))
		sibling := p.openOn(p.dial("shop"), form, sampleproxy.Node("sidecar", "app", "shop"))
		young := p.openOn(cc, form, sampleproxy.Node("sidecar", "app", "shop"))
		for _, x := range []*proxy{old, sibling, young} {
			x.want(table("orders"))
			x.wantAccepted(table("orders"), cluster("orders", "v1"))
		}
		old.cancel()
		p.eventually("the stream is closed", func() bool { return p.metric("metards_streams") == 2 })
		p.put(router("orders", "v2"))
		for _, x := range []*proxy{sibling, young} {
			x.wantAccepted(table("orders"), cluster("orders", "v2"))
		}
	})
}

// roots counts clients, as Trust does by root.
type roots struct{ clients atomic.Int64 }

func (r *roots) Connected(tls.ConnectionState) (release func()) {
	r.clients.Add(1)
	return func() { r.clients.Add(-1) }
}

func TestClientsAreCountedWhileTheirStreamIsOpen(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		var r roots
		p := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.Clients = &r })
		p.deliver(service("orders"))
		x, y := p.open(form, "shop"), p.open(form, "shop")
		for _, s := range []*proxy{x, y} {
			s.want(table("orders"))
			s.accepted()
		}
		if n := r.clients.Load(); n != 2 {
			t.Errorf("%d clients are counted, want 2", n)
		}
		x.cancel()
		y.cancel()
		p.eventually("no client is counted", func() bool { return r.clients.Load() == 0 })
	})
}

func TestNothingIsKeptAfterTheLastStream(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"))
		x := p.open(form, "shop")
		x.want(table("orders"), "unknown.example_1")
		x.accepted()
		x.cancel()
		p.eventually("everything is freed", func() bool {
			return p.metric("metards_streams")+p.metric("metards_subscriptions")+p.metric("metards_tables") == 0
		})
		if got := p.cache.Proxies(); len(got) != 0 {
			t.Errorf("proxies still known: %v", got)
		}
		before := p.metric("metards_compilations_total")
		p.put(router("orders", "v2"))
		y := p.open(form, "shop") // the fence: it is served what is current
		y.want(table("orders"))
		y.wantAccepted(table("orders"), cluster("orders", "v2"))
		if n := p.metric("metards_compilations_total") - before; n != 1 {
			t.Errorf("%v compilations, want 1: without subscribers nothing is compiled", n)
		}
	})
}

func TestAnUnknownNameWaitsAndHoldsUpNoOther(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("stock"))
		x := p.open(form, "shop")
		x.want(table("orders"), table("stock"), "", "*", "no-port", table("orders")+"_")
		x.wantAccepted(table("stock"), cluster("stock", ""))
		p.put(service("orders"))
		x.wantAccepted(table("orders"), cluster("orders", ""))
	})
}

func TestADeletedMetaRouterIsReplacedByTheDefaultTable(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), router("orders", "v1"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		x.wantAccepted(table("orders"), cluster("orders", "v1"))
		p.remove(router("orders", "").Key)
		x.wantAccepted(table("orders"), cluster("orders", ""))
	})
}

func TestADeletedServiceTakesNothingFromItsSubscribers(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), service("fence"), router("orders", "v1"))
		x := p.open(form, "shop")
		x.want(table("orders"), table("fence"))
		x.accepted()
		x.accepted()
		p.remove(service("orders").Key)
		p.put(router("fence", "v1"))
		x.wantAccepted(table("fence"), cluster("fence", "v1"))
		p.put(service("orders")) // back with equal bytes: nothing to send
		p.put(router("fence", "v2"))
		x.wantAccepted(table("fence"), cluster("fence", "v2"))
		p.put(router("orders", "v2"))
		x.wantAccepted(table("orders"), cluster("orders", "v2"))
	})
}

func TestTheNamesOfARequestWithAStaleNonceCount(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("a"), service("b"))
		x := p.open(form, "shop")
		x.want(table("a"))
		first := x.next()
		r := sampleproxy.Request{Nonce: "stale", Names: []string{table("a"), table("b")}}
		if form.Delta {
			r.Names = []string{table("b")}
		}
		if err := x.Send(r); err != nil {
			t.Fatal(err)
		}
		p.eventually("both names are subscribed", func() bool { return p.metric("metards_subscriptions") == 2 })
		answer := sampleproxy.Request{Nonce: first.Nonce, Version: first.Version}
		if !form.Delta {
			answer.Names = r.Names
		}
		if err := x.Send(answer); err != nil {
			t.Fatal(err)
		}
		x.wantAccepted(table("b"), cluster("b", ""))
	})
}

func TestANameDroppedAndAddedAgainIsSentAgain(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("a"), service("b"))
		x := p.open(form, "shop")
		x.want(table("a"), table("b"))
		x.accepted()
		x.accepted()
		x.want(table("b"))
		x.want(table("a"), table("b"))
		x.wantAccepted(table("a"), cluster("a", ""))
	})
}

func TestInDeltaANameSubscribedToTwiceIsSentTwice(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("a"), service("fence"))
		x := p.open(form, "shop")
		x.want(table("a"))
		x.wantAccepted(table("a"), cluster("a", ""))
		if err := x.Send(sampleproxy.Request{Names: []string{table("a")}}); err != nil {
			t.Fatal(err)
		}
		if form.Delta {
			x.wantAccepted(table("a"), cluster("a", ""))
		}
		x.want(table("a"), table("fence")) // in state of the world the repeated set asks for nothing
		x.wantAccepted(table("fence"), cluster("fence", ""))
	})
}

func TestARejectedTableIsNotSentAgainUntilItsBytesDiffer(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), service("fence"), router("orders", "v1"))
		x := p.open(form, "shop")
		x.want(table("orders"))
		x.reject(x.next(), "no, thanks") // the first response, when the proxy holds nothing yet
		x.want(table("orders"), table("fence"))
		x.wantAccepted(table("fence"), cluster("fence", ""))
		p.put(router("orders", "v2"))
		x.wantAccepted(table("orders"), cluster("orders", "v2"))

		p.put(router("orders", "v3"))
		x.reject(x.next(), "v3 is bad")
		p.put(router("fence", "v1"))
		x.wantAccepted(table("fence"), cluster("fence", "v1"))
		state := p.cache.Proxies()[0].Tables[1]
		if state.State != "rejected" || state.Rejected == nil || state.Rejected.Error != "v3 is bad" || state.Accepted == nil || state.Rejected.Version == state.Accepted.Version {
			t.Errorf("the facts are %+v, want the proxy's error beside the version it accepted", state)
		}
		p.put(router("orders", "v2")) // what it accepted before
		x.wantAccepted(table("orders"), cluster("orders", "v2"))
	})
}
