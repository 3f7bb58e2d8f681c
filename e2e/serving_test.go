package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metards/metards/internal/sampleproxy"
)

const services = `
apiVersion: v1
kind: Service
metadata: {name: inventory, namespace: NS}
spec:
  clusterIP: None
  selector: {app: inventory}
  ports: [{name: tcp-metaprotocol-thrift, port: 9090, protocol: TCP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: NS}
spec:
  hosts: [orders.NS.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 20880, name: tcp-metaprotocol-dubbo, protocol: TCP}]
`

func canary(v1, v2 int) string {
	return fmt.Sprintf(`
apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: {name: orders, namespace: NS}
spec:
  hosts: [orders.NS.example]
  routes:
  - name: canary
    route:
    - {destination: {host: orders.NS.example, subset: v1}, weight: %d}
    - {destination: {host: orders.NS.example, subset: v2}, weight: %d}
`, v1, v2)
}

func canaryRoutes(namespace string, v1, v2 int) string {
	return fmt.Sprintf("canary: outbound|20880|v1|orders.%s.example=%d outbound|20880|v2|orders.%s.example=%d", namespace, v1, namespace, v2)
}

func orders(namespace string) string { return "orders." + namespace + ".example_20880" }

func TestServicesOfIstiodAndMetaRoutersOfKubernetesReachProxies(t *testing.T) {
	const ns = "serving"
	namespaces(t, ns)
	apply(t, ns, services)
	m := server(t, ns)
	for _, form := range sampleproxy.Forms() {
		thrift := subscribe(t, m, form, ns, "inventory."+ns+".svc.cluster.local_9090")
		thrift.want("inventory."+ns+".svc.cluster.local_9090", "default: outbound|9090||inventory."+ns+".svc.cluster.local")
	}
	dubbo := subscribe(t, m, rds(), ns, orders(ns))
	dubbo.want(orders(ns), "default: outbound|20880||orders."+ns+".example")

	var took []time.Duration
	for i := 1; i <= 10; i++ {
		<-time.After(300 * time.Millisecond) // calm
		began := time.Now()
		apply(t, ns, canary(90-i, 10+i))
		dubbo.want(orders(ns), canaryRoutes(ns, 90-i, 10+i))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("from kubectl apply to the proxy: median %v, longest %v of ten edits", took[4].Round(time.Millisecond), took[9].Round(time.Millisecond))
	if took[4] > time.Second {
		t.Errorf("the median is %v", took[4])
	}
}

func TestEndpointAndLabelChurnSendsNothing(t *testing.T) {
	const ns = "churn"
	namespaces(t, ns)
	apply(t, ns, services)
	m := server(t, ns)
	inventory := "inventory." + ns + ".svc.cluster.local_9090"
	p := subscribe(t, m, rds(), ns, inventory, orders(ns))
	p.table()
	p.table()
	for i := range 100 {
		apply(t, ns, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: inventory-1, namespace: NS, labels: {kubernetes.io/service-name: inventory}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.%d], conditions: {ready: true}}]
ports: [{name: tcp-metaprotocol-thrift, port: 9090, protocol: TCP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: NS, labels: {edit: "%d"}}
spec:
  hosts: [orders.NS.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 20880, name: tcp-metaprotocol-dubbo, protocol: TCP}]
`, i+1, i))
	}
	// The fence: one rule that adds a hash key. Its response must be the next one, and the only one.
	apply(t, ns, `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: inventory, namespace: NS}
spec:
  host: inventory.NS.svc.cluster.local
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: sku}}}
`)
	p.want(inventory, "default: outbound|9090||inventory."+ns+".svc.cluster.local #sku")
	p.silent()
}

func TestAnInvalidMetaRouterLeavesTheLastValidVersionInForce(t *testing.T) {
	const ns = "invalid"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	m := server(t, ns)
	p := subscribe(t, m, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	apply(t, ns, strings.Replace(canary(50, 50), "  - name: canary\n", "  - name: canary\n    match: {attributes: {method: {regex: \"(get\"}}}\n", 1))
	eventually(t, "the refusal is on the object", func() error {
		o, err := mesh.Dynamic.Resource(metaRouters).Namespace(ns).Get(t.Context(), "orders", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if text := fmt.Sprint(o.Object["status"]); !strings.Contains(text, "canary") || !strings.Contains(text, "RE2") {
			return fmt.Errorf("the status is %s", text)
		}
		return nil
	})
	late := subscribe(t, m, rds(), ns, orders(ns))
	late.want(orders(ns), canaryRoutes(ns, 90, 10))
	p.silent()
	apply(t, ns, canary(40, 60))
	p.want(orders(ns), canaryRoutes(ns, 40, 60))
}

func TestIstiodKilledAndRestartedTakesNothingAway(t *testing.T) {
	const ns = "istiod-gone"
	namespaces(t, ns)
	apply(t, ns, services)
	m := server(t, ns)
	p := subscribe(t, m, rds(), ns, orders(ns))
	p.table()
	mesh.StopIstiod()
	apply(t, ns, canary(80, 20)) // Kubernetes goes on
	p.want(orders(ns), canaryRoutes(ns, 80, 20))
	if code, body := m.Get("/readyz"); code != 200 {
		t.Errorf("/readyz says %d %s", code, body)
	}
	apply(t, ns, `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: NS}
spec:
  host: orders.NS.example
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: user}}}
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`)
	if err := mesh.StartIstiod(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(orders(ns), canaryRoutes(ns, 80, 20)+" #user") // the edit made meanwhile
}

func TestTheAPIServerKilledAndRestartedTakesNothingAway(t *testing.T) {
	const ns = "apiserver-gone"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	m := server(t, ns)
	p := subscribe(t, m, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	own := certificate(t, ns)
	mesh.StopAPIServer()
	late := subscribeAs(t, m, own, rds(), ns, orders(ns))
	late.want(orders(ns), canaryRoutes(ns, 90, 10))
	if err := mesh.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, canary(70, 30))
	p.want(orders(ns), canaryRoutes(ns, 70, 30))
}

func TestARestartDuringAnOutageOfBothServesTheSavedState(t *testing.T) {
	const ns = "both-gone"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	state := t.TempDir()
	flags := []string{"--state-dir", state, "--state-grace", "2s"}
	first := server(t, ns+"-1", flags...)
	p := subscribe(t, first, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	first.Stop() // writes what is not written yet
	own := certificate(t, ns)
	second := prepareServer(t, ns+"-2", flags...)
	mesh.StopIstiod()
	mesh.StopAPIServer()
	m := second()
	if err := m.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	p = subscribeAs(t, m, own, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	if err := mesh.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := mesh.StartIstiod(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, canary(60, 40))
	p.want(orders(ns), canaryRoutes(ns, 60, 40))
}
