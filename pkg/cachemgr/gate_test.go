package cachemgr_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func gated(o *cachemgr.Options) { o.Gated = true }

// candidate waits for the next candidate, as a gate takes it.
func (c *cache) candidate() *cachemgr.Table {
	c.t.Helper()
	var out *cachemgr.Table
	c.eventually("there is a candidate", func() bool {
		if list := c.Unjudged(1, 1<<20); len(list) == 1 {
			out = list[0]
		}
		return out != nil
	})
	return out
}

func (c *cache) pass() *cachemgr.Table {
	t := c.candidate()
	c.Pass([]*cachemgr.Table{t})
	return t
}

// refusals are the Problems that the gate made.
func (c *cache) refusals() []problem.Problem {
	var out []problem.Problem
	for _, p := range c.problems.All() {
		if p.Reason == problem.RefusedByEnvoy || p.Reason == problem.Unjudged {
			out = append(out, p)
		}
	}
	return out
}

// silent checks that there is nothing to send.
func (s *stream) silent(when string) {
	s.t.Helper()
	if t := s.Next(routes.RouteConfigurationType); t != nil {
		s.t.Errorf("%s: the table to %s got out", when, target(t))
	}
}

func TestATableIsServedOnceTheGateHasPassedIt(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	table := c.candidate()
	s.silent("before the verdict")
	if got := c.only(); got.State != cachemgr.KeptBack || got.KeptBack.Version != table.Version {
		t.Errorf("before the verdict the state is %+v", got)
	}
	c.Pass([]*cachemgr.Table{table})
	if got := s.wait(); got != table {
		t.Errorf("served is %v", got)
	}
	if c.only().KeptBack != nil || c.Candidates() != 0 {
		t.Errorf("after it %+v is kept back", c.only().KeptBack)
	}
}

func TestARefusedEditIsAProblemOfItsMetaRouterAndTheNextGoodOneIsServed(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), router("shop", "orders", "v1.example"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	c.pass()
	s.wait()
	c.put(router("shop", "orders", "v2.example"))
	c.Refuse(c.candidate(), "no such command")
	s.silent("after the refusal")
	want := "MetaRouter shop/orders: Envoy refuses the table orders.example_1: no such command [RefusedByEnvoy]; the table that was served before stays"
	if got := c.refusals(); len(got) != 1 || got[0].String() != want || got[0].Severity != problem.Error {
		t.Errorf("the Problems are %v", got)
	}
	if got := c.Tables("")[0].Table; target(got) != "v1.example" {
		t.Errorf("served is the table to %s", target(got))
	}
	again := c.open("late", "other", false)
	again.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	again.silent("to a namespace that comes later")
	if got := c.refusals(); len(got) != 1 || !strings.HasSuffix(got[0].Consequence, "elsewhere nothing is served under this name") {
		t.Errorf("the Problems are %v", got)
	}
	c.put(router("shop", "orders", "v3.example"))
	c.pass()
	if got := target(s.wait()) + target(again.wait()); got != "v3.examplev3.example" || len(c.refusals()) != 0 {
		t.Errorf("then served is %s, with %v", got, c.refusals())
	}
}

func TestARefusedDefaultTableIsAProblemWithoutAnObject(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	c.Refuse(c.candidate(), "no")
	if got := c.refusals(); len(got) != 1 || got[0].Object != (problem.Object{}) || got[0].Consequence != "nothing is served under this name" {
		t.Errorf("the Problems are %v", got)
	}
	s.Close()
	if got := c.refusals(); len(got) != 0 || c.Candidates() != 0 {
		t.Errorf("without subscribers %v is left", got)
	}
}

func TestAnEditThatComesDuringTheJudgementWins(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), router("shop", "orders", "v1.example"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	old := c.candidate()
	c.put(router("shop", "orders", "v2.example"))
	edited := c.candidate()
	c.Pass([]*cachemgr.Table{old})
	s.silent("after the verdict on what is of yesterday")
	c.Pass([]*cachemgr.Table{edited})
	if got := target(s.wait()); got != "v2.example" {
		t.Errorf("served is the table to %s", got)
	}
	c.put(router("shop", "orders", "v3.example"))
	refused := c.candidate()
	c.put(router("shop", "orders", "v2.example"))
	c.eventually("the edit is taken back", func() bool { return c.Candidates() == 0 })
	c.Refuse(refused, "no")
	s.silent("after the refusal of what was taken back")
	if got := c.refusals(); len(got) != 0 {
		t.Errorf("the Problems are %v", got)
	}
}

