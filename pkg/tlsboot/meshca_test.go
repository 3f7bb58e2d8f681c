package tlsboot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/pkg/meshca"
	"github.com/metards/metards/pkg/meshca/fakeca"
)

const ourID = "spiffe://cluster.local/ns/istio-system/sa/metards"

var token = "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"kubernetes.io":{"namespace":"istio-system","serviceaccount":{"name":"metards"}}}`)) + ".c2ln"

// certified is a fake CA and the MeshCA under test.
type certified struct {
	*MeshCA
	ca              *fakeca.CA
	root            *fakeca.Authority
	rootFile, token string
	log             logLines
	metrics         *Metrics
}

func newCertified(t *testing.T, lifetime time.Duration) *certified {
	t.Helper()
	dir := t.TempDir()
	c := &certified{
		root: fakeca.NewAuthority("cluster.local", nil), metrics: NewMetrics(nil),
		rootFile: filepath.Join(dir, "root-cert.pem"), token: filepath.Join(dir, "istio-token"),
	}
	c.ca = fakeca.Start(fakeca.Settings{Root: c.root, Token: token, URI: ourID, Strict: true})
	t.Cleanup(c.ca.Stop)
	write(t, c.rootFile, []byte(fakeca.PEM(c.root.Cert)))
	write(t, c.token, []byte(token))
	c.MeshCA = must[*MeshCA](t)(NewMeshCA(MeshCAOptions{
		Address: "istiod:15012", RootFile: c.rootFile, TokenFile: c.token, Identity: Identity{TrustDomain: "cluster.local"},
		Lifetime: lifetime, Dial: c.ca.Dial, Log: slog.New(slog.NewTextHandler(&c.log, nil)), Metrics: c.metrics,
	}))
	return c
}

// certifiedBubble has a clock of its own. Files are looked at by hand.
func certifiedBubble(t *testing.T, lifetime time.Duration, test func(*testing.T, *certified)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newCertified(t, lifetime)) })
}

func (c *certified) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.renew(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("renew returned %v", err)
		}
	})
	synctest.Wait()
}

func pass(d time.Duration) {
	<-time.After(d) // of the bubble's clock
	synctest.Wait()
}

// proxy is a client with a certificate of by, which trusts servers of the roots.
func proxy(by *fakeca.Authority, roots ...*fakeca.Authority) *tls.Config {
	cert := by.Leaf("spiffe://cluster.local/ns/shop/sa/cart", 1000*time.Hour)
	return proxyWith(cert, roots...)
}

// proxyWith knows servers by their roots only, as Aeraki's bootstrap has it: mesh certificates have no DNS name.
func proxyWith(cert *tls.Certificate, roots ...*fakeca.Authority) *tls.Config {
	pool := x509.NewCertPool()
	for _, r := range roots {
		pool.AddCert(r.Cert)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, // of the name; VerifyConnection has the rest
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between})
			return err
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil },
	}
}

func TestWithoutAFirstCertificateHandshakesAreRefusedWithTheReasonUntilThereIsOne(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		l := listenInMemory(t, c.ServerConfig())
		if c.Ready() || !strings.Contains(c.Trouble(), "waiting for the first certificate") {
			t.Errorf("before Run: ready %v, trouble %q", c.Ready(), c.Trouble())
		}
		c.ca.Set(func(s *fakeca.Settings) { s.Token = "another" })
		c.start(t)
		_, server, err := l.dial(t, proxy(c.root, c.root))
		if err == nil || server.err == nil || !strings.Contains(server.err.Error(), "istio-ca") || c.Ready() || !strings.Contains(c.Trouble(), "istio-ca") {
			t.Errorf("handshake %v, ready %v, trouble %q", server.err, c.Ready(), c.Trouble())
		}
		if _, err := c.Certificate(); err == nil {
			t.Error("a certificate before the first")
		}
		c.ca.Set(func(s *fakeca.Settings) { s.Token = token })
		pass(retryMax)
		if !c.Ready() || c.Trouble() != "" {
			t.Errorf("ready %v, trouble %q", c.Ready(), c.Trouble())
		}
		if _, leaf := l.connect(t, proxy(c.root, c.root)); leaf.URIs[0].String() != ourID {
			t.Errorf("served as %v", leaf.URIs)
		}
		own, err := c.Certificate()
		if err != nil || testutil.ToFloat64(c.metrics.certificateExpiry) != float64(own.Leaf.NotAfter.Unix()) {
			t.Errorf("certificate: %v, or its expiry is not shown", err)
		}
	})
}

