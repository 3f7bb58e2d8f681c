package tlsboot

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// identityForm is shown in errors, so that whoever issued the certificate sees what was expected.
const identityForm = "spiffe://<trust domain>/ns/<namespace>/sa/<service account>"

// Identity is what a mesh certificate says about its holder. No part of a parsed Identity is empty.
type Identity struct {
	TrustDomain    string // lower case, as SPIFFE prescribes
	Namespace      string
	ServiceAccount string
}

// String is the SPIFFE id: spiffe://<trust domain>/ns/<namespace>/sa/<service account>.
func (i Identity) String() string {
	return "spiffe://" + i.TrustDomain + "/ns/" + i.Namespace + "/sa/" + i.ServiceAccount
}

// ParseIdentity reads a SPIFFE id of Istio's path form. Unlike istiod it refuses empty parts: an
// identity without a namespace would speak for every node that names none. Nothing is decoded or
// folded, so the String of the result is uri.
func ParseIdentity(uri string) (Identity, error) {
	id, err := spiffeid.FromString(uri)
	if err != nil {
		return Identity{}, fmt.Errorf("parse SPIFFE id %q: %w", uri, err)
	}
	// The path begins with a slash, so the first part is empty.
	part := strings.Split(id.Path(), "/")
	if len(part) != 5 || part[1] != "ns" || part[3] != "sa" {
		return Identity{}, fmt.Errorf("parse SPIFFE id %q: not of the form %s", uri, identityForm)
	}
	return Identity{TrustDomain: id.TrustDomain().Name(), Namespace: part[2], ServiceAccount: part[4]}, nil
}

// PeerIdentity reads the Identity from the leaf of a verified chain. It verifies no signature and no
// dates: that is the handshake's part. The error says which rule the certificate breaks: exactly one
// URI SAN, a SPIFFE id of Istio's form, in a certificate that cannot sign others.
func PeerIdentity(leaf *x509.Certificate) (Identity, error) {
	switch {
	case leaf == nil:
		return Identity{}, errors.New("no client certificate: the connection is not mutual TLS")
	case leaf.IsCA:
		return Identity{}, errors.New("client certificate is a CA certificate, not that of a workload")
	case leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		// SPIFFE's rule for leaves: whoever can sign could claim any identity.
		return Identity{}, errors.New("client certificate may sign certificates or CRLs (key usage), a workload's must not")
	case len(leaf.URIs) == 0:
		return Identity{}, errors.New("client certificate has no URI SAN, a workload's has exactly one: " + identityForm)
	case len(leaf.URIs) > 1:
		return Identity{}, fmt.Errorf("client certificate has %d URI SANs, a workload's has exactly one: %s",
			len(leaf.URIs), identityForm)
	}
	id, err := ParseIdentity(leaf.URIs[0].String())
	if err != nil {
		return Identity{}, fmt.Errorf("read client certificate's URI SAN: %w", err)
	}
	return id, nil
}
