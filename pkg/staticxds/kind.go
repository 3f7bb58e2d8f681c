package staticxds

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
)

// The type URLs of what a file may have.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// kind is one of these types. Their order is that in which changes are sent, so that nothing is named before it
// is there; removals are sent in the opposite order.
type kind int

const (
	clusters kind = iota
	endpoints
	listeners
	routes
	kinds // how many there are
)

// kindOf returns the kind of a type URL.
func kindOf(typeURL string) (kind, bool) {
	for k := range kinds {
		if k.typeURL() == typeURL {
			return k, true
		}
	}
	return 0, false
}

func (k kind) typeURL() string {
	return [kinds]string{ClusterType, EndpointType, ListenerType, RouteType}[k]
}

// String is the key in the file.
func (k kind) String() string {
	return [kinds]string{"clusters", "endpoints", "listeners", "routes"}[k]
}

// whole reports whether proxies ask for all of the kind, and a response in state of the world has all of it.
func (k kind) whole() bool { return k == clusters || k == listeners }

// named is a resource of any kind.
type named interface {
	proto.Message
	ValidateAll() error
}

func (k kind) empty() named {
	switch k {
	case clusters:
		return &clusterv3.Cluster{}
	case endpoints:
		return &endpointv3.ClusterLoadAssignment{}
	case listeners:
		return &listenerv3.Listener{}
	default:
		return &routev3.RouteConfiguration{}
	}
}

// nameOf returns the name of a resource.
func nameOf(r named) string {
	switch r := r.(type) {
	case interface{ GetName() string }:
		return r.GetName()
	case interface{ GetClusterName() string }:
		return r.GetClusterName()
	}
	return ""
}

// Types returns the type URLs that come before tables, in the order in which changes are sent.
func Types() []string { return []string{ClusterType, EndpointType, ListenerType} }
