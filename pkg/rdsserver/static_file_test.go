package rdsserver_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/staticxds"
)

func TestAVersionThatWasUsedWithOtherContentIsNotSentUntilItChanges(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, "versions clusters=7 listeners=1", "clusters a=1", "listeners l=1", "endpoints of-a=1")
		x := s.envoy(form)
		x.ask("clusters")
		x.ask("listeners")
		if v := x.take("clusters", "a").Version; v != "7" {
			t.Errorf("the version is %s", v)
		}
		x.take("listeners", "l")
		s.say("versions clusters=7 listeners=2", "clusters a=2", "listeners l=2", "endpoints of-a=1")
		x.take("listeners", "l")
		s.found("version 7 of clusters was already used with other content")
		s.say("versions clusters=8 listeners=2", "clusters a=2", "listeners l=2", "endpoints of-a=1")
		x.take("clusters", "a")
		s.eventually("no Problem", func() bool { return len(s.problems.All()) == 0 })
		s.say("versions clusters=9 listeners=2", "clusters a=2", "listeners l=2", "endpoints of-a=1") // the version is what the file says
		if v := x.take("clusters", "a").Version; v != "9" {
			t.Errorf("the version is %s", v)
		}
		s.say("versions clusters=7 listeners=2", "clusters a=1", "listeners l=2")
		x.take("clusters", "a")
	})
}

func TestABrokenFileKeepsWhatIsServedUntilItIsMended(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.settled(form)
		for text, says := range map[string]string{
			"text ":             "0 documents",
			"text {clusters: [": "",
			"text {clusters: [{name: a, connect_timeout: 1}]}": "clusters[a]",
		} {
			s.say(text)
			s.found(says)
			y := s.envoy(form)
			y.ask("listeners")
			y.take("listeners", "l")
		}
		s.say("clusters a=1 b=1", "endpoints of-a=1 of-b=1", "listeners l=2", "routes r=1")
		x.take("listeners", "l")
	})
}

func TestBeforeTheFileWasReadNothingIsAnsweredAndReadinessSaysWhy(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t)
		s.deliver(service("orders"))
		x := s.envoy(form)
		x.ask("clusters")
		x.ask("routes", table("orders"), "r")
		s.found("no such file")
		if says := s.source.Waiting(); !strings.Contains(says, "waiting for the static resources") || !strings.Contains(says, "no such file") {
			t.Errorf("readiness says %q", says)
		}
		s.say("clusters a=1", "routes r=1")
		x.take("clusters", "a")
		x.take("routes", "r")
		x.take("routes", table("orders"))
		if says := s.source.Waiting(); says != "" {
			t.Errorf("readiness says %q", says)
		}
	})
}

func TestARouteOfTheFileHidesATableAndGivesTheNameBack(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, "routes other=1")
		s.deliver(service("orders"), service("stock"))
		x := s.envoy(form)
		x.ask("routes", table("orders"), table("stock"))
		for _, n := range []string{"orders", "stock"} {
			if got := clusterOf(t, x.take("routes", table(n))); got != cluster(n, "") {
				t.Errorf("at first it goes to %s", got)
			}
		}
		s.say("routes " + table("orders") + "=mine")
		if got := clusterOf(t, x.take("routes", table("orders"))); got != "mine" {
			t.Errorf("then it goes to %s", got)
		}
		s.found("a table of a service has the same name")
		s.put(router("orders", "v1"), router("stock", "v1")) // the hidden one is not sent
		if got := clusterOf(t, x.take("routes", table("stock"))); got != cluster("stock", "v1") {
			t.Errorf("meanwhile it goes to %s", got)
		}
		for range 2 {
			s.say("routes other=1")
			if got := clusterOf(t, x.take("routes", table("orders"))); got != cluster("orders", "v1") {
				t.Errorf("in the end it goes to %s", got)
			}
			s.eventually("no Problem", func() bool { return len(s.problems.All()) == 0 })
			s.say("routes " + table("orders") + "=mine")
			x.take("routes", table("orders"))
		}
	})
}

func TestARouteIsSentAgainWhenATableWasInItsPlaceWhileRemovalsWereHeldBack(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		mine := "routes " + table("orders") + "=mine"
		s := newStatic(t, "listeners l=1", mine)
		s.deliver(service("orders"))
		x := s.envoy(form)
		x.ask("listeners")
		x.take("listeners", "l")
		x.ask("routes", table("orders"))
		x.take("routes", table("orders"))
		s.say("listeners l=2", mine)
		x.refuse("listeners", "l")
		s.say("listeners l=2")
		if got := clusterOf(t, x.take("routes", table("orders"))); got != cluster("orders", "") {
			t.Errorf("the table goes to %s", got)
		}
		s.say("listeners l=2", mine)
		if got := clusterOf(t, x.take("routes", table("orders"))); got != "mine" {
			t.Errorf("the route goes to %s", got)
		}
	})
}

func TestRoutesOfTheFileComeOneByOne(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.envoy(form)
		x.ask("routes", "r", "s")
		x.take("routes", "r")
		x.take("routes", "s")
	})
}

