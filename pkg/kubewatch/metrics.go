package kubewatch

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/metards/metards/pkg/kubeclient"
)

// Metrics tell whether what is known of the API server's MetaRouters is fresh.
type Metrics struct {
	contact  prometheus.Gauge
	failures *prometheus.CounterVec
	held     prometheus.Gauge
}

// NewMetrics registers the metrics with reg; a nil reg leaves them unregistered. It panics if reg has
// them already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		contact: with.NewGauge(prometheus.GaugeOpts{
			Name: "metards_kubernetes_last_contact_timestamp_seconds",
			Help: "When the API server last gave a list of MetaRouters or an event (bookmarks, about one a minute, count), in seconds since 1970; 0 is never.",
		}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_kubernetes_failures_total",
			Help: "Requests for MetaRouters to the API server that failed, by reason.",
		}, []string{"reason"}),
		held: with.NewGauge(prometheus.GaugeOpts{
			Name: "metards_kubernetes_held_metarouters",
			Help: "MetaRouters that stay in force although the API server does not have them, because their CRD went away.",
		}),
	}
	for _, c := range kubeclient.Classes() {
		m.failures.WithLabelValues(string(c))
	}
	return m
}
