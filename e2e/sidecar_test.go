package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metards/metards/e2e/cluster"
)

func TestACanaryMovesTheRequestsOfARealSidecar(t *testing.T) {
	s := openShop(t, "shop")
	s.split(t, 90, 10)
	s.filtered(t)
	m := inCluster(t, "metards-shop")
	e := pod(t, cluster.SidecarOptions{Name: "app", Namespace: s.namespace, Override: component(t, m)})
	yes(t, "Envoy has the listener of istiod and asks metards for the table", func() error { return s.serves(e) })
	report.Is(t, "who metards is, by a certificate of istiod's CA", "spiffe://cluster.local/ns/istio-system/sa/metards", presented(t, m, s.namespace))

	got := s.ask(t, 500, nil)
	report.Holds(t, "500 requests, canary 90:10", "v1 420 to 480, v2 the rest", fmt.Sprint(got), // four standard deviations
		got["v1"] >= 420 && got["v1"] <= 480 && got["v1"]+got["v2"] == 500)
	report.Is(t, "100 requests with x-tier: beta", map[string]int{"v2": 100}, s.ask(t, 100, map[string]string{"x-tier": "beta"}))

	before, err := e.Stat(s.rds("version_text"))
	if err != nil || before == "" {
		t.Fatalf("no version of the table: %v", err)
	}
	l := s.called(t)
	s.split(t, 0, 100)
	l.moves(t, "the canary goes to 0:100 under load", "v2")
	l.ends(t, "the load meanwhile")
	after, err := e.Stat(s.rds("version_text"))
	report.Holds(t, "the version that Envoy has", "another than "+before, after, err == nil && after != before)
	for _, name := range []string{s.rds("update_rejected"), "listener_manager.lds.update_rejected", "cluster_manager.cds.update_rejected"} {
		report.Soon(t, name, "0", figure(e, name))
	}
}

func TestNoRequestOfASidecarFailsWhileTheControlPlaneRestarts(t *testing.T) {
	s := openShop(t, "restarts")
	s.split(t, 100, 0)
	s.filtered(t)
	m := inCluster(t, "metards-restarts")
	e := pod(t, cluster.SidecarOptions{Name: "app", Namespace: s.namespace, Override: component(t, m)})
	yes(t, "Envoy serves", func() error { return s.serves(e) })
	for _, part := range []struct {
		name            string
		stop            func()
		meanwhile       func()
		start           func() error
		stopped, behind string // the version that answers while it is stopped, and when it is back
	}{
		{"istiod", mesh.StopIstiod, func() { s.split(t, 0, 100) }, func() error { return mesh.StartIstiod(t.Context()) }, "v2", "v2"},
		{"the API server", mesh.StopAPIServer, func() {}, func() error { return mesh.StartAPIServer(t.Context()) }, "v2", "v2"},
		{"metards", m.Stop, func() { s.split(t, 100, 0) }, func() error { return errors.Join(m.Start(), m.Ready(t.Context())) }, "v2", "v1"},
	} {
		l := s.called(t)
		part.stop()
		part.meanwhile()
		l.moves(t, part.name+" is stopped, the canary edited if it can be", part.stopped)
		if err := part.start(); err != nil {
			t.Fatal(err)
		}
		l.moves(t, part.name+" is started", part.behind)
		yes(t, "Envoy has istiod and metards", func() error { return s.serves(e) })
		l.ends(t, "the load meanwhile")
	}
	l := s.called(t)
	s.split(t, 0, 100)
	l.moves(t, "after all that, the canary goes to 0:100", "v2")
	s.v1, s.v2 = s.v2, s.v1
	apply(t, s.namespace, s.service())
	l.moves(t, "in the ServiceEntry the servers change places, which istiod tells", "v1")
	l.ends(t, "the load meanwhile")
}

