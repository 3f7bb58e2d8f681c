package istiowatch

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/pkg/tlsboot"
)

func TestARefusalOfAnyKindKeepsEverythingAndEndsByItself(t *testing.T) {
	advice := map[codes.Code]string{
		codes.Unauthenticated: "istiod does not accept our identity", codes.PermissionDenied: "run in the root namespace",
		codes.InvalidArgument: "istiod refuses our node", codes.Unimplemented: "is it istiod",
		codes.ResourceExhausted: "istiod is overloaded", codes.Unavailable: "istiod is not available",
		codes.DeadlineExceeded: "istiod is not available", codes.Canceled: "istiod canceled the stream",
	}
	s := start(t, nil)
	s.set(entries, entry("shop/a"))
	b := watch(t, s.address)
	b.expect(t, "shop/a=a")
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		s.change(func() { s.refusal = status.New(code, "because of "+code.String()) })
		want := advice[code]
		if want == "" {
			want = "the stream failed: " + code.String()
		}
		logged := b.logs.count(want)
		s.endStreams()
		b.expectError(t, want)
		if !strings.Contains(b.Status().Error, "because of "+code.String()) && code != codes.Unimplemented {
			t.Errorf("not what istiod said: %s", b.Status().Error)
		}
		before := s.streamCount()
		eventually(t, "a few tries", func() bool { return s.streamCount() > before+3 })
		if n := b.logs.count(want) - logged; n != 1 {
			t.Errorf("logged %d times: %s", n, want)
		}
		s.change(func() { s.refusal = nil })
		eventually(t, "connected again", func() bool { return b.Status().Connected })
		if strings.Contains(b.problems(), want) || b.Status().Error != "" {
			t.Errorf("still: %s, %s", b.problems(), b.Status().Error)
		}
	}
	if b.sink.content() != "shop/a=a" || b.sink.losses() != 0 {
		t.Errorf("left is %s", b.sink.content())
	}
}

func TestAStreamThatIsCutAfterEveryResponseStillBringsEverything(t *testing.T) {
	s := start(t, nil)
	s.change(func() { s.cut = true })
	s.set(olderEntries, entry("shop/a"))
	s.set(olderRules, rule("shop/r", "a", "x"))
	b := watch(t, s.address)
	b.expect(t, "shop/a=a shop/r=a?x")
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
	if b.logs.count("istiod ended") != 0 {
		t.Error("the end of a stream of use is worth no word")
	}
}

func TestAReconnectChangesNothingAndTakesInWhatWasMissed(t *testing.T) {
	s := start(t, nil)
	s.set(entries, many(10)...)
	b := watch(t, s.address)
	eventually(t, "all there", func() bool { return b.sink.completed() == allKinds && b.Status().Connected })
	before := b.sink.applies()
	for n := range 3 {
		asked := s.asked()[entries]
		s.endStreams()
		eventually(t, "a new stream", func() bool { return s.asked()[entries] > asked })
		eventually(t, "connected", func() bool { return b.Status().Connected && s.streamCount() == n+2 })
	}
	if b.sink.applies() != before {
		t.Errorf("%d batches without a difference", b.sink.applies()-before)
	}
	s.set(entries, append(many(9), entry("shop/new"))...)
	s.endStreams()
	eventually(t, "the difference", func() bool { return strings.Contains(b.sink.content(), "shop/new=new") && b.sink.size() == 10 })
}

func TestAServerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	s := start(t, nil)
	s.change(func() { s.mute = true })
	b := watch(t, s.address, func(o *Options) { o.Answer = 100 * time.Millisecond })
	b.expectError(t, "accepts connections and does not answer")
	eventually(t, "another try", func() bool { return s.streamCount() > 1 })
	s.change(func() { s.mute = false })
	eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
}

func TestAServerThatFallsSilentIsGivenUpWhenItDoesNotAnswerAResync(t *testing.T) {
	s := start(t, nil)
	s.set(entries, entry("shop/a"))
	b := watch(t, s.address, func(o *Options) { o.Answer, o.Resync = 100*time.Millisecond, 100*time.Millisecond })
	b.expect(t, "shop/a=a")
	s.change(func() { s.mute = true })
	b.expectError(t, "does not answer")
	s.change(func() { s.mute = false })
	eventually(t, "connected again", func() bool { return b.Status().Connected })
	if b.sink.losses() != 0 {
		t.Error("something was lost")
	}
}

