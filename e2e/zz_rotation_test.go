package e2e

// This file is the last one by name, so that its test runs last: it gives the mesh another root.

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/metards/metards/e2e/cluster"
	"github.com/metards/metards/internal/sampleproxy"
)

// authority is a CA of a user's own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a root, or an intermediate of a parent.
func newAuthority(t *testing.T, name string, parent *authority) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{Organization: []string{name}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a := &authority{template, key}
	if parent == nil {
		parent = a
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// replace writes a file as Kubernetes does: all at once.
func replace(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", data, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// plugIn has istiod sign with an intermediate of a root, beside which it hands out the old one.
func plugIn(t *testing.T, root, intermediate *authority, bundle []byte) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(intermediate.key)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(mesh.Dir, "etc", "cacerts")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"ca-cert.pem": intermediate.pem(), "ca-key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"cert-chain.pem": append(intermediate.pem(), root.pem()...), "root-cert.pem": bundle,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mesh.StopIstiod()
	if err := mesh.StartIstiod(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// connects reports why a client with a certificate gets no table now, nil if it gets one.
func connects(t *testing.T, m *cluster.Metards, pair *cluster.Pair, namespace string) error {
	t.Helper()
	conf, err := mesh.ClientTLS(pair)
	if err != nil {
		return err
	}
	cc, err := grpc.NewClient("passthrough:///"+m.Listen, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		return err
	}
	defer func() { _ = cc.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := sampleproxy.Open(ctx, cc, rds(), sampleproxy.Node("sidecar", "app", namespace))
	if err != nil {
		return err
	}
	if err := s.Want(orders(namespace)); err != nil {
		return err
	}
	_, err = s.Next(ctx)
	return err
}

// serverIssuer returns who signed the certificate that metards presents now.
func serverIssuer(m *cluster.Metards, pair *cluster.Pair) (string, error) {
	conf, err := mesh.ClientTLS(pair)
	if err != nil {
		return "", err
	}
	conn, err := tls.Dial("tcp", m.Listen, conf)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return fmt.Sprint(conn.ConnectionState().PeerCertificates[0].Issuer.Organization), nil
}

func TestTheMeshsRootIsRotatedToAPluggedInCAUnderOpenStreams(t *testing.T) {
	const ns = "rotation"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	first, err := os.ReadFile(mesh.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(t.TempDir(), "root-cert.pem")
	replace(t, roots, first)
	m, err := mesh.StartMetards(ns, "--istiod", mesh.Istiod, "--istiod-server-name", "istiod.istio-system.svc", "--istiod-root", roots,
		"--token", tokenFile(t, "istio-system", "metards"), "--kubeconfig", mesh.Kubeconfig, "--ca", mesh.Istiod, "--root", roots, "--cert-lifetime", "20s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Stop()
		if t.Failed() {
			t.Log(m.Log())
		}
	})
	if err := m.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := certificate(t, ns)
	p := subscribeAs(t, m, old, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))

	// R1 -> R1+R2: clients of both roots, and our certificate comes from the new one.
	root := newAuthority(t, "second-root", nil)
	intermediate := newAuthority(t, "second-intermediate", root)
	bundle := append(bytes.Clone(first), root.pem()...)
	replace(t, roots, bundle[:len(bundle)-200]) // cut: what is in force stays
	if err := connects(t, m, old, ns); err != nil {
		t.Errorf("a truncated bundle: %v", err)
	}
	replace(t, roots, bundle)
	replace(t, mesh.RootFile, bundle)
	plugIn(t, root, intermediate, bundle)
	young := certificate(t, ns)
	eventually(t, "our certificate is of the plugged-in CA", func() error {
		issuer, err := serverIssuer(m, old)
		if err == nil && issuer != "[second-intermediate]" {
			err = fmt.Errorf("it is of %s", issuer)
		}
		return err
	})
	for name, pair := range map[string]*cluster.Pair{"the first root": old, "the second root": young} {
		if err := connects(t, m, pair, ns); err != nil {
			t.Errorf("with both roots a client of %s: %v", name, err)
		}
	}
	apply(t, ns, canary(80, 20))
	p.want(orders(ns), canaryRoutes(ns, 80, 20))

	// R1+R2 -> R2: clients of the first root are refused, their open streams go on.
	plugIn(t, root, intermediate, root.pem())
	replace(t, roots, root.pem())
	eventually(t, "clients of the first root are refused", func() error {
		if connects(t, m, old, ns) == nil {
			return errors.New("one is served")
		}
		return nil
	})
	if err := connects(t, m, young, ns); err != nil {
		t.Errorf("a client of the second root: %v", err)
	}
	apply(t, ns, canary(70, 30))
	p.want(orders(ns), canaryRoutes(ns, 70, 30))
}
