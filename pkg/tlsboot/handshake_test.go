package tlsboot

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

func TestAWorkloadOfTheMeshIsServedAndSaysWhoItIs(t *testing.T) {
	ca := newCA(t)
	s := newSite(t, ca)
	l := listen(t, s.ServerConfig())
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		conf := client(t, issue(t, ca, IssueOptions{}), ca)
		conf.MaxVersion = version
		_, server, err := l.dial(t, conf)
		if err != nil || server.err != nil {
			t.Fatalf("%s: %v, %v", name, err, server.err)
		}
		if server.state.Version != version || server.state.NegotiatedProtocol != "h2" {
			t.Errorf("%s: got version %x, protocol %q", name, server.state.Version, server.state.NegotiatedProtocol)
		}
		got, err := PeerIdentity(server.state.VerifiedChains[0][0])
		if want := (Identity{"cluster.local", "shop", "cart"}); err != nil || got != want {
			t.Errorf("%s: PeerIdentity = %v, %v, want %v", name, got, err, want)
		}
	}
}

func TestAnIntermediateBetweenRootAndWorkloadIsFollowed(t *testing.T) {
	root := newCA(t)
	authority := issue(t, root, IssueOptions{IsCA: true, URIs: []string{}})
	middle := &DevCA{trustDomain: root.trustDomain, cert: authority.TLS.Leaf, key: authority.TLS.PrivateKey.(*ecdsa.PrivateKey)}
	pair := issue(t, middle, IssueOptions{})
	pair.TLS.Certificate = append(pair.TLS.Certificate, authority.TLS.Leaf.Raw)
	listen(t, newSite(t, root).ServerConfig()).connect(t, client(t, pair, root))
}

// Each case ends in a refusal by the handshake or by PeerIdentity, with a reason one can act on.
func TestWhoeverIsNotAWorkloadOfTheMeshIsRefused(t *testing.T) {
	ca, stranger := newCA(t), newCA(t)
	selfSigned := must[*x509.Certificate](t)(ca.template(IssueOptions{Namespace: "shop", ServiceAccount: "cart"}))
	selfSigned = must[*x509.Certificate](t)(sign(selfSigned, selfSigned, stranger.key, stranger.key))
	uris := func(s ...string) *Pair { return issue(t, ca, IssueOptions{URIs: s}) }

	l := listen(t, newSite(t, ca).ServerConfig())
	for _, c := range []struct {
		name        string
		pair        *Pair
		inHandshake bool
		reason      string
	}{
		{"a workload of another mesh", issue(t, stranger, IssueOptions{}), true, "unknown authority"},
		{"a certificate that signed itself", must[*Pair](t)(newPair(selfSigned, stranger.key)), true, "unknown authority"},
		{"an expired certificate", issue(t, ca, IssueOptions{NotBefore: time.Now().Add(-2 * time.Hour), Lifetime: time.Hour}), true, "expired"},
		{"a certificate of tomorrow", issue(t, ca, IssueOptions{NotBefore: time.Now().Add(time.Hour)}), true, "not yet valid"},
		{"no certificate", nil, true, "didn't provide a certificate"},
		{"no URI SAN", issue(t, ca, IssueOptions{URIs: []string{}, DNSNames: []string{"cart.shop"}}), false, "no URI SAN"},
		{"two URI SANs", uris("spiffe://cluster.local/ns/shop/sa/cart", "spiffe://cluster.local/ns/bank/sa/vault"), false, "has 2 URI SANs"},
		{"a URI that is not SPIFFE", uris("https://cluster.local/ns/shop/sa/cart"), false, "scheme"},
		{"another path form", uris("spiffe://cluster.local/workload/cart"), false, "not of the form spiffe://<trust domain>/ns/"},
		{"an empty namespace", uris("spiffe://cluster.local/ns//sa/cart"), false, "empty"},
		{"a CA certificate", issue(t, ca, IssueOptions{IsCA: true}), false, "is a CA certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, server, _ := l.dial(t, client(t, c.pair, ca))
			err := server.err
			if c.inHandshake != (err != nil) {
				t.Fatalf("handshake: %v, want it refused: %v", err, c.inHandshake)
			}
			if err == nil {
				_, err = PeerIdentity(server.state.VerifiedChains[0][0])
			}
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %v, want an error with %q", err, c.reason)
			}
		})
	}
}

