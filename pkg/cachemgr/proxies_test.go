package cachemgr_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/routes"
)

// only returns the state of the one name of the one stream.
func (c *cache) only() cachemgr.TableState {
	c.t.Helper()
	proxies := c.Proxies()
	if len(proxies) != 1 || len(proxies[0].Tables) != 1 {
		c.t.Fatalf("the proxies are %+v, want one with one name", proxies)
	}
	return proxies[0].Tables[0]
}

func TestAChangeThatWasTakenBackIsNotWaitedFor(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"), router("shop", "orders", "v1.example"))
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	s.Accepted(s.wait())
	accepted := c.only().Current
	c.put(router("shop", "orders", "v2.example"))
	c.eventually("the edit waits", func() bool { return c.only().State == cachemgr.Waiting })
	c.put(router("shop", "orders", "v1.example"))
	c.eventually("the edit was taken back", func() bool { return c.only().Current == accepted })
	if got := c.only().State; got != cachemgr.Accepted {
		t.Errorf("the proxy has the current table, and its state is %q", got)
	}
}

func TestATableThatIsSentAgainIsNotAnsweredByAnEarlierAnswer(t *testing.T) {
	for name, x := range map[string]struct {
		answer func(*stream, *cachemgr.Table)
		want   cachemgr.State
	}{
		"accepted": {func(s *stream, t *cachemgr.Table) { s.Accepted(t) }, cachemgr.Accepted},
		"rejected": {func(s *stream, t *cachemgr.Table) { s.Rejected(t, "no") }, cachemgr.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t)
			c.deliver(service("shop", "orders"))
			s := c.open("node", "web", false)
			s.Change(routes.RouteConfigurationType, []string{"orders.example_1"}, nil)
			x.answer(s, s.wait())
			s.Change(routes.RouteConfigurationType, []string{"orders.example_1"}, nil)
			again := s.wait()
			if got := c.only().State; got != cachemgr.Sent {
				t.Errorf("before it is answered its state is %q", got)
			}
			x.answer(s, again)
			if got := c.only().State; got != x.want {
				t.Errorf("once it is answered its state is %q", got)
			}
		})
	}
}

func TestWhatThePagesTellComesInOneOrder(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"))
	for range 8 { // streams of one proxy, told apart by when they opened
		s := c.open("node", "web", false)
		s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
		s.wait()
	}
	gateway := c.open("gateway", "web", true)
	gateway.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	gateway.wait()
	told := func() string {
		proxies, err := json.MarshalIndent(c.Proxies(), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(proxies) + kinds(c.Tables(""))
	}
	first := told()
	for range 50 {
		if next := told(); next != first {
			t.Fatalf("once it is\n%s\nand once\n%s", first, next)
		}
	}
	if p := c.Proxies()[1]; !slices.IsSortedFunc(p.Tables, func(a, b cachemgr.TableState) int { return a.Sent.At.Compare(b.Sent.At) }) {
		t.Errorf("the streams are not told in the order in which they opened: %+v", p)
	}
}

func kinds(list []cachemgr.ServedTable) string {
	out := ""
	for _, t := range list {
		out += fmt.Sprintf("%s gateway=%t\n", t.Table.Name.Name, t.Gateway)
	}
	return out
}
