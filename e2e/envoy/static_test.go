package envoy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metards/metards/e2e/process"
	"github.com/metards/metards/e2e/stock"
	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/rdsserver"
)

// resources is the file of --static-resources.
type resources struct {
	Clusters  []stock.Object `json:"clusters"`
	Endpoints []stock.Object `json:"endpoints"`
	Listeners []stock.Object `json:"listeners"`
	Routes    []stock.Object `json:"routes"`
}

// inBothForms runs a test on ADS with state of the world and with delta.
func inBothForms(t *testing.T, f func(*testing.T, sampleproxy.Form)) {
	t.Helper()
	for _, form := range sampleproxy.Forms() {
		if form.ADS {
			t.Run(form.Name, func(t *testing.T) { f(t, form) })
		}
	}
}

// bare is a scene with an Envoy whose bootstrap has the address of metards and nothing else: its clusters, endpoints,
// listeners and routes come from metards. The resources are made by a function of the scene and a free address.
func bare(t *testing.T, form sampleproxy.Form, rules string, upstreams []string, content func(s *scene, addr string) resources) (*scene, string) {
	t.Helper()
	ports, err := process.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s := begin(t, options{
		rules: rules, form: form, clusters: upstreams,
		prepare: func(s *scene) []string {
			s.serve(content(s, addr))
			return []string{"--static-resources", s.static()}
		},
		bootstrap: func(b *stock.Bootstrap) { b.Dynamic, b.Tables, b.Clusters = true, nil, nil },
	})
	return s, addr
}

func (s *scene) static() string { return filepath.Join(s.dir, "static.json") }

// serve replaces the file of static resources, in one step.
func (s *scene) serve(r resources) {
	s.t.Helper()
	data, err := json.MarshalIndent(r, "", "  ")
	s.must(err)
	s.must(os.WriteFile(s.static()+".new", data, 0o644))
	s.must(os.Rename(s.static()+".new", s.static()))
}

// endpoint is the address of an upstream.
func (s *scene) endpoint(upstream string) string { return s.upstreams.Of(upstream).Addr }

// answers reads who answers at an address.
func answers(s *scene, addr string) func() (string, error) {
	return func() (string, error) {
		a, err := stock.Request(s.t.Context(), addr, nil)
		return stock.Short(a.Who()), err
	}
}

func (s *scene) statNow(name string) func() (string, error) {
	return func() (string, error) { return s.envoy.Stat(name) }
}

// typed are the events of one type of static resources, in short.
func (s *scene) typed(suffix string) []rdsserver.Event {
	s.t.Helper()
	all, err := s.metards.Events()
	s.must(err)
	var out []rdsserver.Event
	for _, e := range all {
		if strings.HasSuffix(e.Type, suffix) {
			out = append(out, e)
		}
	}
	return out
}

// routeTo is a table that sends everything to one cluster.
func routeTo(name, cluster string) stock.Object {
	return stock.Object{"name": name, "virtual_hosts": []any{stock.Object{
		"name": "all", "domains": []any{"*"},
		"routes": []any{stock.Object{"match": stock.Object{"prefix": "/"}, "route": stock.Object{"cluster": cluster}}},
	}}}
}

func TestAnEnvoyNeedsNothingButTheAddressOfMetards(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		s, addr := bare(t, form, ordersRouter+to("beta", "v2", "tier: {exact: beta}")+to("all", "v1", ""), nil, func(s *scene, addr string) resources {
			return resources{
				Clusters:  []stock.Object{stock.EDS(cluster("v1")), stock.EDS(cluster("v2"))},
				Endpoints: []stock.Object{stock.Endpoints(cluster("v1"), s.endpoint(cluster("v1"))), stock.Endpoints(cluster("v2"), s.endpoint(cluster("v2")))},
				Listeners: []stock.Object{stock.Listener("orders", addr, ordersTable, nil)},
			}
		})
		report.Soon(t, "traffic, with the table of a MetaRouter", "v1", answers(s, addr), s)
		report.Is(t, "cds, lds: update_success", "1 1", s.stat("cluster_manager.cds.update_success")+" "+s.stat("listener_manager.lds.update_success"))
		report.Is(t, "TLS connections to metards", "1", s.stat("cluster.metards.ssl.handshake"))
		s.edit(ordersRouter + to("all", "v2", ""))
		report.Soon(t, "an edit of the MetaRouter", "v2", answers(s, addr), s)
		report.Is(t, "cds, lds: update_success", "1 1", s.stat("cluster_manager.cds.update_success")+" "+s.stat("listener_manager.lds.update_success"))
	})
}

// unusable is a cluster that the field rules allow and Envoy refuses: its smallest ring is larger than its largest.
func unusable(name string) stock.Object {
	c := stock.EDS(name)
	c["lb_policy"] = "RING_HASH"
	c["ring_hash_lb_config"] = stock.Object{"minimum_ring_size": 100, "maximum_ring_size": 10}
	return c
}

