package tlsboot

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clientOnly is a certificate of ca without serverAuth.
func clientOnly(t *testing.T, ca *DevCA) *Pair {
	template := must[*x509.Certificate](t)(ca.template(IssueOptions{Namespace: "shop", ServiceAccount: "cart"}))
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	leaf := must[*x509.Certificate](t)(sign(template, ca.cert, ca.key, ca.key))
	return must[*Pair](t)(newPair(leaf, ca.key))
}

func TestUnusableFilesAreRefusedAtTheStartWithWhatToDo(t *testing.T) {
	ca := newCA(t)
	good, other := issue(t, ca, IssueOptions{}), issue(t, ca, IssueOptions{})
	expired := issue(t, ca, IssueOptions{NotBefore: time.Now().Add(-2 * time.Hour), Lifetime: time.Hour})
	future := issue(t, ca, IssueOptions{NotBefore: time.Now().Add(time.Hour), Lifetime: time.Hour})
	authority := issue(t, ca, IssueOptions{IsCA: true})
	forClients := clientOnly(t, ca)
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})
	oldEncrypted := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Headers: map[string]string{"DEK-Info": "x"}, Bytes: []byte("x")})
	noDER := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	noKey := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})

	for _, c := range []struct {
		name            string
		cert, key, root []byte
		reason          string
	}{
		{"a certificate that is missing", nil, good.KeyPEM, ca.RootPEM(), "read certificate: open"},
		{"a key that is missing", good.CertPEM, nil, ca.RootPEM(), "read key: open"},
		{"roots that are missing", good.CertPEM, good.KeyPEM, nil, "read roots: open"},
		{"an empty certificate", []byte(" \n"), good.KeyPEM, ca.RootPEM(), "file is empty"},
		{"a certificate in DER", join(good.TLS.Leaf.Raw, []byte("\n-\n")), good.KeyPEM, ca.RootPEM(), "convert the file to PEM"},
		{"a certificate that is not one", noDER, good.KeyPEM, ca.RootPEM(), "parse PEM block 1"},
		{"half a certificate", good.CertPEM[:300], good.KeyPEM, ca.RootPEM(), "broken or cut off"},
		{"half a key", good.CertPEM, good.KeyPEM[:100], ca.RootPEM(), "broken or cut off"},
		{"a key that is not one", good.CertPEM, noKey, ca.RootPEM(), "which must be issued together"},
		{"the key of another certificate", good.CertPEM, other.KeyPEM, ca.RootPEM(), "private key does not match"},
		{"files exchanged", good.KeyPEM, good.CertPEM, ca.RootPEM(), "are certificate and key exchanged?"},
		{"a certificate in place of the key", good.CertPEM, good.CertPEM, ca.RootPEM(), "are certificate and key exchanged?"},
		{"an encrypted key", good.CertPEM, encrypted, ca.RootPEM(), "without a passphrase"},
		{"a key encrypted the old way", good.CertPEM, oldEncrypted, ca.RootPEM(), "without a passphrase"},
		{"an expired certificate", expired.CertPEM, expired.KeyPEM, ca.RootPEM(), "expired at 2"},
		{"a certificate of tomorrow", future.CertPEM, future.KeyPEM, ca.RootPEM(), "check this machine's clock"},
		{"a CA certificate in place of the server's", authority.CertPEM, authority.KeyPEM, ca.RootPEM(), "is a CA certificate"},
		{"a certificate for clients only", forClients.CertPEM, forClients.KeyPEM, ca.RootPEM(), "lacks serverAuth"},
		{"empty roots", good.CertPEM, good.KeyPEM, []byte("\n"), "file is empty"},
		{"half a root", good.CertPEM, good.KeyPEM, ca.RootPEM()[:200], "broken or cut off"},
		{"roots with a key", good.CertPEM, good.KeyPEM, append(ca.RootPEM(), good.KeyPEM...), "PEM block 2 is PRIVATE KEY"},
		{"roots with a block that is no certificate", good.CertPEM, good.KeyPEM, noDER, "parse PEM block 1"},
		{"a workload's certificate in place of roots", good.CertPEM, good.KeyPEM, good.CertPEM, "(spiffe://cluster.local/ns/shop/sa/cart) is not a CA certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			opts := FilesOptions{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), Root: filepath.Join(dir, "r")}
			for path, data := range map[string][]byte{opts.Cert: c.cert, opts.Key: c.key, opts.Root: c.root} {
				if data != nil {
					write(t, path, data)
				}
			}
			if _, err := NewFiles(opts); err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("NewFiles: %v, want an error with %q", err, c.reason)
			}
		})
	}
}