func TestASidecarWhoseNodeClaimsAnotherNamespaceThanItsCertificateIsRefused(t *testing.T) {
	s := openShop(t, "claimed")
	s.split(t, 0, 100)
	namespaces(t, "claims")
	m := inCluster(t, "metards-claimed")
	own := component(t, m)
	for _, c := range []struct {
		pod, namespace, override, tables, says string
	}{
		{"honest", "claimed", own, "1", ""},
		{"liar", "claims", claiming(t, own, "claimed", "claimed"), "0",
			`the node says namespace "claimed", its certificate spiffe://cluster.local/ns/claims/sa/app is for "claims"`},
		{"half-a-liar", "claims", claiming(t, own, "claims", "claimed"), "0", `the node's metadata NAMESPACE is "claimed", its id says "claims"`},
	} {
		// istiod refuses liars as well, so they bring a listener along.
		e := pod(t, cluster.SidecarOptions{Name: c.pod, Namespace: c.namespace, Override: bringing(t, c.override, s.routes())})
		what := fmt.Sprintf("the %s of namespace %s asks for a table of claimed", c.pod, c.namespace)
		if c.says != "" {
			yes(t, "Envoy's log: "+c.says, func() error { return contains(e.Log(), c.says) })
			report.Is(t, "lines in the log of metards that say so", 1, strings.Count(m.Log(), strings.ReplaceAll(c.says, `"`, `\"`)))
		}
		report.Soon(t, what+": streams to metards", c.tables, figure(e, s.brought("control_plane.connected_state")))
		report.Soon(t, what+": tables", c.tables, figure(e, s.brought("update_success")))
		e.Stop()
	}
	_, proxies := m.Get("/debug/proxies")
	report.Is(t, "proxies of namespace claims that metards knows", 0, strings.Count(proxies, "/ns/claims/"))
}

func TestASidecarOfAnotherNamespaceSeesOnlyWhatIsExportedToIt(t *testing.T) {
	s, hidden := openShop(t, "seller"), openShop(t, "hidden", ".")
	s.split(t, 0, 100, ".", "buyer")
	hidden.split(t, 0, 100)
	s.filtered(t)
	hidden.filtered(t)
	namespaces(t, "buyer")
	onlyCalls(t, "buyer", "seller/*", "hidden/*")
	// istiod does not push edits of services that the root namespace cannot see; metards finds them when it asks again.
	m := inCluster(t, "metards-exports", "--resync", "2s")
	// It asks for the hidden table, although no listener of istiod does.
	e := pod(t, cluster.SidecarOptions{Name: "app", Namespace: "buyer", Override: bringing(t, component(t, m), hidden.routes())})
	yes(t, "the buyer's Envoy serves", func() error { return s.serves(e) })

	report.Is(t, "100 requests, service and MetaRouter (0:100) exported", map[string]int{"v2": 100}, s.ask(t, 100, nil))
	before, err := e.Stat(s.rds("version_text"))
	if err != nil {
		t.Fatal(err)
	}
	s.split(t, 0, 100, ".")
	report.Until(t, "the MetaRouter is not exported any more: the version", "another than "+before, func() (string, bool, error) {
		now, err := e.Stat(s.rds("version_text"))
		return now, now != before, err
	})
	got := s.ask(t, 100, nil)
	report.Holds(t, "100 requests by the default route", "v1 and v2", fmt.Sprint(got), slices.Equal(slices.Sorted(maps.Keys(got)), []string{"v1", "v2"}))

	report.Soon(t, "a service that is not exported: streams that ask for it", "1", figure(e, hidden.brought("control_plane.connected_state")))
	report.Soon(t, "tables", "0", figure(e, hidden.brought("update_success")))
	report.Is(t, "a listener", "no", map[bool]string{true: "yes", false: "no"}[hidden.listens(e) == nil])
	apply(t, hidden.namespace, hidden.service(".", "buyer"))
	report.Soon(t, "it is exported: tables", "1", figure(e, hidden.brought("update_success")))
	yes(t, "a listener", func() error { return hidden.listens(e) })
}

