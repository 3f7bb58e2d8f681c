package tlsboot

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestACertificateOfAnotherRootThanTheProxiesTrustIsAWarning(t *testing.T) {
	const warning = "does not chain to the roots of the mesh"
	dir := t.TempDir()
	other := newCA(t)
	if err := other.WriteFiles(dir, "server", issue(t, other, IssueOptions{})); err != nil {
		t.Fatal(err)
	}
	if s := openSite(t, dir, time.Hour); s.log.count(warning) != 0 {
		t.Error("a certificate of the root in force is warned of")
	}
	if err := os.WriteFile(filepath.Join(dir, "root.pem"), newCA(t).RootPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := openSite(t, dir, time.Hour); s.log.count(warning) != 1 {
		t.Error("one of another root is not")
	}
}
