package main

import (
	"time"

	"github.com/spf13/pflag"
)

// registerLimits adds the flags of what clients may take.
func (o *serveFlags) registerLimits(f *pflag.FlagSet) {
	l := &o.limits
	f.IntVar(&l.Connections, "max-connections", 50_000, "most open connections; further ones are closed")
	f.IntVar(&l.HandshakeRate, "handshake-rate", 1000, "most handshakes that begin per second; the rest wait")
	f.DurationVar(&l.HandshakeTime, "handshake-timeout", 10*time.Second, "time for a handshake, the wait for its turn included")
	f.IntVar(&l.Streams, "max-streams", 50_000, "most open streams; further ones are sent to another replica")
	f.IntVar(&l.StreamsPerConnection, "max-streams-per-connection", 5000, "most streams of one connection")
	f.IntVar(&l.StreamsPerProxy, "max-streams-per-proxy", 5000, "most streams of one identity and node id")
	f.DurationVar(&l.FirstRequest, "first-request-timeout", 30*time.Second, "time until a stream must have said whose it is")
	f.IntVar(&l.RequestBytes, "max-request-bytes", 4<<20, "largest request, in bytes")
	f.IntVar(&l.HeaderBytes, "max-header-bytes", 32<<10, "largest header of a stream, in bytes")
}
