package cachemgr

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the cache.
type Metrics struct {
	compilations  prometheus.Counter
	renewals      prometheus.Histogram
	tables        prometheus.Gauge
	streams       prometheus.Gauge
	subscriptions prometheus.Gauge
}

// NewMetrics registers the cache's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		compilations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "metards_compilations_total", Help: "Tables compiled. Without subscribers nothing is.",
		}),
		renewals: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "metards_renewal_seconds", Help: "Time to compile what one coalesced change concerns.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		tables: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_tables", Help: "Names that are subscribed to, counted for each client namespace.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_streams", Help: "Open streams of authorized proxies.",
		}),
		subscriptions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_subscriptions", Help: "Names that streams are subscribed to, counted for each stream.",
		}),
	}
	r.MustRegister(m.compilations, m.renewals, m.tables, m.streams, m.subscriptions)
	return m
}
