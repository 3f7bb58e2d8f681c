package cachemgr_test

import (
	"testing"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func TestAMetaRouterIsProgrammedWhenEveryProxyHasAcceptedItsTables(t *testing.T) {
	c := newCache(t)
	c.deliver(service("shop", "orders"), service("shop", "plain"), router("shop", "orders", "orders.example"))
	orders := problem.Object{Kind: "MetaRouter", Namespace: "shop", Name: "orders"}
	if got := c.Programmed(); len(got) != 0 {
		t.Errorf("without proxies %v is programmed", got)
	}
	a, again, b := c.open("a", "web", false), c.open("a", "web", false), c.open("b", "web", false)
	streams := []*stream{a, again, b}
	for _, s := range streams {
		s.Set(routes.RouteConfigurationType, []string{"orders.example_1", "plain.example_1"})
	}
	want := func(step string, want cachemgr.Programmed) {
		t.Helper()
		if got := c.Programmed()[orders]; got != want {
			t.Errorf("%s: %+v, want %+v", step, got, want)
		}
	}
	next := func(s *stream) *cachemgr.Table {
		for {
			if table := s.wait(); table.Name.Name == "orders.example_1" {
				return table
			}
		}
	}
	table := next(a)
	next(again)
	next(b)
	want("sent to both", cachemgr.Programmed{Proxies: 2})
	a.Accepted(table)
	want("one of the streams of a has it", cachemgr.Programmed{Proxies: 2})
	again.Accepted(table)
	want("both streams of a have it", cachemgr.Programmed{Proxies: 2, UpToDate: 1})
	b.Rejected(table, "no")
	want("b refuses", cachemgr.Programmed{Proxies: 2, UpToDate: 1, Rejected: 1, FirstError: "b: no"})
	c.put(router("shop", "orders", "elsewhere.example"))
	table = next(b)
	want("an edit", cachemgr.Programmed{Proxies: 2})
	b.Accepted(table)
	for _, s := range []*stream{a, again} {
		s.Accepted(next(s))
	}
	want("all have the edit", cachemgr.Programmed{Proxies: 2, UpToDate: 2})
	a.Close()
	again.Close()
	b.Close()
	want("all are gone", cachemgr.Programmed{})
}

func TestAMetaRouterThatReplacesOneOfTheSameContentHasItsTables(t *testing.T) {
	c := newCache(t)
	old, renamed := router("shop", "orders", "orders.example"), router("shop", "orders", "orders.example")
	renamed.Name = "renamed"
	c.deliver(service("shop", "orders"), old)
	s := c.open("a", "shop", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	s.Accepted(s.wait())
	c.store.Apply(mesh.Directory, mesh.Batch{Objects: []*mesh.Object{renamed}, Deleted: []mesh.Key{old.Key}})
	c.eventually("the new one is programmed", func() bool { return c.Programmed()[renamed.Ref()].UpToDate == 1 })
	if got := c.Programmed()[old.Ref()]; got.Proxies > 0 {
		t.Errorf("the old one has %+v", got)
	}
	plans, _ := c.Plans(mesh.View{Namespace: "shop"}, "orders.example")
	if len(plans) != 1 || plans[0].MetaRouter != renamed.Ref() {
		t.Errorf("it is explained by %v", plans)
	}
	if s.Next(routes.RouteConfigurationType) != nil {
		t.Error("the same bytes are sent again")
	}
}
