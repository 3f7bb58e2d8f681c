package cachemgr_test

import (
	"testing"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

func TestPlansAreThoseOfTheTablesInUseAndTellWhatTheGateKeepsBack(t *testing.T) {
	c := newCache(t, gated)
	view := mesh.View{Namespace: "web"}
	if _, truth := c.Plans(view, "orders.example"); truth {
		t.Error("there is truth before anything was delivered")
	}
	c.deliver(service("shop", "orders"), router("shop", "orders", "v1.example"))
	now := func() cachemgr.Planned {
		t.Helper()
		plans, truth := c.Plans(view, "ORDERS.example")
		if len(plans) != 1 || !truth {
			t.Fatalf("Plans gives %v, %t", plans, truth)
		}
		return plans[0]
	}
	host := func(p cachemgr.Planned) string { return p.Routes[0].Destinations[0].Host }
	if p := now(); host(p) != "v1.example" || p.Served || p.KeptBack != nil {
		t.Errorf("with no subscriber: %+v", p)
	}
	s := c.open("node", "web", false)
	s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	first := c.candidate()
	if p := now(); host(p) != "v1.example" || p.Served || p.KeptBack == nil {
		t.Errorf("before the verdict: %+v", p)
	}
	c.Pass([]*cachemgr.Table{first})
	if p := now(); host(p) != "v1.example" || !p.Served || p.KeptBack != nil {
		t.Errorf("after it: %+v", p)
	}
	c.put(router("shop", "orders", "v2.example"))
	c.Refuse(c.candidate(), "I do not like it")
	if p := now(); host(p) != "v1.example" || !p.Served || p.KeptBack == nil || p.KeptBack.Objection != "I do not like it" {
		t.Errorf("after a refused edit: %+v", p)
	}
	if plans, _ := c.Plans(view, "nobody.example"); len(plans) != 0 {
		t.Errorf("nobody's host has %v", plans)
	}
}