func TestOfOneChangeTheClustersCanBeRefusedAndTheListenersTaken(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		ports, err := process.FreePorts(1)
		if err != nil {
			t.Fatal(err)
		}
		second := fmt.Sprintf("127.0.0.1:%d", ports[0])
		content := func(s *scene, addr string) resources {
			return resources{
				Clusters: []stock.Object{stock.EDS("a")}, Endpoints: []stock.Object{stock.Endpoints("a", s.endpoint("a"))},
				Listeners: []stock.Object{stock.Listener("one", addr, "to-a", nil)}, Routes: []stock.Object{routeTo("to-a", "a")},
			}
		}
		s, addr := bare(t, form, ordersService, []string{"a"}, content)
		report.Soon(t, "before: traffic", "a", answers(s, addr), s)
		cds, lds := s.stat("cluster_manager.cds.version_text"), s.stat("listener_manager.lds.version_text")

		changed := content(s, addr)
		changed.Clusters = []stock.Object{unusable("a")}
		changed.Listeners = append(changed.Listeners, stock.Listener("two", second, "to-a", nil))
		s.serve(changed)
		report.Soon(t, "one change of both: traffic of the new listener", "a", answers(s, second), s)
		report.Soon(t, "cds: update_rejected", "1", s.statNow("cluster_manager.cds.update_rejected"), s)
		report.Is(t, "cds: version_text stays", cds, s.stat("cluster_manager.cds.version_text"))
		report.Is(t, "lds: update_rejected", "0", s.stat("listener_manager.lds.update_rejected"))
		report.Is(t, "lds: version_text is a new one", true, lds != s.stat("listener_manager.lds.version_text"))
		events := s.typed("v3.Cluster")
		report.Is(t, "event log of the clusters", "request sent ack sent nack", stock.Steps(events))
		reason := events[len(events)-1].Error
		report.Holds(t, "event log: Envoy's reason", "…minimum_ring_size…", reason, strings.Contains(reason, "minimum_ring_size"))
		report.Is(t, "traffic of the old listener", "a", now(s, addr))
	})
}

// now is who answers at an address.
func now(s *scene, addr string) string {
	s.t.Helper()
	who, err := answers(s, addr)()
	s.must(err)
	return who
}

func TestAnEndpointThatIsRemovedReloadsNoListener(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		content := func(s *scene, addr string, endpoints ...string) resources {
			var at []string
			for _, e := range endpoints {
				at = append(at, s.endpoint(e))
			}
			return resources{
				Clusters: []stock.Object{stock.EDS("a")}, Endpoints: []stock.Object{stock.Endpoints("a", at...)},
				Listeners: []stock.Object{stock.Listener("one", addr, "to-a", nil)}, Routes: []stock.Object{routeTo("to-a", "a")},
			}
		}
		s, addr := bare(t, form, ordersService, []string{"e1", "e2"}, func(s *scene, addr string) resources { return content(s, addr, "e1", "e2") })
		report.Soon(t, "before: traffic", "e1", answers(s, addr), s)
		report.Soon(t, "before: traffic of the other endpoint", "e2", answers(s, addr), s)
		load := stock.StartLoad(addr, nil)
		figures := func() string {
			return fmt.Sprintf("cds %s, lds %s, listeners modified %s, routes reloaded %s", s.stat("cluster_manager.cds.update_success"), s.stat("listener_manager.lds.update_success"),
				s.stat("listener_manager.listener_modified"), s.stat("http.web.rds.to-a.config_reload"))
		}
		before := figures()
		report.Is(t, "on /clusters", "a at e1, a at e2", s.clusterPage("e1", "e2"))
		s.serve(content(s, addr, "e1"))
		report.Soon(t, "after: on /clusters", "a at e1", func() (string, error) { return s.clusterPage("e1", "e2"), nil }, s)
		report.Is(t, "after: updates", before, figures())
		report.Is(t, "after: event log of the endpoints", "request sent ack sent ack", stock.Steps(s.typed("v3.ClusterLoadAssignment")))
		s.undisturbed(load, "e1")
		report.Is(t, "after: traffic", "e1 e1 e1", now(s, addr)+" "+now(s, addr)+" "+now(s, addr))
	})
}

// clusterPage is which of some upstreams Envoy's page /clusters has as endpoints of cluster a.
func (s *scene) clusterPage(upstreams ...string) string {
	s.t.Helper()
	page, err := s.envoy.Get("/clusters")
	s.must(err)
	var out []string
	for _, u := range upstreams {
		if strings.Contains(page, "a::"+s.endpoint(u)+"::") {
			out = append(out, "a at "+u)
		}
	}
	return strings.Join(out, ", ")
}

