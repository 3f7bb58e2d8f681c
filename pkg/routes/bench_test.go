package routes_test

import (
	"fmt"
	"testing"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

// threeRoutes is a mesh whose MetaRouter has a canary, a mirrored and a default route.
func threeRoutes(tb testing.TB) *mesh.Store {
	return storeOf(tb, append(objects(tb, rules), orders(), router(tb, `
		{name: canary, match: {attributes: {user: {exact: jane}, method: {prefix: get}}}, route: [{destination: {host: orders.example, subset: own}, weight: 10}, {destination: {host: orders.example, subset: plain}, weight: 90}]},
		{name: mirrored, match: {attributes: {region: {regex: "eu-.*"}}}, route: [{destination: {host: orders.example, subset: plain}}], mirror: {host: orders.example, subset: own}, mirrorPercentage: {value: 5}},
		{name: rest, route: [{destination: {host: orders.example}}], requestMutation: [{key: tier, value: gold}]}`))...)
}

func BenchmarkCompileThreeRoutes(b *testing.B) {
	s := threeRoutes(b)
	var p *routes.Plan
	compile := func() {
		s.Read(mesh.View{Namespace: "cli"}, func(l *mesh.Lens) { p, _ = routes.Compile(l, "orders.example_20880") })
	}
	compile()
	table, err := routes.RouteConfiguration(p, "orders.example_20880")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Compile", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			compile()
		}
	})
	b.Run("RouteConfiguration", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := routes.RouteConfiguration(p, "orders.example_20880"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Marshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			marshal(b, table)
		}
	})
	b.Run("All", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			compile()
			table, err := routes.RouteConfiguration(p, "orders.example_20880")
			if err != nil {
				b.Fatal(err)
			}
			marshal(b, table)
		}
	})
}

func BenchmarkStoreApplyOneRouter(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("%d services", n), func(b *testing.B) {
			list := []*mesh.Object{orders()}
			for i := range n {
				list = append(list, service(fmt.Sprintf("ns%d/s%d", i%100, i), fmt.Sprintf("s%d.example", i), dubbo))
			}
			s := storeOf(b, list...)
			versions := []*mesh.Object{router(b, `{name: a, `+dest+`}`), router(b, `{name: b, `+dest+`}`)}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Apply(mesh.Directory, mesh.Batch{Objects: versions[i%2 : i%2+1]})
				s.TakeChanges()
				i++
			}
		})
	}
}

// A bound on allocations is a bound on time that does not depend on the machine.
func TestCompilingAllocatesLittle(t *testing.T) {
	s := threeRoutes(t)
	got := testing.AllocsPerRun(100, func() {
		s.Read(mesh.View{Namespace: "cli"}, func(l *mesh.Lens) {
			p, _ := routes.Compile(l, "orders.example_20880")
			table, err := routes.RouteConfiguration(p, "orders.example_20880")
			if err != nil {
				t.Fatal(err)
			}
			marshal(t, table)
		})
	})
	if got > 150 {
		t.Errorf("three routes take %.0f allocations, want at most 150", got)
	}
}
