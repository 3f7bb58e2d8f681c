package tlsboot

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Anchor binds a further trust domain to its own roots: they vouch for identities of that domain and for
// nothing else, and no other root vouches for those.
type Anchor struct {
	Domain string // not the mesh's own
	File   string // PEM: its roots, one or more; reloaded on change
}

// trustOptions name the files that a Trust follows.
type trustOptions struct {
	root        string
	trustDomain string // the mesh's own, which no anchor may claim; empty if unknown
	anchors     []Anchor
	crl         string // may be empty
	log         *slog.Logger
	metrics     *Metrics
}

// Trust is whom we trust: the mesh's roots, from a file and from its CA, the anchors of further trust
// domains, and what the CAs have revoked. Whatever new content is unusable leaves the old in force.
type Trust struct {
	opts    trustOptions
	now     atomic.Pointer[trusted]
	clients clientCount

	mu      sync.Mutex // of all below
	file    []*x509.Certificate
	granted []*x509.Certificate // by the CA, with our certificate
	anchors map[string][]*x509.Certificate
	crl     []byte
	revoked *revocations

	rootAlarm, anchorAlarm, crlAlarm alarm
}

// newTrust loads the files. Its error names every file that is unusable, and why; the file of the roots
// may be so if it is to come later.
func newTrust(opts trustOptions, rootMayCome bool) (*Trust, error) {
	seen := map[string]bool{}
	for _, a := range opts.anchors {
		if _, err := spiffeid.TrustDomainFromString(a.Domain); err != nil || a.File == "" {
			return nil, fmt.Errorf("trust anchor %s=%s: must be a trust domain and a PEM file", a.Domain, a.File)
		}
		if a.Domain == opts.trustDomain {
			return nil, fmt.Errorf("trust anchor %s=%s: this is the mesh's own trust domain, whose roots are in %s", a.Domain, a.File, opts.root)
		}
		if seen[a.Domain] {
			return nil, fmt.Errorf("trust anchor %s=%s: the domain is given twice; put its roots into one file", a.Domain, a.File)
		}
		seen[a.Domain] = true
	}
	newAlarm := func(what string) alarm { return alarm{what: what, log: opts.log, metrics: opts.metrics} }
	t := &Trust{
		opts:      opts,
		anchors:   map[string][]*x509.Certificate{},
		rootAlarm: newAlarm(whatRoots), anchorAlarm: newAlarm(whatAnchors), crlAlarm: newAlarm(whatCRL),
	}
	t.clients.gauge = opts.metrics.clients
	t.now.Store(&trusted{})
	rootErr, anchorErr, crlErr := t.read(time.Now())
	if rootMayCome {
		rootErr = nil
	}
	var stale *staleError
	if errors.As(crlErr, &stale) {
		crlErr = nil // an alarm later
	}
	if err := errors.Join(rootErr, anchorErr, crlErr); err != nil {
		return nil, err
	}
	t.publish()
	return t, nil
}

// files are those to watch.
func (t *Trust) files() []string {
	out := []string{t.opts.root}
	for _, a := range t.opts.anchors {
		out = append(out, a.File)
	}
	if t.opts.crl != "" {
		out = append(out, t.opts.crl)
	}
	return out
}

// look reads the files and puts in force what is new and usable, each file by itself. It returns true for
// a failure that only another look after patience can judge.
func (t *Trust) look(now time.Time) (undecided bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rootErr, anchorErr, crlErr := t.read(now)
	t.publish()
	for _, x := range []struct {
		alarm *alarm
		err   error
	}{{&t.rootAlarm, rootErr}, {&t.anchorAlarm, anchorErr}, {&t.crlAlarm, crlErr}} {
		undecided = x.alarm.report(x.err, now) || undecided
	}
	return undecided
}

// grant takes the roots that came with our certificate, in place of those that came with the last one.
func (t *Trust) grant(roots []*x509.Certificate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.granted = roots
	t.publish()
}

func (t *Trust) read(now time.Time) (rootErr, anchorErr, crlErr error) {
	if roots, err := loadRoots(t.opts.root); err != nil {
		rootErr = err
	} else {
		t.file = roots
	}
	for _, a := range t.opts.anchors {
		if roots, err := loadRoots(a.File); err != nil {
			anchorErr = errors.Join(anchorErr, fmt.Errorf("trust domain %s: %w", a.Domain, err))
		} else {
			t.anchors[a.Domain] = roots
		}
	}
	return rootErr, anchorErr, t.readCRL(now)
}