func TestOldOrWeakTLSIsRefused(t *testing.T) {
	ca := newCA(t)
	l := listen(t, newSite(t, ca).ServerConfig())
	for name, c := range map[string]struct {
		change func(*tls.Config)
		reason string
	}{
		"TLS 1.1": {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, "unsupported versions"},
		"a CBC cipher suite": {func(c *tls.Config) {
			c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
		}, "no cipher suite"},
		"another protocol": {func(c *tls.Config) { c.NextProtos = []string{"istio"} }, "unsupported application protocols"},
	} {
		conf := client(t, issue(t, ca, IssueOptions{}), ca)
		c.change(conf)
		if _, server, _ := l.dial(t, conf); server.err == nil || !strings.Contains(server.err.Error(), c.reason) {
			t.Errorf("%s: %v, want an error with %q", name, server.err, c.reason)
		}
	}
}

func TestNoSessionIsResumed(t *testing.T) {
	ca := newCA(t)
	l := listen(t, newSite(t, ca).ServerConfig())
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		conf := client(t, issue(t, ca, IssueOptions{}), ca)
		conf.MaxVersion, conf.ClientSessionCache = version, tls.NewLRUClientSessionCache(1)
		for range 2 {
			conn, _ := l.connect(t, conf)
			echoes(t, conn) // a ticket would arrive before the echo
			if conn.ConnectionState().DidResume {
				t.Errorf("%s: session was resumed", name)
			}
		}
	}
}

func TestNothingIsServedBeforeACertificateIsInForce(t *testing.T) {
	ca := newCA(t)
	var none inForce
	conn, server, err := listen(t, none.serverConfig()).dial(t, client(t, issue(t, ca, IssueOptions{}), ca))
	if err == nil || server.err == nil {
		t.Errorf("handshake with %v: %v, %v, want it refused", conn.RemoteAddr(), err, server.err)
	}
}

// gRPC copies and wraps the configuration, and has a rule of its own: no ALPN, no connection.
func TestGRPCKeepsTheRulesAndRefusesClientsWithoutALPN(t *testing.T) {
	ca, stranger := newCA(t), newCA(t)
	s := newSite(t, ca)
	creds := credentials.NewTLS(s.ServerConfig())
	for name, c := range map[string]struct {
		pair   *Pair
		protos []string
		reason string
	}{
		"a workload":                 {issue(t, ca, IssueOptions{}), []string{"h2"}, ""},
		"a workload without ALPN":    {issue(t, ca, IssueOptions{}), nil, "ALPN"},
		"a workload with HTTP/1.1":   {issue(t, ca, IssueOptions{}), []string{"http/1.1"}, "ALPN"},
		"a workload of another CA":   {issue(t, stranger, IssueOptions{}), []string{"h2"}, "unknown authority"},
		"whoever has no certificate": {nil, []string{"h2"}, "didn't provide a certificate"},
	} {
		conf := client(t, c.pair, ca)
		conf.NextProtos = c.protos
		here, there := net.Pipe()
		for _, end := range []net.Conn{here, there} {
			if err := end.SetDeadline(time.Now().Add(deadline)); err != nil {
				t.Fatal(err)
			}
		}
		clientDone := make(chan struct{})
		go func() {
			defer close(clientDone)
			conn := tls.Client(there, conf)
			_ = conn.Handshake()
			_, _ = conn.Read(make([]byte, 1)) // take the alert, or the end
		}()
		_, info, err := creds.ServerHandshake(here)
		if c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.reason)
		}
		if c.reason == "" {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := PeerIdentity(info.(credentials.TLSInfo).State.VerifiedChains[0][0]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		_ = here.Close()
		<-clientDone
	}
}

func BenchmarkHandshake(b *testing.B) {
	ca := newCA(b)
	l := listen(b, newSite(b, ca).ServerConfig())
	conf := client(b, issue(b, ca, IssueOptions{}), ca)
	b.ReportAllocs()
	for b.Loop() {
		conn := must[*tls.Conn](b)(tls.Dial("tcp", l.addr, conf))
		if h := <-l.handshakes; h.err != nil {
			b.Fatal(h.err)
		}
		_ = conn.Close()
	}
}
