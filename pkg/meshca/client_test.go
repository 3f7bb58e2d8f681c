package meshca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/pkg/meshca/fakeca"
)

const (
	uri   = "spiffe://cluster.local/ns/istio-system/sa/metards"
	other = "spiffe://cluster.local/ns/bank/sa/vault"
)

// jwt is a token of service account metards; its signature is of no interest here.
func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

var token = jwt(`{"aud":["istio-ca"],"kubernetes.io":{"namespace":"istio-system","serviceaccount":{"name":"metards","uid":"1"}}}`)

// setup is a CA and a client of it.
type setup struct {
	*fakeca.CA
	root                *fakeca.Authority
	rootFile, tokenFile string
	opts                Options
}

func newSetup(t *testing.T) *setup {
	dir := t.TempDir()
	s := &setup{root: fakeca.NewAuthority("cluster.local", nil), rootFile: filepath.Join(dir, "root-cert.pem"), tokenFile: filepath.Join(dir, "istio-token")}
	s.CA = fakeca.Start(fakeca.Settings{Root: s.root, Token: token, URI: uri, Strict: true})
	t.Cleanup(s.Stop)
	write(t, s.rootFile, fakeca.PEM(s.root.Cert))
	write(t, s.tokenFile, token+"\n")
	s.opts = Options{
		Address: "istiod:15012", ServerName: fakeca.ServerName, RootFile: s.rootFile, TokenFile: s.tokenFile,
		TrustDomain: "cluster.local", Dial: s.Dial, ClusterID: "Kubernetes",
	}
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *setup) request(t *testing.T, current *tls.Certificate) (*Grant, error) {
	t.Helper()
	c, err := New(s.opts)
	if err != nil {
		t.Fatal(err)
	}
	return c.Request(t.Context(), current)
}

func (s *setup) granted(t *testing.T, current *tls.Certificate) *Grant {
	t.Helper()
	g, err := s.request(t, current)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAStrictCAGivesACertificateForAFreshKeyOnEachRequest(t *testing.T) {
	s := newSetup(t)
	first, second := s.granted(t, nil), s.granted(t, nil)
	if len(first.Certificate.Certificate) != 1 || first.Certificate.Leaf.URIs[0].String() != uri || len(first.Roots) != 1 {
		t.Errorf("got %d certificates for %v, %d roots", len(first.Certificate.Certificate), first.Certificate.Leaf.URIs, len(first.Roots))
	}
	calls := s.Calls()
	if len(calls) != 2 || calls[0].Token != token || calls[0].Cluster != "Kubernetes" || calls[0].Lifetime != 24*time.Hour || calls[0].Client != nil {
		t.Errorf("the CA saw %+v", calls)
	}
	if string(calls[0].CSR.RawSubjectPublicKeyInfo) == string(calls[1].CSR.RawSubjectPublicKeyInfo) {
		t.Error("two requests had one key")
	}
	if key, ok := calls[0].CSR.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Error("the key is not of P-256")
	}
	if second.Certificate.Leaf.Equal(first.Certificate.Leaf) {
		t.Error("one certificate twice")
	}
}

func TestIntermediatesAreKeptAndRootsAreNotPresented(t *testing.T) {
	s := newSetup(t)
	between := fakeca.NewAuthority("intermediate", s.root)
	r2 := fakeca.NewAuthority("cluster.local", nil)
	s.Set(func(o *fakeca.Settings) {
		o.Between, o.Roots = between, []*x509.Certificate{s.root.Cert, r2.Cert}
		// A plugged-in CA's cert-chain.pem may end in the root.
		o.Change = func(chain []string, _ fakeca.Call) []string {
			return []string{chain[0], "subject=intermediate\n" + strings.TrimSpace(chain[1]), fakeca.PEM(s.root.Cert), chain[2]}
		}
	})
	g := s.granted(t, nil)
	if len(g.Certificate.Certificate) != 2 || string(g.Certificate.Certificate[1]) != string(between.Cert.Raw) {
		t.Errorf("%d certificates presented, want the leaf and one intermediate", len(g.Certificate.Certificate))
	}
	if len(g.Roots) != 2 {
		t.Errorf("%d roots, want the bundle's 2", len(g.Roots))
	}
}

