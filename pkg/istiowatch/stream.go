package istiowatch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/metards/metards/pkg/problem"
)

// feed takes the answers for the API versions of one kind: a *list, or the *settings.
type feed interface {
	take(version int, resources []*anypb.Any, basis, now time.Time) verdict
	newStream()
	due(version int) time.Time
}

// subscription is one type that is asked for. All but the first four fields are of the current stream.
type subscription struct {
	typeURL  string
	feed     feed
	version  int  // of the feed
	answered bool // ever

	asked     time.Time // when a full list was asked for that has not come yet; zero if there is none
	overdue   time.Time // when it is too late for that
	basis     time.Time // when that was asked for which the latest list answered
	resync    time.Time // when to ask again
	accepted  string    // version of the latest list that was acknowledged
	complaint string    // of the latest that was refused
}

// stream is one stream to istiod. It is state of the world: istiod sends the full list on every push in both
// protocols, and there a missing object is a deleted one, with no account of names to keep right on both ends.
type stream struct {
	w        *Watcher
	xds      discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	started  bool          // the node was sent
	patience time.Duration // with an answer
}

// connect opens a connection and a stream, and follows it until it fails.
func (w *Watcher) connect(ctx context.Context) error {
	token, err := w.token()
	if err != nil {
		return err
	}
	conn, err := w.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it is of no more use either way
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	xds, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return w.explain(err, conn.why())
	}
	// A server may be slow for a reason, so patience grows when it was silent before.
	s := &stream{w: w, xds: xds, patience: w.options.Answer << min(w.silent, 2)}
	responses, failed := receive(ctx, xds)
	err = s.follow(ctx, responses, failed)
	cancel()
	for range responses { // closed once nobody receives any more
	}
	return w.explain(err, nil)
}