// TestAReplacedClusterAndAMovedListenerLoseNoRequest replaces, in one file replacement each, the cluster behind a
// table, then the table behind the listener. A replaced listener drains: its connections go on with the table that
// they have, whose name stays subscribed, and so the clusters of that table must stay until it is not.
func TestAReplacedClusterAndAMovedListenerLoseNoRequest(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		content := func(s *scene, addr, table, cluster string) resources {
			return resources{
				Clusters: []stock.Object{stock.EDS(cluster)}, Endpoints: []stock.Object{stock.Endpoints(cluster, s.endpoint(cluster))},
				Listeners: []stock.Object{stock.Listener("one", addr, table, nil)}, Routes: []stock.Object{routeTo(table, cluster)},
			}
		}
		s, addr := bare(t, form, ordersService, []string{"a", "b", "c", "d"}, func(s *scene, addr string) resources { return content(s, addr, "first", "a") })
		report.Soon(t, "before: traffic", "a", answers(s, addr), s)
		load := stock.StartLoad(addr, nil)
		for _, step := range []struct{ what, table, old, cluster string }{
			{"another cluster behind the same table", "first", "a", "b"},
			{"another table with another cluster behind the listener", "second", "b", "c"},
			{"and again", "third", "c", "d"},
		} {
			s.serve(content(s, addr, step.table, step.cluster))
			report.Soon(t, step.what+": traffic", step.cluster, answers(s, addr), s)
			report.Soon(t, "  the old cluster is gone", "gone", s.gone(step.old), s)
		}
		s.undisturbed(load, "d")
		report.Is(t, "cds, lds: update_rejected", "0 0", s.stat("cluster_manager.cds.update_rejected")+" "+s.stat("listener_manager.lds.update_rejected"))
	})
}

func TestAListenerThatTakesAnothersAddressIsItsSuccessor(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		content := func(s *scene, listener stock.Object) resources {
			return resources{
				Clusters: []stock.Object{stock.EDS("a"), stock.EDS("b")}, Endpoints: []stock.Object{stock.Endpoints("a", s.endpoint("a")), stock.Endpoints("b", s.endpoint("b"))},
				Listeners: []stock.Object{listener}, Routes: []stock.Object{routeTo("to-a", "a"), routeTo("to-b", "b")},
			}
		}
		s, addr := bare(t, form, ordersService, []string{"a", "b"}, func(s *scene, addr string) resources {
			return content(s, stock.Listener("old", addr, "to-a", nil))
		})
		report.Soon(t, "before: traffic", "a", answers(s, addr), s)
		s.serve(content(s, stock.Listener("new", addr, "to-b", nil)))
		report.Soon(t, "renamed: traffic", "b", answers(s, addr), s)
		report.Soon(t, "renamed: listeners", "1", s.statNow("listener_manager.total_listeners_active"), s)
		report.Soon(t, "lds: update_rejected", "0", s.statNow("listener_manager.lds.update_rejected"), s)
	})
}

// gone says whether Envoy still has a cluster.
func (s *scene) gone(cluster string) func() (string, error) {
	return func() (string, error) {
		page, err := s.envoy.Get("/clusters")
		if err != nil || strings.Contains(page, "\n"+cluster+"::") || strings.HasPrefix(page, cluster+"::") {
			return "there", err
		}
		return "gone", nil
	}
}

// TestARestartOfMetardsReloadsNothingThatIsStatic ends with an edit: that it is the only reload shows that there was
// none before it.
func TestARestartOfMetardsReloadsNothingThatIsStatic(t *testing.T) {
	inBothForms(t, func(t *testing.T, form sampleproxy.Form) {
		content := func(s *scene, addr, to string) resources {
			return resources{
				Clusters:  []stock.Object{stock.EDS("a"), stock.EDS("b")},
				Endpoints: []stock.Object{stock.Endpoints("a", s.endpoint("a")), stock.Endpoints("b", s.endpoint("b"))},
				Listeners: []stock.Object{stock.Listener("one", addr, "all", nil)}, Routes: []stock.Object{routeTo("all", to)},
			}
		}
		s, addr := bare(t, form, ordersService, []string{"a", "b"}, func(s *scene, addr string) resources { return content(s, addr, "a") })
		report.Soon(t, "before: traffic", "a", answers(s, addr), s)
		load := stock.StartLoad(addr, nil)
		s.metards.Stop()
		report.Soon(t, "metards stopped: connected_state", "0", s.statNow("control_plane.connected_state"), s)
		s.must(s.metards.Start())
		report.Soon(t, "metards started: connected_state", "1", s.statNow("control_plane.connected_state"), s)
		s.serve(content(s, addr, "b"))
		report.Soon(t, "an edit of the routes: traffic", "b", answers(s, addr), s)
		report.Is(t, "nothing is reloaded but the edit", "clusters modified 0, listeners modified 0, routes loaded 2",
			fmt.Sprintf("clusters modified %s, listeners modified %s, routes loaded %s", s.stat("cluster_manager.cluster_modified"),
				s.stat("listener_manager.listener_modified"), s.stat("http.web.rds.all.config_reload")))
		s.undisturbed(load, "b")
	})
}
