package tlsboot

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Errors of this file hold no current time and no counter that grows: an alarm is logged again when
// its text differs.

// loadPair reads the server's certificate chain, leaf first, and the key of the leaf, and refuses what
// no client would accept. The result has its Leaf set.
func loadPair(certFile, keyFile string, now time.Time) (*tls.Certificate, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	leaf, err := parseLeaf(certPEM)
	if err == nil {
		err = checkLeaf(leaf, now)
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", certFile, err)
	}
	if err := checkKey(keyPEM); err != nil {
		return nil, fmt.Errorf("read key %s: %w", keyFile, err)
	}
	// A mismatch is refused here, whatever the order in which the two files were written.
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("use key %s with certificate %s, which must be issued together: %w", keyFile, certFile, err)
	}
	return &pair, nil
}

// loadRoots reads a bundle of one or more root certificates. One that is broken refuses the bundle; one
// that is expired does not, it verifies nothing.
func loadRoots(file string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read roots: %w", err)
	}
	roots, err := parseRoots(data)
	if err != nil {
		return nil, fmt.Errorf("read roots %s: %w", file, err)
	}
	return roots, nil
}

func parseRoots(data []byte) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	roots := make([]*x509.Certificate, 0, len(blocks))
	for i, b := range blocks {
		if b.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM block %d is %s; a root bundle holds only CERTIFICATE blocks", i+1, b.Type)
		}
		cert, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse PEM block %d: %w", i+1, err)
		}
		// A leaf in a pool is trusted as itself. Certificates before version 3 cannot say that they are a CA's.
		if cert.Version >= 3 && !cert.IsCA {
			return nil, fmt.Errorf("PEM block %d (%s) is not a CA certificate; give the mesh's roots here, not a workload's certificate",
				i+1, describe(cert))
		}
		roots = append(roots, cert)
	}
	return roots, nil
}

func parseLeaf(data []byte) (*x509.Certificate, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	// Other blocks are allowed: certificate and key may share a file.
	i := slices.IndexFunc(blocks, func(b *pem.Block) bool { return b.Type == "CERTIFICATE" })
	if i < 0 {
		return nil, fmt.Errorf("no CERTIFICATE block, only %s; are certificate and key exchanged?", blocks[0].Type)
	}
	leaf, err := x509.ParseCertificate(blocks[i].Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse PEM block %d: %w", i+1, err)
	}
	return leaf, nil
}

func checkLeaf(leaf *x509.Certificate, now time.Time) error {
	switch {
	case leaf.IsCA:
		return fmt.Errorf("first certificate (%s) is a CA certificate; the server's own comes first", describe(leaf))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("valid only from %s; check this machine's clock, or issue another",
			leaf.NotBefore.UTC().Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return fmt.Errorf("expired at %s; issue another", leaf.NotAfter.UTC().Format(time.RFC3339))
	case len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny):
		return errors.New("not for servers (extended key usage lacks serverAuth); clients would refuse it")
	}
	return nil
}

func checkKey(data []byte) error {
	blocks, err := pemBlocks(data)
	if err != nil {
		return err
	}
	for _, b := range blocks {
		if b.Type == "ENCRYPTED PRIVATE KEY" || b.Headers["DEK-Info"] != "" {
			return errors.New("key is encrypted; store it without a passphrase")
		}
	}
	if !slices.ContainsFunc(blocks, func(b *pem.Block) bool { return strings.HasSuffix(b.Type, "PRIVATE KEY") }) {
		return fmt.Errorf("no PRIVATE KEY block, only %s; are certificate and key exchanged?", blocks[0].Type)
	}
	return nil
}

// pemBlocks decodes all PEM blocks of a file, at least one. Text between blocks is allowed, as openssl
// writes it. But pem.Decode steps over a broken block in silence, and a bundle with a root less is
// another bundle; so every line that begins with a dash must be an edge of a block that was decoded.
func pemBlocks(data []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	for rest := data; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		blocks = append(blocks, b)
	}
	edges := 0
	for line := range bytes.Lines(data) {
		if line[0] == '-' {
			edges++
		}
	}
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("file is empty")
	case !bytes.Contains(data, []byte("-----BEGIN ")):
		return nil, errors.New("no PEM block; convert the file to PEM")
	case len(blocks) == 0 || edges != 2*len(blocks):
		return nil, fmt.Errorf("a PEM block is broken or cut off, %d others are whole", len(blocks))
	}
	return blocks, nil
}

// describe names a certificate in errors and logs: its subject, or its URI, since mesh certificates
// have no subject.
func describe(cert *x509.Certificate) string {
	if s := cert.Subject.String(); s != "" {
		return s
	}
	if len(cert.URIs) > 0 {
		return cert.URIs[0].String()
	}
	return "no subject"
}
