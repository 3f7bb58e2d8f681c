package tlsboot

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/metards/metards/pkg/meshca"
)

// What can fail to reload: the values of the label what, and of the log's key of that name.
const (
	whatCertificate = "certificate"
	whatRoots       = "roots"
	whatAnchors     = "anchors"
	whatCRL         = "crl"
)

// resultGranted is the value of the label result for requests that succeed; for others it is a reason of meshca.
const resultGranted = "granted"

// Metrics tell when certificates end, whether renewing them fails, and which roots have clients.
type Metrics struct {
	certificateExpiry prometheus.Gauge
	rootExpiry        *prometheus.GaugeVec
	clients           *prometheus.GaugeVec
	requests          *prometheus.CounterVec
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
		rootExpiry: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_tls_root_expiry_timestamp_seconds",
			Help: "When each trust root in force expires, in seconds since 1970; root is the beginning of its SHA-256 fingerprint.",
		}, []string{"root"}),
		clients: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_tls_clients",
			Help: "Connected clients that chain to each trust root in force, and to former ones while they have clients.",
		}, []string{"root"}),
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_tls_certificate_requests_total",
			Help: "Certificates asked of the mesh's CA, by result: granted, or why not.",
		}, []string{"result"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_tls_reload_failures_total",
			Help: "Distinct failures to renew the certificate, the roots, the anchors or the CRL; one that lasts counts once.",
		}, []string{"what"}),
		failing: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_tls_reload_failing",
			Help: "1 while the certificate, the roots, the anchors or the CRL cannot be renewed and what is older stays in force, else 0.",
		}, []string{"what"}),
	}
	for _, what := range []string{whatCertificate, whatRoots, whatAnchors, whatCRL} {
		m.failures.WithLabelValues(what)
		m.failing.WithLabelValues(what)
	}
	for _, result := range append(meshca.Reasons(), resultGranted) {
		m.requests.WithLabelValues(result)
	}
	return m
}

func (m *Metrics) showCertificate(leaf *x509.Certificate) {
	m.certificateExpiry.Set(float64(leaf.NotAfter.Unix()))
}

// showRoots forgets the roots that were shown before.
func (m *Metrics) showRoots(roots []*x509.Certificate) {
	m.rootExpiry.Reset()
	for _, r := range roots {
		m.rootExpiry.WithLabelValues(fingerprint(r)).Set(float64(r.NotAfter.Unix()))
	}
}

// firstExpiry is the zero time if there are none.
func firstExpiry(certs []*x509.Certificate) time.Time {
	if len(certs) == 0 {
		return time.Time{}
	}
	first := certs[0].NotAfter
	for _, c := range certs[1:] {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first
}
