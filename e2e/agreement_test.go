package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/e2e/cluster"
	"github.com/metards/metards/internal/sampleproxy"
)

// ruleText is a DestinationRule whose hash key names the rule itself.
func ruleText(namespace, name, host, extra string) string {
	return fmt.Sprintf(`
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  host: "%[3]s"
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: %[1]s.%[2]s}}}
%[4]s`, namespace, name, host, extra)
}

func serviceText(namespace, name, host, extra string) string {
	return fmt.Sprintf(`
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: ["%s"]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 7001, name: tcp-metaprotocol-dubbo, protocol: TCP}]
%s`, name, namespace, host, extra)
}

// istiodResources is what istiod answers to a node that asks for all of a type.
func istiodResources(t *testing.T, node *corev3.Node, typeURL string) []*anypb.Any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cc, err := grpc.NewClient("passthrough:///"+mesh.PlainIstiod(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return r.GetResources()
}

// istiodClusters are the clusters that istiod gives to a sidecar of a namespace, each with the rule,
// "namespace.name", that its metadata name, empty if none.
func istiodClusters(t *testing.T, namespace string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, resource := range istiodResources(t, sampleproxy.Node("sidecar", "peer", namespace), "type.googleapis.com/envoy.config.cluster.v3.Cluster") {
		var c clusterv3.Cluster
		if err := resource.UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		path := c.GetMetadata().GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue()
		parts := strings.Split(path, "/") // …/namespaces/NS/destination-rule/NAME
		out[c.GetName()] = ""
		if i := slices.Index(parts, "namespaces"); i >= 0 && i+3 < len(parts) {
			out[c.GetName()] = parts[i+1] + "." + parts[i+3]
		}
	}
	return out
}

func TestClustersAndRulesAgreeWithWhatIstiodGivesItsSidecars(t *testing.T) {
	const own, other, third = "agree-own", "agree-other", "agree-third"
	namespaces(t, own, other, third)
	text := serviceText(own, "plain", "plain.agree.example", "") +
		serviceText(own, "both-own", "both.agree.example", "") + serviceText(other, "both-other", "both.agree.example", "") +
		serviceText(own, "private", "private.agree.example", "  exportTo: [\".\"]\n") +
		serviceText(own, "wild", "deep.wild.agree.example", "") +
		serviceText(own, "merged", "merged.agree.example", "") +
		serviceText(own, "hidden", "hidden.agree.example", "") +
		ruleText(own, "plain", "plain.agree.example", "") +
		ruleText(third, "plain-client", "plain.agree.example", "") +
		ruleText(other, "both", "both.agree.example", "") + ruleText(own, "both", "both.agree.example", "  exportTo: [\".\"]\n") +
		ruleText(own, "wild", "*.wild.agree.example", "") + ruleText(own, "wilder", "*.agree.example", "") +
		ruleText("istio-system", "mesh-wide", "*.example", "") +
		ruleText(own, "merged", "merged.agree.example", "  subsets: [{name: v1, labels: {v: one}}]\n") +
		ruleText(own, "hidden", "hidden.agree.example", "  exportTo: ["+third+"]\n")
	apply(t, own, text)
	t.Cleanup(func() { // rules of the root namespace concern the other tests' services
		_ = mesh.Delete(context.Background(), ruleText("istio-system", "mesh-wide", "*.example", ""))
	})
	m := server(t, "agreement")
	hosts := []string{"plain.agree.example", "both.agree.example", "private.agree.example", "deep.wild.agree.example", "merged.agree.example", "hidden.agree.example"}
	for _, client := range []string{own, other, third, "istio-system"} {
		t.Run("for a client of "+client, func(t *testing.T) {
			// istiod may be some milliseconds behind what metards has read, or ahead.
			eventually(t, "metards and istiod agree", func() error { return disagreement(t, m, client, hosts) })
		})
	}
}

// disagreement subscribes as a client and compares each table with istiod's clusters.
func disagreement(t *testing.T, m *cluster.Metards, client string, hosts []string) error {
	t.Helper()
	clusters := istiodClusters(t, client)
	var names []string
	for _, h := range hosts {
		names = append(names, h+"_7001")
	}
	p := subscribe(t, m, rds(), client, names...)
	got := map[string]string{} // cluster -> hash key
	deadline := time.After(2 * time.Second)
	for open := true; open && len(got) < len(hosts); {
		select {
		case r, ok := <-p.Responses():
			if !ok {
				return fmt.Errorf("the stream ended: %w", p.Err())
			}
			table, err := r.Table()
			if err != nil {
				return err
			}
			action := table.GetVirtualHosts()[0].GetRoutes()[0].GetRoute()
			key := ""
			for _, h := range action.GetHashPolicy() {
				key += h.GetHeader().GetHeaderName()
			}
			got[action.GetCluster()] = key
			if err := p.Accept(r); err != nil {
				return err
			}
		case <-deadline: // the others are not visible to this client
			open = false
		}
	}
	for _, h := range hosts {
		name := "outbound|7001||" + h
		rule, inIstiod := clusters[name]
		key, served := got[name]
		switch {
		case inIstiod != served:
			return fmt.Errorf("%s: istiod has the cluster: %t, metards a table: %t", h, inIstiod, served)
		case served && rule != key:
			return fmt.Errorf("%s: istiod's cluster is of rule %q, the hash key of %q", h, rule, key)
		}
	}
	return nil
}
