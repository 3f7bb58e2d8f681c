package rdsserver_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/rdsserver"
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
		s.say("clusters c=1 b=1", "endpoints of-b=1", "listeners m=2", "routes s=1")
		union := ""
		if form.Delta {
			x.take("clusters", "c")
			x.take("listeners", "m")
			x.take("routes", "-r")
			x.take("listeners", "-l")
		} else {
			union = x.take("clusters", "a", "b", "c").Version
			x.take("listeners", "l", "m")
			x.take("listeners", "m")
		}
		s.say("clusters c=1 b=1", "endpoints of-b=2", "listeners m=2", "routes s=1")
		x.take("endpoints", "of-b") // and still no removal: the old listener drains, and its table names a cluster
		x.ask("routes", "s")
		x.take("routes", "s")
		if form.Delta {
			x.take("endpoints", "-of-a")
			x.take("clusters", "-a")
			return
		}
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

func TestARemovalWaitsForTheAnswerToRoutes(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.settled(form)
		s.say("clusters b=1", "endpoints of-a=1 of-b=1", "listeners l=1", "routes r=2")
		r := x.get("routes", "r")
		s.say("clusters b=1", "endpoints of-a=1 of-b=2", "listeners l=1", "routes r=2")
		x.take("endpoints", "of-b")
		x.ack("routes", r)
		if form.Delta {
			x.take("clusters", "-a")
		} else {
			x.take("clusters", "b")
		}
	})
}

func TestARefusalOfWhatIsNotAskedForAnyMoreHoldsNothingBack(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, everything...)
		x := s.settled(form)
		s.say("clusters a=1", "endpoints of-a=1 of-b=2", "listeners l=1", "routes r=1")
		x.refuse("endpoints", "of-b")
		x.ask("endpoints", "of-a")
		if form.Delta {
			x.take("clusters", "-b")
		} else {
			x.take("clusters", "a")
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
	x.request("endpoints", sampleproxy.Request{Names: []string{"of-a"}}) // once more
	x.take("endpoints", "of-a")
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

func TestAListenerGoesTogetherWithTheComingOfOneAtItsAddress(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s := newStatic(t, "clusters a=1", "endpoints of-a=1", "listeners k=1 l=2", "routes r=1")
		x := s.envoy(form)
		x.ask("clusters")
		x.take("clusters", "a")
		x.ask("listeners")
		x.take("listeners", "k", "l")
		s.say("clusters a=1", "endpoints of-a=1", "listeners m=2", "routes r=1") // m is where l was, and k goes too
		if form.Delta {
			x.take("listeners", "m", "-l")
			x.take("listeners", "-k")
		} else {
			x.take("listeners", "k", "m")
			x.take("listeners", "m")
		}
	})
}