func TestAnAnswerThatIsNotWhatWeAskedForIsRefused(t *testing.T) {
	s := newSetup(t)
	stranger := fakeca.NewAuthority("cluster.local", nil)
	between := fakeca.NewAuthority("intermediate", s.root)
	sign := func(by *fakeca.Authority, uri string, lifetime time.Duration, key any) string {
		leaf := by.Leaf(uri, lifetime).Leaf
		if key == nil {
			return fakeca.PEM(leaf)
		}
		return fakeca.PEM(by.Sign(leaf, key))
	}
	for name, c := range map[string]struct {
		change func([]string, fakeca.Call) []string
		reason string
	}{
		"nothing":             {func([]string, fakeca.Call) []string { return nil }, "0 elements"},
		"a leaf only":         {func(c []string, _ fakeca.Call) []string { return c[:1] }, "1 elements"},
		"half a leaf":         {func(c []string, _ fakeca.Call) []string { return []string{c[0][:200], c[1]} }, "broken or cut off"},
		"half a root":         {func(c []string, _ fakeca.Call) []string { return []string{c[0], c[1][:200]} }, "roots: a PEM block"},
		"no PEM":              {func(c []string, _ fakeca.Call) []string { return []string{"x", c[1]} }, "broken or cut off"},
		"broken DER":          {func(c []string, _ fakeca.Call) []string { return []string{block("CERTIFICATE"), c[1]} }, "parse PEM block 1"},
		"a private key":       {func(c []string, _ fakeca.Call) []string { return []string{c[0], block("PRIVATE KEY"), c[1]} }, "PRIVATE KEY, not CERTIFICATE"},
		"the root first":      {func(c []string, _ fakeca.Call) []string { return []string{c[1], c[1]} }, "not for the key"},
		"leaves as the roots": {func(c []string, _ fakeca.Call) []string { return []string{c[0], c[0]} }, "is the chain cut off?"},
		"another's key":       {func(c []string, _ fakeca.Call) []string { return []string{sign(s.root, uri, time.Hour, nil), c[1]} }, "not for the key"},
		"another identity": {func(c []string, r fakeca.Call) []string {
			return []string{sign(s.root, other, time.Hour, r.CSR.PublicKey), c[1]}
		}, "is for " + other},
		"no identity": {func(c []string, r fakeca.Call) []string {
			return []string{sign(s.root, "", time.Hour, r.CSR.PublicKey), c[1]}
		}, "has 0 URI SANs"},
		"a CA's": {func(c []string, r fakeca.Call) []string {
			leaf := s.root.Leaf(uri, time.Hour).Leaf
			leaf.IsCA, leaf.KeyUsage = true, x509.KeyUsageCertSign
			return []string{fakeca.PEM(s.root.Sign(leaf, r.CSR.PublicKey)), c[1]}
		}, "is a CA's"},
		"an expired one": {func(c []string, r fakeca.Call) []string {
			return []string{sign(s.root, uri, -time.Minute, r.CSR.PublicKey), c[1]}
		}, "compare the CA's clock"},
		"a stranger's": {func(c []string, r fakeca.Call) []string {
			return []string{sign(stranger, uri, time.Hour, r.CSR.PublicKey), c[1]}
		}, "does not chain"},
		"without its intermediate": {func(c []string, r fakeca.Call) []string {
			return []string{sign(between, uri, time.Hour, r.CSR.PublicKey), c[1]}
		}, "does not chain"},
	} {
		t.Run(name, func(t *testing.T) {
			s.Set(func(o *fakeca.Settings) { o.Change = c.change })
			_, err := s.request(t, nil)
			wantError(t, err, ReasonReply, false, c.reason)
		})
	}
}

func block(kind string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte("x")}))
}