// deaf accepts connections and says nothing, until the test ends.
func deaf(t *testing.T) string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	var accepting sync.WaitGroup
	accepting.Go(func() {
		var open []net.Conn
		for {
			c, err := listener.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			open = append(open, c)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		accepting.Wait()
	})
	return listener.Addr().String()
}

func closedPort() string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	return listener.Addr().String()
}

// secure is a server with TLS whose certificate is for some names.
func secure(t *testing.T, ca *tlsboot.DevCA, names ...string) *istiod {
	pair := must(ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "istiod", DNSNames: names}))
	return start(t, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair.TLS}, ClientAuth: tls.RequestClientCert}))
}

func rootOf(t *testing.T, ca *tlsboot.DevCA) string {
	path := filepath.Join(t.TempDir(), "root-cert.pem")
	write(t, path, ca.RootPEM())
	return path
}

func TestWhatIsWrongWithAConnectionIsToldInOneSentence(t *testing.T) {
	ca, other := must(tlsboot.NewDevCA("td")), must(tlsboot.NewDevCA("td"))
	good := secure(t, ca, "istiod.istio-system.svc")
	root := rootOf(t, ca)
	over := func(root string) func(*Options) {
		return func(o *Options) { o.Plaintext, o.RootFile = false, root }
	}
	empty := filepath.Join(t.TempDir(), "empty")
	write(t, empty, []byte("\n"))
	for name, c := range map[string]struct {
		address string
		change  func(*Options)
		want    string
	}{
		"all is well":         {good.address, over(root), ""},
		"wrong name":          {secure(t, ca, "istiod.elsewhere.svc").address, over(root), "is for istiod.elsewhere.svc and not for istiod.istio-system.svc"},
		"wrong root":          {good.address, over(rootOf(t, other)), "is not signed by a root in"},
		"no root file":        {good.address, over(empty + "-gone"), "mount ConfigMap istio-ca-root-cert there"},
		"no roots in it":      {good.address, over(empty), "holds no certificate in PEM"},
		"a port without TLS":  {start(t, nil).address, over(root), "does not speak TLS"},
		"a port with TLS":     {good.address, func(*Options) {}, "does not speak gRPC without TLS"},
		"nobody there":        {closedPort(), over(root), "refuses connections"},
		"a deaf port":         {deaf(t), func(o *Options) { over(root)(o); o.Answer = 50 * time.Millisecond }, "does not answer"},
		"no certificate":      {good.address, func(o *Options) { over(root)(o); o.Certificate = noCertificate }, "no certificate to show to istiod: not yet"},
		"a certificate later": {good.address, func(o *Options) { over(root)(o); o.Certificate, o.TokenFile = noCertificate, root }, "holds no token"},
		"no token file":       {good.address, func(o *Options) { over(root)(o); o.TokenFile = empty + "-gone" }, "our token cannot be read"},
		"an empty token file": {good.address, func(o *Options) { over(root)(o); o.TokenFile = empty }, "holds no token: mount a projected"},
	} {
		t.Run(name, func(t *testing.T) {
			b := watch(t, c.address, c.change)
			if c.want == "" {
				eventually(t, "all kinds complete", func() bool { return b.sink.completed() == allKinds })
				return
			}
			b.expectError(t, c.want)
			if text := b.Status().Error; strings.Contains(text, "\n") || b.Status().Connected || !b.Status().LastProof.IsZero() {
				t.Errorf("status %+v", b.Status())
			}
			eventually(t, "a few tries", func() bool { return b.metric(t, "metards_mcp_reconnects_total") > 3 })
			if n := b.logs.count(c.want); n != 1 {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

func noCertificate() (*tls.Certificate, error) { return nil, errors.New("not yet") }

func TestAHostThatIsNotFoundIsTold(t *testing.T) {
	w := &Watcher{options: Options{Address: "nowhere:15012"}}
	cause := &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}}
	f := w.explain(status.Error(codes.Unavailable, "x"), cause)
	if !strings.Contains(f.text, "the host of nowhere:15012 is not found") {
		t.Error(f.text)
	}
}

func TestTheRootFileIsReadForEveryConnection(t *testing.T) {
	before, after := must(tlsboot.NewDevCA("td")), must(tlsboot.NewDevCA("td"))
	s := secure(t, after, "istiod.istio-system.svc")
	root := rootOf(t, before)
	b := watch(t, s.address, func(o *Options) { o.Plaintext, o.RootFile = false, root })
	b.expectError(t, "is not signed by a root in")
	write(t, root, before.RootPEM(), after.RootPEM())
	eventually(t, "connected", func() bool { return b.Status().Connected && b.problems() == "" || b.sink.completed() == allKinds })
}

func TestTheTokenIsReadForEveryStream(t *testing.T) {
	ca := must(tlsboot.NewDevCA("td"))
	s := secure(t, ca, "istiod.istio-system.svc")
	token := filepath.Join(t.TempDir(), "istio-token")
	b := watch(t, s.address, func(o *Options) {
		o.Plaintext, o.RootFile, o.TokenFile, o.Certificate = false, rootOf(t, ca), token, noCertificate
	})
	b.expectError(t, "our token cannot be read")
	write(t, token, []byte("first\n"))
	eventually(t, "connected", func() bool { return b.Status().Connected })
	write(t, token, []byte("second"))
	s.endStreams()
	eventually(t, "a second stream", func() bool { return s.streamCount() == 2 })
	s.change(func() {
		if got := strings.Join(s.tokens, " "); got != "[Bearer first] [Bearer second]" {
			t.Errorf("tokens: %s", got)
		}
	})
}

func TestOurCertificateIsShownWithoutAToken(t *testing.T) {
	ca := must(tlsboot.NewDevCA("td"))
	pair := must(ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "istiod", DNSNames: []string{"istiod.istio-system.svc"}}))
	shown := make(chan string, 10)
	s := start(t, credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair.TLS}, ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(c tls.ConnectionState) error {
			shown <- c.PeerCertificates[0].URIs[0].String()
			return nil
		},
	}))
	ours := must(ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "metards"}))
	root := rootOf(t, ca)
	without := watch(t, s.address, func(o *Options) { o.Plaintext, o.RootFile = false, root })
	without.expectError(t, "refuses our certificate: ")
	b := watch(t, s.address, func(o *Options) {
		o.Plaintext, o.RootFile = false, root
		o.Certificate = func() (*tls.Certificate, error) { return &ours.TLS, nil }
	})
	eventually(t, "connected", func() bool { return b.Status().Connected })
	if got := <-shown; got != "spiffe://td/ns/istio-system/sa/metards" {
		t.Error(got)
	}
}