func TestAMissingRootFileAndTokenAreWaitedFor(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		dir := t.TempDir()
		opts := c.opts
		opts.RootFile, opts.TokenFile = filepath.Join(dir, "root-cert.pem"), filepath.Join(dir, "token")
		c.MeshCA = must[*MeshCA](t)(NewMeshCA(opts))
		c.start(t)
		if !strings.Contains(c.Trouble(), opts.TokenFile) {
			t.Errorf("trouble %q", c.Trouble())
		}
		write(t, opts.TokenFile, []byte(token))
		pass(retryMax)
		if !strings.Contains(c.Trouble(), opts.RootFile) {
			t.Errorf("trouble %q", c.Trouble())
		}
		write(t, opts.RootFile, []byte(fakeca.PEM(c.root.Cert)))
		pass(retryMax)
		if !c.Ready() || c.Trouble() != "" {
			t.Errorf("ready %v, trouble %q", c.Ready(), c.Trouble())
		}
	})
}

func TestRenewalAtHalfTheLifetimeIsNoticedByNobody(t *testing.T) {
	certifiedBubble(t, time.Minute, func(t *testing.T, c *certified) {
		c.start(t)
		l := listenInMemory(t, c.ServerConfig())
		conf := proxy(c.root, c.root)
		var open []*tls.Conn
		for range 50 {
			conn, _ := l.connect(t, conf)
			must[any](t)(nil, conn.SetDeadline(time.Time{}))
			open = append(open, conn)
		}
		const cycles = 20
		seen := map[string]bool{}
		for range cycles {
			_, leaf := l.connect(t, conf)
			seen[fingerprint(leaf)] = true
			for _, conn := range open {
				echoes(t, conn)
			}
			pass(30 * time.Second)
			if !c.Ready() {
				t.Fatalf("not ready: %s", c.Trouble())
			}
		}
		if len(seen) < cycles-1 {
			t.Errorf("%d certificates in %d half lifetimes", len(seen), cycles)
		}
		if n := len(c.ca.Calls()); n < cycles || n > cycles+2 {
			t.Errorf("%d requests in %d half lifetimes", n, cycles)
		}
	})
}

func TestReplicasRenewApart(t *testing.T) {
	const left = 24 * time.Hour
	seen := map[time.Duration]bool{}
	for range 100 {
		d := renewIn(left)
		seen[d] = true
		if d < left*48/100 || d > left*52/100 {
			t.Errorf("renewal after %v of %v", d, left)
		}
	}
	if len(seen) < 90 {
		t.Errorf("%d different times of 100", len(seen))
	}
	if d := renewIn(0); d != retryMin {
		t.Errorf("a certificate that ends now is renewed after %v", d)
	}
}

