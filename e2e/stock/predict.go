package stock

import (
	"fmt"
	"log/slog"

	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// Plans returns what the objects in a directory mean to the sidecars of a namespace, by resource name: what
// `metards explain` knows, from the same code.
func Plans(dir, namespace string) (map[string]*routes.Plan, error) {
	reading, err := filewatch.Read(dir, filewatch.Limits{})
	if err != nil {
		return nil, err
	}
	store, err := mesh.NewStore(mesh.Options{
		Settings: mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"},
		Expect:   []mesh.Feed{{Source: mesh.Directory, Kind: mesh.KindMetaRouter}},
		Problems: problem.NewBoard(slog.New(slog.DiscardHandler)),
		Judge:    func(o *mesh.Object) []problem.Problem { return routes.Validate(o, routes.Limits{}) },
	})
	if err != nil {
		return nil, err
	}
	store.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: reading.Objects})
	out := map[string]*routes.Plan{}
	for _, o := range store.Objects() {
		entry, ok := o.Spec.(*mesh.ServiceEntry)
		if !ok {
			continue
		}
		for _, host := range entry.Hosts {
			for _, port := range entry.Ports {
				name := routes.Name(host, port.Number)
				store.Read(mesh.View{Namespace: namespace}, func(l *mesh.Lens) {
					if plan, _ := routes.Compile(l, name); plan != nil {
						out[name] = plan
					}
				})
			}
		}
	}
	return out, nil
}

// ClustersOf are all clusters that plans lead to, mirrors included.
func ClustersOf(plans map[string]*routes.Plan) []string {
	seen := map[string]bool{}
	var out []string
	add := func(d routes.Destination) {
		if c := d.Cluster(); !seen[c] {
			seen[c] = true
			out = append(out, c)
		}
	}
	for _, p := range plans {
		for i := range p.Routes {
			for _, d := range p.Routes[i].Destinations {
				add(d)
			}
			if m := p.Routes[i].Mirror; m != nil {
				add(m.Destination)
			}
		}
	}
	return out
}

// Predict is who answers a request according to a plan: the only destination, or NoRoute.
func Predict(p *routes.Plan, attributes map[string]string) string {
	d := p.Decide(attributes)
	switch {
	case d.Route == nil:
		return NoRoute
	case len(d.Route.Destinations) > 1:
		return fmt.Sprintf("one of %d", len(d.Route.Destinations))
	default:
		return d.Route.Destinations[0].Cluster()
	}
}

// NoRoute is Envoy's answer when no route matches.
const NoRoute = "404"
