package staticxds

import "github.com/prometheus/client_golang/prometheus"

// Metrics of static resources.
type Metrics struct {
	resources *prometheus.GaugeVec
	loaded    prometheus.Gauge
	failures  prometheus.Counter
}

// NewMetrics registers the metrics of static resources.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		resources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_static_resources", Help: "Static resources in force, by type.",
		}, []string{"type"}),
		loaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_static_resources_loaded_timestamp_seconds", Help: "When the file of static resources was last read without a fault; 0 is never.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "metards_static_resources_failures_total", Help: "Readings of the file of static resources that found a fault.",
		}),
	}
	r.MustRegister(m.resources, m.loaded, m.failures)
	return m
}
