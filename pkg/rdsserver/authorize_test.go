package rdsserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/tlsboot"
)

func authorize(mode rdsserver.Authorize) change {
	return func(o *rdsserver.Options, _ *cachemgr.Options) { o.Authorize = mode }
}

// refused returns why a stream did not come to anything, be it the handshake or the server's word.
func (p *pipeline) refused(cc *grpc.ClientConn, form sampleproxy.Form, node *corev3.Node) *status.Status {
	p.t.Helper()
	s, err := sampleproxy.Open(p.t.Context(), cc, form, node)
	if err != nil {
		return status.Convert(err)
	}
	x := &proxy{Stream: s, t: p.t}
	_ = s.Want(table("orders")) // fails where the stream is over already
	return status.Convert(x.ended())
}

func TestInModeMeshAnIdentityOfTheMeshMaySpeakForAnyNamespace(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, authorize(rdsserver.AuthorizeMesh))
		p.deliver(service("orders"))
		for _, node := range []*corev3.Node{sampleproxy.Node("sidecar", "app", "shop"), sampleproxy.Node("router", "gw", "other")} {
			x := p.openOn(p.dial("web"), form, node)
			x.want(table("orders"))
			x.wantAccepted(table("orders"), cluster("orders", ""))
		}
		for as, says := range map[string]string{"spiffe://elsewhere/ns/shop/sa/app": `trust domain "elsewhere"`, "": "no URI SAN"} {
			uris := strings.Fields(as)
			got := p.refused(p.dialAs(tlsboot.IssueOptions{URIs: uris, DNSNames: []string{"app"}}), form, sampleproxy.Node("sidecar", "app", "shop"))
			if got.Code() != codes.PermissionDenied || !strings.Contains(got.Message(), says) {
				t.Errorf("a certificate for %q: %v, want that it says %q", as, got, says)
			}
		}
	})
}

func TestInModeOffAnyCertificateWillDoAndThatIsLoud(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, authorize(rdsserver.AuthorizeOff))
		p.deliver(service("orders"))
		for _, as := range []tlsboot.IssueOptions{
			{Namespace: "web", ServiceAccount: "app"},
			{URIs: []string{"spiffe://elsewhere/ns/shop/sa/app"}},
			{URIs: []string{}, DNSNames: []string{"app"}},
			{URIs: []string{"spiffe://cluster.local/ns/a/sa/a", "spiffe://cluster.local/ns/b/sa/b"}},
		} {
			x := p.openOn(p.dialAs(as), form, sampleproxy.Node("sidecar", "app", "shop"))
			x.want(table("orders"))
			x.wantAccepted(table("orders"), cluster("orders", ""))
		}
		if n := strings.Count(p.log.String(), "authorization is off"); n != 1 {
			t.Errorf("the log says %d times that authorization is off, want once", n)
		}
		if p.metric("metards_authorization", "off") != 1 || p.metric("metards_authorization") != 1 {
			t.Error("the metric does not say that authorization is off")
		}
	})
}

func TestOptionsThatMeanNothingAreRefused(t *testing.T) {
	for says, c := range map[string]change{
		"authorize":     authorize("nobody"),
		"HandshakeRate": func(o *rdsserver.Options, _ *cachemgr.Options) { o.Limits.HandshakeRate = -1 },
		"RequestBytes":  func(o *rdsserver.Options, _ *cachemgr.Options) { o.Limits.RequestBytes = 1 << 40 },
	} {
		p := newPipeline(t)
		o := rdsserver.Options{
			Cache: p.cache, TLS: &tls.Config{}, Types: []string{sampleproxy.RouteType}, Metrics: rdsserver.NewMetrics(newRegistry()),
			Log: discard, TrustDomains: []string{"cluster.local"},
		}
		c(&o, nil)
		if _, err := rdsserver.New(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error about %s", err, says)
		}
	}
}

// selfSigned is a certificate that vouches for itself.
func selfSigned() tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs: []*url.URL{must(url.Parse("spiffe://cluster.local/ns/shop/sa/app"))},
	}
	return tls.Certificate{Certificate: [][]byte{must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))}, PrivateKey: key}
}

