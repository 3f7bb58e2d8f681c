package stock

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/metards/metards/internal/sampleproxy"
)

// Bootstrap says what an Envoy is to do. It subscribes to each table in a listener of its own.
type Bootstrap struct {
	Metards   string           // HOST:PORT
	Certs     *Certificates    // Envoy's own
	Form      sampleproxy.Form // of its streams
	Namespace string           // of its node
	// Tables are the listeners: resource name to port; 0 is any port.
	Tables   map[string]int
	Clusters []Cluster
	// Runtime is what layered_runtime holds beside the defaults, such as re2.max_program_size.error_level.
	Runtime map[string]any
	// FetchTimeout is how long Envoy waits for a first table before it starts without; empty is Envoy's own, 15 s.
	FetchTimeout string
	// Dynamic takes listeners and clusters from metards as well; Form must be of ADS.
	Dynamic bool
}

// Cluster is a static cluster.
type Cluster struct {
	Name      string
	Endpoints []string // HOST:PORT
	Ring      bool     // the endpoint is chosen by the hash, else round robin
}

// Node is the id of the Envoy's node, as Istio's agent makes it.
func (b *Bootstrap) Node() string { return sampleproxy.Node("sidecar", "web-1", b.Namespace).GetId() }

// Object is a message of Envoy's API as JSON has it.
type Object = map[string]any

type (
	object = Object
	list   = []any
)

// content is the bootstrap as Envoy reads it. files is where the SDS files are.
func (b *Bootstrap) content(files sdsFiles) object {
	clusters, listeners := list{b.metards(files)}, list{}
	for _, c := range b.Clusters {
		clusters = append(clusters, c.content())
	}
	for _, name := range slices.Sorted(maps.Keys(b.Tables)) {
		listeners = append(listeners, b.listener(name))
	}
	runtime := maps.Clone(b.Runtime)
	if runtime == nil {
		runtime = object{} // null is no layer
	}
	out := object{
		"node": object{
			"id": b.Node(), "cluster": "web." + b.Namespace,
			"metadata": object{"NAMESPACE": b.Namespace},
		},
		"admin":            object{"address": address("127.0.0.1:0")},
		"static_resources": object{"clusters": clusters, "listeners": listeners},
		"layered_runtime": object{"layers": list{
			object{"name": "test", "static_layer": runtime},
			object{"name": "admin", "admin_layer": object{}},
		}},
	}
	dynamic := object{}
	if b.Form.ADS {
		dynamic["ads_config"] = b.grpc()
	}
	if b.Dynamic {
		dynamic["cds_config"], dynamic["lds_config"] = ads(), ads()
	}
	out["dynamic_resources"] = dynamic
	return out
}

// grpc is where a stream goes and how it speaks. The pauses between attempts are short, as tests wait for them.
func (b *Bootstrap) grpc() object {
	kind := "GRPC"
	if b.Form.Delta {
		kind = "DELTA_GRPC"
	}
	return object{
		"api_type": kind, "transport_api_version": "V3",
		"grpc_services": list{object{"envoy_grpc": object{
			"cluster_name": "metards",
			"retry_policy": object{"retry_back_off": object{"base_interval": "0.1s", "max_interval": "0.3s"}},
		}}},
	}
}

func ads() object { return object{"ads": object{}, "resource_api_version": "V3"} }

// source is where a table comes from.
func (b *Bootstrap) source() object {
	out := ads()
	if !b.Form.ADS {
		out = object{"api_config_source": b.grpc(), "resource_api_version": "V3"}
	}
	if b.FetchTimeout != "" {
		out["initial_fetch_timeout"] = b.FetchTimeout
	}
	return out
}

// StatPrefix is that of every listener's statistics.
const StatPrefix = "web"

func (b *Bootstrap) listener(table string) object {
	return Listener(table, net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Tables[table])), table, b.source())
}

// Listener is one that speaks HTTP and takes its routes under a name from a source; nil is the bootstrap's ADS.
func Listener(name, hostPort, table string, source Object) Object {
	if source == nil {
		source = ads()
	}
	return object{
		"name": name, "address": address(hostPort),
		"filter_chains": list{object{"filters": list{object{
			"name": "http", "typed_config": object{
				"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
				"stat_prefix": StatPrefix,
				// requests from loopback are from inside: their x-envoy-… headers stay
				"use_remote_address":      true,
				"internal_address_config": object{"cidr_ranges": list{object{"address_prefix": "127.0.0.0", "prefix_len": 8}}},
				"rds":                     object{"route_config_name": table, "config_source": source},
				"http_filters": list{object{"name": "router", "typed_config": object{
					"@type":                  "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
					"suppress_envoy_headers": true,
				}}},
			},
		}}}},
	}
}

// EDS is a cluster whose endpoints come by ADS.
func EDS(name string) Object {
	return object{"name": name, "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": object{"eds_config": ads()}}
}

// Endpoints are the endpoints of a cluster.
func Endpoints(cluster string, hostPorts ...string) Object { return assignment(cluster, hostPorts) }

// metards is the cluster that the streams go to, with the SPIFFE id by which the server is known.
func (b *Bootstrap) metards(files sdsFiles) object {
	secret := func(name, file string) object {
		return object{"name": name, "sds_config": object{"path_config_source": object{"path": file}, "resource_api_version": "V3"}}
	}
	return object{
		"name": "metards", "type": "STATIC", "connect_timeout": "1s", "load_assignment": assignment("metards", []string{b.Metards}),
		"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
			"@type":                        "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config":         object{"http2_protocol_options": object{}},
			"common_http_protocol_options": object{"max_requests_per_connection": 1}, // as in sidecars: a connection for each stream
		}},
		"transport_socket": object{"name": "envoy.transport_sockets.tls", "typed_config": object{
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"common_tls_context": object{
				"tls_certificate_sds_secret_configs": list{secret("own", files.own)},
				"combined_validation_context": object{
					"default_validation_context": object{"match_typed_subject_alt_names": list{
						object{"san_type": "URI", "matcher": object{"exact": ServerID}},
					}},
					"validation_context_sds_secret_config": secret("roots", files.roots),
				},
			},
		}},
	}
}

func (c Cluster) content() object {
	policy := "ROUND_ROBIN"
	if c.Ring {
		policy = "RING_HASH"
	}
	return object{
		"name": c.Name, "type": "STATIC", "connect_timeout": "1s", "lb_policy": policy, "load_assignment": assignment(c.Name, c.Endpoints),
	}
}

func assignment(cluster string, endpoints []string) object {
	points := list{}
	for _, e := range endpoints {
		points = append(points, object{"endpoint": object{"address": address(e)}})
	}
	return object{"cluster_name": cluster, "endpoints": list{object{"lb_endpoints": points}}}
}

func address(hostPort string) object {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		panic(fmt.Sprintf("address %q: %v", hostPort, err)) // a mistake of the test's author
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		panic(fmt.Sprintf("address %q: %v", hostPort, err))
	}
	return object{"socket_address": object{"address": host, "port_value": number}}
}