func TestPausesGrowFromHalfASecondToAMinuteAndDiffer(t *testing.T) {
	b := backoff{min: defaultMinBackoff, max: defaultMaxBackoff}
	bound := time.Second
	for range 12 {
		got := b.next(false)
		if got < bound/2 || got > bound {
			t.Errorf("%v is not between %v and %v", got, bound/2, bound)
		}
		bound = min(2*bound, defaultMaxBackoff)
	}
	seen := map[time.Duration]bool{}
	for range 10 {
		seen[b.next(false)] = true
	}
	if len(seen) < 5 {
		t.Errorf("no jitter: %v", seen)
	}
	b.reset()
	if got := b.next(false); got > time.Second {
		t.Errorf("%v after a reset", got)
	}
	if got := b.next(true); got < slowFrom/2 || got > slowFrom {
		t.Errorf("%v after a refusal", got)
	}
}

func TestOnlyAGoodResponseIsAReasonToHurry(t *testing.T) {
	s := start(t, nil)
	s.change(func() { s.refusal = status.New(codes.Unavailable, "not ready") })
	b := watch(t, s.address, func(o *Options) { o.MinBackoff, o.MaxBackoff = 50*time.Millisecond, time.Hour })
	started := time.Now()
	eventually(t, "three tries", func() bool { return s.streamCount() == 3 })
	if took := time.Since(started); took < 150*time.Millisecond { // at least 50 and 100
		t.Errorf("three tries in %v", took)
	}
	b.stop()
}

func TestRunReturnsAtOnceAlsoFromAPause(t *testing.T) {
	b := watch(t, closedPort(), func(o *Options) { o.MinBackoff, o.MaxBackoff = time.Hour, time.Hour })
	b.expectError(t, "refuses connections")
	b.stop()
	w := must(New(b.options))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	check(t, w.Run(ctx))
}
