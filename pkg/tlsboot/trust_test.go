package tlsboot

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"log/slog"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/metards/metards/pkg/meshca/fakeca"
)

const (
	cart    = "spiffe://cluster.local/ns/shop/sa/cart"
	partner = "spiffe://partner.org/ns/shop/sa/cart"
)

// federation is a server that trusts the mesh and a partner, with a CRL.
type federation struct {
	*Files
	mesh, partner              *fakeca.Authority
	rootFile, anchorFile, list string
	log                        logLines
	listener                   *listener
}

func newFederation(t *testing.T) *federation {
	t.Helper()
	dir := t.TempDir()
	f := &federation{
		// One name, as all self-signed Istio CAs of one trust domain have: it must not be what tells them apart.
		mesh: fakeca.NewAuthority("cluster.local", nil), partner: fakeca.NewAuthority("cluster.local", nil),
		rootFile: filepath.Join(dir, "root.pem"), anchorFile: filepath.Join(dir, "partner.pem"), list: filepath.Join(dir, "ca-crl.pem"),
	}
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pair := must[*Pair](t)(newCA(t).Issue(IssueOptions{Namespace: "istio-system", ServiceAccount: "metards"}))
	write(t, cert, pair.CertPEM)
	write(t, key, pair.KeyPEM)
	write(t, f.rootFile, []byte(fakeca.PEM(f.mesh.Cert)))
	write(t, f.anchorFile, []byte(fakeca.PEM(f.partner.Cert)))
	write(t, f.list, f.mesh.Revoke())
	f.Files = must[*Files](t)(NewFiles(FilesOptions{
		Cert: cert, Key: key, Root: f.rootFile, TrustDomain: "cluster.local", CRL: f.list,
		Anchors: []Anchor{{"partner.org", f.anchorFile}, {"third.org", f.anchorFile}},
		Log:     slog.New(slog.NewTextHandler(&f.log, nil)), Poll: time.Hour,
	}))
	f.listener = listen(t, f.ServerConfig())
	return f
}

// refusal is why a client is refused, by the handshake or for its identity; empty if it is not.
func (f *federation) refusal(t *testing.T, cert *tls.Certificate) string {
	t.Helper()
	conf := proxyWith(cert)
	conf.VerifyConnection = nil // the server's certificate is of no interest here
	_, server, _ := f.listener.dial(t, conf)
	if server.err != nil {
		return "handshake: " + server.err.Error()
	}
	if _, err := PeerIdentity(server.state.PeerCertificates[0]); err != nil {
		return "stream: " + err.Error()
	}
	return ""
}

func (f *federation) want(t *testing.T, name string, cert *tls.Certificate, reason string) {
	t.Helper()
	got := f.refusal(t, cert)
	if (reason == "") != (got == "") || !strings.Contains(got, reason) {
		t.Errorf("%s: refused with %q, want %q", name, got, reason)
	}
}

func TestARootVouchesForIdentitiesOfItsOwnTrustDomainOnly(t *testing.T) {
	f := newFederation(t)
	stranger := fakeca.NewAuthority("cluster.local", nil)
	const foreign = "handshake: client certificate"
	for _, c := range []struct {
		name   string
		cert   *tls.Certificate
		reason string
	}{
		{"the mesh's, of our domain", f.mesh.Leaf(cart, time.Hour), ""},
		{"the mesh's, of an unknown domain or an alias", f.mesh.Leaf("spiffe://alias.local/ns/shop/sa/cart", time.Hour), ""},
		{"the mesh's, of the partner's domain", f.mesh.Leaf(partner, time.Hour), foreign + " " + partner + " chains to a root of another trust domain only, not to one of trust domain partner.org"},
		{"the mesh's, without identity", f.mesh.Leaf("", time.Hour, "cart"), "stream: client certificate has no URI SAN"},
		{"the partner's, of its domain", f.partner.Leaf(partner, time.Hour), ""},
		{"the partner's, of its other domain", f.partner.Leaf("spiffe://third.org/ns/shop/sa/cart", time.Hour), ""},
		{"the partner's, of our domain", f.partner.Leaf(cart, time.Hour), foreign + " " + cart + " chains to a root of another trust domain only, not to one of the mesh"},
		{"the partner's, of an unknown domain or our alias", f.partner.Leaf("spiffe://alias.local/ns/shop/sa/cart", time.Hour), foreign},
		{"the partner's, without identity", f.partner.Leaf("", time.Hour, "cart"), foreign},
		{"the partner's, of no SPIFFE domain", f.partner.Leaf("spiffe://Partner.org/ns/shop/sa/cart", time.Hour), foreign},
		{"a stranger's, of our domain", stranger.Leaf(cart, time.Hour), "unknown authority"},
		{"a stranger's, of the partner's domain", stranger.Leaf(partner, time.Hour), "unknown authority"},
	} {
		f.want(t, c.name, c.cert, c.reason)
	}
}

