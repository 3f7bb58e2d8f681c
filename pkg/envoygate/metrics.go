package envoygate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The results of a run.
const (
	resultPassed  = "passed"
	resultRefused = "refused"
	resultFailed  = "failed"
)

// Metrics of the gate.
type Metrics struct {
	runs    *prometheus.CounterVec
	seconds prometheus.Histogram
	waiting prometheus.Gauge
}

// NewMetrics registers the gate's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_gate_runs_total", Help: "Runs of `envoy --mode validate` by result: passed, refused, failed (no verdict). Each may judge many tables.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "metards_gate_run_seconds", Help: "Time of one run of `envoy --mode validate`.",
			Buckets: prometheus.ExponentialBuckets(0.02, 2, 10),
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_gate_waiting", Help: "Tables that are not served before Envoy has judged them.",
		}),
	}
	for _, result := range []string{resultPassed, resultRefused, resultFailed} {
		m.runs.WithLabelValues(result)
	}
	r.MustRegister(m.runs, m.seconds, m.waiting)
	return m
}

func (m *Metrics) observe(result string, took time.Duration) {
	m.runs.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
}