func TestWhatAnEditSupersededIsNeverHandedToTheGate(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), router("shop", "orders", "v0.example"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	const edits = 500
	waits := func() string {
		if k := c.only().KeptBack; k != nil {
			return k.Version
		}
		return ""
	}
	c.eventually("the table waits", func() bool { return waits() != "" })
	for i := 1; i <= edits; i++ {
		before := waits()
		c.put(router("shop", "orders", fmt.Sprintf("v%d.example", i)))
		c.eventually("the edit waits", func() bool { return waits() != before })
	}
	if got := c.pass(); target(got) != fmt.Sprintf("v%d.example", edits) {
		t.Errorf("judged is the table to %s", target(got))
	}
	if more := c.Unjudged(10, 1<<20); len(more) != 0 {
		t.Errorf("%d more are judged", len(more))
	}
	s.wait()
}

func TestNoNamespaceGetsTheTableOfAnotherByWayOfTheGate(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), router("shop", "orders", "canary.example", "web"))
	web, shop := c.open("a", "web", false), c.open("b", "shop", false)
	web.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	c.pass()
	if got := target(web.wait()); got != "canary.example" {
		t.Errorf("web is routed to %s", got)
	}
	c.put(router("shop", "orders", "canary2.example", "web")) // pending for web
	c.eventually("it waits", func() bool { return c.Candidates() == 1 })
	shop.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	other := c.open("c", "other", false)
	other.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	for _, table := range c.Unjudged(10, 1<<20) {
		if target(table) == "canary2.example" {
			c.Refuse(table, "no")
		} else {
			c.Pass([]*cachemgr.Table{table})
		}
	}
	for _, s := range []*stream{shop, other} {
		if got := target(s.wait()); got != "orders.example" {
			t.Errorf("a namespace that does not see the MetaRouter is routed to %s", got)
		}
	}
	web.silent("after the refusal")
}

func TestATableThatWasJudgedIsServedToANewStreamAtOnce(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), service("shop", "bad"))
	names := []string{"bad.example_1", "orders.example_1"}
	first := c.open("a", "web", false)
	first.Set(routes.RouteConfigurationType, names)
	for range names {
		if table := c.candidate(); strings.HasPrefix(table.Name.Name, "bad") {
			c.Refuse(table, "no")
		} else {
			c.Pass([]*cachemgr.Table{table})
		}
	}
	first.wait()
	first.Close()
	for _, gateway := range []bool{false, true} {
		s := c.open("b", "elsewhere", gateway)
		s.Set(routes.RouteConfigurationType, names)
		if s.Next(routes.RouteConfigurationType) == nil || c.Candidates() != 0 {
			t.Errorf("a reconnecting proxy waits, with %d candidates", c.Candidates())
		}
		s.silent("what was refused")
	}
}

func TestAMetaRouterIsNotProgrammedWhileItsTableIsKeptBack(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), router("shop", "orders", "v1.example"))
	orders := problem.Object{Kind: "MetaRouter", Namespace: "shop", Name: "orders"}
	s := c.open("a", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	want := func(step string, want cachemgr.Programmed) {
		t.Helper()
		if got := c.Programmed()[orders]; got != want {
			t.Errorf("%s: %+v, want %+v", step, got, want)
		}
	}
	first := c.candidate()
	want("pending", cachemgr.Programmed{Proxies: 1})
	c.Pass([]*cachemgr.Table{first})
	s.Accepted(s.wait())
	want("accepted", cachemgr.Programmed{Proxies: 1, UpToDate: 1})
	c.put(router("shop", "orders", "v2.example"))
	second := c.candidate()
	want("an edit is pending", cachemgr.Programmed{Proxies: 1})
	c.Refuse(second, "no")
	want("an edit is refused", cachemgr.Programmed{Proxies: 1})
	c.put(router("shop", "orders", "v3.example"))
	c.pass()
	s.Accepted(s.wait())
	want("a good edit", cachemgr.Programmed{Proxies: 1, UpToDate: 1})
}

