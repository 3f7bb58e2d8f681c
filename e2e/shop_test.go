package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/metards/metards/e2e/cluster"
	"github.com/metards/metards/e2e/process"
	"github.com/metards/metards/e2e/stock"
)

// report is what the tests with a sidecar expected and saw.
var report stock.Report

// shop is a namespace with the service orders: a real server of each of two versions, and an address that the
// sidecars of its callers listen on.
type shop struct {
	namespace string
	host      string // of the service
	port      int    // likewise
	v1, v2    int    // the ports of the servers
}

// openShop makes one whose service is visible to the given namespaces; none is all.
func openShop(t *testing.T, namespace string, exportTo ...string) *shop {
	t.Helper()
	namespaces(t, namespace)
	ports, err := process.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{namespace: namespace, host: "orders." + namespace + ".example", port: ports[0], v1: upstream(t, "v1"), v2: upstream(t, "v2")}
	apply(t, namespace, s.service(exportTo...))
	onlyCalls(t, namespace, "./*") // else its sidecars would listen for the services of other tests too
	return s
}

// upstream starts a server that says its version, and returns its port.
func upstream(t *testing.T, version string) int {
	t.Helper()
	u, err := stock.StartUpstream(version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Stop)
	addr, err := net.ResolveTCPAddr("tcp", u.Addr)
	if err != nil {
		t.Fatal(err)
	}
	return addr.Port
}

// listener is the service's listener, as istiod names it.
func (s *shop) listener() string { return fmt.Sprintf("127.0.0.1_%d", s.port) }

// addr is where an application calls the service.
func (s *shop) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// routes is the name of the service's table.
func (s *shop) routes() string { return fmt.Sprintf("%s_%d", s.host, s.port) }

// rds is the name of a statistic of the listener's subscription to the table.
func (s *shop) rds(name string) string {
	return fmt.Sprintf("http.outbound|%d||%s.rds.%s.%s", s.port, s.host, s.routes(), name)
}

func (s *shop) service(exportTo ...string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: NS}
spec:
  hosts: [%s]
  addresses: [127.0.0.1]
  exportTo: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: tcp-metaprotocol-thrift, protocol: TCP}]
  endpoints:
  - {address: 127.0.0.1, ports: {tcp-metaprotocol-thrift: %d}, labels: {version: v1}}
  - {address: 127.0.0.1, ports: {tcp-metaprotocol-thrift: %d}, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: NS}
spec:
  host: %[1]s
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`, s.host, visible(exportTo), s.port, s.v1, s.v2)
}

// visible is an exportTo.
func visible(to []string) string {
	if len(to) == 0 {
		return `"*"`
	}
	return `"` + strings.Join(to, `", "`) + `"`
}

// onlyCalls limits what the sidecars of a namespace are made for.
func onlyCalls(t *testing.T, namespace string, hosts ...string) {
	t.Helper()
	apply(t, namespace, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: NS}
spec: {egress: [{hosts: ["%s"]}]}
`, strings.Join(hosts, `", "`)))
}

// split sends requests with x-tier: beta to v2 and shares out the others, for the given namespaces; none is all.
func (s *shop) split(t *testing.T, v1, v2 int, exportTo ...string) {
	t.Helper()
	apply(t, s.namespace, fmt.Sprintf(`
apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: {name: orders, namespace: NS}
spec:
  hosts: [%s]
  exportTo: [%s]
  routes:
  - name: beta
    match: {attributes: {x-tier: {exact: beta}}}
    route: [{destination: {host: %[1]s, subset: v2}}]
  - name: canary
    route:
    - {destination: {host: %[1]s, subset: v1}, weight: %[3]d}
    - {destination: {host: %[1]s, subset: v2}, weight: %[4]d}
`, s.host, visible(exportTo), v1, v2))
}

// filtered applies what metards envoyfilters prints for the service.
func (s *shop) filtered(t *testing.T) {
	t.Helper()
	text := printFilters(t, s.namespace, "--filter", "http")
	if err := mesh.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mesh.Delete(context.Background(), text) })
}

