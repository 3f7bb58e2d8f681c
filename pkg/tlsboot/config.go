package tlsboot

import (
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
)

// inForce is the certificate and the roots that handshakes use now. It knows no source: whatever
// yields a certificate and roots calls use. Connections that exist keep what they were made with.
type inForce struct {
	current atomic.Pointer[tls.Config]
}

// use puts a certificate and roots in force, both at once: no handshake sees one new and one old.
func (f *inForce) use(cert *tls.Certificate, roots []*x509.Certificate) {
	c := baseConfig()
	c.Certificates = []tls.Certificate{*cert}
	for _, r := range roots {
		c.ClientCAs.AddCert(r)
	}
	f.current.Store(c)
}

// serverConfig follows what is in force. Until the first use it refuses every handshake.
func (f *inForce) serverConfig() *tls.Config {
	c := baseConfig()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current.Load(), nil }
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