func TestAnotherBinaryJudgesAnewWhatWasRefusedAndTakesNothingAway(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"), service("shop", "bad"))
	s := c.open("a", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	c.pass()
	s.wait()
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1", "bad.example_1"})
	c.Refuse(c.candidate(), "no")
	c.Forget()
	if got := c.refusals(); len(got) != 1 {
		t.Errorf("before the new verdict the Problems are %v", got)
	}
	if got := c.pass().Name.Name; got != "bad.example_1" || s.wait().Name.Name != got || len(c.refusals()) != 0 {
		t.Errorf("judged anew is %s, with %v", got, c.refusals())
	}
	if n := len(c.Tables("")); n != 2 || c.Candidates() != 0 {
		t.Errorf("%d tables are served, want 2", n)
	}
}

func TestWhatWasPutOffComesAgainAlone(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "a"), service("shop", "b"), service("shop", "hard"))
	s := c.open("a", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"hard.example_1"})
	c.PutOff(c.candidate(), "killed")
	if got := c.refusals(); len(got) != 1 || got[0].Reason != problem.Unjudged {
		t.Errorf("the Problems are %v", got)
	}
	s.Set(routes.RouteConfigurationType, []string{"hard.example_1", "a.example_1", "b.example_1"})
	c.Again()
	batches := [][]*cachemgr.Table{c.Unjudged(10, 1<<20), c.Unjudged(10, 1<<20)}
	if len(batches[0]) != 2 && len(batches[1]) != 2 || len(batches[0])+len(batches[1]) != 3 {
		t.Fatalf("the batches are %v", batches)
	}
	c.GiveBack(batches[0])
	c.GiveBack(batches[1])
	for range 3 {
		c.pass()
		s.wait()
	}
	if got := c.refusals(); len(got) != 0 {
		t.Errorf("the Problems are %v", got)
	}
}

func TestWhatIsGivenBackAndWaitsAgainAlreadyIsJudgedOnce(t *testing.T) {
	c := newCache(t, gated)
	c.deliver(service("shop", "orders"))
	s := c.open("a", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	taken := c.candidate()
	s.Set(routes.RouteConfigurationType, nil)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	c.GiveBack([]*cachemgr.Table{taken})
	if got := c.Unjudged(10, 1<<20); len(got) != 1 {
		t.Errorf("%d candidates, want 1", len(got))
	}
}

// TestWhateverHappensOnlyPassedTablesAreServedAndTheNewestIsAtLast does random edits, comings, goings and
// verdicts.
func TestWhateverHappensOnlyPassedTablesAreServedAndTheNewestIsAtLast(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := newCache(t, gated)
		c.deliver(service("shop", "orders"), router("shop", "orders", "v0.example"))
		passed, open, taken := map[string]bool{}, map[string]*stream{}, []*cachemgr.Table(nil)
		judge := func(t *cachemgr.Table) {
			if strings.HasPrefix(target(t), "bad") {
				c.Refuse(t, "no")
			} else {
				passed[t.Version] = true
				c.Pass([]*cachemgr.Table{t})
			}
		}
		check := func(table *cachemgr.Table) {
			if table != nil && !passed[table.Version] {
				t.Fatalf("seed %d: the table to %s got out unjudged", seed, target(table))
			}
		}
		exports := [][]string{nil, {"web"}, {"."}}
		for i := range 300 {
			ns := []string{"web", "shop", "other"}[r.IntN(3)]
			switch r.IntN(8) {
			case 0:
				c.put(router("shop", "orders", fmt.Sprintf("v%d.example", r.IntN(5)), exports[r.IntN(3)]...))
			case 1:
				c.put(router("shop", "orders", fmt.Sprintf("bad%d.example", r.IntN(3)), exports[r.IntN(3)]...))
			case 2:
				if s := open[ns]; s != nil {
					s.Close()
					delete(open, ns)
					break
				}
				open[ns] = c.open("n", ns, r.IntN(2) == 0)
				open[ns].Set(routes.RouteConfigurationType, []string{"orders.example_1"})
			case 3:
				taken = append(taken, c.Unjudged(1+r.IntN(3), 1<<20)...)
			case 4, 5:
				if len(taken) > 0 {
					judge(taken[0])
					taken = taken[1:]
				}
			case 6:
				if i%7 == 0 {
					c.Forget()
				}
				c.GiveBack(taken)
				taken = nil
			default:
				if s := open[ns]; s != nil {
					check(s.Next(routes.RouteConfigurationType))
				}
			}
			for _, served := range c.Tables("") {
				check(served.Table)
			}
		}
		c.GiveBack(taken)
		c.put(router("shop", "orders", "last.example"))
		for ns := range open {
			c.eventually("the last edit is served", func() bool {
				for _, t := range c.Unjudged(10, 1<<20) {
					judge(t)
				}
				for _, served := range c.Tables("") {
					for _, n := range served.Namespaces {
						if n == ns && target(served.Table) == "last.example" {
							return true
						}
					}
				}
				return false
			})
		}
		for _, s := range open {
			s.Close()
		}
		if c.Candidates() != 0 {
			t.Fatalf("seed %d: %d candidates are left", seed, c.Candidates())
		}
	}
}
