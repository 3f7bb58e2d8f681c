package tlsboot

import (
	"crypto/x509"
	"strings"
	"testing"
)

func TestASpiffeIDOfIstiosFormIsAnIdentity(t *testing.T) {
	for uri, want := range map[string]Identity{
		"spiffe://cluster.local/ns/shop/sa/cart":        {"cluster.local", "shop", "cart"},
		"spiffe://td-1.example.org/ns/ns/sa/sa":         {"td-1.example.org", "ns", "sa"},
		"spiffe://cluster.local/ns/shop/sa/cart.v2-a_b": {"cluster.local", "shop", "cart.v2-a_b"},
		"spiffe://cluster.local/ns/Shop/sa/CART":        {"cluster.local", "Shop", "CART"},
	} {
		got, err := ParseIdentity(uri)
		if err != nil || got != want || got.String() != uri {
			t.Errorf("ParseIdentity(%q) = %v, %v, want %v", uri, got, err, want)
		}
	}
}

func TestAnythingElseIsRefusedWithTheRuleItBreaks(t *testing.T) {
	for uri, reason := range map[string]string{
		"":                                           "empty",
		"cluster.local/ns/shop/sa/cart":              "scheme",
		"https://cluster.local/ns/shop/sa/cart":      "scheme",
		"SPIFFE://cluster.local/ns/shop/sa/cart":     "scheme",
		"spiffe:///ns/shop/sa/cart":                  "trust domain is missing",
		"spiffe://Cluster.Local/ns/shop/sa/cart":     "trust domain characters",
		"spiffe://cluster.local:80/ns/shop/sa/cart":  "trust domain characters",
		"spiffe://me@cluster.local/ns/shop/sa/cart":  "trust domain characters",
		"spiffe://cluster.local":                     "not of the form",
		"spiffe://cluster.local/":                    "trailing slash",
		"spiffe://cluster.local/ns//sa/cart":         "empty",
		"spiffe://cluster.local/ns/shop/sa/":         "trailing slash",
		"spiffe://cluster.local/ns/shop/sa":          "not of the form",
		"spiffe://cluster.local/ns/shop/sa/cart/":    "trailing slash",
		"spiffe://cluster.local/ns/shop/sa/cart/x":   "not of the form",
		"spiffe://cluster.local/sa/cart/ns/shop":     "not of the form",
		"spiffe://cluster.local/NS/shop/sa/cart":     "not of the form",
		"spiffe://cluster.local/x/ns/shop/sa/cart":   "not of the form",
		"spiffe://cluster.local/ns/../sa/cart":       "dot segments",
		"spiffe://cluster.local/ns/a%2Fb/sa/cart":    "path segment characters",
		"spiffe://cluster.local/ns/shop/sa/cart?a=b": "path segment characters",
		"spiffe://cluster.local/ns/shop/sa/cart#a":   "path segment characters",
		"spiffe://cluster.local/ns/shop/sa/c art":    "path segment characters",
		"spiffe://cluster.local/ns/shop/sa/c\x00art": "path segment characters",
		"spiffe://cluster.local/ns/shop/sa/cärt":     "path segment characters",
		"spiffe://cluster.local/workload/cart":       "not of the form",
	} {
		if got, err := ParseIdentity(uri); err == nil || !strings.Contains(err.Error(), reason) || got != (Identity{}) {
			t.Errorf("ParseIdentity(%q) = %v, %v, want an error with %q", uri, got, err, reason)
		}
	}
}

func TestACertificateThatCannotBeAWorkloadsHasNoIdentity(t *testing.T) {
	ca := newCA(t)
	crlSigner := *issue(t, ca, IssueOptions{}).TLS.Leaf
	crlSigner.KeyUsage |= x509.KeyUsageCRLSign
	for reason, leaf := range map[string]*x509.Certificate{
		"no client certificate":        nil,
		"CA certificate":               ca.cert,
		"may sign certificates or CRL": &crlSigner,
	} {
		if _, err := PeerIdentity(leaf); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("PeerIdentity: %v, want an error with %q", err, reason)
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	for _, s := range []string{
		"", "spiffe://", "spiffe://cluster.local/ns/shop/sa/cart", "spiffe://a/ns//sa/", "spiffe://a/ns/b/sa/c/d", "spiffe://a/ns/%2e/sa/c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseIdentity(s)
		if err != nil {
			if id != (Identity{}) {
				t.Errorf("ParseIdentity(%q) = %v beside an error", s, id)
			}
			return
		}
		if id.String() != s {
			t.Errorf("ParseIdentity(%q).String() = %q", s, id)
		}
		for _, part := range []string{id.TrustDomain, id.Namespace, id.ServiceAccount} {
			if part == "" || strings.ContainsAny(part, "/%?#@: ") {
				t.Errorf("ParseIdentity(%q) has the part %q", s, part)
			}
		}
	})
}
