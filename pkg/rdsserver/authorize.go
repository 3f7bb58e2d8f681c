package rdsserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/pkg/tlsboot"
)

// Reasons of refusals, for the metric and the log.
const (
	refusedIdentity    = "identity"        // the certificate names no mesh identity
	refusedTrustDomain = "trust_domain"    // of another trust domain
	refusedNamespace   = "namespace"       // the node is of another namespace than the certificate
	refusedAccount     = "service_account" // likewise
	refusedNode        = "node"            // the node message is malformed
)

// refusal is why a stream ends before it began.
type refusal struct {
	reason string
	status *status.Status
}

func refuse(reason string, code codes.Code, format string, args ...any) *refusal {
	return &refusal{reason, status.New(code, clip(fmt.Sprintf(format, args...)))}
}

// authorize returns who a proxy is: its certificate must be of an accepted trust domain, and its node may
// speak only for the namespace, and the service account where it names one, of the certificate.
func (s *Server) authorize(ctx context.Context, n node) (tlsboot.Identity, *refusal) {
	id, err := peerIdentity(ctx)
	if err != nil {
		return id, refuse(refusedIdentity, codes.PermissionDenied, "%v", err)
	}
	if accepted := *s.trustDomains.Load(); !slices.Contains(accepted, id.TrustDomain) {
		return id, refuse(refusedTrustDomain, codes.PermissionDenied,
			"the certificate %s is of trust domain %q; accepted are %q", id, id.TrustDomain, accepted)
	}
	if n.namespace != id.Namespace {
		return id, refuse(refusedNamespace, codes.PermissionDenied,
			"the node says namespace %q, its certificate %s is for %q", n.namespace, id, id.Namespace)
	}
	if n.serviceAccount != "" && n.serviceAccount != id.ServiceAccount {
		return id, refuse(refusedAccount, codes.PermissionDenied,
			"the node says service account %q, its certificate %s is for %q", n.serviceAccount, id, id.ServiceAccount)
	}
	return id, nil
}

func peerIdentity(ctx context.Context) (tlsboot.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return tlsboot.Identity{}, errors.New("the connection has no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return tlsboot.Identity{}, errors.New("the connection has no client certificate")
	}
	id, err := tlsboot.PeerIdentity(info.State.PeerCertificates[0])
	if err != nil {
		return tlsboot.Identity{}, fmt.Errorf("the client certificate names no mesh identity: %w", err)
	}
	return id, nil
}
