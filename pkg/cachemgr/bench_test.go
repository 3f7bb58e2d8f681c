package cachemgr_test

import (
	"fmt"
	"testing"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

// BenchmarkOneEditedMetaRouter is the way from one MetaRouter's edit in the store to the woken stream, with
// 1,000 subscribed tables. It must not depend on how many services the mesh has.
func BenchmarkOneEditedMetaRouter(b *testing.B) {
	for _, services := range []int{1_000, 10_000, 20_000} {
		b.Run(fmt.Sprintf("of %d services", services), func(b *testing.B) {
			c := newCache(b)
			objects := make([]*mesh.Object, 0, 2*services)
			for i := range services {
				name := fmt.Sprintf("s%d", i)
				objects = append(objects, service("shop", name), router("shop", name, name+".example"))
			}
			c.deliver(objects...)
			var edited *stream
			for i := range 1_000 {
				s := c.open(fmt.Sprintf("node%d", i), "web", false)
				s.Set(routes.RouteConfigurationType, []string{fmt.Sprintf("s%d.example_1", i)})
				s.wait()
				if i == 0 {
					edited = s
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.put(router("shop", "s0", fmt.Sprintf("target%d.example", i)))
				edited.wait()
			}
		})
	}
}

// BenchmarkSubscribe is what a reconnecting proxy costs the cache, where the table is there already.
func BenchmarkSubscribe(b *testing.B) {
	c := newCache(b)
	c.deliver(service("shop", "orders"))
	first := c.open("first", "web", false)
	first.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
	first.wait()
	b.ReportAllocs()
	for b.Loop() {
		s := c.open("node", "web", false)
		s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
		if s.Next(routes.RouteConfigurationType) == nil {
			b.Fatal("nothing to send")
		}
		s.Close()
	}
}

// BenchmarkJoinFromAnotherNamespace is a proxy of one more namespace, and its leaving, where one name is
// subscribed to from many already. It must not depend on how many those are.
func BenchmarkJoinFromAnotherNamespace(b *testing.B) {
	for _, namespaces := range []int{10, 1_000} {
		b.Run(fmt.Sprintf("of %d namespaces", namespaces), func(b *testing.B) {
			c := newCache(b)
			c.deliver(service("shop", "orders"))
			for i := range namespaces {
				s := c.open("node", fmt.Sprintf("ns%d", i), false)
				s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
				s.wait()
			}
			b.ReportAllocs()
			for b.Loop() {
				s := c.open("node", "web", false)
				s.Set(routes.RouteConfigurationType, []string{"orders.example_1"})
				s.wait()
				s.Close()
			}
		})
	}
}
