package tlsboot

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const defaultPoll = 10 * time.Second

// FilesOptions name the files of a server that has its certificate from elsewhere.
type FilesOptions struct {
	Cert string // PEM: the server's certificate, then intermediates if any; required
	Key  string // PEM: its key, unencrypted; may be the same file; required
	Root string // PEM: the mesh's roots, which client certificates chain to, one or more; required

	TrustDomain string   // the mesh's own, to refuse an Anchor that claims it; may be empty
	Anchors     []Anchor // of further trust domains
	CRL         string   // PEM: CRLs of the mesh's CAs (istiod: ConfigMap istio-ca-crl); may be empty

	Log     *slog.Logger  // nil logs nothing
	Metrics *Metrics      // nil keeps them to itself
	Poll    time.Duration // how often to look without a notification; 0 means 10 s, negative is an error
}

// Files is a certificate and a Trust from files, which may change at any time. Whatever new content is
// unusable leaves the old in force and raises an alarm.
type Files struct {
	opts      FilesOptions
	trust     *Trust
	inForce   inForce
	certAlarm alarm
}

// NewFiles loads the files. Its error names every file that is missing or unusable, and why.
func NewFiles(opts FilesOptions) (*Files, error) {
	if opts.Cert == "" || opts.Key == "" || opts.Root == "" {
		return nil, errors.New("certificate, key and root must each name a PEM file")
	}
	if opts.Poll < 0 {
		return nil, fmt.Errorf("poll every %v: must not be negative", opts.Poll)
	}
	if opts.Poll == 0 {
		opts.Poll = defaultPoll
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	f := &Files{opts: opts, certAlarm: alarm{what: whatCertificate, log: opts.Log, metrics: opts.Metrics}}
	cert, certErr := loadPair(opts.Cert, opts.Key, time.Now())
	var trustErr error
	f.trust, trustErr = newTrust(trustOptions{
		root: opts.Root, trustDomain: opts.TrustDomain, anchors: opts.Anchors, crl: opts.CRL, log: opts.Log, metrics: opts.Metrics,
	}, false)
	if err := errors.Join(certErr, trustErr); err != nil {
		return nil, err
	}
	f.inForce.trust = f.trust
	f.use(cert)
	return f, nil
}

// ServerConfig is for listeners of any number: mutual TLS 1.2 or 1.3 for h2, where each handshake uses
// the certificate and the trust of its moment.
func (f *Files) ServerConfig() *tls.Config { return f.inForce.serverConfig() }

// Certificate is the one in force, for a client that shows it.
func (f *Files) Certificate() (*tls.Certificate, error) { return f.inForce.certificate(), nil }

// Trust is whom we trust.
func (f *Files) Trust() *Trust { return f.trust }

// Run follows the files until ctx ends, and returns its error. Call it once. It reads nothing but the
// files, so it cannot fail otherwise: without notifications, polling sees the same changes later.
func (f *Files) Run(ctx context.Context) error {
	return f.follower().run(ctx)
}

func (f *Files) follower() *follower {
	return &follower{
		files: append(f.trust.files(), f.opts.Cert, f.opts.Key), poll: f.opts.Poll, log: f.opts.Log, look: f.look,
	}
}

// look reads the files, and puts in force what is new and usable; certificate and trust fail apart.
// It returns true for a failure that only another look after patience can judge. It reads what did not
// change too, so that a certificate that expires in force is an alarm as well.
func (f *Files) look(now time.Time) (undecided bool) {
	cert, err := loadPair(f.opts.Cert, f.opts.Key, now)
	young := f.trust.look(now)
	f.use(cert)
	return f.certAlarm.report(err, now) || young
}

// use puts in force what differs from what is; nil is what is. Equal chains have equal keys, since both fit.
func (f *Files) use(cert *tls.Certificate) {
	last := f.inForce.certificate()
	if cert == nil || last != nil && slices.EqualFunc(cert.Certificate, last.Certificate, bytes.Equal) {
		f.inForce.use(nil)
		return
	}
	f.inForce.use(cert)
	announce(cert, f.opts.Log, f.opts.Metrics)
	if !chains(cert, f.trust.now.Load().own) {
		f.opts.Log.Warn("our certificate does not chain to the roots of the mesh: proxies that trust these alone will refuse it",
			"certificate", describe(cert.Leaf), "roots", f.opts.Root)
	}
}

// chains reports whether a certificate leads to one of the roots, with what comes with it.
func chains(cert *tls.Certificate, roots []*x509.Certificate) bool {
	pool, chain := x509.NewCertPool(), []*x509.Certificate{cert.Leaf}
	for _, r := range roots {
		pool.AddCert(r)
	}
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			chain = append(chain, c)
		}
	}
	return VerifyChain(chain, pool) == nil
}

// VerifyChain checks that a server's certificate, which comes first, leads to one of the roots by way of the others,
// now and whatever name it is for.
func VerifyChain(chain []*x509.Certificate, roots *x509.CertPool) error {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(options)
	return err
}

// announce tells of a certificate that is in force from now on.
func announce(cert *tls.Certificate, log *slog.Logger, metrics *Metrics) {
	metrics.showCertificate(cert.Leaf)
	log.Info("certificate in force", "certificate", describe(cert.Leaf),
		"fingerprint", fingerprint(cert.Leaf), "expires", cert.Leaf.NotAfter)
}
