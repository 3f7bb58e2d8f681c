package tlsboot

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// What can fail to reload: the values of the label what, and of the log's key of that name.
const (
	whatCertificate = "certificate"
	whatRoots       = "roots"
)

// Metrics tell when certificates end and whether reloading fails.
type Metrics struct {
	certificateExpiry prometheus.Gauge
	rootExpiry        prometheus.Gauge
	failures          *prometheus.CounterVec
	failing           *prometheus.GaugeVec
}

// NewMetrics registers the metrics with reg; a nil reg leaves them unregistered. It panics if reg has
// them already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		certificateExpiry: with.NewGauge(prometheus.GaugeOpts{
			Name: "metards_tls_certificate_expiry_timestamp_seconds",
			Help: "When the server certificate in force expires, in seconds since 1970.",
		}),
		rootExpiry: with.NewGauge(prometheus.GaugeOpts{
			Name: "metards_tls_root_expiry_timestamp_seconds",
			Help: "When the first of the trust roots in force expires, in seconds since 1970.",
		}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_tls_reload_failures_total",
			Help: "Distinct failures to reload the certificate or the roots; one that lasts counts once.",
		}, []string{"what"}),
		failing: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_tls_reload_failing",
			Help: "1 while the files of the certificate or the roots are unusable and older content stays in force, else 0.",
		}, []string{"what"}),
	}
	for _, what := range []string{whatCertificate, whatRoots} {
		m.failures.WithLabelValues(what)
		m.failing.WithLabelValues(what)
	}
	return m
}

func (m *Metrics) show(leaf *x509.Certificate, roots []*x509.Certificate) {
	m.certificateExpiry.Set(float64(leaf.NotAfter.Unix()))
	m.rootExpiry.Set(float64(firstExpiry(roots).Unix()))
}

func firstExpiry(certs []*x509.Certificate) time.Time {
	first := certs[0].NotAfter
	for _, c := range certs[1:] {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first
}
