package tlsboot

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/metards/metards/pkg/meshca"
)

const defaultRootNamespace = "istio-system"

// MeshCAOptions name the CA that certifies us by CSR, and who we are.
type MeshCAOptions struct {
	Address       string // HOST:PORT of istiod, as a rule port 15012, or of another CA that speaks its protocol; required
	ServerName    string // DNS name in the CA's certificate; empty means istiod.<RootNamespace>.svc
	RootNamespace string // of the mesh; empty means istio-system

	RootFile  string // PEM: the mesh's roots (ConfigMap istio-ca-root-cert), for the CA's certificate and for clients'; may come late; required
	TokenFile string // service account token of the CA's audience (istiod: istio-ca), read for each request; may come late; required

	// Identity is whom the certificate is for. The trust domain is required; namespace and service account
	// are both given, or both empty to take those of the token.
	Identity Identity

	Lifetime  time.Duration // asked for, in whole seconds; the CA may give less; 0 means 24 h
	ClusterID string        // of our cluster, where the CA serves several; may be empty

	Anchors []Anchor // of further trust domains; must be there at the start
	CRL     string   // PEM: CRLs of the mesh's CAs (istiod: ConfigMap istio-ca-crl); must be there at the start; may be empty

	Log     *slog.Logger  // nil logs nothing
	Metrics *Metrics      // nil keeps them to itself
	Poll    time.Duration // how often to look at the files without a notification; 0 means 10 s, negative is an error

	// Dial connects to Address; nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// MeshCA is a certificate that the mesh's CA gives for CSRs, renewed at half its lifetime, and a Trust of
// the root file and the roots that come with it. It serves with what it has until that expires, however
// long the CA fails.
type MeshCA struct {
	opts    MeshCAOptions
	client  *meshca.Client
	trust   *Trust
	inForce inForce
	outage  outage
}

// NewMeshCA checks the options and reads the anchors and the CRL. It asks the CA for nothing yet.
func NewMeshCA(opts MeshCAOptions) (*MeshCA, error) {
	if opts.Poll < 0 {
		return nil, fmt.Errorf("poll every %v: must not be negative", opts.Poll)
	}
	opts.Poll = cmp.Or(opts.Poll, defaultPoll)
	opts.ServerName = cmp.Or(opts.ServerName, "istiod."+cmp.Or(opts.RootNamespace, defaultRootNamespace)+".svc")
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	client, err := meshca.New(meshca.Options{
		Address: opts.Address, ServerName: opts.ServerName, RootFile: opts.RootFile, TokenFile: opts.TokenFile,
		TrustDomain: opts.Identity.TrustDomain, Namespace: opts.Identity.Namespace, ServiceAccount: opts.Identity.ServiceAccount,
		ClusterID: opts.ClusterID, Lifetime: opts.Lifetime, Dial: opts.Dial,
	})
	if err != nil {
		return nil, err
	}
	trust, err := newTrust(trustOptions{
		root: opts.RootFile, trustDomain: opts.Identity.TrustDomain, anchors: opts.Anchors, crl: opts.CRL, log: opts.Log, metrics: opts.Metrics,
	}, true)
	if err != nil {
		return nil, err
	}
	m := &MeshCA{opts: opts, client: client, trust: trust, outage: outage{log: opts.Log, metrics: opts.Metrics}}
	m.inForce.trust, m.inForce.missing = trust, m.Trouble
	return m, nil
}

// ServerConfig is for listeners of any number: mutual TLS 1.2 or 1.3 for h2, where each handshake uses the
// certificate and the trust of its moment. Before the first certificate every handshake is refused.
func (m *MeshCA) ServerConfig() *tls.Config { return m.inForce.serverConfig() }

// Trust is whom we trust.
func (m *MeshCA) Trust() *Trust { return m.trust }

// Certificate is the one in force, for a client that shows it; an error if there is none yet.
func (m *MeshCA) Certificate() (*tls.Certificate, error) {
	if cert := m.inForce.certificate(); cert != nil {
		return cert, nil
	}
	return nil, fmt.Errorf("no certificate yet: %s", m.Trouble())
}

// Ready is true while we have a certificate that clients accept: from the first on, until it expires
// without a next one.
func (m *MeshCA) Ready() bool {
	cert := m.inForce.certificate()
	return cert != nil && time.Now().Before(cert.Leaf.NotAfter)
}

// Trouble says what is wrong and what to do, in one sentence; empty if nothing is. There may be trouble
// while Ready.
func (m *MeshCA) Trouble() string {
	failure := m.outage.last()
	cert := m.inForce.certificate()
	switch {
	case cert == nil && failure == "":
		return fmt.Sprintf("waiting for the first certificate from the CA %s", m.opts.Address)
	case cert != nil && !time.Now().Before(cert.Leaf.NotAfter):
		return fmt.Sprintf("our certificate expired at %s: %s", cert.Leaf.NotAfter.UTC().Format(time.RFC3339), cmp.Or(failure, "a new one is being asked for"))
	}
	return failure
}

// Run asks for certificates and follows the files until ctx ends, and returns its error. Call it once.
func (m *MeshCA) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	files := follower{files: m.trust.files(), poll: m.opts.Poll, log: m.opts.Log, look: m.look}
	g.Go(func() error { return files.run(ctx) })
	g.Go(func() error { return m.renew(ctx) })
	return g.Wait()
}

func (m *MeshCA) look(now time.Time) (undecided bool) {
	undecided = m.trust.look(now)
	m.inForce.use(nil)
	return undecided
}

// renew asks for the first certificate and then for the next ones, for ever.
func (m *MeshCA) renew(ctx context.Context) error {
	var retry pause
	for {
		grant, err := m.client.Request(ctx, m.inForce.certificate())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := retry.next(err)
		if err == nil {
			m.trust.grant(grant.Roots)
			m.inForce.use(grant.Certificate)
			announce(grant.Certificate, m.opts.Log, m.opts.Metrics)
			wait = renewIn(time.Until(grant.Certificate.Leaf.NotAfter))
		}
		m.outage.report(err, m.inForce.certificate() != nil && !m.Ready())
		if err := waitUntil(ctx, time.Now().Add(wait)); err != nil {
			return err
		}
	}
}

// renewIn is half of what is left of a certificate just received, ±1 % of it so that replicas that started
// together drift apart; as Istio's agents do.
func renewIn(left time.Duration) time.Duration {
	jitter := time.Duration((rand.Float64()*2 - 1) * 0.01 * float64(left))
	return max(left/2+jitter, retryMin)
}

// glance is how often waiting compares with the wall clock: a machine that slept, or whose clock was set,
// must not miss a certificate's end.
const glance = time.Minute

// waitUntil returns at a time of the wall clock, or with the error of ctx when it ends.
func waitUntil(ctx context.Context, due time.Time) error {
	due = due.Round(0) // without the monotonic reading
	for {
		left := time.Until(due)
		if left <= 0 {
			return ctx.Err()
		}
		t := time.NewTimer(min(left, glance))
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}
