package istiowatch

import (
	"strings"
	"testing"
	"time"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

func TestTheStoreHasTheTruthOnceEveryKindIsCompleteAndKeepsWhatTurnsToGarbage(t *testing.T) {
	s := start(t, nil)
	s.set(entries, entry("shop/a"), entry("shop/b"))
	var store *mesh.Store
	b := watch(t, s.address, func(o *Options) {
		feed := func(k mesh.Kind) mesh.Feed { return mesh.Feed{Source: mesh.MCP, Kind: k} }
		store = must(mesh.NewStore(mesh.Options{
			Judge: func(*mesh.Object) []problem.Problem { return nil }, Problems: o.Problems,
			Expect: []mesh.Feed{feed(mesh.KindServiceEntry), feed(mesh.KindDestinationRule), feed(mesh.KindMeshConfig)},
		}))
		o.Sink = store
	})
	eventually(t, "the truth", func() bool { return len(store.Missing()) == 0 })
	<-store.Changed()
	store.TakeChanges()
	s.update(entries, entry("shop/a", garbled), entry("shop/b"))
	b.expectProblem(t, "ServiceEntry shop/a: its body is no istio.networking.v1alpha3.ServiceEntry")
	s.waitForAnswer(t, entries, func() { s.update(entries, entry("shop/a"), entry("shop/b")) })
	eventually(t, "no problem", func() bool { return !strings.Contains(b.problems(), "shop/a") })
	if got := store.Objects(); len(got) != 2 || len(store.TakeChanges()) != 0 {
		t.Errorf("objects %v", got)
	}
}

func TestVersionsOfAnObjectAreAlikeIfTheirContentIs(t *testing.T) {
	service := func(ports ...string) mesh.Spec {
		s := &mesh.ServiceEntry{Hosts: []string{"a"}}
		for _, p := range ports {
			s.Ports = append(s.Ports, mesh.Port{Number: 1, Name: p})
		}
		return s
	}
	router := func(host string) mesh.Spec {
		return &mesh.MetaRouter{MetaRouter: &v1alpha1.MetaRouter{Hosts: []string{host}}}
	}
	object := func(s mesh.Spec, born time.Time) *mesh.Object { return &mesh.Object{Spec: s, Created: born} }
	faulty := object(service("x"), born)
	faulty.Faults = []problem.Problem{{Detail: "x"}}
	for name, c := range map[string]struct {
		a, b *mesh.Object
		want bool
	}{
		"equal services":         {object(service("x"), born), object(service("x"), born), true},
		"other ports":            {object(service("x"), born), object(service("y"), born), false},
		"born at another time":   {object(service("x"), born), object(service("x"), time.Time{}), false},
		"equal MetaRouters":      {object(router("a"), born), object(router("a"), born), true},
		"other MetaRouters":      {object(router("a"), born), object(router("b"), born), false},
		"faults":                 {faulty, object(service("x"), born), false},
		"none":                   {nil, object(service("x"), born), false},
		"two that are not known": {object(nil, born), object(nil, born), false},
	} {
		if got := alike(c.a, c.b); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
