package rdsserver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/staticxds"
)

// everything is a file with something of each type.
var everything = []string{"clusters a=1 b=1", "endpoints of-a=1 of-b=1", "listeners l=1", "routes r=1 s=1"}

// settled is a stream that asked for all of it and took it.
func (s *staticPipeline) settled(form sampleproxy.Form) *envoy {
	s.t.Helper()
	x := s.envoy(form)
	x.ask("clusters")
	x.ask("endpoints", "of-a", "of-b")
	x.ask("listeners")
	x.ask("routes", "r")
	cds, eds := x.get("clusters", "a", "b"), x.get("endpoints", "of-a", "of-b")
	x.ack("clusters", cds)
	x.ack("endpoints", eds)
	x.take("listeners", "l")
	x.take("routes", "r")
	return x
}

// steps are the responses and answers so far, as "sent clusters a b" and "ack clusters".
func (s *staticPipeline) steps() []string {
	s.t.Helper()
	var out []string
	for _, e := range s.protocol() {
		kind := ""
		for k, url := range typeURLs {
			if url == e.Type {
				kind = k
			}
		}
		switch e.Event {
		case rdsserver.EventSent:
			line := "sent " + kind + " " + strings.Join(e.Names, " ")
			if len(e.Removed) > 0 {
				line += " -" + strings.Join(e.Removed, " -")
			}
			out = append(out, strings.ReplaceAll(line, "  ", " "))
		case rdsserver.EventAck, rdsserver.EventNack:
			out = append(out, e.Event+" "+kind)
		}
	}
	return out
}

func (s *staticPipeline) wantSteps(want ...string) {
	s.t.Helper()
	var got []string
	s.eventually("all steps", func() bool {
		got = s.steps()
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		s.t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestClustersComeBeforeEndpointsAndBothAreAnsweredBeforeListenersAndTheyBeforeRoutes(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		s.settled(form)
		// Envoy answers clusters once it has their endpoints, so these do not wait.
		s.wantSteps("sent clusters a b", "sent endpoints of-a of-b", "ack clusters", "ack endpoints",
			"sent listeners l", "ack listeners", "sent routes r", "ack routes")
	})
}

func TestAChangeOfOneTypeIsSentForThatTypeAlone(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.settled(form)
		s.say("clusters a=1 b=1", "endpoints of-a=1 of-b=2", "listeners l=1", "routes r=1 s=1")
		x.take("endpoints", "of-b")
		s.say("clusters a=1 b=1", "endpoints of-a=1 of-b=2", "listeners l=2", "routes r=1 s=1")
		x.take("listeners", "l")
		s.say("clusters a=1 b=1", "endpoints of-a=1 of-b=2", "listeners l=2", "routes r=2 s=2") // nobody asked for s
		if got := clusterOf(t, x.take("routes", "r")); got != "2" {
			t.Errorf("the route goes to %s", got)
		}
		s.say("clusters a=1 b=2", "endpoints of-a=1 of-b=2", "listeners l=2", "routes r=2 s=2")
		if form.Delta {
			x.take("clusters", "b")
		} else {
			x.take("clusters", "a", "b")
		}
		x.take("endpoints", "of-b") // with which Envoy takes the changed cluster into use
		s.say(append([]string{"clusters a=1 b=3"}, everything[1:]...)...)
	})
}

func TestARemovalComesLastAndInTheOppositeOrder(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.settled(form)
		before := x.accepted["clusters"]
		s.say("clusters c=1 b=1", "endpoints of-b=1", "listeners m=1", "routes s=1")
		if form.Delta {
			x.take("clusters", "c")
			x.take("listeners", "m")
			x.take("routes", "-r")
			x.take("listeners", "-l")
			x.take("endpoints", "-of-a")
			x.take("clusters", "-a")
			return
		}
		union := x.take("clusters", "a", "b", "c").Version
		x.take("listeners", "l", "m")
		x.take("listeners", "m")
		after := x.take("clusters", "b", "c").Version
		if union != before+".."+after {
			t.Errorf("the versions are %s, %s, %s", before, union, after)
		}
	})
}

func TestAClusterStaysWhileTheListenerThatReplacesItsUserIsRefused(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.settled(form)
		s.say("clusters b=1", "endpoints of-a=1 of-b=1", "listeners l=2", "routes r=1")
		x.refuse("listeners", "l")
		s.say("clusters b=1", "endpoints of-a=1 of-b=2", "listeners l=2", "routes r=1")
		x.take("endpoints", "of-b") // and still no removal
		s.say("clusters b=1", "endpoints of-a=1 of-b=2", "listeners l=3", "routes r=1")
		x.take("listeners", "l")
		if form.Delta {
			x.take("clusters", "-a")
		} else {
			x.take("clusters", "b")
		}
	})
}

