package rdsserver

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the server.
type Metrics struct {
	sent      prometheus.Counter
	sentBytes prometheus.Counter
	accepted  prometheus.Counter
	rejected  prometheus.Counter
	timeouts  prometheus.Counter
	parked    prometheus.Counter
	refused   *prometheus.CounterVec

	limits           *prometheus.CounterVec
	handshakesFailed *prometheus.CounterVec
	connections      prometheus.Gauge
	authorization    *prometheus.GaugeVec
}

// NewMetrics registers the server's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		sent:      counter("metards_responses_sent_total", "Responses sent; each carries one table, or static resources of one type."),
		sentBytes: counter("metards_response_table_bytes_total", "Bytes of the tables and static resources in them."),
		accepted:  counter("metards_responses_accepted_total", "Responses that the proxy took (ACK)."),
		rejected:  counter("metards_responses_rejected_total", "Responses that the proxy refused (NACK)."),
		timeouts:  counter("metards_responses_unanswered_total", "Streams ended because a response was not answered in time."),
		parked:    counter("metards_ads_types_parked_total", "Types asked for on ADS streams that are not served."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_streams_refused_total", Help: "Streams refused at their first request, by reason.",
		}, []string{"reason"}),
		limits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_limits_reached_total", Help: "Connections, streams and requests turned away because a limit was reached, by limit.",
		}, []string{"limit"}),
		handshakesFailed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metards_handshakes_failed_total", Help: "TLS handshakes of clients that failed, by reason.",
		}, []string{"reason"}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_connections", Help: "Connections of clients, those in their handshake included.",
		}),
		authorization: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metards_authorization", Help: "1 for the mode of authorization in force: namespace, mesh or off.",
		}, []string{"mode"}),
	}
	for _, limit := range everyLimit {
		m.limits.WithLabelValues(limit) // an alert can tell 0 from absent
	}
	r.MustRegister(m.sent, m.sentBytes, m.accepted, m.rejected, m.timeouts, m.parked, m.refused,
		m.limits, m.handshakesFailed, m.connections, m.authorization)
	return m
}
