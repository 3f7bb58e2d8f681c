package tlsboot

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAnIssuedCertificateVerifiesAsServerAndAsClient(t *testing.T) {
	ca := newCA(t)
	pair := issue(t, ca, IssueOptions{DNSNames: []string{"rds.test"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Lifetime: time.Hour})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.RootPEM()) {
		t.Fatal("RootPEM holds no certificate")
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		for _, name := range []string{"rds.test", "127.0.0.1"} {
			opts := x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}}
			if _, err := pair.TLS.Leaf.Verify(opts); err != nil {
				t.Errorf("usage %v, name %s: %v", usage, name, err)
			}
		}
	}
	if got := pair.TLS.Leaf.NotAfter.Sub(pair.TLS.Leaf.NotBefore); got != time.Hour {
		t.Errorf("lifetime is %v, want 1h", got)
	}
	if pair.TLS.Leaf.SerialNumber.Sign() <= 0 {
		t.Error("no serial number")
	}
}

func TestWhatCannotBeASpiffeIDIsNotIssued(t *testing.T) {
	if _, err := NewDevCA("Cluster.Local"); err == nil {
		t.Error("NewDevCA took a trust domain in upper case")
	}
	ca := newCA(t)
	for _, opts := range []IssueOptions{
		{}, {Namespace: "shop"}, {ServiceAccount: "cart"}, {Namespace: "a/b", ServiceAccount: "cart"}, {URIs: []string{"%"}},
	} {
		if _, err := ca.Issue(opts); err == nil {
			t.Errorf("Issue(%+v) succeeded", opts)
		}
	}
}

func TestAClientKnowsTheServerByItsIDOrItsName(t *testing.T) {
	ca, stranger := newCA(t), newCA(t)
	l := listen(t, newSite(t, ca).ServerConfig())
	me := issue(t, ca, IssueOptions{})
	for name, c := range map[string]struct {
		ca     *DevCA
		server string
		ok     bool
	}{
		"its SPIFFE id":                {ca, "spiffe://cluster.local/ns/shop/sa/cart", true},
		"its DNS name":                 {ca, "rds.test", true},
		"the id of another workload":   {ca, "spiffe://cluster.local/ns/shop/sa/other", false},
		"the id in another domain":     {ca, "spiffe://example.org/ns/shop/sa/cart", false},
		"another name":                 {ca, "other.test", false},
		"its id, under another root":   {stranger, "spiffe://cluster.local/ns/shop/sa/cart", false},
		"its name, under another root": {stranger, "rds.test", false},
	} {
		_, _, err := l.dial(t, must[*tls.Config](t)(c.ca.ClientConfig(me, c.server)))
		if c.ok != (err == nil) {
			t.Errorf("%s: %v, want it accepted: %v", name, err, c.ok)
		}
	}
	if _, err := ca.ClientConfig(me, "spiffe://"); err == nil {
		t.Error("ClientConfig took a broken SPIFFE id")
	}
}

func TestWrittenFilesLoadAndTheKeyIsPrivate(t *testing.T) {
	ca, dir := newCA(t), t.TempDir()
	if err := ca.WriteFiles(dir, "server", issue(t, ca, IssueOptions{})); err != nil {
		t.Fatal(err)
	}
	openSite(t, dir, 0)
	want := map[string]fs.FileMode{"root.pem": 0o644, "server.pem": 0o644, "server-key.pem": 0o600}
	entries := must[[]fs.DirEntry](t)(os.ReadDir(dir))
	if len(entries) != len(want) {
		t.Errorf("%d files, want %d: %v", len(entries), len(want), entries)
	}
	for name, mode := range want {
		if info := must[fs.FileInfo](t)(os.Stat(filepath.Join(dir, name))); info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), mode)
		}
	}
}

func TestFilesThatCannotBeWrittenAreAnErrorAndLeaveNothing(t *testing.T) {
	ca, dir := newCA(t), t.TempDir()
	pair := issue(t, ca, IssueOptions{})
	for _, name := range []string{"", "root", "a/b", filepath.Join("..", "server")} {
		if err := ca.WriteFiles(dir, name, pair); err == nil {
			t.Errorf("WriteFiles took the name %q", name)
		}
	}
	if err := ca.WriteFiles(filepath.Join(dir, "missing"), "server", pair); err == nil {
		t.Error("WriteFiles wrote into a directory that does not exist")
	}
	if err := os.Mkdir(filepath.Join(dir, "root.pem"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ca.WriteFiles(dir, "server", pair); err == nil {
		t.Error("WriteFiles replaced a directory")
	}
	if left := must[[]fs.DirEntry](t)(os.ReadDir(dir)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
