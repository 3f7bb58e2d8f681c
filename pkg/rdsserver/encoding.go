package rdsserver

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/cachemgr"
)

// request is what a proxy says, in either form.
type request struct {
	node    *corev3.Node
	typeURL string
	version string // that the proxy holds; state of the world only
	nonce   string // of the response that this answers, empty if it answers none
	err     *rpcstatus.Status
	names   []string // state of the world: the whole set
	add     []string // delta
	remove  []string // delta
}

// encoding is one form of the protocol on one stream.
type encoding interface {
	recv() (request, error)
	send(t *cachemgr.Table, nonce string) error
	// subscribe brings the stream's subscriptions to what a request says.
	subscribe(s *cachemgr.Stream, r request)
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

func (e *sotw) send(t *cachemgr.Table, nonce string) error {
	return e.stream.Send(&discoveryv3.DiscoveryResponse{
		VersionInfo: t.Version, Resources: []*anypb.Any{t.Any}, TypeUrl: t.Type, Nonce: nonce,
	})
}

// subscribe passes over the same set again: each answer repeats all names, and n names are answered n times.
func (e *sotw) subscribe(s *cachemgr.Stream, r request) {
	if r.typeURL == e.typeURL && slices.Equal(r.names, e.names) {
		return
	}
	e.typeURL, e.names = r.typeURL, r.names
	s.Set(r.typeURL, r.names)
}

type delta struct {
	stream grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
}

func (e delta) recv() (request, error) {
	r, err := e.stream.Recv()
	if err != nil {
		return request{}, err
	}
	return request{
		node: r.GetNode(), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), err: r.GetErrorDetail(),
		add: r.GetResourceNamesSubscribe(), remove: r.GetResourceNamesUnsubscribe(),
	}, nil
}

func (e delta) send(t *cachemgr.Table, nonce string) error {
	return e.stream.Send(&discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: t.Version, TypeUrl: t.Type, Nonce: nonce,
		Resources: []*discoveryv3.Resource{{Name: t.Name.Name, Version: t.Version, Resource: t.Any}},
	})
}

func (delta) subscribe(s *cachemgr.Stream, r request) { s.Change(r.typeURL, r.add, r.remove) }
