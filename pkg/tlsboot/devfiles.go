package tlsboot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// devRootFile is where WriteFiles puts the root.
const devRootFile = "root.pem"

// WriteFiles writes what a server or client named name needs into dir, which must exist: <name>.pem,
// <name>-key.pem (mode 0600) and root.pem. Each file is replaced whole, the key before the certificate.
func (c *DevCA) WriteFiles(dir, name string, pair *Pair) error {
	if name == "" || name == "root" || filepath.Base(name) != name {
		return fmt.Errorf("write certificate %q: name must be a plain file name other than root", name)
	}
	for _, f := range []struct {
		name string
		data []byte
		mode os.FileMode
	}{
		{devRootFile, c.RootPEM(), 0o644},
		{name + "-key.pem", pair.KeyPEM, 0o600},
		{name + ".pem", pair.CertPEM, 0o644},
	} {
		if err := replaceFile(filepath.Join(dir, f.name), f.data, f.mode); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return nil
}

// replaceFile writes beside the file and renames, so that no reader sees half of it. The temporary
// file has mode 0600 until it is complete: a key is never readable by others, not even for a moment.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
