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
	"slices"
	"time"
)

const defaultPoll = 10 * time.Second

// FilesOptions name the files of a server that has its certificate from elsewhere.
type FilesOptions struct {
	Cert string // PEM: the server's certificate, then intermediates if any; required
	Key  string // PEM: its key, unencrypted; may be the same file; required
	Root string // PEM: the roots that client certificates chain to, one or more; required

	Log     *slog.Logger  // nil logs nothing
	Metrics *Metrics      // nil keeps them to itself
	Poll    time.Duration // how often to look without a notification; 0 means 10 s, negative is an error
}

// Files is a certificate and trust roots from files, which may change at any time. Whatever new
// content is unusable leaves the old in force and raises an alarm.
type Files struct {
	opts FilesOptions

	inForce   inForce
	cert      *tls.Certificate    // in force; of Run alone after NewFiles
	roots     []*x509.Certificate // in force; of Run alone after NewFiles
	certAlarm alarm
	rootAlarm alarm
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
	f := &Files{
		opts:      opts,
		certAlarm: alarm{what: whatCertificate, log: opts.Log, metrics: opts.Metrics},
		rootAlarm: alarm{what: whatRoots, log: opts.Log, metrics: opts.Metrics},
	}
	cert, certErr := loadPair(opts.Cert, opts.Key, time.Now())
	roots, rootErr := loadRoots(opts.Root)
	if err := errors.Join(certErr, rootErr); err != nil {
		return nil, err
	}
	f.use(cert, roots)
	return f, nil
}

// ServerConfig is for listeners of any number: mutual TLS 1.2 or 1.3 for h2, where each handshake uses
// the certificate and the roots of its moment.
func (f *Files) ServerConfig() *tls.Config {
	return f.inForce.serverConfig()
}

// look reads the files, and puts in force what is new and usable; certificate and roots fail apart.
// It returns true for a failure that only another look after patience can judge. It reads what did not
// change too, so that a certificate that expires in force is an alarm as well.
func (f *Files) look(now time.Time) (undecided bool) {
	cert, certErr := loadPair(f.opts.Cert, f.opts.Key, now)
	if certErr != nil {
		cert = f.cert
	}
	roots, rootErr := loadRoots(f.opts.Root)
	if rootErr != nil {
		roots = f.roots
	}
	f.use(cert, roots)
	young := f.certAlarm.report(certErr, now)
	return f.rootAlarm.report(rootErr, now) || young
}

// use puts in force what differs from what is. Equal chains have equal keys, since both fit.
func (f *Files) use(cert *tls.Certificate, roots []*x509.Certificate) {
	newCert := f.cert == nil || !slices.EqualFunc(cert.Certificate, f.cert.Certificate, bytes.Equal)
	newRoots := !slices.EqualFunc(roots, f.roots, (*x509.Certificate).Equal)
	if !newCert && !newRoots {
		return
	}
	f.cert, f.roots = cert, roots
	f.inForce.use(cert, roots)
	f.opts.Metrics.show(cert.Leaf, roots)
	if newCert {
		f.opts.Log.Info("certificate in force", "certificate", describe(cert.Leaf),
			"fingerprint", fingerprint(cert.Leaf), "expires", cert.Leaf.NotAfter)
	}
	if newRoots {
		names := make([]string, len(roots))
		for i, r := range roots {
			names[i] = fingerprint(r)
		}
		f.opts.Log.Info("roots in force", "fingerprints", names, "first_expires", firstExpiry(roots))
	}
}

// fingerprint is the beginning of the certificate's SHA-256, as `openssl x509 -fingerprint -sha256`
// has it but for colons and case.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:8])
}