func TestOfOneChangeClustersCanBeRefusedAndListenersTaken(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, "clusters a=1", "listeners l=1")
		x := s.envoy(form)
		x.ask("clusters")
		x.ask("listeners")
		x.take("clusters", "a")
		x.take("listeners", "l")
		s.say("clusters a=2", "listeners l=2")
		x.refuse("clusters", "a")
		x.take("listeners", "l")
		s.say("clusters a=2", "listeners l=3") // the refused clusters are not sent again
		x.take("listeners", "l")
		s.say("clusters a=3", "listeners l=3")
		x.take("clusters", "a")
		s.wantSteps("sent clusters a", "ack clusters", "sent listeners l", "ack listeners", "sent clusters a", "nack clusters",
			"sent listeners l", "ack listeners", "sent listeners l", "ack listeners", "sent clusters a", "ack clusters")
		if s.metric("metards_responses_rejected_total") != 1 || !strings.Contains(s.log.String(), "a proxy rejected static resources") {
			t.Error("the rejection is not told")
		}
	})
}

func TestWhatWasRefusedAndIsGoneIsTakenBackAtOnce(t *testing.T) {
	s := newStatic(t, "clusters a=1")
	x := s.envoy(sampleproxy.Forms()[2])
	x.ask("clusters")
	x.refuse("clusters", "a")
	s.say("clusters a=1 bad=1")
	x.refuse("clusters", "a", "bad")
	s.say("clusters a=1")
	x.take("clusters", "a")
}

func TestAnEmptySetIsAnswered(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, "clusters")
		x := s.envoy(form)
		x.ask("clusters")
		x.ask("listeners")
		x.take("clusters")
		x.take("listeners")
		s.say("listeners l=1")
		x.take("listeners", "l")
		s.say("text {}")
		if form.Delta {
			x.take("listeners", "-l")
		} else {
			x.take("listeners")
		}
	})
}

func TestClustersCanBeAskedForByName(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.envoy(form)
		x.ask("clusters", "b", "c")
		if form.Delta {
			x.take("clusters", "b", "-c")
		} else {
			x.take("clusters", "b")
		}
		s.say("clusters a=2 b=1 c=1")
		if form.Delta {
			x.take("clusters", "c")
		} else {
			x.take("clusters", "b", "c")
		}
		x.ask("clusters", "b")
		if !form.Delta {
			x.take("clusters", "b")
		}
		s.say("clusters a=2 b=2 c=2")
		x.take("clusters", "b")
	})
}

func TestInDeltaTheStarIsAllAndAnUnknownNameOfEndpointsIsToldToBeNone(t *testing.T) {
	s := newStatic(t, everything...)
	x := s.envoy(sampleproxy.Forms()[3])
	x.request("clusters", sampleproxy.Request{Names: []string{"*"}})
	x.take("clusters", "a", "b")
	x.ask("endpoints", "of-a", "of-nobody")
	x.take("endpoints", "of-a", "-of-nobody")
	s.say("clusters a=1 b=1", "endpoints of-b=1 of-nobody=1", "listeners l=1")
	x.take("endpoints", "of-nobody")
	x.take("endpoints", "-of-a")
	x.request("clusters", sampleproxy.Request{Dropped: []string{"*"}})
	s.say("clusters a=2 b=2", "endpoints of-nobody=2")
	x.take("endpoints", "of-nobody")
}

func TestInDeltaAReconnectingProxyGetsOnlyWhatItHasNotAndWhatIsGone(t *testing.T) {
	s := newStatic(t, everything...)
	x := s.envoy(sampleproxy.Forms()[3])
	x.ask("clusters")
	first := x.take("clusters", "a", "b")
	x.ask("endpoints", "of-b")
	ofB := x.take("endpoints", "of-b").Versions[0]
	held := map[string]string{}
	for i, n := range first.Names {
		held[n] = first.Versions[i]
	}
	x.cancel()
	s.say("clusters a=1 c=1", "endpoints of-a=1 of-b=1")
	s.eventually("it is read", func() bool { return slices.Equal(s.source.State().Types[0].Names, []string{"a", "c"}) })
	x = s.envoy(sampleproxy.Forms()[3])
	x.request("clusters", sampleproxy.Request{Held: held})
	x.take("clusters", "c")
	x.take("clusters", "-b")
	x = s.envoy(sampleproxy.Forms()[3])
	x.request("endpoints", sampleproxy.Request{Names: []string{"of-a", "of-b"}, Held: map[string]string{"of-a": "an old one", "of-b": ofB}})
	x.take("endpoints", "of-a")
	s.say("clusters a=1 c=1", "endpoints of-a=1")
	x.take("endpoints", "-of-b")
}

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

func TestARefusedTableKeepsAClusterFromBeingTakenAway(t *testing.T) {
	s := newStatic(t, "clusters a=1 b=1")
	s.deliver(service("orders"))
	x := s.envoy(sampleproxy.Forms()[3])
	x.ask("clusters")
	x.take("clusters", "a", "b")
	x.ask("routes", table("orders"))
	x.refuse("routes", table("orders"))
	s.say("clusters a=2")
	x.take("clusters", "a")
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
		s.say("listeners m=1")
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