// The CA refuses for ten minutes, of which the old certificate lasts seven and a half.
func TestAnOutageIsAnAlarmAtOnceAndNotReadyOnlyOnceTheCertificateHasExpired(t *testing.T) {
	certifiedBubble(t, 15*time.Minute, func(t *testing.T, c *certified) {
		c.start(t)
		l := listenInMemory(t, c.ServerConfig())
		c.ca.Set(func(s *fakeca.Settings) { s.Refuse = status.Error(codes.Unavailable, "not ready") })
		pass(8 * time.Minute)
		before := len(c.ca.Calls())
		if !c.Ready() || !strings.Contains(c.Trouble(), "not ready") {
			t.Errorf("ready %v, trouble %q", c.Ready(), c.Trouble())
		}
		if testutil.ToFloat64(c.metrics.failing.WithLabelValues(whatCertificate)) != 1 || c.log.count("level=ERROR") != 1 || c.log.count("see the CA's log") != 1 {
			t.Errorf("no alarm, or not one:\n%s", c.log.text.String())
		}
		l.connect(t, proxy(c.root, c.root))

		pass(6 * time.Minute)
		if n := len(c.ca.Calls()) - before; n < 6 || n > 15 {
			t.Errorf("%d requests in 6 minutes", n)
		}
		if !c.Ready() {
			t.Error("not ready while the old certificate is valid")
		}
		pass(3 * time.Minute)
		if c.Ready() || !strings.Contains(c.Trouble(), "expired at") || !strings.Contains(c.Trouble(), "not ready") {
			t.Errorf("ready %v, trouble %q", c.Ready(), c.Trouble())
		}
		if c.log.count("level=ERROR") != 2 || c.log.count("has expired") != 1 {
			t.Errorf("want one line more, of the expiry:\n%s", c.log.text.String())
		}

		c.ca.Set(func(s *fakeca.Settings) { s.Refuse = nil })
		pass(retryMax)
		if !c.Ready() || c.Trouble() != "" || testutil.ToFloat64(c.metrics.failing.WithLabelValues(whatCertificate)) != 0 || c.log.count("gives certificates again") != 1 {
			t.Errorf("no recovery: trouble %q\n%s", c.Trouble(), c.log.text.String())
		}
		l.connect(t, proxy(c.root, c.root))
		if n := testutil.ToFloat64(c.metrics.requests.WithLabelValues(meshca.ReasonUnavailable)); n < 10 {
			t.Errorf("%v refusals counted", n)
		}
	})
}

func TestFailuresThatTakeTurnsAreLoggedOnceEach(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		c.start(t)
		for i := range 40 {
			code := []codes.Code{codes.Unavailable, codes.InvalidArgument}[i%2]
			c.ca.Set(func(s *fakeca.Settings) { s.Refuse = status.Error(code, time.Now().String()) })
			pass(retryMax)
		}
		if n := c.log.count("level=ERROR"); n != 2 {
			t.Errorf("%d lines:\n%s", n, c.log.text.String())
		}
	})
}

func TestPausesGrowToAMinuteAndBeginLongerWhereAPersonIsNeeded(t *testing.T) {
	var p pause
	passes := &meshca.Error{Retriable: true}
	for i, most := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		most *= time.Second
		if d := p.next(passes); d < most/2 || d > most {
			t.Errorf("pause %d is %v, want %v to %v", i, d, most/2, most)
		}
	}
	p.next(nil)
	if d := p.next(&meshca.Error{}); d < retrySlow/2 || d > retrySlow {
		t.Errorf("pause %v", d)
	}
	p.next(nil)
	if d := p.next(passes); d < retryMin || d > 2*retryMin {
		t.Errorf("after a success the first pause is %v", d)
	}
}

func TestATokenThatIsRefusedLaterDoesNotEndRenewal(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		c.start(t)
		first := must[*tls.Certificate](t)(c.Certificate())
		c.ca.Set(func(s *fakeca.Settings) { s.Token = "another" })
		pass(35 * time.Minute)
		second := must[*tls.Certificate](t)(c.Certificate())
		if calls := c.ca.Calls(); second.Leaf.Equal(first.Leaf) || !first.Leaf.Equal(calls[len(calls)-1].Client) {
			t.Errorf("no certificate for the old one: %s", c.Trouble())
		}
	})
}

func TestARefusedAnswerChangesNothing(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		c.start(t)
		first := must[*tls.Certificate](t)(c.Certificate())
		c.ca.Set(func(s *fakeca.Settings) { s.URI, s.Strict = "spiffe://cluster.local/ns/bank/sa/vault", false })
		pass(40 * time.Minute)
		if now := must[*tls.Certificate](t)(c.Certificate()); now != first || !c.Ready() || !strings.Contains(c.Trouble(), "ns/bank/sa/vault") {
			t.Errorf("trouble %q", c.Trouble())
		}
	})
}

