package istiowatch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the watch on istiod.
type Metrics struct {
	connected   prometheus.Gauge
	lastProof   prometheus.Gauge
	responses   *prometheus.CounterVec
	bytes       *prometheus.GaugeVec
	undecodable *prometheus.GaugeVec
	reconnects  *prometheus.CounterVec
	held        prometheus.Gauge
}

// NewMetrics registers the watch's metrics. Labels are a type URL of the few that are asked for, or a
// failure's reason out of a closed list.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_mcp_connected", Help: "1 while a stream to istiod is open and has brought a good response.",
		}),
		lastProof: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_mcp_last_response_timestamp_seconds", Help: "When istiod answered last, in Unix time; 0 if it never did. The age is time() minus this.",
		}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_mcp_responses_total", Help: "Lists received from istiod, changed or not.",
		}, []string{"type"}),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_mcp_list_bytes", Help: "Size of the list received last.",
		}, []string{"type"}),
		undecodable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_mcp_undecodable_items", Help: "Items of the list received last that could not be decoded; their previous values are in force.",
		}, []string{"type"}),
		reconnects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_mcp_reconnects_total", Help: "Connections to istiod that failed or ended, by reason.",
		}, []string{"reason"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_mcp_held_lists", Help: "Lists that shrank suddenly and wait for confirmation.",
		}),
	}
	r.MustRegister(m.connected, m.lastProof, m.responses, m.bytes, m.undecodable, m.reconnects, m.held)
	return m
}

// received notes one response.
func (m *Metrics) received(typeURL string, bytes, undecodable int, now time.Time) {
	m.responses.WithLabelValues(typeURL).Inc()
	m.bytes.WithLabelValues(typeURL).Set(float64(bytes))
	m.undecodable.WithLabelValues(typeURL).Set(float64(undecodable))
	m.lastProof.Set(float64(now.UnixMilli()) / 1000)
}