// dialWith presents a certificate whatever issuers the server asks for, or none.
func (p *pipeline) dialWith(cert *tls.Certificate) *grpc.ClientConn {
	p.t.Helper()
	config := must(p.ca.ClientConfig(nil, "localhost"))
	if cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	cc := must(grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(credentials.NewTLS(config))))
	p.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func TestACertificateThatDoesNotVouchIsRefusedWithAReasonAndCostsNoGoroutine(t *testing.T) {
	p := newPipeline(t)
	p.deliver(service("orders"))
	bystander := p.open(sampleproxy.Forms()[0], "shop")
	bystander.want(table("orders"))
	bystander.accepted()
	shop := tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"}
	expired, early, web, two, none := shop, shop, shop, shop, shop
	expired.NotBefore, expired.Lifetime = time.Now().Add(-2*time.Hour), time.Hour
	early.NotBefore = time.Now().Add(time.Hour)
	web.Namespace = "web"
	two.URIs = []string{"spiffe://cluster.local/ns/shop/sa/app", "spiffe://cluster.local/ns/shop/sa/b"}
	none.URIs, none.DNSNames = []string{}, []string{"app"}
	stranger := &must(must(tlsboot.NewDevCA("cluster.local")).Issue(shop)).TLS
	self := selfSigned()
	issued := func(o tlsboot.IssueOptions) *tls.Certificate { return &must(p.ca.Issue(o)).TLS }
	cases := map[string]struct {
		cert        *tls.Certificate
		hears       string // the client; of the handshake's end it may hear nothing but that
		log, metric string
		label       string
	}{
		"a stranger's":     {stranger, "", "handshake failed", "metards_handshakes_failed_total", "unknown_root"},
		"self-signed":      {&self, "", "handshake failed", "metards_handshakes_failed_total", "unknown_root"},
		"expired":          {issued(expired), "", "handshake failed", "metards_handshakes_failed_total", "expired"},
		"not yet valid":    {issued(early), "", "handshake failed", "metards_handshakes_failed_total", "expired"},
		"none":             {nil, "", "handshake failed", "metards_handshakes_failed_total", "no_certificate"},
		"without URI SAN":  {issued(none), "no URI SAN", "stream refused", "metards_streams_refused_total", "identity"},
		"two URI SANs":     {issued(two), "2 URI SANs", "stream refused", "metards_streams_refused_total", "identity"},
		"of another space": {issued(web), `is for "web"`, "stream refused", "metards_streams_refused_total", "namespace"},
	}
	before := runtime.NumGoroutine()
	for name, c := range cases {
		for _, form := range sampleproxy.Forms() {
			counted := p.metric(c.metric, c.label)
			cc := p.dialWith(c.cert)
			got := p.refused(cc, form, sampleproxy.Node("sidecar", "app", "shop"))
			_ = cc.Close()
			code := codes.PermissionDenied
			if c.hears == "" {
				code = codes.Unavailable
			}
			if got.Code() != code || !strings.Contains(got.Message(), c.hears) {
				t.Errorf("%s, %s: the client hears %v, want %v %q", name, form.Name, got, code, c.hears)
			}
			p.eventually("counted as "+c.label, func() bool { return p.metric(c.metric, c.label) > counted })
		}
		if text := p.log.String(); !strings.Contains(text, `msg="`+c.log+`" reason=`+c.label) {
			t.Errorf("%s: the log does not say %s:\n%s", name, c.label, text)
		}
	}
	if n := strings.Count(p.log.String(), "handshake failed"); n != 3 {
		t.Errorf("%d failed handshakes are logged, want each of the 3 reasons once", n)
	}
	p.eventually("the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
	p.eventually("the connections are gone", func() bool { return p.metric("metards_connections") == 1 })
	p.put(router("orders", "v2"))
	bystander.wantAccepted(table("orders"), cluster("orders", "v2"))
}
