package tlsboot

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// These tests rely on notifications: polling is an hour away.

func TestANewCertificateIsServedAndOpenConnectionsStay(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	s := newSite(t, ca)
	s.run(t)
	l := listen(t, s.ServerConfig())
	conf := client(t, issue(t, ca, IssueOptions{}), ca)
	open, first := l.connect(t, conf)

	next := issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}, Lifetime: 48 * time.Hour})
	if err := ca.WriteFiles(s.dir, "server", next); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new certificate is served", func() bool {
		_, leaf := l.connect(t, conf)
		return leaf.Equal(next.TLS.Leaf)
	})
	if first.Equal(next.TLS.Leaf) {
		t.Error("the first connection had the second certificate")
	}
	echoes(t, open)
	if got, want := testutil.ToFloat64(s.metrics.certificateExpiry), float64(next.TLS.Leaf.NotAfter.Unix()); got != want {
		t.Errorf("expiry metric is %v, want %v", got, want)
	}
}

// The way a mesh changes its root: R1, then R1 and R2 while workloads get new certificates, then R2.
func TestRootsRotateFromOneToBothToTheOther(t *testing.T) {
	t.Parallel()
	r1, r2 := newCA(t), newCA(t)
	s := newSite(t, r1)
	s.run(t)
	l := listen(t, s.ServerConfig())
	old, young := client(t, issue(t, r1, IssueOptions{}), r1, r2), client(t, issue(t, r2, IssueOptions{}), r1, r2)
	served := func(conf *tls.Config) bool {
		_, server, _ := l.dial(t, conf)
		return server.err == nil
	}
	if !served(old) || served(young) {
		t.Fatal("with R1: want clients of R1 only")
	}
	open, _ := l.connect(t, old)

	write(t, s.root, r1.RootPEM(), r2.RootPEM())
	eventually(t, "with both roots, clients of R2 are served", func() bool { return served(young) })
	if !served(old) {
		t.Error("with both roots: clients of R1 are refused")
	}

	write(t, s.root, r2.RootPEM())
	eventually(t, "with R2, clients of R1 are refused", func() bool { return !served(old) })
	if !served(young) {
		t.Error("with R2: clients of R2 are refused")
	}
	echoes(t, open)
	if got, want := testutil.ToFloat64(s.metrics.rootExpiry.WithLabelValues(fingerprint(r2.cert))), float64(r2.cert.NotAfter.Unix()); got != want {
		t.Errorf("expiry metric is %v, want %v", got, want)
	}
}

// Kubernetes mounts a Secret as links through ..data, which it replaces by a rename.
func TestAKubernetesSymlinkSwapIsNoticed(t *testing.T) {
	t.Parallel()
	ca, dir := newCA(t), t.TempDir()
	publish := func(version string) *Pair {
		pair := issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}})
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := ca.WriteFiles(filepath.Join(dir, version), "server", pair); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		return pair
	}
	publish("..1")
	for _, name := range []string{"server.pem", "server-key.pem", "root.pem"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := openSite(t, dir, time.Hour)
	s.run(t)
	l := listen(t, s.ServerConfig())
	conf := client(t, issue(t, ca, IssueOptions{}), ca)
	l.connect(t, conf)

	next := publish("..2")
	eventually(t, "the new certificate is served", func() bool {
		_, leaf := l.connect(t, conf)
		return leaf.Equal(next.TLS.Leaf)
	})
}

func TestWhatChangesBetweenNewFilesAndRunIsNoticed(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	s := newSite(t, ca)
	next := issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}})
	if err := ca.WriteFiles(s.dir, "server", next); err != nil {
		t.Fatal(err)
	}
	s.run(t)
	l := listen(t, s.ServerConfig())
	conf := client(t, issue(t, ca, IssueOptions{}), ca)
	eventually(t, "the new certificate is served", func() bool {
		_, leaf := l.connect(t, conf)
		return leaf.Equal(next.TLS.Leaf)
	})
}

// A careless writer: certificate and key in place, not by rename, one after the other. A pair that does
// not fit would fail the handshake.
func TestNoHandshakeEverSeesAMismatchedPair(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	s := newSite(t, ca)
	l := listen(t, s.ServerConfig())
	conf := client(t, issue(t, ca, IssueOptions{}), ca)
	pairs := make([]*Pair, 8)
	for i := range pairs {
		pairs[i] = issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}})
	}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := pairs[i%len(pairs)]
			_ = os.WriteFile(s.cert, p.CertPEM, 0o600)
			_ = os.WriteFile(s.key, p.KeyPEM, 0o600)
		}
	})
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.look(time.Now())
			}
		}
	})
	seen := map[string]bool{}
	for end := time.Now().Add(deadline); len(seen) < len(pairs)/2 && time.Now().Before(end); {
		_, leaf := l.connect(t, conf)
		seen[string(leaf.Raw)] = true
	}
	close(stop)
	busy.Wait()
	if len(seen) < len(pairs)/2 {
		t.Errorf("%d of %d certificates seen, the test hardly rotated", len(seen), len(pairs))
	}
}

func TestRunLeavesNoGoroutineBehind(t *testing.T) {
	ca := newCA(t)
	s := newSite(t, ca)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	next := issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}, Lifetime: 48 * time.Hour})
	if err := ca.WriteFiles(s.dir, "server", next); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new certificate is in force", func() bool {
		return s.inForce.current.Load().Certificates[0].Leaf.Equal(next.TLS.Leaf)
	})
	cancel()
	<-ended
	eventually(t, "the goroutines are gone", func() bool {
		var all strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(all.String(), "tlsboot.forward") && !strings.Contains(all.String(), "fsnotify")
	})
}
