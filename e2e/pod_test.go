package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/metards/metards/e2e/cluster"
	"github.com/metards/metards/e2e/process"
	"github.com/metards/metards/e2e/stock"
)

// pod starts a sidecar and ends it with the test; what it had to say is shown if the test fails.
func pod(t *testing.T, o cluster.SidecarOptions) *stock.Envoy {
	t.Helper()
	e, err := mesh.StartSidecar(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pod %s/%s:\n%s", o.Namespace, o.Name, e.Tail())
		}
		e.Stop()
	})
	return e
}

// component is the override of manifests/components/sidecar-bootstrap, with the address of a metards on loopback.
func component(t *testing.T, m *cluster.Metards) string {
	t.Helper()
	data, err := os.ReadFile("../manifests/components/sidecar-bootstrap/custom_bootstrap.json")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(m.Listen)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for old, now := range map[string]string{`"metards.istio-system.svc"`: strconv.Quote(host), "15010": port} {
		if !strings.Contains(text, old) {
			t.Fatalf("the component no longer names %s", old)
		}
		text = strings.ReplaceAll(text, old, now)
	}
	return text
}

// claiming is a bootstrap whose node claims namespaces that are not its pod's, in its id and in its metadata.
func claiming(t *testing.T, bootstrap, id, metadata string) string {
	t.Helper()
	return edited(t, bootstrap, func(b map[string]any) {
		node := b["node"].(map[string]any)
		node["id"] = "sidecar~127.0.0.2~app." + id + "~" + id + ".svc.cluster.local"
		node["metadata"].(map[string]any)["NAMESPACE"] = metadata
	})
}

// bringing is a bootstrap with a listener of its own that asks metards for a table. It does not wait for istiod.
func bringing(t *testing.T, bootstrap, routes string) string {
	t.Helper()
	ports, err := process.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	var listener any
	text := strings.NewReplacer("PORT", strconv.Itoa(ports[0]), "ROUTES", routes).Replace(broughtListener)
	if err := json.Unmarshal([]byte(text), &listener); err != nil {
		t.Fatal(err)
	}
	return edited(t, bootstrap, func(b map[string]any) {
		b["static_resources"].(map[string]any)["listeners"] = []any{listener}
		soon := map[string]any{"initial_fetch_timeout": "1s"}
		b["dynamic_resources"] = map[string]any{"lds_config": soon, "cds_config": soon}
	})
}

const broughtListener = `{
  "name": "brought", "address": {"socket_address": {"address": "127.0.0.1", "port_value": PORT}},
  "filter_chains": [{"filters": [{"name": "http", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "brought",
    "rds": {"route_config_name": "ROUTES", "config_source": {"resource_api_version": "V3", "initial_fetch_timeout": "1s",
      "api_config_source": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "metards"}}]}}},
    "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]
  }}]}]
}`

// brought is the name of a statistic of the table that such a listener asks for.
func (s *shop) brought(name string) string { return "http.brought.rds." + s.routes() + "." + name }

func edited(t *testing.T, bootstrap string, edit func(map[string]any)) string {
	t.Helper()
	var b map[string]any
	if err := json.Unmarshal([]byte(bootstrap), &b); err != nil {
		t.Fatal(err)
	}
	edit(b)
	out, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// stat checks one of Envoy's statistics.
func stat(e *stock.Envoy, name, want string) error {
	got, err := e.Stat(name)
	if err == nil && got != want {
		err = fmt.Errorf("%s is %q, want %q", name, got, want)
	}
	return err
}

// figure is one of Envoy's statistics, for a report.
func figure(e *stock.Envoy, name string) func() (string, error) {
	return func() (string, error) { return e.Stat(name) }
}

// yes waits until something holds.
func yes(t *testing.T, what string, holds func() error) {
	t.Helper()
	report.Soon(t, what, "yes", func() (string, error) {
		if err := holds(); err != nil {
			return "no", err
		}
		return "yes", nil
	})
}

// metric is a metric of metards.
func metric(m *cluster.Metards, name string) string {
	_, page := m.Get("/metrics")
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return "none"
}