// The CA's own certificate, and then what it issues, change from one root to the next.
func TestARootThatRotatesUnderUsIsFollowed(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		c.start(t)
		l := listenInMemory(t, c.ServerConfig())
		r2 := fakeca.NewAuthority("cluster.local", nil)
		young, old := proxy(r2, c.root, r2), proxy(c.root, c.root, r2)
		served := func(conf *tls.Config) bool {
			_, server, _ := l.dial(t, conf)
			return server.err == nil
		}
		if !served(old) || served(young) {
			t.Fatal("with R1: want clients of R1 only")
		}
		// Both roots come with the certificate, before the file has them.
		c.ca.Set(func(s *fakeca.Settings) { s.Roots = []*x509.Certificate{c.root.Cert, r2.Cert} })
		pass(40 * time.Minute)
		if !served(old) || !served(young) {
			t.Error("with R1 and R2: want clients of both")
		}
		c.ca.Set(func(s *fakeca.Settings) { s.Root, s.Roots = r2, []*x509.Certificate{r2.Cert} })
		pass(25 * time.Minute)
		if !strings.Contains(c.Trouble(), "unknown authority") || !c.Ready() {
			t.Errorf("ready %v, trouble %q", c.Ready(), c.Trouble())
		}
		write(t, c.rootFile, []byte(fakeca.PEM(r2.Cert)))
		pass(2 * retryMax)
		c.look(time.Now())
		if c.Trouble() != "" || served(old) || !served(young) {
			t.Errorf("with R2: want clients of R2 only; trouble %q", c.Trouble())
		}
		if _, leaf := l.connect(t, young); leaf.CheckSignatureFrom(r2.Cert) != nil {
			t.Error("our certificate is not of R2")
		}
	})
}

func TestIntermediatesOfTheCAAreShownToClients(t *testing.T) {
	certifiedBubble(t, time.Hour, func(t *testing.T, c *certified) {
		between := fakeca.NewAuthority("intermediate", c.root)
		c.ca.Set(func(s *fakeca.Settings) { s.Between = between })
		c.start(t)
		cert := between.Leaf("spiffe://cluster.local/ns/shop/sa/cart", time.Hour)
		cert.Certificate = append(cert.Certificate, between.Cert.Raw)
		listenInMemory(t, c.ServerConfig()).connect(t, proxyWith(cert, c.root))
	})
}

func TestRunOfAMeshCALeavesNoGoroutineBehindAndSeesTheRootFileChange(t *testing.T) {
	c := newCertified(t, time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, "there is a certificate", c.Ready)
	r2 := fakeca.NewAuthority("cluster.local", nil)
	write(t, c.rootFile, []byte(fakeca.PEM(c.root.Cert, r2.Cert)))
	l := listen(t, c.ServerConfig())
	eventually(t, "clients of R2 are served", func() bool {
		_, server, _ := l.dial(t, proxy(r2, c.root))
		return server.err == nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	eventually(t, "the goroutines are gone", func() bool {
		var all strings.Builder
		must[any](t)(nil, pprof.Lookup("goroutine").WriteTo(&all, 2))
		return !strings.Contains(all.String(), "tlsboot.(*MeshCA)") && !strings.Contains(all.String(), "grpc.(*ClientConn)")
	})
}

func TestAMeshCAThatCannotWorkIsRefusedAtTheStart(t *testing.T) {
	good := MeshCAOptions{Address: "istiod:15012", RootFile: "r", TokenFile: "t", Identity: Identity{TrustDomain: "cluster.local"}}
	for name, spoil := range map[string]func(*MeshCAOptions){
		"no address":           func(o *MeshCAOptions) { o.Address = "" },
		"no trust domain":      func(o *MeshCAOptions) { o.Identity = Identity{} },
		"negative polling":     func(o *MeshCAOptions) { o.Poll = -1 },
		"an anchor of our own": func(o *MeshCAOptions) { o.Anchors = []Anchor{{"cluster.local", "a"}} },
		"an anchor's file":     func(o *MeshCAOptions) { o.Anchors = []Anchor{{"partner.org", "missing"}} },
		"a CRL that is not":    func(o *MeshCAOptions) { o.CRL = "missing" },
	} {
		opts := good
		spoil(&opts)
		if _, err := NewMeshCA(opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
