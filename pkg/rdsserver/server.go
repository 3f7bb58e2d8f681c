package rdsserver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	routeservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/staticxds"
)

// Cache is what the server asks of the cache. *cachemgr.Manager is one.
type Cache interface {
	Serves(typeURL string) bool
	Open(p cachemgr.Peer, wake func()) *cachemgr.Stream
}

// Server serves RDS and ADS.
type Server struct {
	cache           Cache
	static          *staticxds.Source // nil if there is none
	order           []string          // types, in the order in which they are sent
	gates           int               // how many of the first of them hold back what follows until they are answered
	rdsType         string
	trustDomains    atomic.Pointer[[]string]
	mode            Authorize
	clients         Clients
	maxNames        int
	limits          Limits
	responseTimeout time.Duration
	gracePeriod     time.Duration
	metrics         *Metrics
	log             *slog.Logger
	events          *EventLog
	logged          once
	pusher          *pusher
	door            *door
	proxies         counts
	grpc            *grpc.Server
	draining        atomic.Bool
	lastStream      atomic.Uint64

	mu      sync.Mutex
	streams map[*stream]struct{}
}

// New returns a Server that listens nowhere yet.
func New(o Options) (*Server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &Server{
		cache: o.Cache, static: o.Static, order: o.Types, rdsType: o.Types[0], clients: o.Clients, mode: cmp.Or(o.Authorize, AuthorizeNamespace),
		maxNames: cmp.Or(o.MaxNames, 10_000), limits: o.Limits.withDefaults(),
		responseTimeout: cmp.Or(o.ResponseTimeout, 30*time.Second), gracePeriod: cmp.Or(o.GracePeriod, 10*time.Second),
		metrics: o.Metrics, log: o.Log, events: o.Events, pusher: newPusher(), streams: map[*stream]struct{}{},
	}
	if s.static != nil {
		s.order, s.gates = slices.Concat(staticxds.Types(), o.Types), len(staticxds.Types())
	}
	s.door = newDoor(s)
	s.SetTrustDomains(o.TrustDomains)
	s.metrics.authorization.WithLabelValues(string(s.mode)).Set(1)
	s.grpc = grpc.NewServer(s.grpcOptions(o)...)
	routeservicev3.RegisterRouteDiscoveryServiceServer(s.grpc, rds{server: s})
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, ads{server: s})
	return s, nil
}

// TrustDomains are those of which client certificates are accepted.
func (s *Server) TrustDomains() []string { return *s.trustDomains.Load() }

// SetTrustDomains changes of which trust domains client certificates are accepted, for new streams.
func (s *Server) SetTrustDomains(domains []string) { s.trustDomains.Store(&domains) }

// grpcOptions are tuned for many quiet connections: each with one stream, as the common sidecar bootstrap
// has it. The reasons stand with each.
func (s *Server) grpcOptions(o Options) []grpc.ServerOption {
	age := keepalive.ServerParameters{
		// A half-open connection shows within seconds, not within the two hours of gRPC's default.
		Time: 30 * time.Second, Timeout: 10 * time.Second,
		// A connection without streams is of no use, but counts.
		MaxConnectionIdle: 5 * time.Minute,
	}
	if o.ConnectionAge > 0 {
		// Reconnecting proxies spread over the replicas after a scale-out.
		age.MaxConnectionAge, age.MaxConnectionAgeGrace = o.ConnectionAge, s.gracePeriod
	}
	return []grpc.ServerOption{
		grpc.Creds(doorCredentials{credentials.NewTLS(o.TLS)}),
		grpc.ConnectionTimeout(s.limits.HandshakeTime),
		grpc.MaxConcurrentStreams(uint32(s.limits.StreamsPerConnection)), // told to the client, which waits or connects again
		grpc.MaxRecvMsgSize(s.limits.RequestBytes),
		grpc.MaxHeaderListSize(uint32(s.limits.HeaderBytes)),
		grpc.KeepaliveParams(age),
		// Proxies may ping as often as every 10 s; gRPC's default would close them for that.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ReadBufferSize(0), // TLS buffers anyway: 11 KB less for each connection
		// Static windows: none of the pings by which grpc estimates bandwidth.
		grpc.StaticStreamWindowSize(64 << 10), grpc.StaticConnWindowSize(64 << 10),
		grpc.InTapHandle(s.admit),
	}
}

// errStopping is what proxies are told during the stop.
var errStopping = status.Error(codes.Unavailable, "the server is shutting down")

// ender is the key of the function, in a stream's context, that cancels it. A handler that waits for a
// request can be woken by nothing else, and a second goroutine to wait beside it would cost every quiet
// stream some kilobytes.
type ender struct{}

