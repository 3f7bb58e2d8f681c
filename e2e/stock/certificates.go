package stock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/metards/metards/pkg/tlsboot"
)

// Certificates is a directory with cert.pem, key.pem and root.pem as kubelet makes it: the files are symbolic links
// through one to a directory, which is replaced as a whole. A reader sees the old files or the new ones.
type Certificates struct {
	Dir string // what waits for a change watches this

	version int
}

// NewCertificates makes the directory, without files that the links lead to.
func NewCertificates(dir string) (*Certificates, error) {
	c := &Certificates{Dir: dir}
	err := os.MkdirAll(dir, 0o700)
	for _, file := range []string{c.Cert(), c.Key(), c.Root()} {
		err = errors.Join(err, os.Symlink(filepath.Join("current", filepath.Base(file)), file))
	}
	return c, err
}

// Cert is the path of the certificate.
func (c *Certificates) Cert() string { return filepath.Join(c.Dir, "cert.pem") }

// Key is the path of its key.
func (c *Certificates) Key() string { return filepath.Join(c.Dir, "key.pem") }

// Root is the path of the trust roots.
func (c *Certificates) Root() string { return filepath.Join(c.Dir, "root.pem") }

// Put replaces all files at once.
func (c *Certificates) Put(pair *tlsboot.Pair, roots ...*tlsboot.DevCA) error {
	c.version++
	name := fmt.Sprintf("v%d", c.version)
	dir := filepath.Join(c.Dir, name)
	var pem bytes.Buffer
	for _, r := range roots {
		pem.Write(r.RootPEM())
	}
	link := filepath.Join(c.Dir, "next")
	return errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "cert.pem"), pair.CertPEM, 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"), pair.KeyPEM, 0o600),
		os.WriteFile(filepath.Join(dir, "root.pem"), pem.Bytes(), 0o600),
		os.Symlink(name, link),
		os.Rename(link, filepath.Join(c.Dir, "current")),
	)
}
