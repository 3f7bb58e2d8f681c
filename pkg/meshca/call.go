package meshca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	security "istio.io/api/security/v1alpha1"
)

// proof is how we say who we are: one of the two.
type proof struct {
	token       string
	certificate *tls.Certificate
}

// call sends the CSR (PEM) and returns the chain as it came.
func (c *Client) call(ctx context.Context, csr string, roots []*x509.Certificate, by proof) ([]string, error) {
	seen := &attempts{}
	conn, err := grpc.NewClient("passthrough:///"+c.opts.Address,
		grpc.WithTransportCredentials(watched{credentials.NewTLS(c.tlsConfig(roots, by)), seen}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := c.opts.Dial(ctx, address)
			seen.dialled(err)
			return conn, err
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", c.opts.Address, err)
	}
	defer func() { _ = conn.Close() }()

	var header []string
	if by.token != "" {
		header = append(header, "authorization", "Bearer "+by.token)
	}
	if c.opts.ClusterID != "" {
		header = append(header, "clusterid", c.opts.ClusterID)
	}
	reply, err := security.NewIstioCertificateServiceClient(conn).CreateCertificate(
		metadata.AppendToOutgoingContext(ctx, header...),
		&security.IstioCertificateRequest{Csr: csr, ValidityDuration: int64(c.opts.Lifetime.Seconds())})
	if err != nil {
		return nil, c.ofCall(err, seen)
	}
	return reply.GetCertChain(), nil
}

func (c *Client) tlsConfig(roots []*x509.Certificate, by proof) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: poolOf(roots), ServerName: c.opts.ServerName}
	if by.certificate != nil {
		// Whatever the CA says that it accepts: its list may be older than its roots.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return by.certificate, nil }
	}
	return config
}

func poolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// attempts are how the connection's making ended, the last time.
type attempts struct {
	mu              sync.Mutex
	dial, handshake error
}

func (a *attempts) dialled(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dial = err
}

func (a *attempts) shook(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handshake = err
}

func (a *attempts) failures() (dial, handshake error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dial, a.handshake
}

// watched are credentials that tell how handshakes end.
type watched struct {
	credentials.TransportCredentials
	seen *attempts
}

func (w watched) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	w.seen.shook(err)
	return conn, info, err
}

func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone(), w.seen}
}
