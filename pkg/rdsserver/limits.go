package rdsserver

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits bound what hostile or broken clients can take from the others. A mesh in order meets none of the
// defaults, which stand for fields that are zero.
type Limits struct {
	// Connections that are open, those in their handshake included. Further ones are closed at once.
	// Default 50000.
	Connections int
	// Handshakes that compute at the same time in their first half, and as many in their second; those that wait
	// for their client do not count. The rest wait, until HandshakeTime is over. Default GOMAXPROCS.
	Handshakes int
	// HandshakeRate is how many handshakes begin per second, with a burst of two seconds' worth. The rest wait;
	// what would wait beyond HandshakeTime is closed at once. Default 1000.
	HandshakeRate int
	// HandshakeTime is for the handshakes of TLS and HTTP/2, the wait for their turn included. Default 10 s.
	HandshakeTime time.Duration
	// Streams that are open. Further ones end with UNAVAILABLE, so that the proxy tries another replica.
	// Default 50000.
	Streams int
	// StreamsPerConnection is announced in the HTTP/2 settings. What a client opens beyond is reset with
	// REFUSED_STREAM, uncounted. Default 5000.
	StreamsPerConnection int
	// StreamsPerProxy counts by identity and node id: all pods of a service account have the same identity.
	// Further streams end with RESOURCE_EXHAUSTED. Default 5000: a sidecar may have one for each service.
	StreamsPerProxy int
	// FirstRequest is the time until a stream must have said whose it is. Default 30 s.
	FirstRequest time.Duration
	// RequestBytes of one request. A stream with a larger one ends with RESOURCE_EXHAUSTED. Default 4 MiB.
	RequestBytes int
	// HeaderBytes of a stream's header, announced in the HTTP/2 settings. A stream with a larger one is reset,
	// uncounted. Default 32 KiB.
	HeaderBytes int
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Connections:          cmp.Or(l.Connections, 50_000),
		Handshakes:           cmp.Or(l.Handshakes, runtime.GOMAXPROCS(0)),
		HandshakeRate:        cmp.Or(l.HandshakeRate, 1000),
		HandshakeTime:        cmp.Or(l.HandshakeTime, 10*time.Second),
		Streams:              cmp.Or(l.Streams, 50_000),
		StreamsPerConnection: cmp.Or(l.StreamsPerConnection, 5000),
		StreamsPerProxy:      cmp.Or(l.StreamsPerProxy, 5000),
		FirstRequest:         cmp.Or(l.FirstRequest, 30*time.Second),
		RequestBytes:         cmp.Or(l.RequestBytes, 4<<20),
		HeaderBytes:          cmp.Or(l.HeaderBytes, 32<<10),
	}
}

func (l Limits) check() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Connections", int64(l.Connections)}, {"Handshakes", int64(l.Handshakes)}, {"HandshakeRate", int64(l.HandshakeRate)},
		{"HandshakeTime", int64(l.HandshakeTime / time.Millisecond)}, {"Streams", int64(l.Streams)},
		{"StreamsPerConnection", int64(l.StreamsPerConnection)}, {"StreamsPerProxy", int64(l.StreamsPerProxy)},
		{"FirstRequest", int64(l.FirstRequest / time.Millisecond)}, {"RequestBytes", int64(l.RequestBytes)}, {"HeaderBytes", int64(l.HeaderBytes)},
	} {
		if f.value < 0 || f.value > math.MaxInt32 {
			return fmt.Errorf("rdsserver: limit %s is out of range", f.name)
		}
	}
	return nil
}

// Limits as the metric and the log name them.
const (
	limitConnections     = "connections"
	limitHandshakes      = "handshakes"
	limitHandshakeRate   = "handshake_rate"
	limitHandshakeTime   = "handshake_time"
	limitStreams         = "streams"
	limitStreamsPerProxy = "streams_per_proxy"
	limitFirstRequest    = "first_request"
	limitRequestBytes    = "request_bytes"
	limitNames           = "names"
)

var everyLimit = []string{
	limitConnections, limitHandshakes, limitHandshakeRate, limitHandshakeTime, limitStreams, limitStreamsPerProxy,
	limitFirstRequest, limitRequestBytes, limitNames,
}

// limited counts that somebody reached a limit, logs it once for each of them, and returns the status that
// says so. Who is the identity, the address where there is none yet, or empty where it is everybody's doing.
func (s *Server) limited(limit, who string, code codes.Code, format string, args ...any) error {
	s.metrics.limits.WithLabelValues(limit).Inc()
	text := clip(fmt.Sprintf(format, args...))
	if s.logged.first("limited " + limit + " " + who) {
		s.log.Warn("limit reached", "limit", limit, "by", who, "detail", text)
	}
	return status.Error(code, text)
}

// proxy is who streams are counted for.
type proxy struct{ identity, node string }

// counts is how many streams each proxy has open. The zero value is ready.
type counts struct {
	mu   sync.Mutex
	open map[proxy]int
}

// enter counts one more, unless the proxy has the most it may have.
func (c *counts) enter(p proxy, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[p] >= most {
		return false
	}
	if c.open == nil {
		c.open = map[proxy]int{}
	}
	c.open[p]++
	return true
}

// leave counts one less, of a proxy that entered.
func (c *counts) leave(p proxy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[p]--; c.open[p] == 0 {
		delete(c.open, p)
	}
}