// listens says whether an Envoy has the listener of istiod, and this asks metards.
func (s *shop) listens(e *stock.Envoy) error {
	dump, err := e.Get("/config_dump?resource=dynamic_listeners&name_regex=" + s.listener())
	if err == nil && (!strings.Contains(dump, s.routes()) || !strings.Contains(dump, `"cluster_name": "metards"`)) {
		err = fmt.Errorf("the listener %s of istiod asks metards for nothing: %s", s.listener(), dump)
	}
	return err
}

// serves says whether an Envoy has the listener of istiod and the table of metards, and is connected to both.
func (s *shop) serves(e *stock.Envoy) error {
	if _, err := e.Get("/ready"); err != nil {
		return err
	}
	version, err := e.Stat(s.rds("version_text"))
	if err == nil && version == "" {
		err = fmt.Errorf("no table %s came", s.routes())
	}
	return errors.Join(err, s.listens(e), stat(e, "control_plane.connected_state", "1"), stat(e, s.rds("control_plane.connected_state"), "1"),
		stat(e, s.rds("update_rejected"), "0"))
}

// ask sends requests, each on a connection of its own, and returns who answered how often. All must be answered.
func (s *shop) ask(t *testing.T, n int, attributes map[string]string) map[string]int {
	t.Helper()
	single := maps.Clone(fresh)
	maps.Copy(single, attributes)
	tally := stock.Send(t.Context(), n, s.addr(), single)
	if len(tally.Failed) != 0 {
		t.Fatalf("of %d requests %d failed: %s", n, len(tally.Failed), tally.Failed)
	}
	return tally.By
}

// fresh has the client open a connection for the request.
var fresh = map[string]string{"Connection": "close"}

// traffic is an application that calls all the time: on connections that it keeps, and on new ones.
type traffic struct {
	loads []*stock.Load
	stop  func() []*stock.Tally
}

func (s *shop) called(t *testing.T) *traffic {
	l := &traffic{loads: []*stock.Load{stock.StartLoad(s.addr(), nil), stock.StartLoad(s.addr(), fresh)}}
	l.stop = sync.OnceValue(func() (out []*stock.Tally) {
		for _, load := range l.loads {
			out = append(out, load.Stop())
		}
		return out
	})
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *traffic) now() map[string]int {
	out := map[string]int{}
	for _, load := range l.loads {
		for version, n := range load.Now() {
			out[version] += n
		}
	}
	return out
}

// moves waits until many answers, one after the other, are of one version.
func (l *traffic) moves(t *testing.T, what, version string) {
	t.Helper()
	const many = 60
	before := l.now()
	report.Until(t, what, fmt.Sprintf("%d answers, all of %s", many, version), func() (string, bool, error) {
		now, since := l.now(), map[string]int{}
		for v, n := range now {
			if n > before[v] {
				since[v] = n - before[v]
			}
		}
		n := since[version]
		if delete(since, version); len(since) > 0 {
			before = now
			return fmt.Sprintf("others, as in %v", since), false, nil
		}
		return fmt.Sprintf("%d answers, all of %s", n, version), n >= many, nil
	})
}

// ends stops the traffic; no request may have failed.
func (l *traffic) ends(t *testing.T, what string) {
	t.Helper()
	total, failed := 0, []string{}
	for _, tally := range l.stop() {
		total += tally.Total
		failed = append(failed, tally.Failed...)
	}
	report.Is(t, what, fmt.Sprintf("0 of %d requests failed", total), fmt.Sprintf("%d of %d requests failed", len(failed), total))
	for _, f := range failed {
		t.Log(f)
	}
}

// inCluster starts a metards as it runs in a cluster: its own certificate comes from the mesh's CA by CSR.
func inCluster(t *testing.T, name string, flags ...string) *cluster.Metards {
	t.Helper()
	m, err := mesh.StartMetards(name, append([]string{
		"--istiod", mesh.Istiod, "--istiod-server-name", "istiod.istio-system.svc", "--istiod-root", mesh.RootFile,
		"--token", tokenFile(t, "istio-system", "metards"), "--kubeconfig", mesh.Kubeconfig, "--ca", mesh.Istiod, "--root", mesh.RootFile,
	}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Stop()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, m.Tail())
		}
	})
	if err := m.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}
