package stock

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// sdsFiles are the files by which Envoy finds its certificate and its roots. They stay as they are; Envoy watches
// the directory of the certificates and reads those again when the link in it is replaced.
type sdsFiles struct{ own, roots string }

func writeSDS(dir string, certs *Certificates) (sdsFiles, error) {
	out := sdsFiles{own: filepath.Join(dir, "sds-own.json"), roots: filepath.Join(dir, "sds-roots.json")}
	watched := object{"path": certs.Dir}
	file := func(path string) object { return object{"filename": path} }
	return out, errors.Join(
		writeJSON(out.own, secret("own", "tls_certificate", object{
			"certificate_chain": file(certs.Cert()), "private_key": file(certs.Key()), "watched_directory": watched,
		})),
		writeJSON(out.roots, secret("roots", "validation_context", object{
			"trusted_ca": file(certs.Root()), "watched_directory": watched,
		})),
	)
}

func secret(name, kind string, content object) object {
	return object{"resources": list{object{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": name, kind: content,
	}}}
}

func writeJSON(file string, content any) error {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}
