package tlsboot

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

const deadline = 10 * time.Second

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); time.Now().Before(end); <-tick.C {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %v: %s", deadline, what)
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newCA(t testing.TB) *DevCA {
	t.Helper()
	return must[*DevCA](t)(NewDevCA("cluster.local"))
}

func issue(t testing.TB, c *DevCA, opts IssueOptions) *Pair {
	t.Helper()
	if opts.Namespace == "" {
		opts.Namespace, opts.ServiceAccount = "shop", "cart"
	}
	return must[*Pair](t)(c.Issue(opts))
}

func write(t testing.TB, path string, data ...[]byte) {
	t.Helper()
	if err := os.WriteFile(path, bytes.Join(data, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logLines collects what is logged.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// site is a directory with the files of a server, and the Files that follows them.
type site struct {
	dir             string
	cert, key, root string
	log             logLines
	metrics         *Metrics
	*Files
}

// newSite writes the files of a new certificate of ca. Polling is as good as off.
func newSite(t testing.TB, ca *DevCA) *site {
	t.Helper()
	dir := t.TempDir()
	if err := ca.WriteFiles(dir, "server", issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}})); err != nil {
		t.Fatal(err)
	}
	return openSite(t, dir, time.Hour)
}

func openSite(t testing.TB, dir string, poll time.Duration) *site {
	t.Helper()
	s := &site{
		dir: dir, metrics: NewMetrics(nil),
		cert: filepath.Join(dir, "server.pem"), key: filepath.Join(dir, "server-key.pem"), root: filepath.Join(dir, "root.pem"),
	}
	s.Files = must[*Files](t)(NewFiles(FilesOptions{
		Cert: s.cert, Key: s.key, Root: s.root,
		Log: slog.New(slog.NewTextHandler(&s.log, nil)), Metrics: s.metrics, Poll: poll,
	}))
	return s
}

// run runs until the test ends.
func (s *site) run(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want the context's error", err)
		}
	})
}

// listener echoes over TLS and reports how each handshake ended on the server's side.
type listener struct {
	addr       string // empty if it is in memory
	open       func() (net.Conn, error)
	handshakes chan handshake
}

type handshake struct {
	state tls.ConnectionState
	err   error
}

func listen(t testing.TB, conf *tls.Config) *listener {
	t.Helper()
	lis := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	addr := lis.Addr().String()
	l := serve(t, lis, func() (net.Conn, error) { return net.Dial("tcp", addr) }, conf)
	l.addr = addr
	return l
}

// listenInMemory is listen for a bubble, whose clock stands still while somebody reads from a socket.
func listenInMemory(t testing.TB, conf *tls.Config) *listener {
	lis := bufconn.Listen(1 << 16)
	return serve(t, lis, lis.Dial, conf)
}

func serve(t testing.TB, lis net.Listener, open func() (net.Conn, error), conf *tls.Config) *listener {
	l := &listener{open: open, handshakes: make(chan handshake, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { l.echo(ctx, tls.Server(conn, conf)) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = lis.Close()
		serving.Wait()
	})
	return l
}

func (l *listener) echo(ctx context.Context, conn *tls.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.NetConn().Close() })()
	defer conn.NetConn().Close()
	err := conn.HandshakeContext(ctx)
	select {
	case l.handshakes <- handshake{conn.ConnectionState(), err}:
	case <-ctx.Done():
	}
	if err == nil {
		_, _ = io.Copy(conn, conn)
	}
}

// dial returns the connection, closed with the test, and both sides' verdict on the handshake.
func (l *listener) dial(t testing.TB, conf *tls.Config) (conn *tls.Conn, server handshake, client error) {
	t.Helper()
	raw := must[net.Conn](t)(l.open())
	t.Cleanup(func() { _ = raw.Close() })
	if err := raw.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	conn = tls.Client(raw, conf)
	client = conn.Handshake()
	if client != nil {
		_ = raw.Close()
	}
	return conn, <-l.handshakes, client
}

// connect is dial for a handshake that both sides must accept. It returns the server's leaf too.
func (l *listener) connect(t testing.TB, conf *tls.Config) (*tls.Conn, *x509.Certificate) {
	t.Helper()
	conn, server, err := l.dial(t, conf)
	if err := errors.Join(err, server.err); err != nil {
		t.Fatalf("handshake: %v", err)
	}
	return conn, conn.ConnectionState().PeerCertificates[0]
}

func echoes(t testing.TB, conn *tls.Conn) {
	t.Helper()
	sent := []byte("ping")
	got := make([]byte, len(sent))
	_, err := conn.Write(sent)
	if err == nil {
		_, err = io.ReadFull(conn, got)
	}
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("open connection was cut: got %q, %v", got, err)
	}
}

// client presents pair to whoever asks, also to servers that say they do not know its issuer, and
// trusts the servers of the CAs.
func client(t testing.TB, pair *Pair, trusted ...*DevCA) *tls.Config {
	t.Helper()
	conf := must[*tls.Config](t)(trusted[0].ClientConfig(nil, "rds.test"))
	for _, ca := range trusted[1:] {
		conf.RootCAs.AddCert(ca.cert)
	}
	if pair != nil {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair.TLS, nil }
	}
	return conf
}
