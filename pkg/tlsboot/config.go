package tlsboot

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// inForce is the certificate and the trust that handshakes use now. It knows no source: whatever yields a
// certificate calls use. Connections that exist keep what they were made with.
type inForce struct {
	trust   *Trust
	missing func() string // why there is no certificate; nil means that this cannot be
	current atomic.Pointer[tls.Config]

	mu   sync.Mutex
	cert *tls.Certificate
	with *trusted
}

// use puts a certificate (nil: the present one) and what is trusted now in force, both at once: no
// handshake sees one new and one old.
func (f *inForce) use(cert *tls.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cert == nil {
		cert = f.cert
	}
	with := f.trust.now.Load()
	if cert == nil || cert == f.cert && with == f.with {
		return
	}
	f.cert, f.with = cert, with
	c := baseConfig()
	c.Certificates = []tls.Certificate{*cert}
	for _, r := range with.all() {
		c.ClientCAs.AddCert(r)
	}
	c.VerifyConnection = with.verify
	f.current.Store(c)
}

// certificate is that in force, nil if there is none.
func (f *inForce) certificate() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cert
}

// serverConfig follows what is in force. Until the first use it refuses every handshake.
func (f *inForce) serverConfig() *tls.Config {
	c := baseConfig()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if now := f.current.Load(); now != nil {
			return now, nil
		}
		if f.missing == nil {
			return nil, errors.New("no server certificate yet")
		}
		return nil, fmt.Errorf("no server certificate yet: %s", f.missing())
	}
	return c
}

// baseConfig is all but the certificate and the roots.
func baseConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// For TLS 1.2 only; Go's own list has CBC suites. 1.3 has nothing to choose.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		// Against all roots together; VerifyConnection then demands one of the client's trust domain.
		ClientAuth: tls.RequireAndVerifyClientCert,
		// Empty, not nil: nil would mean the machine's roots.
		ClientCAs: x509.NewCertPool(),
		// A client that offers other protocols only is refused; one that offers none is left to gRPC,
		// which refuses it too.
		NextProtos: []string{"h2"},
		// A resumed session would outlive a rotation of the roots, and the certificate that its
		// authorization was read from.
		SessionTicketsDisabled: true,
	}
}
