package e2e

import (
	"fmt"
	"testing"
	"time"
)

// ledger is a service that istio-system, whose workload we are, does not see.
func ledger(port int) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ledger, namespace: NS}
spec:
  hosts: [ledger.NS.example]
  exportTo: [.]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: tcp-metaprotocol-dubbo, protocol: TCP}]
`, port)
}

const ledgerRule = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: ledger, namespace: NS}
spec:
  host: ledger.NS.example
  exportTo: [.]
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: account}}}
`

// istiod does not push to a sidecar or a gateway what its namespace does not see.
func TestWhatOnlyItsOwnNamespaceSeesArrivesAtOnce(t *testing.T) {
	const ns, first, second = "hidden", "ledger.hidden.example_20880", "ledger.hidden.example_20881"
	namespaces(t, ns)
	m := server(t, ns)
	p := subscribe(t, m, rds(), ns, first, second)
	for _, step := range []struct{ what, apply, table, routes string }{
		{"a service", ledger(20880), first, "default: outbound|20880||ledger.hidden.example"},
		{"a rule for it", ledgerRule, first, "default: outbound|20880||ledger.hidden.example #account"},
		{"another port", ledger(20881), second, "default: outbound|20881||ledger.hidden.example #account"},
	} {
		began := time.Now()
		apply(t, ns, step.apply)
		p.want(step.table, step.routes)
		took := time.Since(began)
		report.Holds(t, step.what+" that its own namespace alone sees, from the API server to the proxy", "within 5s", took.Round(time.Millisecond).String(), took < 5*time.Second)
	}
}
