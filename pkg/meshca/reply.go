package meshca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// expectation is what the CA's answer must fit.
type expectation struct {
	key   *ecdsa.PrivateKey
	uri   string
	roots []*x509.Certificate // of the root file
	now   time.Time
}

// check makes a Grant of an answer: one certificate per element, leaf first, but the last element, which is
// the bundle of roots.
func check(chain []string, want expectation) (*Grant, error) {
	if len(chain) < 2 {
		return nil, badReply(fmt.Errorf("%d elements, where leaf and roots are two at least", len(chain)))
	}
	certs, err := parseCertificates([]byte(strings.Join(chain[:len(chain)-1], "\n")))
	if err != nil {
		return nil, badReply(fmt.Errorf("certificates: %w", err))
	}
	roots, err := parseCertificates([]byte(chain[len(chain)-1]))
	if err != nil {
		return nil, badReply(fmt.Errorf("roots: %w", err))
	}
	if i := slices.IndexFunc(roots, func(c *x509.Certificate) bool { return c.Version >= 3 && !c.IsCA }); i >= 0 {
		return nil, badReply(fmt.Errorf("certificate %d of the roots is not a CA's; is the chain cut off?", i+1))
	}
	leaf := certs[0]
	if err := want.leaf(leaf); err != nil {
		return nil, badReply(err)
	}
	// A plugged-in CA's chain may end in the root, which clients have.
	between := slices.DeleteFunc(certs[1:], func(c *x509.Certificate) bool { return slices.ContainsFunc(roots, c.Equal) })
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: poolOf(slices.Concat(roots, want.roots)), Intermediates: poolOf(between), CurrentTime: want.now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return nil, badReply(fmt.Errorf("the certificate does not chain to the roots: %w", err))
	}
	out := &tls.Certificate{PrivateKey: want.key, Leaf: leaf, Certificate: [][]byte{leaf.Raw}}
	for _, c := range between {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return &Grant{Certificate: out, Roots: roots}, nil
}

// leaf checks what a chain cannot show.
func (want expectation) leaf(leaf *x509.Certificate) error {
	switch {
	case !want.key.PublicKey.Equal(leaf.PublicKey):
		return errors.New("the certificate is not for the key of our request")
	case leaf.IsCA:
		return errors.New("the certificate is a CA's")
	case len(leaf.URIs) != 1:
		return fmt.Errorf("the certificate has %d URI SANs, we asked for %s", len(leaf.URIs), want.uri)
	case leaf.URIs[0].String() != want.uri:
		return fmt.Errorf("the certificate is for %s, we asked for %s", clip(leaf.URIs[0].String()), want.uri)
	case want.now.Before(leaf.NotBefore) || !want.now.Before(leaf.NotAfter):
		return fmt.Errorf("the certificate is valid from %s to %s only; compare the CA's clock with ours",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func badReply(err error) error {
	return &Error{Reason: ReasonReply, cause: err, text: "the CA's answer is not what we asked for",
		todo: "check trust domain and identity here against the CA's configuration"}
}

// parseCertificates reads one or more certificates in PEM, with text in between if need be. pem.Decode
// steps over a broken block in silence; here it is an error.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	edges := 0
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("-")) {
			edges++
		}
	}
	var out []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM block %d is %s, not CERTIFICATE", len(out)+1, clip(block.Type))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse PEM block %d: %w", len(out)+1, err)
		}
		out = append(out, cert)
	}
	if len(out) == 0 || edges != 2*len(out) {
		return nil, fmt.Errorf("a PEM block is missing, broken or cut off, %d are whole", len(out))
	}
	return out, nil
}
