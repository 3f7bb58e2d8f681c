// Package sampleproxy is a small xDS client that speaks like a MetaProtocol proxy, in all four stream
// forms. In: a connection and what to subscribe to. Out: the responses, one by one; whether to accept them
// is the caller's choice. The demo, the pipeline tests and the benchmarks use it; the server does not.
package sampleproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// RouteType is the type URL of RouteConfigurations.
const RouteType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

// Form is one of the four forms of a stream.
type Form struct {
	Name   string
	Method string
	Delta  bool
	ADS    bool
}

// Forms are all forms.
func Forms() []Form {
	const rds, ads = "/envoy.service.route.v3.RouteDiscoveryService/", "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
	return []Form{
		{Name: "RDS state of the world", Method: rds + "StreamRoutes"},
		{Name: "RDS delta", Method: rds + "DeltaRoutes", Delta: true},
		{Name: "ADS state of the world", Method: ads + "StreamAggregatedResources", ADS: true},
		{Name: "ADS delta", Method: ads + "DeltaAggregatedResources", Delta: true, ADS: true},
	}
}

// Node is the node message of a sidecar (or router) pod in a namespace, as Istio's agent makes it.
func Node(kind, pod, namespace string) *corev3.Node {
	return &corev3.Node{
		Id:       fmt.Sprintf("%s~127.0.0.1~%s.%s~%s.svc.cluster.local", kind, pod, namespace, namespace),
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAMESPACE": structpb.NewStringValue(namespace)}},
	}
}

// Response is one response of the server, in either form.
type Response struct {
	Type      string
	Version   string
	Nonce     string
	Resources []*anypb.Any
	Names     []string // of the resources
	Versions  []string // of the resources; delta
	Removed   []string // delta
	At        time.Time
}

// Table decodes the one RouteConfiguration of a response.
func (r Response) Table() (*routev3.RouteConfiguration, error) {
	if len(r.Resources) != 1 {
		return nil, fmt.Errorf("%d resources, want 1", len(r.Resources))
	}
	out := &routev3.RouteConfiguration{}
	if err := r.Resources[0].UnmarshalTo(out); err != nil {
		return nil, fmt.Errorf("decode table: %w", err)
	}
	return out, nil
}

// Stream is one open stream. It is for one goroutine, but for Responses and Err.
type Stream struct {
	form      Form
	stream    grpc.ClientStream
	node      *corev3.Node // sent with the first request
	names     []string
	accepted  string // version
	responses chan Response
	err       error // set before responses is closed
}

// Open opens a stream and reads its responses in the background until the context ends. The node goes out
// with the first request; nil sends none.
func Open(ctx context.Context, cc grpc.ClientConnInterface, form Form, node *corev3.Node) (*Stream, error) {
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, form.Method)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", form.Name, err)
	}
	s := &Stream{form: form, stream: cs, node: node, responses: make(chan Response, 64)}
	go s.read()
	return s, nil
}

func (s *Stream) read() {
	defer close(s.responses)
	for {
		r, err := s.recv()
		if err != nil {
			s.err = err
			return
		}
		select {
		case s.responses <- r:
		case <-s.stream.Context().Done():
			s.err = s.stream.Context().Err()
			return
		}
	}
}

func (s *Stream) recv() (Response, error) {
	if s.form.Delta {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := s.stream.RecvMsg(m); err != nil {
			return Response{}, err
		}
		r := Response{Type: m.GetTypeUrl(), Version: m.GetSystemVersionInfo(), Nonce: m.GetNonce(), Removed: m.GetRemovedResources(), At: time.Now()}
		for _, resource := range m.GetResources() {
			r.Resources = append(r.Resources, resource.GetResource())
			r.Names = append(r.Names, resource.GetName())
			r.Versions = append(r.Versions, resource.GetVersion())
		}
		return r, nil
	}
	m := &discoveryv3.DiscoveryResponse{}
	if err := s.stream.RecvMsg(m); err != nil {
		return Response{}, err
	}
	r := Response{Type: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetNonce(), Resources: m.GetResources(), At: time.Now()}
	for _, resource := range m.GetResources() {
		name, err := nameOf(resource)
		if err != nil {
			return Response{}, err
		}
		r.Names = append(r.Names, name)
	}
	return r, nil
}

// nameOf returns the name of a resource of any type that is linked in.
func nameOf(resource *anypb.Any) (string, error) {
	m, err := resource.UnmarshalNew()
	if err != nil {
		return "", err
	}
	switch m := m.(type) {
	case interface{ GetName() string }:
		return m.GetName(), nil
	case interface{ GetClusterName() string }:
		return m.GetClusterName(), nil
	}
	return "", fmt.Errorf("a resource of type %s has no name", resource.GetTypeUrl())
}

// Responses yields the responses; it is closed when the stream ends, and Err then tells why.
func (s *Stream) Responses() <-chan Response { return s.responses }

// Err is why the stream ended. It may be called once Responses is closed.
func (s *Stream) Err() error { return s.err }

// Request is what a test may want to say in its own words. In a state-of-the-world stream Names is the
// set; in a delta stream Names are subscribed to and Dropped unsubscribed from.
type Request struct {
	Node    *corev3.Node
	Type    string // default RouteType
	Version string
	Nonce   string
	Names   []string
	Dropped []string
	Held    map[string]string // delta: initial_resource_versions
	Error   *rpcstatus.Status
}

// Send sends a request as it is.
func (s *Stream) Send(r Request) error {
	if r.Type == "" {
		r.Type = RouteType
	}
	var m proto.Message
	if s.form.Delta {
		m = &discoveryv3.DeltaDiscoveryRequest{
			Node: r.Node, TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: r.Error,
			ResourceNamesSubscribe: r.Names, ResourceNamesUnsubscribe: r.Dropped, InitialResourceVersions: r.Held,
		}
	} else {
		m = &discoveryv3.DiscoveryRequest{
			Node: r.Node, TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: r.Error,
			ResourceNames: r.Names, VersionInfo: r.Version,
		}
	}
	if err := s.stream.SendMsg(m); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	return nil
}

// Want subscribes to exactly these names.
func (s *Stream) Want(names ...string) error {
	r := Request{Node: s.node, Version: s.accepted, Names: names}
	if s.form.Delta {
		r.Names = without(names, s.names)
		r.Dropped = without(s.names, names)
	}
	s.node, s.names = nil, slices.Clone(names)
	return s.Send(r)
}

func without(list, not []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(n string) bool { return slices.Contains(not, n) })
}

// Accept answers a response.
func (s *Stream) Accept(r Response) error {
	s.accepted = r.Version
	return s.answer(Request{Nonce: r.Nonce, Type: r.Type})
}

// Reject answers a response with an error.
func (s *Stream) Reject(r Response, reason string) error {
	return s.answer(Request{Nonce: r.Nonce, Type: r.Type, Error: &rpcstatus.Status{Code: int32(codes.Internal), Message: reason}})
}

func (s *Stream) answer(r Request) error {
	r.Version = s.accepted
	if !s.form.Delta {
		r.Names = s.names
	}
	return s.Send(r)
}

// ErrEnded is returned by Next when the stream has ended without an error.
var ErrEnded = errors.New("the stream has ended")

// Next waits for the next response.
func (s *Stream) Next(ctx context.Context) (Response, error) {
	select {
	case r, ok := <-s.responses:
		switch {
		case ok:
			return r, nil
		case s.err != nil:
			return Response{}, s.err
		default:
			return Response{}, ErrEnded
		}
	case <-ctx.Done():
		return Response{}, fmt.Errorf("wait for a response: %w", ctx.Err())
	}
}
