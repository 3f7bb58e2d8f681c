package meshca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

const (
	defaultLifetime = 24 * time.Hour // what Istio's agents ask for
	defaultTimeout  = 10 * time.Second
)

// Options name the CA and who we are to it.
type Options struct {
	Address    string // HOST:PORT, of istiod as a rule port 15012; required
	ServerName string // DNS name in the CA's certificate; required
	RootFile   string // PEM: the roots that the CA's certificate chains to; read for each request; required
	TokenFile  string // service account token of the CA's audience; read for each request; required

	TrustDomain    string // of the identity asked for; required
	Namespace      string // empty, with ServiceAccount: what the token says
	ServiceAccount string // empty, with Namespace: what the token says

	ClusterID string        // of our cluster, where the CA serves several; may be empty
	Lifetime  time.Duration // asked for, in whole seconds; the CA may give less; 0 means 24 h
	Timeout   time.Duration // of each of a request's attempts; 0 means 10 s

	// Dial connects to Address; nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Client asks one CA for certificates of one identity.
type Client struct {
	opts Options
}

// Grant is what the CA gave.
type Grant struct {
	Certificate *tls.Certificate    // the leaf, which is set as Leaf, and intermediates, without the root
	Roots       []*x509.Certificate // that the CA says the mesh trusts, at least one
}

// New checks the options. It reads no file and connects to nobody.
func New(opts Options) (*Client, error) {
	for _, o := range []struct{ name, value string }{
		{"address", opts.Address}, {"server name", opts.ServerName}, {"root file", opts.RootFile},
		{"token file", opts.TokenFile}, {"trust domain", opts.TrustDomain},
	} {
		if o.value == "" {
			return nil, fmt.Errorf("request certificates: the %s must be given", o.name)
		}
	}
	if _, _, err := net.SplitHostPort(opts.Address); err != nil {
		return nil, fmt.Errorf("request certificates: the CA's address must be HOST:PORT: %w", err)
	}
	if (opts.Namespace == "") != (opts.ServiceAccount == "") {
		return nil, errors.New("request certificates: namespace and service account must be given both, or neither to take the token's")
	}
	if opts.Lifetime == 0 {
		opts.Lifetime = defaultLifetime
	}
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.Lifetime < time.Second || opts.Timeout < 0 {
		return nil, fmt.Errorf("request certificates: lifetime %v must be a second at least, timeout %v not negative", opts.Lifetime, opts.Timeout)
	}
	if opts.Dial == nil {
		opts.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}
	return &Client{opts: opts}, nil
}

// Request asks once. Where the token is refused or cannot be read, current (nil if there is none) is tried
// in its place: a CA takes the certificates that it issued. Token first, because a certificate that a CA
// accepts would hide that the token no longer works. The error is an *Error, or that of ctx.
func (c *Client) Request(ctx context.Context, current *tls.Certificate) (*Grant, error) {
	token, err := readToken(c.opts.TokenFile)
	uri, nameless := c.identity(token, current)
	if nameless != nil {
		if err != nil {
			return nil, err // the token could not be read, so that it says nothing
		}
		return nil, nameless
	}
	var grant *Grant
	if err == nil {
		grant, err = c.attempt(ctx, uri, proof{token: token})
	}
	refused, ok := errors.AsType[*Error](err)
	if !ok || !refused.tokenToBlame() || !stillValid(current, time.Now()) {
		return grant, err
	}
	if grant, err = c.attempt(ctx, uri, proof{certificate: current}); err != nil {
		return nil, refused.and("our present certificate did not help", err)
	}
	return grant, nil
}

// attempt asks with a new key and one proof of who we are, on a connection of its own: certificates are
// asked for so seldom that to keep one would save nothing, and a new one has the roots of the moment.
func (c *Client) attempt(ctx context.Context, uri string, by proof) (*Grant, error) {
	within, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	roots, err := readRoots(c.opts.RootFile)
	if err != nil {
		return nil, err
	}
	key, csr, err := newRequest(uri)
	if err != nil {
		return nil, err
	}
	chain, err := c.call(within, csr, roots, by)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return check(chain, expectation{key: key, uri: uri, roots: roots, now: time.Now()})
}

func stillValid(cert *tls.Certificate, now time.Time) bool {
	return cert != nil && cert.Leaf != nil && now.Before(cert.Leaf.NotAfter)
}

func readRoots(file string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err == nil {
		var roots []*x509.Certificate
		if roots, err = parseCertificates(data); err == nil {
			return roots, nil
		}
		err = fmt.Errorf("%s: %w", file, err)
	}
	return nil, &Error{Reason: ReasonRoots, cause: err,
		text: "the roots that the CA's certificate must chain to cannot be read",
		todo: "mount ConfigMap istio-ca-root-cert, as a directory, and name its root-cert.pem"}
}
