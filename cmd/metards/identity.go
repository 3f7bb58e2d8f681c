package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/metards/metards/pkg/tlsboot"
)

// identity is our certificate and whom we trust, wherever they come from.
type identity interface {
	ServerConfig() *tls.Config
	Certificate() (*tls.Certificate, error)
	Trust() *tlsboot.Trust
	Run(context.Context) error
}

// identityFlags say where they come from.
type identityFlags struct {
	cert, key, root string
	ca              string
	caServerName    string
	lifetime        time.Duration
	anchors         []string
	crl             string
}

func (o *identityFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.cert, "cert", "", "PEM file of the server's certificate, with intermediates; reloaded on change (required without --ca)")
	f.StringVar(&o.key, "key", "", "PEM file of its key; reloaded on change (required without --ca)")
	f.StringVar(&o.root, "root", "", "PEM file of the mesh's trust roots, which client certificates must chain to; reloaded on change (required)")
	f.StringVar(&o.ca, "ca", "", "HOST:PORT of the mesh's CA, as a rule istiod's port 15012, to get the server's certificate from by CSR, with --token")
	f.StringVar(&o.caServerName, "ca-server-name", "", "name in the CA's certificate (default: --istiod-server-name, else istiod.<root namespace>.svc)")
	f.DurationVar(&o.lifetime, "cert-lifetime", 24*time.Hour, "lifetime that the CA is asked for; renewed at half of it")
	f.StringSliceVar(&o.anchors, "trust-anchor", nil, "DOMAIN=FILE: a further trust domain and the PEM file of the roots that may vouch for it, and for it only")
	f.StringVar(&o.crl, "crl", "", "PEM file of revocation lists, as istiod publishes them in ConfigMap istio-ca-crl; reloaded on change")
}

// parseAnchors reads --trust-anchor.
func (o *identityFlags) parseAnchors() ([]tlsboot.Anchor, error) {
	var out []tlsboot.Anchor
	for _, text := range o.anchors {
		domain, file, ok := strings.Cut(text, "=")
		if !ok || domain == "" || file == "" {
			return nil, fmt.Errorf("--trust-anchor %q is not DOMAIN=FILE", text)
		}
		out = append(out, tlsboot.Anchor{Domain: domain, File: file})
	}
	return out, nil
}

// newIdentity builds the source of our certificate.
func (s *server) newIdentity(metrics *tlsboot.Metrics) error {
	o := s.flags.identity
	anchors, err := o.parseAnchors()
	if err != nil {
		return err
	}
	for _, a := range anchors {
		s.foreign = append(s.foreign, a.Domain)
	}
	own := s.flags.trustDomains[0]
	if o.ca == "" {
		s.identity, err = tlsboot.NewFiles(tlsboot.FilesOptions{
			Cert: o.cert, Key: o.key, Root: o.root, TrustDomain: own, Anchors: anchors, CRL: o.crl, Log: s.log, Metrics: metrics,
		})
		return err
	}
	from := s.flags.sources
	ca, err := tlsboot.NewMeshCA(tlsboot.MeshCAOptions{
		Address: o.ca, ServerName: cmp.Or(o.caServerName, from.istiodServerName), RootNamespace: s.flags.mesh.settings.RootNamespace,
		RootFile: cmp.Or(o.root, from.istiodRoot), TokenFile: from.token, Identity: tlsboot.Identity{TrustDomain: own},
		Lifetime: o.lifetime, Anchors: anchors, CRL: o.crl, Log: s.log, Metrics: metrics,
	})
	if err != nil {
		return err
	}
	s.identity, s.ca = ca, ca
	return nil
}
