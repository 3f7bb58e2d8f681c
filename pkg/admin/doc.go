// Package admin is the HTTP port for people, probes and Prometheus. In: what the other packages know.
// Out: health, metrics, and for loopback peers, or over TLS those of the root namespace, debug pages in JSON.
// Not here: decisions; it only tells.
package admin
