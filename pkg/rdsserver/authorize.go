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

// Authorize says for whom a proxy may speak.
type Authorize string

// The modes. The first is the default.
const (
	AuthorizeNamespace Authorize = "namespace" // for the namespace, and the service account, of its certificate
	AuthorizeMesh      Authorize = "mesh"      // for any namespace, with a certificate of an accepted trust domain
	AuthorizeOff       Authorize = "off"       // for any namespace; the certificate is not looked at
)

// unverified is who a proxy is that has no identity, where authorization is off.
const unverified = "unverified"

// authorize returns who a proxy is. Its certificate must have exactly one URI SAN, of an accepted trust
// domain, and its node may speak only for the namespace, and the service account where it names one, of the
// certificate. The other modes ask for less.
func (s *Server) authorize(ctx context.Context, n node) (string, *refusal) {
	id, err := peerIdentity(ctx)
	if s.mode == AuthorizeOff {
		if err != nil {
			return unverified, nil
		}
		return id.String(), nil
	}
	if err != nil {
		return "", refuse(refusedIdentity, codes.PermissionDenied, "%v", err)
	}
	if accepted := *s.trustDomains.Load(); !slices.Contains(accepted, id.TrustDomain) {
		return "", refuse(refusedTrustDomain, codes.PermissionDenied,
			"the certificate %s is of trust domain %q; accepted are %q", id, id.TrustDomain, accepted)
	}
	if s.mode == AuthorizeMesh {
		return id.String(), nil
	}
	if n.namespace != id.Namespace {
		return "", refuse(refusedNamespace, codes.PermissionDenied,
			"the node says namespace %q, its certificate %s is for %q", n.namespace, id, id.Namespace)
	}
	if n.serviceAccount != "" && n.serviceAccount != id.ServiceAccount {
		return "", refuse(refusedAccount, codes.PermissionDenied,
			"the node says service account %q, its certificate %s is for %q", n.serviceAccount, id, id.ServiceAccount)
	}
	return id.String(), nil
}

// connected tells Clients of a stream's client until release is called.
func (s *Server) connected(ctx context.Context) (release func()) {
	if p, ok := peer.FromContext(ctx); ok && s.clients != nil {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			return s.clients.Connected(info.State)
		}
	}
	return func() {}
}

// whose is a connection's identity for the log.
func whose(ctx context.Context) string {
	id, err := peerIdentity(ctx)
	if err != nil {
		return "unknown"
	}
	return id.String()
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
