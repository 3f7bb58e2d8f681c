package rdsserver

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/staticxds"
)

// stream is one stream of a proxy. Its goroutine waits for requests; a pusher's worker sends what changed
// meanwhile; both hold mu.
type stream struct {
	server *Server
	id     uint64
	method string
	ads    bool
	end    func(*status.Status) // ends the stream, from any goroutine

	queued bool // guarded by the pusher

	mu       sync.Mutex
	wire     encoding
	node     node               // of the first request
	identity string             // whose it is
	cache    *cachemgr.Stream   // nil before the first request
	static   *staticxds.Session // nil before the stream asks for what may have static resources
	pending  []pending          // at most one for each type
	parked   []string           // types asked for on ADS that are not served
	closed   bool
}

// pending is a response that the proxy has not answered yet. Until it does nothing else of the type is
// sent: the newest Table goes out then.
type pending struct {
	response response
	nonce    string
	timer    *time.Timer // ends the stream of a proxy that never answers
	owed     bool        // the timer runs
}

// run is the stream's life: it returns the status that the proxy gets.
func (s *stream) run(ctx context.Context) error {
	defer s.close()
	defer s.server.connected(ctx)()
	silence := time.AfterFunc(s.server.limits.FirstRequest, func() { s.silent(ctx) })
	r, err := s.wire.recv()
	silence.Stop() // a quiet stream keeps no timer
	for ; err == nil; r, err = s.wire.recv() {
		if err := s.handle(ctx, r); err != nil {
			return err
		}
	}
	return s.ended(ctx, err)
}

// silent ends a stream that does not say whose it is.
func (s *stream) silent(ctx context.Context) {
	s.end(status.Convert(s.server.limited(limitFirstRequest, whose(ctx), codes.DeadlineExceeded,
		"no request came within %s of the stream's opening", s.server.limits.FirstRequest)))
}