func wantError(t *testing.T, err error, reason string, retriable bool, says string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Reason != reason || e.Retriable != retriable || !strings.Contains(e.Error(), says) || strings.Contains(e.Error(), token) {
		t.Errorf("got %v, want reason %s, retriable %v, with %q", err, reason, retriable, says)
	}
}

func TestEachFailureSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		spoil     func(*testing.T, *setup)
		reason    string
		retriable bool
		says      string
	}{
		"no root file":    {func(_ *testing.T, s *setup) { s.opts.RootFile += "x" }, ReasonRoots, false, "istio-ca-root-cert"},
		"half a root":     {func(t *testing.T, s *setup) { write(t, s.rootFile, fakeca.PEM(s.root.Cert)[:100]) }, ReasonRoots, false, "cut off"},
		"no token file":   {func(_ *testing.T, s *setup) { s.opts.TokenFile += "x" }, ReasonToken, false, "mount a projected"},
		"an empty token":  {func(t *testing.T, s *setup) { write(t, s.tokenFile, "\n") }, ReasonToken, false, "holds no token"},
		"two lines":       {func(t *testing.T, s *setup) { write(t, s.tokenFile, "a\nb") }, ReasonToken, false, "holds no token"},
		"an opaque token": {func(t *testing.T, s *setup) { write(t, s.tokenFile, "secret") }, ReasonToken, false, "give namespace and service account"},
		"a name that no identity has": {func(t *testing.T, s *setup) {
			write(t, s.tokenFile, jwt(`{"kubernetes.io":{"namespace":"a/b","serviceaccount":{"name":"c"}}}`))
		}, ReasonRequest, false, "check trust domain"},
		"nobody there": {func(_ *testing.T, s *setup) {
			s.opts.Dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }
		}, ReasonUnreachable, true, "connection refused; check the address"},
		"another root": {func(t *testing.T, s *setup) {
			write(t, s.rootFile, fakeca.PEM(fakeca.NewAuthority("cluster.local", nil).Cert))
		}, ReasonTLS, true, "unknown authority"},
		"another name": {func(_ *testing.T, s *setup) { s.opts.ServerName = "istiod.elsewhere.svc" }, ReasonTLS, true, "must be for istiod.elsewhere.svc"},
		"a token refused": {func(_ *testing.T, s *setup) {
			s.Set(func(o *fakeca.Settings) { o.Token = "another" })
		}, ReasonRefused, false, "istio-ca"},
		"a lifetime refused": {refusing(codes.InvalidArgument), ReasonRequest, false, "lifetime"},
		"another service":    {refusing(codes.Unimplemented), ReasonRequest, false, "port 15012"},
		"a CA not ready":     {refusing(codes.Unavailable), ReasonUnavailable, true, "for a reason"},
		"a CA in trouble":    {refusing(codes.Internal), ReasonUnavailable, true, "for a reason"},
		"too many requests":  {refusing(codes.ResourceExhausted), ReasonUnavailable, true, "for a reason"},
		"no answer": {func(_ *testing.T, s *setup) {
			s.opts.Timeout = time.Millisecond
			s.opts.Dial = func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		}, ReasonUnavailable, true, "no answer of the CA istiod:15012"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t)
			c.spoil(t, s)
			_, err := s.request(t, nil)
			wantError(t, err, c.reason, c.retriable, c.says)
		})
	}
}

func refusing(code codes.Code) func(*testing.T, *setup) {
	return func(_ *testing.T, s *setup) {
		s.Set(func(o *fakeca.Settings) { o.Refuse = status.Error(code, "for a reason") })
	}
}

