package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metards/metards/e2e/cluster"
	"github.com/metards/metards/internal/sampleproxy"
)

// hour is how long tokens are valid.
const hour = time.Hour

// patience bounds every wait.
const patience = 60 * time.Second

// mesh is the control plane that all tests share; each has namespaces of its own.
var mesh *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "metards-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	began := time.Now()
	mesh, err = cluster.Start(context.Background(), dir)
	defer mesh.Stop()
	if err == nil {
		err = installMetaRouterCRD(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(os.Stdout, "etcd, kube-apiserver and istiod are up after %s\n", time.Since(began).Round(time.Second))
	code := m.Run()
	report.Print(os.Stdout)
	return code
}

func installMetaRouterCRD(ctx context.Context) error {
	data, err := os.ReadFile("../manifests/base/crd.yaml")
	if err != nil {
		return err
	}
	return mesh.Apply(ctx, string(data))
}

// server starts a metards that reads istiod and the API server as an administrator.
func server(t *testing.T, name string, flags ...string) *cluster.Metards {
	t.Helper()
	m := startServer(t, name, flags...)
	if err := m.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// startServer starts a metards and does not wait until it is ready.
func startServer(t *testing.T, name string, flags ...string) *cluster.Metards {
	t.Helper()
	return prepareServer(t, name, flags...)()
}

// prepareServer gets all that a metards needs while the control plane is there, and returns what starts it.
func prepareServer(t *testing.T, name string, flags ...string) func() *cluster.Metards {
	t.Helper()
	token := tokenFile(t, "istio-system", "metards")
	own, err := mesh.Certificate(t.Context(), "istio-system", "metards")
	if err != nil {
		t.Fatal(err)
	}
	base := []string{
		"--istiod", mesh.Istiod, "--istiod-server-name", "istiod.istio-system.svc", "--istiod-root", mesh.RootFile, "--token", token,
		"--kubeconfig", mesh.Kubeconfig, "--cert", own.CertFile, "--key", own.KeyFile, "--root", mesh.RootFile,
	}
	return func() *cluster.Metards {
		t.Helper()
		m, err := mesh.StartMetards(name, append(base, flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			m.Stop()
			if t.Failed() {
				t.Logf("log of %s:\n%s", name, m.Log())
			}
		})
		return m
	}
}

// tokenFile writes a token for istiod as it would be projected into a pod.
func tokenFile(t *testing.T, namespace, account string) string {
	t.Helper()
	token, err := mesh.Token(t.Context(), namespace, account, "istio-ca", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/istio-token"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// apply applies YAML, after replacing NS by the test's namespace.
func apply(t *testing.T, namespace, text string) {
	t.Helper()
	if err := mesh.Apply(t.Context(), strings.ReplaceAll(text, "NS", namespace)); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, namespace, text string) {
	t.Helper()
	if err := mesh.Delete(t.Context(), strings.ReplaceAll(text, "NS", namespace)); err != nil {
		t.Fatal(err)
	}
}

func namespaces(t *testing.T, names ...string) {
	t.Helper()
	if err := mesh.Namespaces(t.Context(), names...); err != nil {
		t.Fatal(err)
	}
}

// proxy is a stream of a client with a certificate of the mesh.
type proxy struct {
	*sampleproxy.Stream
	t *testing.T
}

func subscribe(t *testing.T, m *cluster.Metards, form sampleproxy.Form, namespace string, names ...string) *proxy {
	t.Helper()
	return subscribeAs(t, m, certificate(t, namespace), form, namespace, names...)
}

// certificate has istiod sign one for the account app of a namespace.
func certificate(t *testing.T, namespace string) *cluster.Pair {
	t.Helper()
	pair, err := mesh.Certificate(t.Context(), namespace, "app")
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func subscribeAs(t *testing.T, m *cluster.Metards, pair *cluster.Pair, form sampleproxy.Form, namespace string, names ...string) *proxy {
	t.Helper()
	conf, err := mesh.ClientTLS(pair)
	if err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///"+m.Listen, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = cc.Close() })
	s, err := sampleproxy.Open(ctx, cc, form, sampleproxy.Node("sidecar", "app", namespace))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Want(names...); err != nil {
		t.Fatal(err)
	}
	return &proxy{s, t}
}

func rds() sampleproxy.Form { return sampleproxy.Forms()[0] }

// table waits for the next response, accepts it, and returns the routes in short form.
func (p *proxy) table() (name, routes string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := p.Next(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.Accept(r); err != nil {
		p.t.Fatal(err)
	}
	t, err := r.Table()
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for _, route := range t.GetVirtualHosts()[0].GetRoutes() {
		text := route.GetName() + ":"
		if c := route.GetRoute().GetCluster(); c != "" {
			text += " " + c
		}
		for _, c := range route.GetRoute().GetWeightedClusters().GetClusters() {
			text += fmt.Sprintf(" %s=%d", c.GetName(), c.GetWeight().GetValue())
		}
		for _, h := range route.GetRoute().GetHashPolicy() {
			text += " #" + h.GetHeader().GetHeaderName()
		}
		out = append(out, text)
	}
	return t.GetName(), strings.Join(out, "; ")
}

// want waits for the next table and checks it.
func (p *proxy) want(name, routes string) {
	p.t.Helper()
	if n, r := p.table(); n != name || r != routes {
		p.t.Fatalf("got %s: %s\nwant %s: %s", n, r, name, routes)
	}
}

// silent checks that nothing has come.
func (p *proxy) silent() {
	p.t.Helper()
	select {
	case r, ok := <-p.Responses():
		p.t.Fatalf("a response that nothing asked for: %v %v (%v)", r.Names, r.Version, ok)
	default:
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for {
		err := holds()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("never: %s: %v", what, err)
		}
	}
}

// metaRouters is the resource.
var metaRouters = schema.GroupVersionResource{Group: "metaprotocol.aeraki.io", Version: "v1alpha1", Resource: "metarouters"}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