func (t *Trust) readCRL(now time.Time) error {
	if t.opts.crl == "" {
		return nil
	}
	data, err := os.ReadFile(t.opts.crl)
	if err != nil {
		return fmt.Errorf("read CRL: %w", err)
	}
	if t.revoked == nil || !bytes.Equal(data, t.crl) {
		revoked, err := parseCRLs(data)
		if err != nil {
			return fmt.Errorf("read CRL %s: %w", t.opts.crl, err)
		}
		t.crl, t.revoked = data, revoked
	}
	return t.revoked.stale(t.opts.crl, now)
}

// publish puts the state in force if it differs from what is.
func (t *Trust) publish() {
	next := &trusted{own: union(t.file, t.granted), anchors: maps.Clone(t.anchors), revoked: t.revoked}
	last := t.now.Load()
	if next.equal(last) {
		return
	}
	t.now.Store(next)
	all := next.all()
	t.opts.metrics.showRoots(all)
	t.clients.keep(all)
	if !slices.EqualFunc(all, last.all(), (*x509.Certificate).Equal) {
		t.opts.log.Info("roots in force", "fingerprints", fingerprints(all), "first_expires", firstExpiry(all))
	}
	if next.revoked != last.revoked {
		t.opts.log.Info("revocations in force", "certificates", len(next.revoked.serials))
	}
}

// trusted is whom we trust at one moment. It does not change.
type trusted struct {
	own     []*x509.Certificate            // for every identity but those of the anchors' domains
	anchors map[string][]*x509.Certificate // by trust domain
	revoked *revocations                   // nil if there is no list
}

func (t *trusted) equal(o *trusted) bool {
	same := func(a, b []*x509.Certificate) bool { return slices.EqualFunc(a, b, (*x509.Certificate).Equal) }
	return t.revoked == o.revoked && same(t.own, o.own) && maps.EqualFunc(t.anchors, o.anchors, same)
}

// all are the roots of every domain: the mesh's first, then by domain; each once.
func (t *trusted) all() []*x509.Certificate {
	out := t.own
	for _, domain := range slices.Sorted(maps.Keys(t.anchors)) {
		out = union(out, t.anchors[domain])
	}
	return out
}

// verify judges a client whose chains crypto/tls has verified against all roots together: one of them must
// end in a root of the client's own trust domain, with nothing in it revoked.
func (t *trusted) verify(state tls.ConnectionState) error {
	_, err := t.admitted(state)
	return err
}

// admitted returns the chains that count. A leaf that states no single trust domain is left to the roots of
// the mesh, and to PeerIdentity, which has a reason to tell: an anchor vouches for nothing but identities of its domain.
func (t *trusted) admitted(state tls.ConnectionState) ([][]*x509.Certificate, error) {
	if len(state.VerifiedChains) == 0 {
		return nil, errors.New("no verified client certificate")
	}
	leaf := state.VerifiedChains[0][0]
	roots, whose := t.own, "the mesh"
	if domain := domainOf(leaf); domain != "" {
		if anchors, bound := t.anchors[domain]; bound {
			roots, whose = anchors, "trust domain "+domain
		}
	}
	var out [][]*x509.Certificate
	var revoked error
	for _, chain := range state.VerifiedChains {
		if !slices.ContainsFunc(roots, chain[len(chain)-1].Equal) {
			continue
		}
		if err := t.revoked.check(chain); err != nil {
			revoked = err
			continue
		}
		out = append(out, chain)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case revoked != nil:
		return nil, fmt.Errorf("client certificate %s: %w", describe(leaf), revoked)
	}
	return nil, fmt.Errorf("client certificate %s chains to a root of another trust domain only, not to one of %s", describe(leaf), whose)
}

// domainOf is the trust domain of a leaf's single URI SAN; empty if it has no such.
func domainOf(leaf *x509.Certificate) string {
	if len(leaf.URIs) != 1 {
		return ""
	}
	id, err := spiffeid.FromString(leaf.URIs[0].String())
	if err != nil {
		return ""
	}
	return id.TrustDomain().Name()
}

// union has every certificate once, in the order of its first appearance.
func union(lists ...[]*x509.Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range slices.Concat(lists...) {
		if !slices.ContainsFunc(out, c.Equal) {
			out = append(out, c)
		}
	}
	return out
}

// fingerprint is the beginning of the certificate's SHA-256, as `openssl x509 -fingerprint -sha256`
// has it but for colons and case.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:8])
}

func fingerprints(certs []*x509.Certificate) []string {
	out := make([]string, len(certs))
	for i, c := range certs {
		out[i] = fingerprint(c)
	}
	return out
}
