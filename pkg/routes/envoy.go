package routes

import (
	"fmt"
	"math"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// RouteConfigurationType is the type URL under which proxies subscribe to RouteConfigurations.
const RouteConfigurationType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

// RouteConfiguration spells a Plan as the resource that MetaProtocol proxies read, under the given name.
// It fails if Envoy's field rules refuse the result: the last gate before a proxy.
//
// The proxy asserts exactly one virtual host, at least one route, an action in every route, a weight in
// every weighted cluster and a fraction in every mirror.
func RouteConfiguration(p *Plan, name string) (*routev3.RouteConfiguration, error) {
	routes := make([]*routev3.Route, len(p.Routes))
	for i := range p.Routes {
		if !weighted(p.Routes[i].Destinations) {
			return nil, fmt.Errorf("spell %s: the weights of route %d do not sum to 1 … 2³²−1", name, i)
		}
		routes[i] = envoyRoute(&p.Routes[i])
	}
	out := &routev3.RouteConfiguration{
		Name:         name,
		VirtualHosts: []*routev3.VirtualHost{{Name: "dummy", Domains: []string{"*"}, Routes: routes}},
	}
	if len(routes) == 0 {
		return nil, fmt.Errorf("spell %s: no routes", name)
	}
	if err := out.ValidateAll(); err != nil {
		return nil, fmt.Errorf("spell %s: %w", name, err)
	}
	return out, nil
}

// weighted reports whether a proxy can choose among destinations: Envoy's rules let a sum of 0 pass, on
// which the proxy would crash.
func weighted(list []Destination) bool {
	sum := uint64(0)
	for _, d := range list {
		sum += uint64(d.Weight)
	}
	return len(list) < 2 || sum >= 1 && sum <= math.MaxUint32
}

func envoyRoute(r *Route) *routev3.Route {
	action := &routev3.RouteAction{HashPolicy: hashPolicies(r.HashKeys)}
	if len(r.Destinations) == 1 {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: r.Destinations[0].Cluster()}
	} else {
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weightedClusters(r.Destinations)}
	}
	if r.Mirror != nil {
		action.RequestMirrorPolicies = []*routev3.RouteAction_RequestMirrorPolicy{{
			Cluster: r.Mirror.Cluster(),
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
				Numerator: r.Mirror.Millionths, Denominator: typev3.FractionalPercent_MILLION,
			}},
		}}
	}
	return &routev3.Route{
		Name: r.Name,
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"},
			Headers:       headerMatchers(r.Conditions),
		},
		Action:               &routev3.Route_Route{Route: action},
		RequestHeadersToAdd:  headerOptions(r.Requests),
		ResponseHeadersToAdd: headerOptions(r.Responses),
	}
}

// headerMatchers spells the conditions with the older fields of HeaderMatcher: a proxy that does not know
// string_match (before Envoy 1.20) would see no condition in it, and the route would silently widen. The
// regex engine is set for the same reason: it was mandatory once.
func headerMatchers(conditions []Condition) []*routev3.HeaderMatcher {
	out := make([]*routev3.HeaderMatcher, len(conditions))
	for i, c := range conditions {
		m := &routev3.HeaderMatcher{Name: c.Attribute}
		switch c.Match {
		case Exact:
			m.HeaderMatchSpecifier = &routev3.HeaderMatcher_ExactMatch{ExactMatch: c.Value} //nolint:staticcheck // see above
		case Prefix:
			m.HeaderMatchSpecifier = &routev3.HeaderMatcher_PrefixMatch{PrefixMatch: c.Value} //nolint:staticcheck // see above
		case Regex:
			m.HeaderMatchSpecifier = &routev3.HeaderMatcher_SafeRegexMatch{SafeRegexMatch: &matcherv3.RegexMatcher{ //nolint:staticcheck // see above
				EngineType: &matcherv3.RegexMatcher_GoogleRe2{GoogleRe2: &matcherv3.RegexMatcher_GoogleRE2{}}, //nolint:staticcheck // see above
				Regex:      c.Value,
			}}
		default:
			m.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		}
		out[i] = m
	}
	return out
}

func weightedClusters(destinations []Destination) *routev3.WeightedCluster {
	out := &routev3.WeightedCluster{Clusters: make([]*routev3.WeightedCluster_ClusterWeight, len(destinations))}
	for i, d := range destinations {
		out.Clusters[i] = &routev3.WeightedCluster_ClusterWeight{Name: d.Cluster(), Weight: wrapperspb.UInt32(d.Weight)}
	}
	return out
}

func hashPolicies(keys []string) []*routev3.RouteAction_HashPolicy {
	out := make([]*routev3.RouteAction_HashPolicy, len(keys))
	for i, key := range keys {
		out[i] = &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: key},
		}}
	}
	return out
}

func headerOptions(list []KeyValue) []*corev3.HeaderValueOption {
	out := make([]*corev3.HeaderValueOption, len(list))
	for i, kv := range list {
		out[i] = &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: kv.Key, Value: kv.Value}}
	}
	return out
}
