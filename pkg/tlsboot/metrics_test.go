package tlsboot

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestTheMetricsAreThereBeforeAnythingFails(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg)
	want := `
# HELP metards_tls_reload_failing 1 while the certificate, the roots, the anchors or the CRL cannot be renewed and what is older stays in force, else 0.
# TYPE metards_tls_reload_failing gauge
metards_tls_reload_failing{what="anchors"} 0
metards_tls_reload_failing{what="certificate"} 0
metards_tls_reload_failing{what="crl"} 0
metards_tls_reload_failing{what="roots"} 0
# HELP metards_tls_reload_failures_total Distinct failures to renew the certificate, the roots, the anchors or the CRL; one that lasts counts once.
# TYPE metards_tls_reload_failures_total counter
metards_tls_reload_failures_total{what="anchors"} 0
metards_tls_reload_failures_total{what="certificate"} 0
metards_tls_reload_failures_total{what="crl"} 0
metards_tls_reload_failures_total{what="roots"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "metards_tls_reload_failing", "metards_tls_reload_failures_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestTheExpiryOfEachRootIsShownAndThatOfFormerOnesIsNot(t *testing.T) {
	r1, r2 := newCA(t), newCA(t)
	s := newSite(t, r1)
	write(t, s.root, r1.RootPEM(), r2.RootPEM())
	s.look(time.Now())
	if n := testutil.CollectAndCount(s.metrics.rootExpiry); n != 2 {
		t.Errorf("%d roots shown, want 2", n)
	}
	write(t, s.root, r2.RootPEM())
	s.look(time.Now())
	if n := testutil.CollectAndCount(s.metrics.rootExpiry); n != 1 {
		t.Errorf("%d roots shown, want 1", n)
	}
	if got := testutil.ToFloat64(s.metrics.rootExpiry.WithLabelValues(fingerprint(r2.cert))); got != float64(r2.cert.NotAfter.Unix()) {
		t.Errorf("the root expires at %v by the metric", got)
	}
}
