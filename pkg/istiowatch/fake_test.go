package istiowatch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// istiod is a small MCP server that behaves as istiod does: full lists in random order on every push, new
// versions each time, one stream for all types, refusals that end the stream.
type istiod struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	address string

	mu       sync.Mutex
	lists    map[string][]*anypb.Any
	pushes   map[chan struct{}]struct{} // one for each open stream
	refusal  *status.Status             // of every request, nil for none
	mute     bool                       // answers nothing
	cut      bool                       // ends each stream after one response
	again    bool                       // answers a refusal by the same list
	unasked  bool                       // precedes every list by one of another type
	requests []*discovery.DiscoveryRequest
	tokens   []string // of each stream
	streams  int
	counter  int
	quit     chan struct{}
	restart  chan struct{} // closed to end the open streams
}

// start runs a server on loopback until the test ends. Without credentials it is plaintext.
func start(t testing.TB, secure credentials.TransportCredentials) *istiod {
	t.Helper()
	if secure == nil {
		secure = insecure.NewCredentials()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &istiod{
		address: listener.Addr().String(), lists: map[string][]*anypb.Any{}, pushes: map[chan struct{}]struct{}{},
		quit: make(chan struct{}), restart: make(chan struct{}),
	}
	server := grpc.NewServer(grpc.Creds(secure))
	discovery.RegisterAggregatedDiscoveryServiceServer(server, s)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		close(s.quit)
		server.Stop()
		served.Wait()
	})
	return s
}

// change changes the server under its lock.
func (s *istiod) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// set replaces the list of a type, without a push.
func (s *istiod) set(typeURL string, items ...*anypb.Any) {
	s.change(func() { s.lists[typeURL] = items })
}

// push sends all lists to all streams. A push that was not made yet is merged with it, as in istiod.
func (s *istiod) push() {
	s.change(func() {
		for p := range s.pushes {
			select {
			case p <- struct{}{}:
			default:
			}
		}
	})
}

// update is set and push.
func (s *istiod) update(typeURL string, items ...*anypb.Any) {
	s.set(typeURL, items...)
	s.push()
}

// endStreams ends all open streams.
func (s *istiod) endStreams() {
	s.change(func() {
		close(s.restart)
		s.restart = make(chan struct{})
	})
}

func (s *istiod) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	push := make(chan struct{}, 1)
	var restart chan struct{}
	s.change(func() {
		s.streams++
		md, _ := metadata.FromIncomingContext(ctx)
		s.tokens = append(s.tokens, fmt.Sprint(md.Get("authorization")))
		s.pushes[push] = struct{}{}
		restart = s.restart
	})
	defer s.change(func() { delete(s.pushes, push) })
	requests := make(chan *discovery.DiscoveryRequest)
	go func() {
		defer cancel()
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	watched := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.quit:
			return nil
		case <-restart:
			return nil
		case r := <-requests:
			if err := s.answer(stream, r, watched); err != nil || s.ends() {
				return err
			}
		case <-push:
			for typeURL := range watched { // in random order
				if err := s.send(stream, typeURL); err != nil || s.ends() {
					return err
				}
			}
		}
	}
}

func (s *istiod) ends() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

func (s *istiod) answer(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer, r *discovery.DiscoveryRequest, watched map[string]bool) error {
	var refusal error
	again := false
	s.change(func() {
		s.requests = append(s.requests, r)
		refusal, again = s.refusal.Err(), s.again && r.GetErrorDetail() != nil
	})
	if refusal != nil {
		return refusal
	}
	if r.GetErrorDetail() != nil && !watched[r.GetTypeUrl()] {
		panic("istiod would have crashed: a refusal of what was not asked for")
	}
	if watched[r.GetTypeUrl()] && r.GetResponseNonce() != "" && !again {
		return nil
	}
	watched[r.GetTypeUrl()] = true
	return s.send(stream, r.GetTypeUrl())
}

func (s *istiod) send(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer, typeURL string) error {
	var response *discovery.DiscoveryResponse
	unasked := false
	s.change(func() {
		unasked = s.unasked
		s.counter++
		items := slices.Clone(s.lists[typeURL])
		rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		version := fmt.Sprintf("%s/%d", time.Now().Format(time.RFC3339), s.counter)
		response = &discovery.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: version + "-n", Resources: items}
		if s.mute {
			response = nil
		}
	})
	if response == nil {
		return nil
	}
	if unasked {
		if err := stream.Send(&discovery.DiscoveryResponse{TypeUrl: "x/v1/Unasked", Nonce: "n", Resources: []*anypb.Any{{}}}); err != nil {
			return err
		}
	}
	return stream.Send(response)
}

// acknowledged returns how many responses of a type were answered, and the refusals among them.
func (s *istiod) acknowledged(typeURL string) (total int, refusals []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.GetTypeUrl() == typeURL && r.GetResponseNonce() != "" {
			total++
			if r.GetErrorDetail() != nil {
				refusals = append(refusals, r.GetErrorDetail().GetMessage())
			}
		}
	}
	return total, refusals
}

// asked returns how often each type was asked for in full.
func (s *istiod) asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for _, r := range s.requests {
		if r.GetResponseNonce() == "" {
			out[r.GetTypeUrl()]++
		}
	}
	return maps.Clone(out)
}

func (s *istiod) streamCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}