func TestASidecarWithAStrangersCertificateGetsNoConnection(t *testing.T) {
	s := openShop(t, "stranger")
	s.split(t, 0, 100)
	s.filtered(t)
	m := inCluster(t, "metards-stranger")
	pair, err := mesh.Stranger(s.namespace, "app")
	if err != nil {
		t.Fatal(err)
	}
	// The agent shows istiod a token, so the listener comes.
	e := pod(t, cluster.SidecarOptions{Name: "app", Namespace: s.namespace, Override: component(t, m), Pair: pair})
	report.Until(t, "handshakes of the stranger that failed", "more than 0", func() (string, bool, error) {
		n, err := e.Stat("cluster.metards.ssl.connection_error")
		return n, n != "" && n != "0", err
	})
	report.Soon(t, "streams to metards", "0", figure(e, s.rds("control_plane.connected_state")))
	report.Soon(t, "tables", "0", figure(e, s.rds("update_success")))
	yes(t, "the log of metards: handshake failed", func() error { return contains(m.Log(), `msg="handshake failed" reason=unknown_root`) })
	report.Is(t, "streams that metards has", "0", metric(m, "metards_streams"))
	report.Is(t, "tables that metards has sent", "0", metric(m, "metards_responses_sent_total"))
}

func TestASidecarWithoutTheBootstrapComponentIsUntouched(t *testing.T) {
	s := openShop(t, "plain")
	s.split(t, 0, 100)
	s.filtered(t)
	m := inCluster(t, "metards-plain")
	e := pod(t, cluster.SidecarOptions{Name: "with", Namespace: s.namespace, Override: component(t, m)})
	yes(t, "for comparison, a pod with the component asks metards for the table", func() error { return s.serves(e) })
	e.Stop()
	e = pod(t, cluster.SidecarOptions{Name: "without", Namespace: s.namespace})
	yes(t, "Envoy is ready", func() error { _, err := e.Get("/ready"); return err })
	dump, err := e.Get("/config_dump?resource=dynamic_listeners&name_regex=" + s.listener())
	if err != nil {
		t.Fatal(err)
	}
	report.Is(t, "filters of the listener that istiod gives it", "tcp_proxy", strings.Join(networkFilters(dump), ", "))
	got := s.ask(t, 100, nil)
	report.Holds(t, "100 connections, while the MetaRouter says 0:100", "v1 and v2", fmt.Sprint(got), slices.Equal(slices.Sorted(maps.Keys(got)), []string{"v1", "v2"}))
	for _, name := range []string{"listener_manager.lds.update_rejected", "cluster_manager.cds.update_rejected"} {
		report.Soon(t, name, "0", figure(e, name))
	}
	report.Soon(t, "streams to istiod", "1", figure(e, "control_plane.connected_state"))
	report.Is(t, "how often the agent opened it", 1, strings.Count(e.Log(), "connected to delta upstream XDS server"))
}

var networkFilter = regexp.MustCompile(`"name": "envoy\.filters\.network\.([a-z_]+)"`)

// networkFilters are those that a configuration names, without envoy.filters.network, each once.
func networkFilters(dump string) []string {
	var out []string
	for _, m := range networkFilter.FindAllStringSubmatch(dump, -1) {
		out = append(out, m[1])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func contains(text, part string) error {
	if !strings.Contains(text, part) {
		return fmt.Errorf("there is no %s", part)
	}
	return nil
}

// presented is who metards says it is, to a client of a namespace that checks it as sidecars do.
func presented(t *testing.T, m *cluster.Metards, namespace string) string {
	t.Helper()
	conf, err := mesh.ClientTLS(certificate(t, namespace))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", m.Listen, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return fmt.Sprint(conn.ConnectionState().PeerCertificates[0].URIs[0])
}
