package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/internal/sampleproxy"
)

func TestTheCertificateOfTheMeshCAIsRenewedWhileStreamsStayOpen(t *testing.T) {
	const ns = "renewal"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	token := tokenFile(t, "istio-system", "metards")
	m, err := mesh.StartMetards(ns, "--istiod", mesh.Istiod, "--istiod-server-name", "istiod.istio-system.svc", "--istiod-root", mesh.RootFile,
		"--token", token, "--kubeconfig", mesh.Kubeconfig, "--ca", mesh.Istiod, "--root", mesh.RootFile, "--cert-lifetime", "20s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Stop()
		if t.Failed() {
			t.Log(m.Log())
		}
	})
	if err := m.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	const streams = 50
	list := make([]*proxy, streams)
	for i := range list {
		list[i] = subscribe(t, m, sampleproxy.Forms()[i%4], ns, orders(ns))
		list[i].want(orders(ns), canaryRoutes(ns, 90, 10))
	}
	pair := certificate(t, ns)
	conf, err := mesh.ClientTLS(pair)
	if err != nil {
		t.Fatal(err)
	}
	serials := map[string]bool{}
	for i := 1; len(serials) < 4; i++ {
		if i > 20 {
			t.Fatalf("after %d edits there were only the certificates %v", i, serials)
		}
		<-time.After(2 * time.Second)
		apply(t, ns, canary(90-i, 10+i))
		for _, p := range list {
			p.want(orders(ns), canaryRoutes(ns, 90-i, 10+i))
		}
		conn, err := tls.Dial("tcp", m.Listen, conf)
		if err != nil {
			t.Fatalf("a handshake failed: %v", err)
		}
		leaf := conn.ConnectionState().PeerCertificates[0]
		serials[leaf.SerialNumber.String()] = true
		if got := leaf.URIs[0].String(); got != "spiffe://cluster.local/ns/istio-system/sa/metards" {
			t.Errorf("the server is %s", got)
		}
		_ = conn.Close()
	}
	if _, metrics := m.Get("/metrics"); !strings.Contains(metrics, fmt.Sprintf("} %d\n", streams)) || !strings.Contains(metrics, "metards_tls_clients{root=") {
		t.Errorf("the metrics do not count %d clients of the root", streams)
	}
	t.Logf("%d certificates in force one after the other, %d streams open all the time", len(serials), streams)
}

func TestAProxyOfTheMeshCanOnlySpeakForItself(t *testing.T) {
	const ns, other = "own", "foreign"
	namespaces(t, ns, other)
	apply(t, ns, services)
	m := server(t, "speak")
	conf, err := mesh.ClientTLS(certificate(t, other))
	if err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///"+m.Listen, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, form := range sampleproxy.Forms() {
		s, err := sampleproxy.Open(ctx, cc, form, sampleproxy.Node("sidecar", "app", ns))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Want(orders(ns)); err != nil {
			t.Fatal(err)
		}
		_, err = s.Next(ctx)
		if st := status.Convert(err); st.Code() != codes.PermissionDenied || !strings.Contains(st.Message(), `"own"`) || !strings.Contains(st.Message(), "ns/foreign") {
			t.Errorf("%s: %v", form.Name, err)
		}
	}
}

func TestACAThatRefusesIsNamedAndRecoveredFrom(t *testing.T) {
	const ns = "ca-refuses"
	namespaces(t, ns)
	apply(t, ns, services)
	token := tokenFile(t, "istio-system", "metards")
	m, err := mesh.StartMetards(ns, "--istiod", mesh.Istiod, "--istiod-server-name", "istiod.istio-system.svc", "--istiod-root", mesh.RootFile,
		"--token", token, "--kubeconfig", mesh.Kubeconfig, "--ca", "127.0.0.1:1", "--root", mesh.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	eventually(t, "readiness names the CA", func() error {
		code, body := m.Get("/readyz")
		if code == 503 && strings.Contains(body, "127.0.0.1:1") {
			return nil
		}
		return fmt.Errorf("/readyz says %d %s", code, body)
	})
}
