package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metards/metards/internal/sampleproxy"
)

var (
	serviceEntryResource = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "serviceentries"}
	envoyFilterResource  = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1alpha3", Resource: "envoyfilters"}
)

const filteredServices = `
apiVersion: v1
kind: Service
metadata: {name: inventory, namespace: NS}
spec:
  selector: {app: inventory}
  ports: [{name: tcp-metaprotocol-thrift, port: 9090, targetPort: 19090}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: NS}
spec:
  hosts: [orders.NS.example]
  location: MESH_INTERNAL
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
  ports: [{number: 20880, name: tcp-metaprotocol-dubbo, protocol: TCP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: returns, namespace: NS}
spec:
  hosts: [returns.NS.example]
  addresses: ["2001:db8::77"]
  location: MESH_INTERNAL
  resolution: STATIC
  workloadSelector: {labels: {app: returns}}
  ports: [{number: 20881, name: tcp-metaprotocol-dubbo, protocol: TCP, targetPort: 21001}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: returns-1, namespace: NS}
spec: {address: 10.77.0.9, labels: {app: returns}}
`

// printFilters runs metards envoyfilters against the API server, for the services of a namespace.
func printFilters(t *testing.T, namespace string, flags ...string) string {
	t.Helper()
	args := append([]string{"envoyfilters", "--kubeconfig", mesh.Kubeconfig, "--service-namespaces", namespace, "--strict"}, flags...)
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Getenv("METARDS"), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("metards envoyfilters: %v: %s", err, &stderr)
	}
	return stdout.String()
}

// istiodListeners are the network filters of the listeners that istiod gives to a sidecar, by the listener's name, and
// for the chains of virtualInbound by that and the port, as in virtualInbound:9090.
func istiodListeners(t *testing.T, node *corev3.Node) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, resource := range istiodResources(t, node, "type.googleapis.com/envoy.config.listener.v3.Listener") {
		var l listenerv3.Listener
		if err := resource.UnmarshalTo(&l); err != nil {
			t.Fatal(err)
		}
		for _, chain := range l.GetFilterChains() {
			at := l.GetName()
			if port := chain.GetFilterChainMatch().GetDestinationPort(); port != nil {
				at = fmt.Sprintf("%s:%d", at, port.GetValue())
			}
			for _, f := range chain.GetFilters() {
				out[at] = append(out[at], f.GetName())
			}
		}
	}
	return out
}

// sidecarAt is a sidecar with DNS capture, without which istiod uses no allocated address, of the workload returns-1.
func sidecarAt(namespace string, ours bool) *corev3.Node {
	node := sampleproxy.Node("sidecar", "returns-1", namespace)
	node.Id = strings.Replace(node.GetId(), "127.0.0.1", "10.77.0.9", 1)
	labels := &structpb.Struct{Fields: map[string]*structpb.Value{"app": structpb.NewStringValue("returns")}}
	node.Metadata.Fields["LABELS"] = structpb.NewStructValue(labels)
	node.Metadata.Fields["DNS_CAPTURE"] = structpb.NewStringValue("true")
	node.Metadata.Fields["CLUSTER_ID"] = structpb.NewStringValue("Kubernetes")
	if ours {
		node.Metadata.Fields["METARDS"] = structpb.NewStringValue("v1")
	}
	return node
}

// allocated waits until istiod has written an address into the status of a ServiceEntry.
func allocated(t *testing.T, namespace, name string) string {
	t.Helper()
	var address string
	eventually(t, "istiod allocates an address", func() error {
		u, err := mesh.Dynamic.Resource(serviceEntryResource).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		list, _, err := unstructured.NestedSlice(u.Object, "status", "addresses")
		for _, a := range list {
			if value, _ := a.(map[string]any)["value"].(string); address == "" || strings.Contains(value, ".") {
				address = value
			}
		}
		if address == "" {
			return errors.Join(err, fmt.Errorf("the status is %v", u.Object["status"]))
		}
		return nil
	})
	return address
}

func TestFiltersThatAreAppliedReachProxiesWithOurBootstrapAndNoOthers(t *testing.T) {
	const ns = "filters"
	namespaces(t, ns)
	apply(t, ns, filteredServices)
	service, err := mesh.Kube.CoreV1().Services(ns).Get(t.Context(), "inventory", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	thrift, dubbo := service.Spec.ClusterIP+"_9090", allocated(t, ns, "orders")+"_20880"

	const meta, http, tcp = "envoy.filters.network.meta_protocol_proxy", "envoy.filters.network.http_connection_manager", "envoy.filters.network.tcp_proxy"
	outbound := []string{thrift, dubbo, "2001:db8::77_20881"}
	for _, c := range []struct {
		filter, want string
		at           []string
	}{
		{"metaprotocol", meta, append(outbound, "virtualInbound:21001")},
		{"http", http, outbound},
	} {
		text := printFilters(t, ns, "--filter", c.filter)
		if err := mesh.Apply(t.Context(), text); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		t.Cleanup(func() { _ = mesh.Delete(context.Background(), text) })
		eventually(t, "istiod gives the filters to our proxies", func() error {
			return disagree(istiodListeners(t, sidecarAt(ns, true)), c.at, c.want, tcp)
		})
		if err := disagree(istiodListeners(t, sidecarAt(ns, false)), c.at, tcp, c.want); err != nil {
			t.Errorf("a proxy without our bootstrap: %v", err)
		}
	}
	list, err := mesh.Dynamic.Resource(envoyFilterResource).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=metards"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 5 { // three outbound, which http replaced, and the inbound ones of inventory and returns
		t.Errorf("there are %d EnvoyFilters", len(list.Items))
	}
}

// disagree says which of the listeners lacks a filter, or has one that it should not have.
func disagree(got map[string][]string, at []string, want, not string) error {
	for _, l := range at {
		if !slices.Contains(got[l], want) || slices.Contains(got[l], not) {
			return fmt.Errorf("%s has %v", l, got[l])
		}
	}
	return nil
}