// What a partner signs as an intermediate may state our name; its root stays the partner's.
func TestAnIntermediateOfAForeignRootVouchesForNothingOfOurs(t *testing.T) {
	f := newFederation(t)
	between := fakeca.NewAuthority("cluster.local", f.partner)
	for uri, reason := range map[string]string{cart: "chains to a root of another trust domain only", partner: ""} {
		cert := between.Leaf(uri, time.Hour)
		cert.Certificate = append(cert.Certificate, between.Cert.Raw, f.mesh.Cert.Raw)
		f.want(t, uri, cert, reason)
	}
}

func TestAnchorsAreReloadedAndABrokenFileKeepsTheOld(t *testing.T) {
	f := newFederation(t)
	next := fakeca.NewAuthority("partner", nil)
	now := time.Now()
	for _, broken := range []string{"", fakeca.PEM(next.Cert)[:200]} {
		write(t, f.anchorFile, []byte(broken))
		if !f.look(now) || f.look(now.Add(2*patience)) || f.log.count("what=anchors") == 0 {
			t.Errorf("a broken file is no alarm")
		}
		f.want(t, "the old anchor's", f.partner.Leaf(partner, time.Hour), "")
		f.want(t, "the mesh's", f.mesh.Leaf(cart, time.Hour), "")
	}
	write(t, f.anchorFile, []byte(fakeca.PEM(next.Cert)))
	f.look(now)
	f.want(t, "the old anchor's", f.partner.Leaf(partner, time.Hour), "unknown authority")
	f.want(t, "the new anchor's", next.Leaf(partner, time.Hour), "")
}

