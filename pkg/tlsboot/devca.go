package tlsboot

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

const (
	devRootLifetime = 365 * 24 * time.Hour
	devLeafLifetime = 24 * time.Hour // Istio's default
	// backdate is how far before now certificates begin, for clocks that differ; istiod's value.
	backdate = 2 * time.Minute
)

// DevCA is a throw-away mesh root for demos, tests and benchmarks. Its key lives in memory only.
type DevCA struct {
	trustDomain spiffeid.TrustDomain
	cert        *x509.Certificate
	key         *ecdsa.PrivateKey
}

// IssueOptions say what a certificate states. The last four fields are for certificates that somebody
// must refuse.
type IssueOptions struct {
	Namespace      string // required unless URIs is set
	ServiceAccount string // required unless URIs is set
	DNSNames       []string
	IPs            []net.IP

	Lifetime  time.Duration // from NotBefore; 0 means 24 h from now
	NotBefore time.Time     // zero means two minutes ago
	URIs      []string      // in place of the SPIFFE id; not nil and empty means none
	IsCA      bool
}

// Pair is a certificate with its key, ready to use and as PEM (the key in PKCS#8).
type Pair struct {
	TLS     tls.Certificate // with its Leaf
	CertPEM []byte
	KeyPEM  []byte
}

// NewDevCA makes a root that is valid for a year. The trust domain must be valid for SPIFFE: lower-case
// letters, digits, dots, dashes and underscores.
func NewDevCA(trustDomain string) (*DevCA, error) {
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return nil, fmt.Errorf("parse trust domain %q: %w", trustDomain, err)
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{td.Name()}, CommonName: "metards throw-away root"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(devRootLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate root key: %w", err)
	}
	cert, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return &DevCA{trustDomain: td, cert: cert, key: key}, nil
}

// RootPEM is the root certificate.
func (c *DevCA) RootPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

// Issue makes a certificate for servers and clients with a new key (ECDSA P-256).
func (c *DevCA) Issue(opts IssueOptions) (*Pair, error) {
	template, err := c.template(opts)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	leaf, err := sign(template, c.cert, key, c.key)
	if err != nil {
		return nil, err
	}
	return newPair(leaf, key)
}

func (c *DevCA) template(opts IssueOptions) (*x509.Certificate, error) {
	uris := opts.URIs
	if uris == nil {
		id, err := spiffeid.FromSegments(c.trustDomain, "ns", opts.Namespace, "sa", opts.ServiceAccount)
		if err != nil {
			return nil, fmt.Errorf("build SPIFFE id of namespace %q, service account %q: %w",
				opts.Namespace, opts.ServiceAccount, err)
		}
		uris = []string{id.String()}
	}
	from := opts.NotBefore
	if from.IsZero() {
		from = time.Now().Add(-backdate)
	}
	to := from.Add(opts.Lifetime)
	if opts.Lifetime == 0 {
		to = time.Now().Add(devLeafLifetime)
	}
	t := &x509.Certificate{
		NotBefore:             from,
		NotAfter:              to,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  opts.IsCA,
		DNSNames:              opts.DNSNames,
		IPAddresses:           opts.IPs,
	}
	if opts.IsCA {
		t.KeyUsage |= x509.KeyUsageCertSign
	}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("parse URI SAN: %w", err)
		}
		t.URIs = append(t.URIs, u)
	}
	return t, nil
}

// ClientConfig is for a client that presents pair (nil: none) and talks h2 to server, which is either a
// SPIFFE id or the DNS name or IP address in the server's certificate.
func (c *DevCA) ClientConfig(pair *Pair, server string) (*tls.Config, error) {
	conf := &tls.Config{ServerName: server}
	if strings.HasPrefix(server, "spiffe://") {
		id, err := spiffeid.FromString(server)
		if err != nil {
			return nil, fmt.Errorf("parse server's SPIFFE id %q: %w", server, err)
		}
		roots := x509bundle.FromX509Authorities(id.TrustDomain(), []*x509.Certificate{c.cert})
		conf = tlsconfig.TLSClientConfig(roots, tlsconfig.AuthorizeID(id))
	} else {
		conf.RootCAs = x509.NewCertPool()
		conf.RootCAs.AddCert(c.cert)
	}
	conf.MinVersion = tls.VersionTLS12
	conf.NextProtos = []string{"h2"}
	if pair != nil {
		conf.Certificates = []tls.Certificate{pair.TLS}
	}
	return conf, nil
}

// sign makes the certificate that template describes for key, signed by a parent with its key.
func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate just signed: %w", err)
	}
	return cert, nil
}

func newPair(leaf *x509.Certificate, key *ecdsa.PrivateKey) (*Pair, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return &Pair{
		TLS:     tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}, nil
}
