package rdsserver_test

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/staticxds"
)

// FuzzRequests sends arbitrary requests on all stream forms. Whatever they say, their stream may end but the
// server must go on: a bystander is still served.
func FuzzRequests(f *testing.F) {
	seed := func(m proto.Message) []byte { return must(proto.Marshal(m)) }
	node := sampleproxy.Node("sidecar", "app", "shop")
	f.Add(uint8(0), seed(&discoveryv3.DiscoveryRequest{Node: node, ResourceNames: []string{table("orders")}}), []byte{})
	f.Add(uint8(2), seed(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: sampleproxy.RouteType, ResponseNonce: "x"}), []byte{1, 2})
	f.Add(uint8(1), seed(&discoveryv3.DeltaDiscoveryRequest{Node: node, ResourceNamesSubscribe: []string{table("orders"), "*", ""}}),
		seed(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{table("orders")}}))
	f.Add(uint8(3), seed(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "x"}), []byte{})
	f.Add(uint8(3), seed(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: staticxds.ClusterType, InitialResourceVersions: map[string]string{"a": "1", "z": ""}}),
		seed(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: staticxds.EndpointType, ResourceNamesSubscribe: []string{"of-a", "z"}, InitialResourceVersions: map[string]string{"of-a": ""}}))
	f.Add(uint8(2), seed(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: staticxds.ListenerType}),
		seed(&discoveryv3.DiscoveryRequest{TypeUrl: staticxds.RouteType, ResourceNames: []string{"r", table("orders")}}))
	p := newStatic(f, everything...).pipeline
	p.deliver(service("orders"))
	cc := p.dial("shop")
	bystander := p.openOn(cc, sampleproxy.Forms()[0], sampleproxy.Node("sidecar", "bystander", "shop"))
	bystander.want(table("orders"))
	bystander.accepted()
	edits := 0
	f.Fuzz(func(t *testing.T, kind uint8, first, second []byte) {
		p.t, bystander.t = t, t
		defer func() { p.t, bystander.t = f, f }()
		form := sampleproxy.Forms()[int(kind)%4]
		x := p.openOn(cc, form, nil)
		defer x.cancel()
		for _, data := range [][]byte{first, second} {
			var r sampleproxy.Request
			if form.Delta {
				var m discoveryv3.DeltaDiscoveryRequest
				if proto.Unmarshal(data, &m) != nil {
					return
				}
				r = sampleproxy.Request{Node: m.GetNode(), Type: m.GetTypeUrl(), Nonce: m.GetResponseNonce(), Names: m.GetResourceNamesSubscribe(), Dropped: m.GetResourceNamesUnsubscribe(), Held: m.GetInitialResourceVersions(), Error: m.GetErrorDetail()}
			} else {
				var m discoveryv3.DiscoveryRequest
				if proto.Unmarshal(data, &m) != nil {
					return
				}
				r = sampleproxy.Request{Node: m.GetNode(), Type: m.GetTypeUrl(), Nonce: m.GetResponseNonce(), Names: m.GetResourceNames(), Version: m.GetVersionInfo(), Error: m.GetErrorDetail()}
			}
			if x.Send(r) != nil {
				break // the stream has ended
			}
		}
		edits++
		subset := []string{"v1", "v2"}[edits%2]
		p.put(router("orders", subset))
		bystander.wantAccepted(table("orders"), cluster("orders", subset))
	})
}
