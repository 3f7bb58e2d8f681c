package rdsserver_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/tlsboot"
)

// knock opens a TCP connection and says something, or nothing.
func (p *pipeline) knock(says string) net.Conn {
	p.t.Helper()
	c := must(net.Dial("tcp", p.addr))
	p.t.Cleanup(func() { _ = c.Close() })
	must(c.Write([]byte(says)))
	return c
}

// wantClosed checks that the server closes a connection.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	for {
		if _, err := c.Read(make([]byte, 512)); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the server keeps a connection that it should have closed")
			}
			return
		}
	}
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	form := sampleproxy.Forms()[0]
	p := newPipeline(t, limits(rdsserver.Limits{Connections: 2}))
	p.deliver(service("orders"))
	first, second := p.served(form, "a"), p.knock("")
	p.eventually("both are open", func() bool { return p.metric("metards_connections") == 2 })
	for range 3 {
		wantClosed(t, p.knock(""))
	}
	p.wantLimit("connections", 3)
	if got := p.refused(p.dial("shop"), form, sampleproxy.Node("sidecar", "b", "shop")); got.Code() != codes.Unavailable {
		t.Errorf("a proxy too many gets %v", got)
	}
	_ = second.Close()
	p.eventually("there is room again", func() bool { return p.metric("metards_connections") == 1 })
	p.wantPush(first)
	p.served(form, "c")
}

func TestAClientThatStallsInItsHandshakeIsClosedAndCostsNoGoroutine(t *testing.T) {
	form := sampleproxy.Forms()[0]
	p := newPipeline(t, limits(rdsserver.Limits{HandshakeTime: time.Second}))
	p.deliver(service("orders"))
	bystander := p.served(form, "a")
	before := runtime.NumGoroutine()
	mute, half := p.knock(""), p.knock("\x16\x03\x01") // nothing, and the beginning of a record
	config := must(p.ca.ClientConfig(must(p.ca.Issue(tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"})), "localhost"))
	silent := tls.Client(p.knock(""), config) // without HTTP/2's first words
	if err := silent.Handshake(); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, mute)
	wantClosed(t, half)
	p.eventually("both are counted", func() bool { return p.metric("metards_limits_reached_total", "handshake_time") == 2 })
	wantClosed(t, silent)
	p.eventually("the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
	p.wantPush(bystander)
}

func TestClientsThatStallInTheirHandshakeDelayNobody(t *testing.T) {
	p := newPipeline(t, limits(rdsserver.Limits{Handshakes: 1, HandshakeTime: time.Hour}))
	p.deliver(service("orders"))
	for range 20 {
		p.knock("")
		p.knock("\x16\x03\x01")
	}
	stalled, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	for range 4 {
		config := must(p.ca.ClientConfig(nil, "localhost"))
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			stalled <- struct{}{}
			<-release
			return &tls.Certificate{}, nil
		}
		c := tls.Client(p.knock(""), config)
		go func() { _ = c.Handshake() }()
		<-stalled // after all that the server has said
	}
	for _, form := range sampleproxy.Forms() {
		p.served(form, "app")
	}
	p.wantLimit("handshakes", 0)
	// The stop, in the end of the test, does not wait for them either.
}

func TestHandshakesFarBeyondTheRateAreClosedAtOnce(t *testing.T) {
	form := sampleproxy.Forms()[0]
	p := newPipeline(t, limits(rdsserver.Limits{HandshakeRate: 1, HandshakeTime: 100 * time.Millisecond}))
	p.deliver(service("orders"))
	first, second := p.served(form, "a"), p.served(form, "b") // the burst of two seconds
	p.knock("")                                               // says nothing, so it does not count
	if got := p.refused(p.dial("shop"), form, sampleproxy.Node("sidecar", "c", "shop")); got.Code() != codes.Unavailable {
		t.Errorf("a proxy beyond the rate gets %v", got)
	}
	p.eventually("it is counted", func() bool { return p.metric("metards_limits_reached_total", "handshake_rate") >= 1 })
	p.eventually("it is logged", func() bool { return strings.Contains(p.log.String(), "limit=handshake_rate by=127.0.0.1") })
	p.wantPush(first, second)
}

func TestAClientThatDoesNotSpeakHTTP2IsClosed(t *testing.T) {
	p := newPipeline(t)
	for name, protocols := range map[string][]string{"without ALPN": nil, "HTTP/1.1": {"http/1.1"}, "another": {"istio"}} {
		config := must(p.ca.ClientConfig(must(p.ca.Issue(tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"})), "localhost"))
		config.NextProtos = protocols
		c := tls.Client(p.knock(""), config)
		if err := c.Handshake(); err == nil {
			wantClosed(t, c)
		}
		if n := c.ConnectionState().NegotiatedProtocol; n != "" {
			t.Errorf("%s: the server speaks %q", name, n)
		}
	}
	p.eventually("they are counted", func() bool { return p.metric("metards_handshakes_failed_total", "other") == 3 })
}
