package admin_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metards/metards/pkg/admin"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/tlsboot"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// far makes peers look as if they came from another machine.
type far struct{ net.Listener }

type farConn struct{ net.Conn }

func (l far) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return farConn{c}, nil
}

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 1234} }

// overTLS serves the pages to peers from afar with the proxies' configuration, and returns the address.
func overTLS(t *testing.T, ca *tlsboot.DevCA) string {
	t.Helper()
	dir := t.TempDir()
	pair := must(ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}}))
	if err := ca.WriteFiles(dir, "server", pair); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	files := must(tlsboot.NewFiles(tlsboot.FilesOptions{
		Cert: dir + "/server.pem", Key: dir + "/server-key.pem", Root: dir + "/root.pem",
		Log: log, Metrics: tlsboot.NewMetrics(prometheus.NewRegistry()),
	}))
	s := must(admin.New(admin.Options{
		Mesh: nothing{}, Cache: nothing{}, Problems: problem.NewBoard(log), Metrics: prometheus.NewRegistry(), Unready: ready, Log: log,
		TLS: files.ServerConfig(), RootNamespace: func() string { return "istio-system" }, TrustDomains: func() []string { return []string{"cluster.local"} },
	}))
	ctx, cancel := context.WithCancel(context.Background())
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, far{l}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestOverTLSDebugPagesAnswerCertificatesOfTheRootNamespaceToo(t *testing.T) {
	ca := must(tlsboot.NewDevCA("cluster.local"))
	addr := overTLS(t, ca)
	get := func(config *tls.Config, page string) (int, string, error) {
		config.NextProtos = nil
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: 20 * time.Second}
		defer c.CloseIdleConnections()
		resp, err := c.Get("https://" + addr + page)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode, string(must(io.ReadAll(resp.Body))), nil
	}
	for name, c := range map[string]struct {
		as   *tlsboot.IssueOptions
		code int
		says string
	}{
		"of the root namespace":     {&tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "a"}, http.StatusOK, "[]"},
		"of another":                {&tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "a"}, http.StatusForbidden, `"shop"`},
		"of another trust domain":   {&tlsboot.IssueOptions{URIs: []string{"spiffe://elsewhere/ns/istio-system/sa/a"}}, http.StatusForbidden, `"elsewhere"`},
		"that can sign":             {&tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "a", IsCA: true}, http.StatusForbidden, "CA certificate"},
		"no certificate":            {nil, http.StatusForbidden, "no client certificate"},
		"with two URI SANs":         {&tlsboot.IssueOptions{URIs: []string{"spiffe://cluster.local/ns/istio-system/sa/a", "spiffe://cluster.local/ns/istio-system/sa/b"}}, http.StatusForbidden, "2 URI SANs"},
		"no URI SAN, but the names": {&tlsboot.IssueOptions{URIs: []string{}, DNSNames: []string{"istio-system"}}, http.StatusForbidden, "no URI SAN"},
	} {
		var pair *tlsboot.Pair
		if c.as != nil {
			pair = must(ca.Issue(*c.as))
		}
		for page, want := range map[string]int{"/debug/proxies": c.code, "/livez": http.StatusOK, "/metrics": http.StatusOK} {
			code, body, err := get(must(ca.ClientConfig(pair, "localhost")), page)
			if err != nil || code != want || page == "/debug/proxies" && !strings.Contains(body, c.says) {
				t.Errorf("%s, %s: %d %q %v, want %d %q", name, page, code, body, err, want, c.says)
			}
		}
	}
	stranger := must(must(tlsboot.NewDevCA("cluster.local")).Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "a"}))
	if code, body, err := get(must(ca.ClientConfig(stranger, "localhost")), "/debug/proxies"); err == nil {
		t.Errorf("a stranger's certificate: %d %q, want no connection", code, body)
	}
}

func TestTLSWithoutARootNamespaceIsRefused(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if _, err := admin.New(admin.Options{
		Mesh: nothing{}, Cache: nothing{}, Problems: problem.NewBoard(log), Metrics: prometheus.NewRegistry(), Unready: ready, Log: log, TLS: &tls.Config{},
	}); err == nil || !strings.Contains(err.Error(), "root namespace") {
		t.Errorf("got %v", err)
	}
}
