package manifests

import (
	"fmt"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
)

func TestTheBootstrapLeadsToTheServiceAndBelievesOnlyItsAccount(t *testing.T) {
	config := get[*corev1.ConfigMap](t, overlay(t, "shop", nil, "sidecar-bootstrap"), "ConfigMap metards-bootstrap")
	if config.Namespace != "shop" {
		t.Errorf("the ConfigMap is in %s, its pods in shop", config.Namespace)
	}
	bootstrap := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal([]byte(config.Data["custom_bootstrap.json"]), bootstrap); err != nil {
		t.Fatalf("Envoy would not read it: %v", err)
	}
	if err := bootstrap.ValidateAll(); err != nil {
		t.Errorf("Envoy would not take it: %v", err)
	}
	if got := bootstrap.GetNode().GetMetadata().GetFields()["METARDS"].GetStringValue(); got != "v1" {
		t.Errorf("the node's metadata METARDS is %q", got)
	}
	clusters := bootstrap.GetStaticResources().GetClusters()
	if len(clusters) != 2 || clusters[0].GetName() != "metards" || clusters[1].GetName() != "aeraki-xds" {
		t.Fatalf("the clusters are %v", clusters)
	}
	other := proto.CloneOf(clusters[1])
	other.Name, other.LoadAssignment.ClusterName = "metards", "metards"
	if !proto.Equal(other, clusters[0]) {
		t.Error("the two clusters differ in more than their names")
	}
	checkCluster(t, clusters[0])
}

func checkCluster(t *testing.T, c *clusterv3.Cluster) {
	t.Helper()
	deployment, pod := deployed(t)
	service := get[*corev1.Service](t, deployment, "Service metards")
	address := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	got := fmt.Sprintf("%s %s %s:%d", c.GetLoadAssignment().GetClusterName(), c.GetType(), address.GetAddress(), address.GetPortValue())
	if want := fmt.Sprintf("metards STRICT_DNS %s.%s.svc:%d", service.Name, service.Namespace, service.Spec.Ports[0].Port); got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	if c.GetMaxRequestsPerConnection() != nil { //nolint:staticcheck // the field that Aeraki's bootstrap sets
		t.Error("it needs a connection for each subscription")
	}
	if c.GetUpstreamConnectionOptions().GetTcpKeepalive().GetKeepaliveTime().GetValue() == 0 || c.GetCircuitBreakers().GetThresholds()[0].GetMaxRequests().GetValue() < 10_000 {
		t.Error("a dead peer is not noticed, or there is no room for as many streams as a proxy may have tables")
	}
	protocol := &httpv3.HttpProtocolOptions{}
	if err := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].UnmarshalTo(protocol); err != nil ||
		protocol.ValidateAll() != nil || protocol.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil {
		t.Errorf("it does not speak HTTP/2: %v, %v", protocol, err)
	}
	tls := &tlsv3.UpstreamTlsContext{}
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(tls); err != nil || tls.ValidateAll() != nil {
		t.Fatalf("%v, %v", err, tls.ValidateAll())
	}
	common := tls.GetCommonTlsContext()
	sans := common.GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames()
	want := fmt.Sprintf("spiffe://cluster.local/ns/%s/sa/%s", service.Namespace, pod.Spec.ServiceAccountName)
	if len(sans) != 1 || sans[0].GetSanType() != tlsv3.SubjectAltNameMatcher_URI || sans[0].GetMatcher().GetExact() != want {
		t.Errorf("it believes %v, want %s", sans, want)
	}
	cert, roots := common.GetTlsCertificateSdsSecretConfigs()[0], common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig()
	for _, secret := range []*tlsv3.SdsSecretConfig{cert, roots} {
		if got := secret.GetSdsConfig().GetApiConfigSource().GetGrpcServices()[0].GetEnvoyGrpc().GetClusterName(); got != "sds-grpc" {
			t.Errorf("%s comes from %s", secret.GetName(), got)
		}
	}
	if cert.GetName() != "default" || roots.GetName() != "ROOTCA" || fmt.Sprint(common.GetAlpnProtocols()) != "[h2]" {
		t.Errorf("certificate %s, roots %s, ALPN %v", cert.GetName(), roots.GetName(), common.GetAlpnProtocols())
	}
}
