package tlsboot

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestTheMetricsAreThereBeforeAnythingFails(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg)
	want := `
# HELP metards_tls_reload_failing 1 while the files of the certificate or the roots are unusable and older content stays in force, else 0.
# TYPE metards_tls_reload_failing gauge
metards_tls_reload_failing{what="certificate"} 0
metards_tls_reload_failing{what="roots"} 0
# HELP metards_tls_reload_failures_total Distinct failures to reload the certificate or the roots; one that lasts counts once.
# TYPE metards_tls_reload_failures_total counter
metards_tls_reload_failures_total{what="certificate"} 0
metards_tls_reload_failures_total{what="roots"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "metards_tls_reload_failing", "metards_tls_reload_failures_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestTheFirstRootToExpireIsShown(t *testing.T) {
	ca := newCA(t)
	early := issue(t, ca, IssueOptions{IsCA: true}).TLS.Leaf
	s := newSite(t, ca)
	s.use(s.Files.cert, append(s.roots, early))
	if got, want := testutil.ToFloat64(s.metrics.rootExpiry), float64(early.NotAfter.Unix()); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