// admit gives each stream a context of its own, and refuses new ones during the stop.
func (s *Server) admit(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if s.draining.Load() {
		return nil, errStopping
	}
	ctx, cancel := context.WithCancelCause(ctx)
	return context.WithValue(ctx, ender{}, cancel), nil
}

// endOf returns the function that ends a stream from outside its goroutine with a status.
func endOf(ctx context.Context) (func(*status.Status), bool) {
	cancel, ok := ctx.Value(ender{}).(context.CancelCauseFunc)
	return func(st *status.Status) {
		// The wait for a request, once cancelled, would itself tell the proxy "Canceled"; what is written
		// before counts. Without this method of grpc's the stream ends all the same, with that status.
		if w, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(*status.Status) error }); ok {
			_ = w.WriteStatus(st) // fails only where the stream is over
		}
		cancel(st.Err())
	}, ok
}

// serve is the one loop that all stream forms share.
func (s *Server) serve(ctx context.Context, method string, aggregated bool, wire encoding) error {
	end, ok := endOf(ctx)
	if !ok {
		return status.Error(codes.Internal, "the stream was not admitted")
	}
	st := &stream{server: s, id: s.lastStream.Add(1), method: method, ads: aggregated, end: end, wire: wire}
	if !s.enlist(st) {
		return s.limited(limitStreams, "", codes.Unavailable, "%d streams are open, the most that this replica takes", s.limits.Streams)
	}
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
	}()
	return st.run(ctx)
}

// enlist notes a stream, unless there are too many.
func (s *Server) enlist(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= s.limits.Streams {
		return false
	}
	s.streams[st] = struct{}{}
	return true
}

// refused counts and logs a refusal, each identity and reason once, and returns its status.
func (s *Server) refused(ctx context.Context, r *refusal) error {
	s.metrics.refused.WithLabelValues(r.reason).Inc()
	who := whose(ctx)
	if s.logged.first("refused " + r.reason + " " + who) {
		s.log.Warn("stream refused", "reason", r.reason, "identity", who, "detail", r.status.Message())
	}
	return r.status.Err()
}

// Draining reports whether the stop has begun.
func (s *Server) Draining() bool { return s.draining.Load() }

// Run serves on a listener, which it closes, until the context ends. Then new streams are refused, proxies
// are told to go away, and the open streams are closed spread over the grace period, so that they do not
// all reconnect at once. Nothing is pushed any more: a stream whose answer would bring another table ends at
// once, so that it gets that from another replica.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	pushing, stopPushing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPushing()
	for range 2 * runtime.GOMAXPROCS(0) {
		go s.pusher.run(pushing)
	}
	if s.mode == AuthorizeOff {
		s.log.Warn("authorization is off: whoever completes a handshake gets the tables of any namespace it names")
	}
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(&listener{l, s.door}) }()
	s.events.Write(Event{Event: EventServerStarted})
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	stopPushing()
	s.drain()
	return nil
}

// drain closes the streams evenly over the grace period, then everything that is left.
func (s *Server) drain() {
	gone := make(chan struct{})
	go func() {
		s.grpc.GracefulStop() // returns when the last stream has ended
		close(gone)
	}()
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	s.log.Info("stopping: open streams are closed over the grace period", "streams", len(open), "grace", s.gracePeriod.String())
	deadline, cancel := context.WithTimeout(context.Background(), s.gracePeriod)
	defer cancel()
	between := time.NewTicker(max(s.gracePeriod/time.Duration(len(open)+1), time.Microsecond))
	defer between.Stop()
	for _, st := range open {
		st.end(status.Convert(errStopping))
		select {
		case <-between.C:
		case <-deadline.Done():
		}
	}
	select {
	case <-gone:
	case <-deadline.Done():
		s.door.closeAll() // grpc would wait for handshakes
		s.grpc.Stop()
		<-gone
	}
}

// rds is the RouteDiscoveryService.
type rds struct {
	routeservicev3.UnimplementedRouteDiscoveryServiceServer
	server *Server
}

func (r rds) StreamRoutes(g routeservicev3.RouteDiscoveryService_StreamRoutesServer) error {
	return r.server.serve(g.Context(), "StreamRoutes", false, &sotw{stream: g})
}

func (r rds) DeltaRoutes(g routeservicev3.RouteDiscoveryService_DeltaRoutesServer) error {
	return r.server.serve(g.Context(), "DeltaRoutes", false, &deltas{g})
}

func (rds) FetchRoutes(context.Context, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	return nil, status.Error(codes.Unimplemented, "polling is not served: open a stream with StreamRoutes or DeltaRoutes")
}

// ads is the AggregatedDiscoveryService.
type ads struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
}

func (a ads) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return a.server.serve(g.Context(), "StreamAggregatedResources", true, &sotw{stream: g})
}

func (a ads) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.server.serve(g.Context(), "DeltaAggregatedResources", true, &deltas{g})
}
