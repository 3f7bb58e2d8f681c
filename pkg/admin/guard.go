package admin

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/metards/metards/pkg/tlsboot"
)

// guarded keeps pages that show every namespace's routes from all but loopback peers and those with a
// certificate of the root namespace.
func (s *Server) guarded(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fromLoopback(r) {
			next(w, r)
			return
		}
		text := "debug pages answer loopback peers only, for example through kubectl port-forward"
		if r.TLS != nil && s.options.TLS != nil {
			err := s.ofRootNamespace(r.TLS)
			if err == nil {
				next(w, r)
				return
			}
			text = fmt.Sprintf("debug pages answer loopback peers and certificates of the root namespace only: %v", err)
		}
		http.Error(w, text, http.StatusForbidden)
	})
}

// inboundOfSidecar is the loopback address from which an Istio sidecar in our pod would pass on what comes
// from anybody.
var inboundOfSidecar = netip.AddrFrom4([4]byte{127, 0, 0, 6})

func fromLoopback(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	from := peer.Addr().Unmap()
	return err == nil && from.IsLoopback() && from != inboundOfSidecar
}

// ofRootNamespace returns why a peer is no workload of the root namespace, nil if it is one.
func (s *Server) ofRootNamespace(c *tls.ConnectionState) error {
	if len(c.VerifiedChains) == 0 {
		return errors.New("there is no client certificate")
	}
	id, err := tlsboot.PeerIdentity(c.PeerCertificates[0])
	if err != nil {
		return err
	}
	if accepted := s.options.TrustDomains(); !slices.Contains(accepted, id.TrustDomain) {
		return fmt.Errorf("the certificate %s is of trust domain %q; accepted are %q", id, id.TrustDomain, accepted)
	}
	if root := s.options.RootNamespace(); root == "" || id.Namespace != root {
		return fmt.Errorf("the certificate %s is of namespace %q, the root namespace is %q", id, id.Namespace, root)
	}
	return nil
}

// withoutDemand returns a configuration that lets clients without a certificate in, and asks of the others what
// the given one does.
func withoutDemand(c *tls.Config) *tls.Config {
	out := c.Clone()
	out.ClientAuth = tls.VerifyClientCertIfGiven
	if verify := c.VerifyConnection; verify != nil {
		out.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			return verify(state)
		}
	}
	if choose := c.GetConfigForClient; choose != nil {
		out.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen == nil || err != nil {
				return nil, err
			}
			return withoutDemand(chosen), nil
		}
	}
	return out
}