func TestAnchorsThatCannotBeMeantAreRefusedAtTheStart(t *testing.T) {
	f := newFederation(t)
	for name, anchors := range map[string][]Anchor{
		"our own domain":    {{"cluster.local", f.anchorFile}},
		"a domain twice":    {{"partner.org", f.anchorFile}, {"partner.org", f.rootFile}},
		"no domain":         {{"", f.anchorFile}},
		"no file":           {{"partner.org", ""}},
		"not a domain":      {{"spiffe//x", f.anchorFile}},
		"a file not there":  {{"partner.org", f.anchorFile + "x"}},
		"a file of no root": {{"partner.org", f.opts.Cert}},
	} {
		opts := f.opts
		opts.Anchors, opts.Metrics = anchors, nil
		if _, err := NewFiles(opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRootsRotateWhateverStateTheirFileIsSeenIn(t *testing.T) {
	f := newFederation(t)
	r2 := fakeca.NewAuthority("cluster.local", nil)
	old, young := f.mesh.Leaf(cart, time.Hour), r2.Leaf(cart, time.Hour)
	both := fakeca.PEM(f.mesh.Cert, r2.Cert)
	one := fakeca.PEM(f.mesh.Cert)
	now := time.Now()
	step := func(name, content, oldRefused, youngRefused string) {
		t.Helper()
		write(t, f.rootFile, []byte(content))
		f.look(now)
		f.want(t, name+", client of R1", old, oldRefused)
		f.want(t, name+", client of R2", young, youngRefused)
	}
	const refused = "unknown authority"
	step("R1", one, "", refused)
	step("R1+R2 cut off in R2", both[:len(one)+100], "", refused)
	step("R1+R2 cut off in R1", both[:100], "", refused)
	step("R1+R2, the first half", one, "", refused)
	step("R1+R2, both halves", both, "", "")
	step("nothing", "", "", "")
	step("R2 cut off", fakeca.PEM(r2.Cert)[:300], "", "")
	step("R2", fakeca.PEM(r2.Cert), refused, "")
}

func TestWhatItsIssuerHasRevokedIsRefused(t *testing.T) {
	f := newFederation(t)
	between := fakeca.NewAuthority("intermediate", f.mesh)
	leaf := func(by *fakeca.Authority) *tls.Certificate {
		cert := by.Leaf(cart, time.Hour)
		if by == between {
			cert.Certificate = append(cert.Certificate, between.Cert.Raw)
		}
		return cert
	}
	bad, good, badBelow, goodBelow := leaf(f.mesh), leaf(f.mesh), leaf(between), leaf(between)
	foreign := f.partner.Leaf(partner, time.Hour)
	step := func(name string, crl []byte, refused ...*tls.Certificate) {
		t.Helper()
		write(t, f.list, crl)
		f.look(time.Now())
		for what, cert := range map[string]*tls.Certificate{"bad": bad, "good": good, "bad below": badBelow, "good below": goodBelow, "foreign": foreign} {
			reason := ""
			for _, r := range refused {
				if r == cert {
					reason = "is revoked by its issuer"
				}
			}
			f.want(t, name+", "+what, cert, reason)
		}
	}
	all := []*tls.Certificate{bad, good, badBelow, goodBelow, foreign}
	step("an empty list", f.mesh.Revoke())
	step("the leaf", f.mesh.Revoke(bad.Leaf), bad)
	step("leaves of two issuers", join(f.mesh.Revoke(bad.Leaf), between.Revoke(badBelow.Leaf)), bad, badBelow)
	step("broken: the old list stays", f.mesh.Revoke()[:100], bad, badBelow)
	step("the intermediate", f.mesh.Revoke(between.Cert), badBelow, goodBelow)
	step("by a CA of the same name", fakeca.NewAuthority("cluster.local", nil).Revoke(all[0].Leaf, all[1].Leaf))
	step("by the partner, for its own", f.partner.Revoke(foreign.Leaf, good.Leaf), foreign)
}

func TestACRLPastItsDateIsUsedWithAnAlarm(t *testing.T) {
	f := newFederation(t)
	bad := f.mesh.Leaf(cart, time.Hour)
	write(t, f.list, f.mesh.Revoke(bad.Leaf))
	now := time.Now().Add(2 * time.Hour)
	f.look(now)
	f.look(now.Add(2 * patience))
	if f.log.count("was due to be renewed at") != 1 {
		t.Errorf("no alarm:\n%s", f.log.text.String())
	}
	f.want(t, "revoked", bad, "is revoked by its issuer")
}

func TestClientsAreCountedPerRootThatVouchesForThem(t *testing.T) {
	f := newFederation(t)
	r2 := fakeca.NewAuthority("cluster.local", nil)
	state := func(cert *tls.Certificate) tls.ConnectionState {
		conf := proxyWith(cert)
		conf.VerifyConnection = nil
		_, server, _ := f.listener.dial(t, conf)
		return server.state
	}
	want := func(root *fakeca.Authority, n float64) {
		t.Helper()
		if got := testutil.ToFloat64(f.opts.Metrics.clients.WithLabelValues(fingerprint(root.Cert))); got != n {
			t.Errorf("%v clients, want %v", got, n)
		}
	}
	first := f.Trust().Connected(state(f.mesh.Leaf(cart, time.Hour)))
	second := f.Trust().Connected(state(f.mesh.Leaf(cart, time.Hour)))
	third := f.Trust().Connected(state(f.partner.Leaf(partner, time.Hour)))
	f.Trust().Connected(tls.ConnectionState{})()
	want(f.mesh, 2)
	want(f.partner, 1)

	write(t, f.rootFile, []byte(fakeca.PEM(r2.Cert)))
	f.look(time.Now())
	want(r2, 0)
	first()
	first()
	want(f.mesh, 1) // its root is gone, it is not
	if n := testutil.CollectAndCount(f.opts.Metrics.clients); n != 3 {
		t.Errorf("%d roots shown, want 3", n)
	}
	second()
	third()
	if n := testutil.CollectAndCount(f.opts.Metrics.clients); n != 2 {
		t.Errorf("%d roots shown, want the 2 in force", n)
	}
	want(f.partner, 0)
}

// istiod's own CA keeps its key when it renews its root: both vouch, and the old one is not needed.
func TestAClientOfTwoRootsWithOneKeyCountsForTheOneThatLivesLonger(t *testing.T) {
	f := newFederation(t)
	next := f.mesh.Renew()
	write(t, f.rootFile, []byte(fakeca.PEM(f.mesh.Cert, next.Cert)))
	f.look(time.Now())
	conf := proxyWith(f.mesh.Leaf(cart, time.Hour))
	conf.VerifyConnection = nil
	_, server, _ := f.listener.dial(t, conf)
	defer f.Trust().Connected(server.state)()
	for root, want := range map[*fakeca.Authority]float64{f.mesh: 0, next: 1} {
		if got := testutil.ToFloat64(f.opts.Metrics.clients.WithLabelValues(fingerprint(root.Cert))); got != want {
			t.Errorf("root until %v has %v clients, want %v", root.Cert.NotAfter, got, want)
		}
	}
}

func FuzzParseCRLs(f *testing.F) {
	ca := fakeca.NewAuthority("cluster.local", nil)
	list := ca.Revoke(ca.Cert)
	for _, data := range [][]byte{nil, list, join(list, list), list[:100], pem.EncodeToMemory(&pem.Block{Type: "X509 CRL"})} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseCRLs(bytes.Clone(data))
		if (err == nil) != (r != nil) {
			t.Errorf("%v, %v", r, err)
		}
		if r != nil {
			_ = r.serials[serialKey(nil, big.NewInt(1))]
			_ = r.stale("f", time.Unix(0, 0))
		}
	})
}
