package envoyfilter

import (
	"fmt"

	"github.com/metards/metards/pkg/routes"
)

const tcpProxy = "envoy.filters.network.tcp_proxy"

// fetchTimeout is how long a new listener waits for its table. While metards is away, a pod starts after that
// without these routes; without a limit it would not start at all, also for a name that nobody will ever answer.
const fetchTimeout = "15s"

// patch replaces tcp_proxy in a listener. It always matches on the node metadata that comes with the bootstrap
// component: a proxy without the cluster that tables come from refuses the filter, or asks istiod and loses its stream.
func patch(context string, listener, filter map[string]any) any {
	return map[string]any{
		"applyTo": "NETWORK_FILTER",
		"match": map[string]any{
			"context": context, "listener": listener,
			"proxy": map[string]any{"metadata": map[string]any{"METARDS": "v1"}},
		},
		"patch": map[string]any{"operation": "REPLACE", "value": filter},
	}
}

func (m *maker) outboundFilter(host string, p Port) map[string]any {
	prefix, name := fmt.Sprintf("outbound|%d||%s", p.Number, host), routes.Name(host, p.Number)
	if m.options.HTTP {
		return httpFilter(prefix, map[string]any{"config_source": snakeSource(m.options.Cluster), "route_config_name": name})
	}
	return m.metaProtocolFilter(prefix, host, p, "rds", map[string]any{"configSource": camelSource(m.options.Cluster), "routeConfigName": name})
}

// inboundFilter needs no table: all requests go to the workload. istiod names that cluster by the workload's port.
func (m *maker) inboundFilter(host string, p Port) map[string]any {
	cluster := fmt.Sprintf("inbound|%d||", p.Target)
	return m.metaProtocolFilter(cluster, host, p, "routeConfig", map[string]any{
		"name": cluster, "routes": []any{map[string]any{"name": "default", "route": map[string]any{"cluster": cluster}}},
	})
}

// metaProtocolFilter is a filter of the MetaProtocol proxy, in the JSON form of its types. The filters in it are those
// that Aeraki writes, so that requests are counted as before: metadata_exchange tells each side who the other is, and
// istio_stats counts by that. Every proxy that has the MetaProtocol filter has them.
func (m *maker) metaProtocolFilter(prefix, host string, p Port, source string, routes map[string]any) map[string]any {
	return map[string]any{
		"name": "envoy.filters.network.meta_protocol_proxy",
		"typed_config": map[string]any{
			"@type":    "type.googleapis.com/udpa.type.v1.TypedStruct",
			"type_url": "type.googleapis.com/aeraki.meta_protocol_proxy.v1alpha.MetaProtocolProxy",
			"value": map[string]any{
				"statPrefix":          prefix,
				"applicationProtocol": p.Application(),
				"codec":               map[string]any{"name": m.options.Codecs[p.Application()]},
				source:                routes,
				"metaProtocolFilters": []any{
					map[string]any{"name": "aeraki.meta_protocol.filters.metadata_exchange"},
					map[string]any{"name": "aeraki.meta_protocol.filters.istio_stats", "config": map[string]any{
						"@type":              "type.googleapis.com/aeraki.meta_protocol_proxy.filters.istio_stats.v1alpha.IstioStats",
						"destinationService": host,
					}},
					map[string]any{"name": "aeraki.meta_protocol.filters.router"},
				},
			},
		},
	}
}

func httpFilter(prefix string, rds map[string]any) map[string]any {
	return map[string]any{
		"name": "envoy.filters.network.http_connection_manager",
		"typed_config": map[string]any{
			"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"stat_prefix": prefix,
			"rds":         rds,
			"http_filters": []any{map[string]any{
				"name":         "envoy.filters.http.router",
				"typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
			}},
		},
	}
}

// camelSource is where tables come from, as JSON names the fields: istiod hands a struct to the proxy as it is, and the
// older MetaProtocol proxies read these names only. The node is in the first request of a stream, which is enough.
func camelSource(cluster string) map[string]any {
	return map[string]any{
		"resourceApiVersion":  "V3",
		"initialFetchTimeout": fetchTimeout,
		"apiConfigSource": map[string]any{
			"apiType": "GRPC", "transportApiVersion": "V3", "setNodeOnFirstMessageOnly": true,
			"grpcServices": []any{map[string]any{"envoyGrpc": map[string]any{"clusterName": cluster}}},
		},
	}
}

// snakeSource is the same in the names that people know from Envoy's documentation.
func snakeSource(cluster string) map[string]any {
	return map[string]any{
		"resource_api_version":  "V3",
		"initial_fetch_timeout": fetchTimeout,
		"api_config_source": map[string]any{
			"api_type": "GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
			"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": cluster}}},
		},
	}
}
