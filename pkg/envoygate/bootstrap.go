package envoygate

import (
	"encoding/json"
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/metards/metards/pkg/cachemgr"
)

// regexProgram is the size of a regex program, as RE2 counts, up to which the judging Envoy takes it. A bare
// Envoy takes 100; this is what Istio's bootstrap gives its proxies.
const regexProgram = 32768

// The bootstrap in Envoy's JSON, as far as it is needed.
type (
	object = map[string]any
	list   = []any
)

// bootstrap writes the configuration of an Envoy that has the tables and nothing else: each in a listener of
// its own, which is never bound.
func bootstrap(tables []*cachemgr.Table) ([]byte, error) {
	listeners := make(list, len(tables))
	for i, t := range tables {
		routes, err := routeConfig(t)
		if err != nil {
			return nil, err
		}
		listeners[i] = listener(i, routes)
	}
	return json.Marshal(object{
		"staticResources": object{"listeners": listeners},
		"layeredRuntime": object{"layers": list{object{
			"name": "static", "staticLayer": object{"re2.max_program_size.error_level": regexProgram},
		}}},
	})
}

// routeConfig is a table as it arrives by RDS: there its clusters need not be known.
func routeConfig(t *cachemgr.Table) (json.RawMessage, error) {
	routes := &routev3.RouteConfiguration{}
	if err := t.Any.UnmarshalTo(routes); err != nil {
		return nil, fmt.Errorf("read the table %s: %w", t.Name.Name, err)
	}
	routes.ValidateClusters = wrapperspb.Bool(false)
	data, err := protojson.Marshal(routes)
	if err != nil {
		return nil, fmt.Errorf("write the table %s: %w", t.Name.Name, err)
	}
	return data, nil
}

func listener(i int, routes json.RawMessage) object {
	const types = "type.googleapis.com/envoy.extensions.filters."
	return object{
		"name":       fmt.Sprintf("table-%d", i),
		"address":    object{"socketAddress": object{"address": "127.0.0.1", "portValue": i + 1}},
		"bindToPort": false,
		"filterChains": list{object{"filters": list{object{
			"name": "http",
			"typedConfig": object{
				"@type":       types + "network.http_connection_manager.v3.HttpConnectionManager",
				"statPrefix":  "table",
				"routeConfig": routes,
				"httpFilters": list{object{"name": "router", "typedConfig": object{"@type": types + "http.router.v3.Router"}}},
			},
		}}}},
	}
}
