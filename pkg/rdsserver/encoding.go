package rdsserver

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
)

// request is what a proxy says, in either form.
type request struct {
	node    *corev3.Node
	typeURL string
	version string // that the proxy holds; state of the world only
	nonce   string // of the response that this answers, empty if it answers none
	err     *rpcstatus.Status
	names   []string          // state of the world: the whole set
	add     []string          // delta
	remove  []string          // delta
	held    map[string]string // delta: versions by name that the proxy has from an earlier stream
}

// encoding is one form of the protocol on one stream.
type encoding interface {
	recv() (request, error)
	send(r response, nonce string) error
	// subscribe brings subscriptions to what a request says.
	subscribe(s subscriptions, r request)
	delta() bool
}

// subscriptions are those of one stream, to Tables or to static resources.
type subscriptions interface {
	Set(typeURL string, names []string)
	Change(typeURL string, add, remove []string)
}

type sotw struct {
	stream  grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	typeURL string   // of the request that subscribed last
	names   []string // its names
}

func (e *sotw) recv() (request, error) {
	r, err := e.stream.Recv()
	if err != nil {
		return request{}, err
	}
	return request{
		node: r.GetNode(), typeURL: r.GetTypeUrl(), version: r.GetVersionInfo(), nonce: r.GetResponseNonce(),
		err: r.GetErrorDetail(), names: r.GetResourceNames(),
	}, nil
}

func (e *sotw) send(r response, nonce string) error {
	return e.stream.Send(r.sotw(nonce))
}

// subscribe passes over the same set again: each answer repeats all names, and n names are answered n times.
func (e *sotw) subscribe(s subscriptions, r request) {
	if r.typeURL == e.typeURL && slices.Equal(r.names, e.names) {
		return
	}
	e.typeURL, e.names = r.typeURL, r.names
	s.Set(r.typeURL, r.names)
}

func (*sotw) delta() bool { return false }

type deltas struct {
	stream grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
}

func (e *deltas) recv() (request, error) {
	r, err := e.stream.Recv()
	if err != nil {
		return request{}, err
	}
	return request{
		node: r.GetNode(), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), err: r.GetErrorDetail(),
		add: r.GetResourceNamesSubscribe(), remove: r.GetResourceNamesUnsubscribe(), held: r.GetInitialResourceVersions(),
	}, nil
}

func (e *deltas) send(r response, nonce string) error {
	return e.stream.Send(r.delta(nonce))
}

func (*deltas) subscribe(s subscriptions, r request) { s.Change(r.typeURL, r.add, r.remove) }

func (*deltas) delta() bool { return true }
