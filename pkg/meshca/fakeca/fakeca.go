// Package fakeca is a mesh's CA for tests: in memory, over real gRPC and TLS. In: the CSRs of a client under
// test; out: certificates as istiod gives them, or whatever else a test wants. It is no CA for anything else.
package fakeca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	security "istio.io/api/security/v1alpha1"
)

// ServerName is in the CA's own certificate.
const ServerName = "istiod.istio-system.svc"

const (
	backdate = 2 * time.Minute // as istiod does
	buffer   = 1 << 16
	lifetime = 10 * 365 * 24 * time.Hour
)

// Authority is a certificate that signs, with its key.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Call is a request as the CA saw it.
type Call struct {
	Token    string
	Cluster  string
	Client   *x509.Certificate // nil if none was shown
	CSR      *x509.CertificateRequest
	Lifetime time.Duration
}

// CA answers on a listener in memory. Its settings change with Set only.
type CA struct {
	security.UnimplementedIstioCertificateServiceServer
	listener *bufconn.Listener
	server   *grpc.Server

	mu    sync.Mutex
	s     Settings
	calls []Call
}

// Settings are how the CA behaves.
type Settings struct {
	Root    *Authority          // signs the CA's own certificate, and the clients' where there is no Intermediate
	Roots   []*x509.Certificate // told to clients; nil means Root
	Between *Authority          // an intermediate that signs the clients' certificates; may be nil
	Token   string              // the one accepted
	URI     string              // the identity of whoever is accepted
	Max     time.Duration       // clients get no more; 0 is no limit
	Strict  bool                // refuse what Istio's RA mode refuses
	Refuse  error               // instead of any answer
	Change  func([]string, Call) []string
}

// NewAuthority makes a root, or what parent signs.
func NewAuthority(name string, parent *Authority) *Authority {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		Subject: pkix.Name{Organization: []string{name}}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(lifetime),
	}
	a := &Authority{key: key}
	if parent == nil {
		parent = &Authority{Cert: template, key: key}
	}
	a.Cert = parent.Sign(template, key.Public())
	return a
}

// Renew makes a root of the same key that lives longer, as istiod's own CA does when its root ages.
func (a *Authority) Renew() *Authority {
	template := *a.Cert
	template.SerialNumber, template.NotAfter = nil, a.Cert.NotAfter.Add(lifetime)
	self := &Authority{Cert: &template, key: a.key}
	return &Authority{Cert: self.Sign(&template, a.key.Public()), key: a.key}
}

// Sign makes a certificate.
func (a *Authority) Sign(template *x509.Certificate, key any) *x509.Certificate {
	return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, a.Cert, key, a.key))))
}

// Leaf makes a certificate for a workload and for the DNS names, with its key.
func (a *Authority) Leaf(uri string, lifetime time.Duration, dns ...string) *tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	leaf := a.Sign(leafTemplate(uri, lifetime, dns...), key.Public())
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// Revoke makes a CRL.
func (a *Authority) Revoke(certs ...*x509.Certificate) []byte {
	list := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: must(x509.CreateRevocationList(rand.Reader, list, a.Cert, a.key))})
}

func leafTemplate(uri string, lifetime time.Duration, dns ...string) *x509.Certificate {
	t := &x509.Certificate{
		NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(lifetime), DNSNames: dns, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if uri != "" {
		t.URIs = []*url.URL{must(url.Parse(uri))}
	}
	return t
}

// Start serves until Stop.
func Start(s Settings) *CA {
	c := &CA{s: s, listener: bufconn.Listen(buffer)}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.tlsConfig(), nil }}
	c.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	security.RegisterIstioCertificateServiceServer(c.server, c)
	go func() { _ = c.server.Serve(c.listener) }()
	return c
}

// Stop ends all connections.
func (c *CA) Stop() { c.server.Stop() }

// Dial is for clients.
func (c *CA) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return c.listener.DialContext(ctx)
}

// Set changes how the CA behaves from now on.
func (c *CA) Set(change func(*Settings)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.s)
}

// Calls are the requests so far.
func (c *CA) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (c *CA) tlsConfig() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	pool := x509.NewCertPool()
	for _, r := range c.roots() {
		pool.AddCert(r)
	}
	own := c.s.Root.Leaf("", time.Hour, ServerName)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*own}, NextProtos: []string{"h2"},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool,
	}
}

func (c *CA) roots() []*x509.Certificate {
	if c.s.Roots != nil {
		return c.s.Roots
	}
	return []*x509.Certificate{c.s.Root.Cert}
}

// CreateCertificate is the CA's service.
func (c *CA) CreateCertificate(ctx context.Context, r *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call, err := readCall(ctx, r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c.calls = append(c.calls, call)
	switch {
	case c.s.Refuse != nil:
		return nil, c.s.Refuse
	case call.Client == nil && call.Token != c.s.Token:
		return nil, status.Error(codes.Unauthenticated, "request authenticate failure")
	case c.s.Strict && !strict(call.CSR, c.s.URI):
		return nil, status.Error(codes.InvalidArgument, "the CSR has other things in it than its identity")
	}
	chain := c.issue(call)
	if c.s.Change != nil {
		chain = c.s.Change(chain, call)
	}
	return &security.IstioCertificateResponse{CertChain: chain}, nil
}

func (c *CA) issue(call Call) []string {
	lifetime := call.Lifetime
	if c.s.Max > 0 {
		lifetime = min(lifetime, c.s.Max)
	}
	signer := c.s.Root
	if c.s.Between != nil {
		signer = c.s.Between
	}
	chain := []string{PEM(signer.Sign(leafTemplate(c.s.URI, lifetime), call.CSR.PublicKey))}
	if c.s.Between != nil {
		chain = append(chain, PEM(c.s.Between.Cert))
	}
	return append(chain, PEM(c.roots()...))
}

// strict is the rule of Istio's RA mode.
func strict(csr *x509.CertificateRequest, uri string) bool {
	return len(csr.Subject.ToRDNSequence()) == 0 && len(csr.Extensions) == 1 && len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses) == 0 &&
		len(csr.URIs) == 1 && csr.URIs[0].String() == uri
}

func readCall(ctx context.Context, r *security.IstioCertificateRequest) (Call, error) {
	block, _ := pem.Decode([]byte(r.GetCsr()))
	if block == nil {
		return Call{}, errors.New("the CSR is not PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return Call{}, err
	}
	call := Call{CSR: csr, Lifetime: time.Duration(r.GetValidityDuration()) * time.Second}
	header, _ := metadata.FromIncomingContext(ctx)
	call.Token = strings.TrimPrefix(strings.Join(header["authorization"], ","), "Bearer ")
	call.Cluster = strings.Join(header["clusterid"], ",")
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			call.Client = info.State.PeerCertificates[0]
		}
	}
	return call, nil
}

// PEM is a bundle.
func PEM(certs ...*x509.Certificate) string {
	var out strings.Builder
	for _, c := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return out.String()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // of a test
	}
	return v
}