func TestInDeltaANameThatIsAskedForAgainAfterItIsGoneIsToldOnce(t *testing.T) {
	s := newStatic(t, everything...)
	x := s.settled(sampleproxy.Forms()[3])
	s.say("clusters a=1 b=1", "endpoints of-b=1", "listeners l=2", "routes r=1")
	x.refuse("listeners", "l") // holds removals back
	x.request("endpoints", sampleproxy.Request{Names: []string{"of-a"}})
	x.take("endpoints", "-of-a")
	s.say("clusters a=1", "endpoints of-b=1", "listeners l=3", "routes r=1")
	x.take("listeners", "l")
	x.take("clusters", "-b")
}

func TestARefusedTableKeepsAClusterFromBeingTakenAway(t *testing.T) {
	s := newStatic(t, "clusters a=1 b=1")
	s.deliver(service("orders"))
	x := s.envoy(sampleproxy.Forms()[3])
	x.ask("clusters")
	x.take("clusters", "a", "b")
	x.ask("routes", table("orders"))
	x.refuse("routes", table("orders"))
	x.ask("listeners")
	x.take("listeners")
	s.say("clusters a=2")
	x.take("clusters", "a")
	s.say("clusters a=2", "listeners l=1")
	x.take("listeners", "l") // and still no removal
	s.put(router("orders", "v1"))
	x.take("routes", table("orders"))
	x.take("clusters", "-b")
}

func TestPlainRDSKnowsNothingOfTheFile(t *testing.T) {
	for _, form := range sampleproxy.Forms()[:2] {
		s := newStatic(t, "routes "+table("orders")+"=mine r=1")
		s.deliver(service("orders"))
		x := s.open(form, "shop")
		x.want("r", table("orders"))
		x.wantAccepted(table("orders"), cluster("orders", ""))
		s.say("routes " + table("orders") + "=yours r=2")
		s.put(router("orders", "v1"))
		x.wantAccepted(table("orders"), cluster("orders", "v1"))
		if got := s.source.State().Streams; len(got) != 0 {
			t.Errorf("there is a session: %v", got)
		}
	}
}

func TestWithoutAFileClustersStayUnanswered(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := &staticPipeline{pipeline: newPipeline(t)}
		s.deliver(service("orders"))
		x := s.envoy(form)
		x.ask("clusters")
		x.ask("routes", table("orders"))
		x.take("routes", table("orders"))
		if s.metric("metards_ads_types_parked_total") != 1 {
			t.Error("the clusters are not parked")
		}
	})
}

func TestAProxyThatNeverAnswersItsClustersIsEnded(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		short := newPipeline(t, func(o *rdsserver.Options, _ *cachemgr.Options) {
			o.Static, o.ResponseTimeout = s.source, 50*time.Millisecond
		})
		x := (&staticPipeline{pipeline: short}).envoy(form)
		x.ask("clusters")
		x.ask("listeners")
		x.get("clusters", "a", "b")
		if err := x.ended(); err == nil || !strings.Contains(err.Error(), "no answer to a response") {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestWhatIsOwedForAnAbandonedTypeHoldsNothingBack(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.envoy(form)
		x.ask("endpoints", "of-a")
		x.get("endpoints", "of-a") // never answered
		x.ask("listeners")
		x.ask("endpoints") // the last cluster went away
		x.take("listeners", "l")
		s.say("listeners m=2")
		if form.Delta {
			x.take("listeners", "m")
			x.take("listeners", "-l")
		} else {
			x.take("listeners", "l", "m")
			x.take("listeners", "m")
		}
	})
}

func TestTheStateNamesWhatEachStreamWasSentTookAndRefused(t *testing.T) {
	s := newStatic(t, "versions clusters=1 listeners=2", "clusters a=1", "listeners l=1")
	x := s.envoy(sampleproxy.Forms()[2])
	x.ask("clusters")
	x.ask("listeners")
	x.refuse("clusters", "a")
	x.take("listeners", "l")
	var got staticxds.State
	s.eventually("both are answered", func() bool {
		got = s.source.State()
		return len(got.Streams) == 1 && len(got.Streams[0].Types) == 2 && got.Streams[0].Types[1].Accepted != nil
	})
	c, l := got.Streams[0].Types[0], got.Streams[0].Types[1]
	if c.Sent.Version != "1" || c.Accepted != nil || c.Rejected.Version != "1" || c.Rejected.Error != "I do not like it" || l.Accepted.Version != "2" || l.Rejected != nil {
		t.Errorf("got %+v", got.Streams[0])
	}
	x.cancel()
	s.eventually("it is gone", func() bool { return len(s.source.State().Streams) == 0 })
}

func TestAFileThatHasMoreThanAStreamMayNameCanBeHeldWhole(t *testing.T) {
	s := newStaticWith(t, func(o *rdsserver.Options, _ *cachemgr.Options) { o.MaxNames = 2 }, "clusters a=1 b=1 c=1")
	x := s.envoy(sampleproxy.Forms()[3])
	x.ask("clusters")
	first := x.take("clusters", "a", "b", "c")
	held := map[string]string{"d": "1"}
	for i, n := range first.Names {
		held[n] = first.Versions[i]
	}
	x.cancel()
	x = s.envoy(sampleproxy.Forms()[3])
	x.request("clusters", sampleproxy.Request{Held: held})
	x.take("clusters", "-d")
	x = s.envoy(sampleproxy.Forms()[3])
	x.request("clusters", sampleproxy.Request{Held: map[string]string{"d": "1", "e": "1", "f": "1"}})
	x.wantEnd(codes.ResourceExhausted, "holds 3 names")
}
