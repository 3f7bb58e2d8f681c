package kubestatus

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics tell what is written, and who writes the conditions.
type Metrics struct {
	writes *prometheus.CounterVec
	leader prometheus.Gauge
}

// NewMetrics registers the metrics with reg; a nil reg leaves them unregistered. It panics if reg has
// them already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		writes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_kubernetes_status_writes_total",
			Help: "Writes to the status of MetaRouters: reports of this replica, conditions, and removals of reports of gone replicas, by result.",
		}, []string{"what", "result"}),
		leader: with.NewGauge(prometheus.GaugeOpts{
			Name: "metards_kubernetes_lease_held",
			Help: "1 while this replica holds the Lease and so writes the conditions of MetaRouters, else 0.",
		}),
	}
	for _, what := range []task{taskReport, taskVerdict, taskExpire} {
		for _, result := range []string{resultWritten, resultFailed} {
			m.writes.WithLabelValues(string(what), result)
		}
	}
	return m
}

const (
	resultWritten = "written"
	resultFailed  = "failed"
)