// ended tells why no request comes any more: because we ended the stream, or the proxy did.
func (s *stream) ended(ctx context.Context, err error) error {
	if ours, ok := status.FromError(context.Cause(ctx)); ok && ours.Code() != codes.OK {
		return ours.Err()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if status.Code(err) == codes.ResourceExhausted { // grpc has told the proxy already
		return s.server.limited(limitRequestBytes, whose(ctx), codes.ResourceExhausted, "%s", status.Convert(err).Message())
	}
	return err
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, p := range s.pending {
		p.timer.Stop()
	}
	s.pending = nil
	if s.cache != nil {
		s.server.proxies.leave(proxy{s.identity, s.node.id})
		if s.static != nil {
			s.static.Close()
		}
		s.cache.Close()
		s.server.events.Write(Event{Event: EventStreamClosed, Stream: s.id, Node: s.node.id})
	}
}

// handle takes in one request. An error ends the stream.
func (s *stream) handle(ctx context.Context, r request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkNode(ctx, r); err != nil {
		return err
	}
	if err := checkWords([]string{r.typeURL}); err != nil {
		return err
	}
	if r.typeURL == "" && !s.ads {
		r.typeURL = s.server.rdsType
	}
	if !s.mayBeStatic(r.typeURL) && !s.server.cache.Serves(r.typeURL) || !s.ads && r.typeURL != s.server.rdsType {
		return s.park(r.typeURL)
	}
	if err := checkWords(r.names, r.add, r.remove); err != nil {
		return err
	}
	if n := len(r.names) + len(r.add) + len(r.remove); n > s.server.maxNames {
		return s.server.limited(limitNames, s.identity, codes.ResourceExhausted, "%d names in one request, at most %d are allowed", n, s.server.maxNames)
	}
	s.answer(r)
	to, err := s.subscriptionsFor(r)
	if err != nil {
		return err
	}
	s.wire.subscribe(to, r)
	s.owe(r.typeURL)
	if err := s.checkCount(); err != nil {
		return err
	}
	return s.send()
}

// checkNode opens the stream with the first request's node, and holds later ones against it.
func (s *stream) checkNode(ctx context.Context, r request) error {
	if s.cache != nil {
		if r.node == nil {
			return nil
		}
		if n, err := parseNode(r.node); err != nil || n != s.node {
			return status.Errorf(codes.InvalidArgument, "the node of this request (%s) is not that of the stream's first one (%s)", clip(r.node.GetId()), s.node.id)
		}
		return nil
	}
	n, err := parseNode(r.node)
	if err != nil {
		return s.server.refused(ctx, refuse(refusedNode, codes.InvalidArgument, "%v", err))
	}
	id, refusal := s.server.authorize(ctx, n)
	if refusal != nil {
		return s.server.refused(ctx, refusal)
	}
	if !s.server.proxies.enter(proxy{id, n.id}, s.server.limits.StreamsPerProxy) {
		return s.server.limited(limitStreamsPerProxy, id, codes.ResourceExhausted,
			"node %s of %s has %d streams open, the most that one proxy may have", n.id, id, s.server.limits.StreamsPerProxy)
	}
	s.node, s.identity = n, id
	s.cache = s.server.cache.Open(cachemgr.Peer{
		Node: n.id, Identity: id, View: mesh.View{Namespace: n.namespace, Gateway: n.gateway},
	}, func() { s.server.pusher.push(s) })
	s.server.events.Write(Event{Event: EventStreamOpened, Stream: s.id, Node: n.id, Method: s.method})
	return nil
}

// park leaves a type that is not served unanswered on ADS, where an error would end the other types'
// subscriptions too. On the RDS service it is an error.
func (s *stream) park(typeURL string) error {
	switch {
	case typeURL == "":
		return status.Error(codes.InvalidArgument, "a request on ADS needs a type_url")
	case !s.ads:
		return status.Errorf(codes.InvalidArgument, "this service serves %s only, not %s", s.server.rdsType, typeURL)
	case slices.Contains(s.parked, typeURL) || len(s.parked) >= maxParked:
		return nil
	}
	s.parked = append(s.parked, typeURL)
	s.server.metrics.parked.Inc()
	if s.server.logged.first("parked " + typeURL) {
		s.server.log.Warn("a proxy asks on ADS for a type that is not served; it is left unanswered", "type", typeURL, "node", s.node.id)
	}
	return nil
}

// maxParked bounds what is remembered of types that are not served.
const maxParked = 64

// answer notes a request's answer to the pending response. A stale nonce answers nothing: the response
// that it means is not the pending one.
func (s *stream) answer(r request) {
	event := Event{
		Event: EventRequest, Stream: s.id, Node: s.node.id, Type: r.typeURL, Names: r.names, Version: r.version, Nonce: r.nonce, Held: r.held,
	}
	if len(r.add) > 0 || len(r.remove) > 0 {
		event.Names, event.Dropped = r.add, r.remove
	}
	i := slices.IndexFunc(s.pending, func(p pending) bool { return r.nonce != "" && p.nonce == r.nonce })
	if i >= 0 {
		p := s.pending[i]
		p.timer.Stop()
		s.pending = slices.Delete(s.pending, i, i+1)
		if r.err == nil {
			event.Event = EventAck
			s.server.metrics.accepted.Inc()
			s.accepted(p.response)
		} else {
			reason := clip(r.err.GetMessage())
			event.Event, event.Error = EventNack, reason
			s.server.metrics.rejected.Inc()
			s.rejected(p.response, reason)
			s.logRejected(p.response, reason)
		}
	}
	s.server.events.Write(event)
}

// owe stops the wait for an answer while the proxy wants nothing of the type: an Envoy whose last subscription
// went away ignores a response that was on its way. Its next request may bring the nonce all the same.
func (s *stream) owe(typeURL string) {
	p := s.outstanding(typeURL)
	if p == nil {
		return
	}
	owed := s.wants(typeURL)
	switch {
	case p.owed && !owed:
		p.timer.Stop()
	case !p.owed && owed:
		p.timer.Reset(s.server.responseTimeout)
	}
	p.owed = owed
}

// advance sends what is due. It is called by a pusher's worker.
func (s *stream) advance() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.cache == nil || s.server.draining.Load() {
		return
	}
	if err := s.send(); err != nil {
		s.end(status.Convert(err))
	}
}

// outstanding returns the response of a type that the proxy has not answered, nil if there is none.
func (s *stream) outstanding(typeURL string) *pending {
	i := slices.IndexFunc(s.pending, func(p pending) bool { return p.response.typeURL() == typeURL })
	if i < 0 {
		return nil
	}
	return &s.pending[i]
}

// send sends, for each type without a pending response, what is next. Static clusters, endpoints and listeners
// have to be answered before what may name them is sent; but Envoy answers clusters only once it has their
// endpoints. What is taken away comes last of all. mu is held.
func (s *stream) send() error {
	waiting := false
	for i, typeURL := range s.server.order {
		if waiting && typeURL != staticxds.EndpointType {
			return nil
		}
		p := s.outstanding(typeURL)
		if p == nil {
			if err := s.sendOne(s.next(typeURL)); err != nil {
				return err
			}
			p = s.outstanding(typeURL)
		}
		waiting = waiting || p != nil && p.owed && i < s.server.gates
	}
	return s.sendOne(s.removal())
}

// timeout ends the stream of a proxy that does not answer, so that it starts afresh: either the send is
// blocked or the proxy is deaf.
func (s *stream) timeout() {
	s.server.metrics.timeouts.Inc()
	s.end(status.Newf(codes.DeadlineExceeded, "no answer to a response within %s", s.server.responseTimeout))
}

// newNonce is unguessable, so that a client cannot answer what it has not read.
func newNonce() string { return strconv.FormatUint(rand.Uint64(), 36) }
