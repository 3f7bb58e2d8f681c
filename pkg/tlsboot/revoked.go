package tlsboot

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"time"
)

// revocations are what CRLs revoke.
type revocations struct {
	lists   []*x509.RevocationList
	serials map[string][]*x509.RevocationList // by issuer and serial number: the lists that have it
}

// parseCRLs reads one or more CRLs in PEM, as istiod publishes them. Who signed them is checked when one
// matters: an intermediate CA's certificate is not known before a client shows it.
func parseCRLs(data []byte) (*revocations, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	out := &revocations{serials: map[string][]*x509.RevocationList{}}
	for i, b := range blocks {
		if b.Type != "X509 CRL" {
			return nil, fmt.Errorf("PEM block %d is %s, not X509 CRL", i+1, b.Type)
		}
		list, err := x509.ParseRevocationList(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse PEM block %d: %w", i+1, err)
		}
		out.lists = append(out.lists, list)
		for _, e := range list.RevokedCertificateEntries {
			key := serialKey(list.RawIssuer, e.SerialNumber)
			out.serials[key] = append(out.serials[key], list)
		}
	}
	return out, nil
}

func serialKey(issuer []byte, serial *big.Int) string {
	return string(issuer) + "\x00" + serial.String()
}

// check tells which certificate of the chain its issuer has revoked. A list of a CA that merely has the
// same name does not count.
func (r *revocations) check(chain []*x509.Certificate) error {
	if r == nil {
		return nil
	}
	for i, cert := range chain[:len(chain)-1] {
		for _, list := range r.serials[serialKey(cert.RawIssuer, cert.SerialNumber)] {
			if list.CheckSignatureFrom(chain[i+1]) == nil {
				return fmt.Errorf("certificate %s, number %x, is revoked by its issuer", describe(cert), cert.SerialNumber)
			}
		}
	}
	return nil
}

// staleError says that a list is past its date. It is used all the same: what is revoked stays so.
type staleError struct {
	file, issuer string
	due          time.Time
}

func (e *staleError) Error() string {
	return fmt.Sprintf("CRL %s: the list of %s was due to be renewed at %s; it is still used, but lacks what was revoked since",
		e.file, e.issuer, e.due.UTC().Format(time.RFC3339))
}

func (r *revocations) stale(file string, now time.Time) error {
	for _, l := range r.lists {
		if !l.NextUpdate.IsZero() && now.After(l.NextUpdate) {
			return &staleError{file, l.Issuer.String(), l.NextUpdate}
		}
	}
	return nil
}
