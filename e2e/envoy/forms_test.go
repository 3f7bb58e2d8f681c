package envoy

import (
	"fmt"
	"testing"

	"github.com/metards/metards/e2e/stock"
	"github.com/metards/metards/internal/sampleproxy"
)

// orders is the service that most tests use, with a MetaRouter's routes after it.
const (
	ordersTable   = "orders.shop.svc.cluster.local_20880"
	ordersHost    = "orders.shop.svc.cluster.local"
	ordersService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 20880, name: tcp-metaprotocol-dubbo, protocol: TCP}]
---
`
	ordersRule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec:
  host: orders.shop.svc.cluster.local
  subsets: [{name: v1}, {name: v2}, {name: v3}]
---
`
	ordersHead = `apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.svc.cluster.local]
  routes:
`
	ordersRouter = ordersService + ordersRule + ordersHead
)

// to is a route to one subset, all requests if there is no condition.
func to(name, subset, conditions string) string {
	match := ""
	if conditions != "" {
		match = fmt.Sprintf("    match: {attributes: {%s}}\n", conditions)
	}
	return fmt.Sprintf("  - name: %s\n%s    route: [{destination: {host: %s, subset: %s}}]\n", name, match, ordersHost, subset)
}

func cluster(subset string) string { return "outbound|20880|" + subset + "|" + ordersHost }

func TestEachStreamFormCarriesTrafficAndEdits(t *testing.T) {
	for _, form := range sampleproxy.Forms() {
		t.Run(form.Name, func(t *testing.T) {
			s := begin(t, options{rules: ordersRouter + to("all", "v1", "") + other("v1"), form: form, clusters: []string{cluster("v2")}})
			report.Soon(t, "the first table", "v1", s.who(ordersTable, nil), s)
			report.Is(t, "connected_state", "1", s.now(ordersTable, "control_plane.connected_state"))
			streams := "2 for two tables"
			if form.ADS {
				streams = "1 for two tables"
			}
			report.Is(t, "TLS connections, one for each stream", streams, s.stat("cluster.metards.ssl.handshake")+" for two tables")
			s.edit(ordersRouter + to("beta", "v2", "tier: {exact: beta}") + to("all", "v1", "") + other("v1"))
			report.Soon(t, "after an edit: tier=beta", "v2", s.who(ordersTable, map[string]string{"tier": "beta"}), s)
			report.Is(t, "after an edit: others", "v1", s.one(ordersTable, nil))
			report.Is(t, "update_success", "2", s.now(ordersTable, "update_success"))
			report.Is(t, "update_rejected", "0", s.now(ordersTable, "update_rejected"))
			report.Soon(t, "event log", "request sent ack sent ack", s.steps(ordersTable), s)
			report.Is(t, "event log of the other table, which did not change", "request sent ack", stock.Steps(s.events(otherTable)))
		})
	}
}

// other is a second service with a route to one subset, to be put after the first one's routes.
func other(subset string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: stock, namespace: shop}
spec:
  hosts: [stock.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9090, name: tcp-metaprotocol-thrift, protocol: TCP}]
---
apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: {name: stock, namespace: shop}
spec:
  hosts: [stock.shop.svc.cluster.local]
  routes:
  - {name: all, route: [{destination: {host: stock.shop.svc.cluster.local, subset: %s}}]}
`, subset)
}

const otherTable = "stock.shop.svc.cluster.local_9090"

func otherCluster(subset string) string {
	return "outbound|9090|" + subset + "|stock.shop.svc.cluster.local"
}