func TestOurPresentCertificateIsShownWhereTheTokenIsOfNoUse(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *setup){
		"refused": func(_ *testing.T, s *setup) { s.Set(func(o *fakeca.Settings) { o.Token = "another" }) },
		"missing": func(_ *testing.T, s *setup) { s.opts.TokenFile += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t)
			current := s.granted(t, nil).Certificate
			spoil(t, s)
			next := s.granted(t, current)
			if last := s.Calls()[len(s.Calls())-1]; last.Token != "" || !current.Leaf.Equal(last.Client) {
				t.Errorf("the CA saw the token %q and the certificate %v", last.Token, last.Client)
			}
			if next.Certificate.Leaf.Equal(current.Leaf) {
				t.Error("no new certificate")
			}
			stranger := fakeca.NewAuthority("cluster.local", nil).Leaf(uri, time.Hour)
			if _, err := s.request(t, stranger); err == nil || !strings.Contains(err.Error(), "our present certificate did not help") {
				t.Errorf("with a certificate that the CA does not take: %v", err)
			}
			expired := s.root.Leaf(uri, -time.Minute)
			if _, err := s.request(t, expired); err == nil || strings.Contains(err.Error(), "did not help") {
				t.Errorf("with an expired certificate: %v", err)
			}
		})
	}
}

func TestFilesAreReadForEachRequest(t *testing.T) {
	s := newSetup(t)
	c, err := New(s.opts)
	if err != nil {
		t.Fatal(err)
	}
	request := func() error { _, err := c.Request(t.Context(), nil); return err }
	if err := request(); err != nil {
		t.Fatal(err)
	}
	r2, token2 := fakeca.NewAuthority("cluster.local", nil), token+"2"
	s.Set(func(o *fakeca.Settings) { o.Root, o.Token = r2, token2 })
	wantError(t, request(), ReasonTLS, true, "unknown authority")
	write(t, s.rootFile, fakeca.PEM(r2.Cert))
	wantError(t, request(), ReasonRefused, false, "istio-ca")
	write(t, s.tokenFile, token2)
	if err := request(); err != nil {
		t.Error(err)
	}
}

func TestAGivenIdentityStandsForAnOpaqueToken(t *testing.T) {
	s := newSetup(t)
	write(t, s.tokenFile, "opaque")
	s.Set(func(o *fakeca.Settings) { o.Token = "opaque" })
	s.opts.Namespace, s.opts.ServiceAccount = "istio-system", "metards"
	s.granted(t, nil)
}

func TestTheEndOfTheContextIsItsError(t *testing.T) {
	s := newSetup(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.opts.Dial = func(ctx context.Context, _ string) (net.Conn, error) { cancel(); <-ctx.Done(); return nil, ctx.Err() }
	c, err := New(s.opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Request(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Options){
		"no address":         func(o *Options) { o.Address = "" },
		"no port":            func(o *Options) { o.Address = "istiod" },
		"no server name":     func(o *Options) { o.ServerName = "" },
		"no roots":           func(o *Options) { o.RootFile = "" },
		"no token":           func(o *Options) { o.TokenFile = "" },
		"no trust domain":    func(o *Options) { o.TrustDomain = "" },
		"half an identity":   func(o *Options) { o.Namespace = "istio-system" },
		"too short a life":   func(o *Options) { o.Lifetime = time.Millisecond },
		"a negative timeout": func(o *Options) { o.Timeout = -1 },
	} {
		opts := Options{Address: "istiod:15012", ServerName: "istiod", RootFile: "r", TokenFile: "t", TrustDomain: "cluster.local"}
		spoil(&opts)
		if _, err := New(opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParseClaims(f *testing.F) {
	for _, s := range []string{"", "..", token, jwt("null"), jwt("[]"), jwt(`{"kubernetes.io":null}`), jwt(`{"kubernetes.io":{"namespace":1}}`), "a.!.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseClaims(s)
		if (err == nil) != (got.namespace != "" && got.account != "") {
			t.Errorf("parseClaims(%q) = %v, %v", s, got, err)
		}
		if err != nil && len(s) > 60 && strings.Contains(err.Error(), s) {
			t.Errorf("the error repeats the token: %v", err)
		}
	})
}

func FuzzParseCertificates(f *testing.F) {
	a := fakeca.PEM(fakeca.NewAuthority("cluster.local", nil).Cert)
	for _, s := range []string{"", a, a + a, a[:100], a + a[:100], "text\n" + a, block("PRIVATE KEY")} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := parseCertificates([]byte(s)); (err == nil) != (len(got) > 0) {
			t.Errorf("%d certificates, %v", len(got), err)
		}
	})
}