func TestAllUnusableFilesAreNamedAtOnce(t *testing.T) {
	dir := t.TempDir()
	_, err := NewFiles(FilesOptions{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), Root: filepath.Join(dir, "r")})
	if err == nil || !strings.Contains(err.Error(), "read certificate") || !strings.Contains(err.Error(), "read roots") {
		t.Errorf("NewFiles: %v, want certificate and roots named", err)
	}
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for _, opts := range []FilesOptions{{}, {Cert: "c", Key: "k"}, {Cert: "c", Key: "k", Root: "r", Poll: -1}} {
		if _, err := NewFiles(opts); err == nil || os.IsNotExist(err) {
			t.Errorf("NewFiles(%+v): %v, want the options refused", opts, err)
		}
	}
}

func TestACertificateAndItsKeyMayShareAFileWithIntermediatesAndRemarks(t *testing.T) {
	ca := newCA(t)
	pair, intermediate := issue(t, ca, IssueOptions{}), issue(t, ca, IssueOptions{IsCA: true})
	path := filepath.Join(t.TempDir(), "both.pem")
	write(t, path, []byte("subject=\n  issuer=O = cluster.local\n"), pair.KeyPEM, pair.CertPEM, []byte("# next\n"), intermediate.CertPEM)
	got, err := loadPair(path, path, time.Now())
	if err != nil || len(got.Certificate) != 2 || !got.Leaf.Equal(pair.TLS.Leaf) {
		t.Errorf("loadPair: %v, want the leaf and one intermediate", err)
	}
}

// A bundle that is cut exactly between two certificates cannot be told from a shorter one; everywhere
// else it must be.
func TestABundleCutAnywhereIsRefusedOrHasOnlyWholeRoots(t *testing.T) {
	one, two := newCA(t).RootPEM(), newCA(t).RootPEM()
	both := join(one, two)
	for n := range both {
		roots, err := parseRoots(both[:n])
		atEdge := n == len(one)-1 || n == len(one) || n == len(both)-1
		if atEdge != (err == nil) {
			t.Fatalf("cut after %d of %d bytes: %d roots, %v", n, len(both), len(roots), err)
		}
	}
	if roots, err := parseRoots(both); err != nil || len(roots) != 2 {
		t.Errorf("whole bundle: %d roots, %v", len(roots), err)
	}
}

func TestABundleWithOneBrokenBlockIsRefusedWhole(t *testing.T) {
	one, two := newCA(t).RootPEM(), newCA(t).RootPEM()
	broken := bytes.Clone(one)
	broken[100] = '!'
	for name, data := range map[string][]byte{
		"broken first":             join(broken, two),
		"broken last":              join(two, broken),
		"no newline in between":    join(bytes.TrimSpace(one), two),
		"a beginning without end":  join([]byte("-----BEGIN CERTIFICATE-----\n"), one),
		"an end without beginning": join(one, []byte("-----END CERTIFICATE-----\n")),
	} {
		if roots, err := parseRoots(data); err == nil {
			t.Errorf("%s: %d roots, want an error", name, len(roots))
		}
	}
}

func TestABundleWithWindowsLineEndsIsRead(t *testing.T) {
	data := bytes.ReplaceAll(join(newCA(t).RootPEM(), newCA(t).RootPEM()), []byte("\n"), []byte("\r\n"))
	if roots, err := parseRoots(data); err != nil || len(roots) != 2 {
		t.Errorf("%d roots, %v", len(roots), err)
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
