package meshca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// identity is the SPIFFE id to ask for: of the options, else of the token, else of the present certificate.
func (c *Client) identity(token string, current *tls.Certificate) (string, error) {
	namespace, account := c.opts.Namespace, c.opts.ServiceAccount
	if namespace == "" && token == "" && current != nil && current.Leaf != nil && len(current.Leaf.URIs) == 1 {
		return current.Leaf.URIs[0].String(), nil
	}
	if namespace == "" {
		claims, err := parseClaims(token)
		if err != nil {
			return "", &Error{Reason: ReasonToken, cause: err,
				text: fmt.Sprintf("%s does not say which service account it is of", c.opts.TokenFile),
				todo: "project a service account token there, or give namespace and service account"}
		}
		namespace, account = claims.namespace, claims.account
	}
	domain, err := spiffeid.TrustDomainFromString(c.opts.TrustDomain)
	if err == nil {
		var id spiffeid.ID
		if id, err = spiffeid.FromSegments(domain, "ns", namespace, "sa", account); err == nil {
			return id.String(), nil
		}
	}
	return "", &Error{Reason: ReasonRequest, cause: err, text: "our identity is none that a certificate can state",
		todo: "check trust domain, namespace and service account"}
}

// newRequest makes a key and the PEM of a CSR for it, with one URI SAN and an empty subject: what strict
// CAs (Istio's RA mode) accept, and the others do not mind.
func newRequest(uri string) (*ecdsa.PrivateKey, string, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, "", fmt.Errorf("parse our identity: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{u}}, key)
	if err != nil {
		return nil, "", fmt.Errorf("create CSR for %s: %w", uri, err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}