// receive reads eagerly: istiod has few places for clients that do not. Both channels end with the stream.
func receive(ctx context.Context, xds grpc.ServerStreamingClient[discovery.DiscoveryResponse]) (<-chan *discovery.DiscoveryResponse, <-chan error) {
	responses, failed := make(chan *discovery.DiscoveryResponse), make(chan error, 1)
	go func() {
		defer close(responses)
		for {
			response, err := xds.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case responses <- response:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	return responses, failed
}

// follow asks for everything and takes what comes. Three things can happen besides the end of ctx: a
// response; the end of the stream; the time to ask for something again, or to give up waiting for an answer.
func (s *stream) follow(ctx context.Context, responses <-chan *discovery.DiscoveryResponse, failed <-chan error) error {
	s.begin()
	for {
		if err := s.ask(time.Now()); err != nil {
			return err
		}
		due := time.NewTimer(time.Until(s.next()))
		select {
		case <-ctx.Done():
			due.Stop()
			return ctx.Err()
		case response, ok := <-responses:
			due.Stop()
			if !ok {
				return <-failed
			}
			if err := s.take(response); err != nil {
				return err
			}
		case <-due.C:
		}
	}
}

// begin forgets the last stream, and what was never answered comes first: a server that cuts every stream
// after one response shall not answer the same type for ever.
func (s *stream) begin() {
	var late, early []*subscription
	for _, sub := range s.w.subscriptions {
		*sub = subscription{typeURL: sub.typeURL, feed: sub.feed, version: sub.version, answered: sub.answered}
		sub.feed.newStream()
		if sub.answered {
			late = append(late, sub)
		} else {
			early = append(early, sub)
		}
	}
	s.w.subscriptions = append(early, late...)
}

// next is when there is something to do without a response.
func (s *stream) next() time.Time {
	var next time.Time
	for _, sub := range s.w.subscriptions {
		at := s.due(sub)
		if !sub.asked.IsZero() {
			at = sub.overdue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// due is when to ask for a type for which no answer is outstanding.
func (s *stream) due(sub *subscription) time.Time {
	if at := sub.feed.due(sub.version); !at.IsZero() && at.Before(sub.resync) {
		return at
	}
	return sub.resync
}

// ask asks for the full lists that are due. It fails if an answer is overdue.
func (s *stream) ask(now time.Time) error {
	for _, sub := range s.w.subscriptions {
		switch {
		case !sub.asked.IsZero():
			if !now.Before(sub.overdue) {
				return &failure{reason: reasonSilent, text: fmt.Sprintf("%s accepts connections and does not answer: "+
					"no %s within %s; is it istiod, and is it healthy?", s.w.options.Address, sub.typeURL, s.w.options.Answer)}
			}
		case !now.Before(s.due(sub)):
			sub.asked, sub.overdue = now, now.Add(s.patience)
			sub.resync = now.Add(time.Duration(float64(s.w.options.Resync) * (0.9 + 0.2*rand.Float64())))
			if err := s.send(&discovery.DiscoveryRequest{TypeUrl: sub.typeURL}); err != nil {
				return err
			}
		}
	}
	return nil
}

// send adds what only the first request of a stream tells.
func (s *stream) send(request *discovery.DiscoveryRequest) error {
	if !s.started {
		s.started = true
		node := s.w.options.Node
		request.Node = &core.Node{Id: node.id(), Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"GENERATOR": structpb.NewStringValue("api"), "NAMESPACE": structpb.NewStringValue(node.Namespace),
		}}}
	}
	if err := s.xds.Send(request); err != nil && err != io.EOF { //nolint:errorlint // Send returns io.EOF itself; the reason comes from Recv
		return err
	}
	return nil
}

// take takes in a response and answers it.
func (s *stream) take(response *discovery.DiscoveryResponse) error {
	sub := s.subscriptionOf(response.GetTypeUrl())
	if sub == nil { // a refusal of a type that was not asked for has crashed istiods
		s.w.log.Debug("istiod sent what was not asked for", "type", response.GetTypeUrl())
		return nil
	}
	now := time.Now()
	if !sub.asked.IsZero() {
		sub.basis, sub.asked = sub.asked, time.Time{}
	}
	verdict := sub.feed.take(sub.version, response.GetResources(), sub.basis, now)
	for _, other := range s.w.subscriptions { // the time that we take is not the server's
		other.overdue = other.overdue.Add(time.Since(now))
	}
	sub.answered = true
	s.noteResponse(sub, response, verdict, now)
	if response.GetNonce() == "" { // to acknowledge nothing would be to ask again
		return nil
	}
	request := &discovery.DiscoveryRequest{TypeUrl: sub.typeURL, ResponseNonce: response.GetNonce()}
	// A complaint is told once: there are servers that answer it by the same again.
	if verdict.complaint != "" && verdict.complaint != sub.complaint {
		request.VersionInfo = sub.accepted
		request.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: verdict.complaint}
	} else {
		sub.accepted = response.GetVersionInfo()
		request.VersionInfo = sub.accepted
	}
	sub.complaint = verdict.complaint
	return s.send(request)
}

func (s *stream) subscriptionOf(typeURL string) *subscription {
	for _, sub := range s.w.subscriptions {
		if sub.typeURL == typeURL && (!sub.asked.IsZero() || !sub.basis.IsZero()) {
			return sub
		}
	}
	return nil
}

// noteResponse brings metrics, status and board up to date.
func (s *stream) noteResponse(sub *subscription, response *discovery.DiscoveryResponse, v verdict, now time.Time) {
	bytes := 0
	for _, r := range response.GetResources() {
		bytes += len(r.GetValue())
	}
	s.w.options.Metrics.received(sub.typeURL, bytes, v.faulty, now)
	var large []problem.Problem
	if bytes > s.w.options.MaxReceive/2 {
		large = append(large, problem.Problem{
			Severity: problem.Warning, Reason: problem.TooLarge,
			Detail: fmt.Sprintf("istiod's list %s is more than half as large as what is taken in at the most, %d bytes: raise the limit in time",
				sub.typeURL, s.w.options.MaxReceive),
		})
	}
	s.w.options.Problems.Set("mcp/size/"+sub.typeURL, large)
	s.w.alive(v.unreadable == 0, now)
}
