package cluster

import (
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
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	security "istio.io/api/security/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fetchRoot writes the mesh's root as a pod would have it.
func (c *Cluster) fetchRoot(ctx context.Context) error {
	return until(ctx, func() error {
		m, err := c.Kube.CoreV1().ConfigMaps("istio-system").Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if m.Data["root-cert.pem"] == "" {
			return errors.New("the root's ConfigMap is empty")
		}
		return os.WriteFile(c.RootFile, []byte(m.Data["root-cert.pem"]), 0o644)
	})
}

// Pair is a certificate of the mesh and its key, in files.
type Pair struct {
	CertFile, KeyFile string
	TLS               tls.Certificate
}

// Certificate has istiod sign a certificate for a service account, as istio-agent does.
func (c *Cluster) Certificate(ctx context.Context, namespace, account string) (*Pair, error) {
	token, err := c.Token(ctx, namespace, account, "istio-ca", time.Hour)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	id := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: fmt.Sprintf("/ns/%s/sa/%s", namespace, account)}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{}, URIs: []*url.URL{id}}, key)
	if err != nil {
		return nil, err
	}
	chain, err := c.sign(ctx, token, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return c.write(namespace+"-"+account, chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// sign returns the chain without the roots, which are its last element.
func (c *Cluster) sign(ctx context.Context, token string, csr []byte) ([]byte, error) {
	conf, err := c.istiodTLS()
	if err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient(c.Istiod, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cc.Close() }()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	resp, err := security.NewIstioCertificateServiceClient(cc).CreateCertificate(ctx, &security.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 3600})
	if err != nil {
		return nil, fmt.Errorf("CSR: %w", err)
	}
	if len(resp.GetCertChain()) < 2 {
		return nil, errors.New("CSR: a chain without root")
	}
	return []byte(strings.Join(resp.GetCertChain()[:len(resp.GetCertChain())-1], "")), nil
}

// Stranger makes a certificate for a mesh identity that no CA of the mesh has signed: it is of a CA of the same
// organization and name that has another key.
func (c *Cluster) Stranger(namespace, account string) (*Pair, error) {
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"cluster.local"}}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: fmt.Sprintf("/ns/%s/sa/%s", namespace, account)}},
	}
	cert, err1 := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	der, err2 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return c.write(namespace+"-"+account+"-stranger",
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (c *Cluster) roots() (*x509.CertPool, error) {
	data, err := os.ReadFile(c.RootFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New("no root")
	}
	return pool, nil
}

func (c *Cluster) istiodTLS() (*tls.Config, error) {
	pool, err := c.roots()
	return &tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc", MinVersion: tls.VersionTLS12}, err
}

func (c *Cluster) write(name string, chain, key []byte) (*Pair, error) {
	p := &Pair{CertFile: filepath.Join(c.Dir, name+".pem"), KeyFile: filepath.Join(c.Dir, name+"-key.pem")}
	if err := errors.Join(os.WriteFile(p.CertFile, chain, 0o600), os.WriteFile(p.KeyFile, key, 0o600)); err != nil {
		return nil, err
	}
	var err error
	p.TLS, err = tls.X509KeyPair(chain, key)
	return p, err
}

// ClientTLS is for a client that presents p and checks that the server is of the mesh, as a sidecar does:
// by the root alone.
func (c *Cluster) ClientTLS(p *Pair) (*tls.Config, error) {
	pool, err := c.roots()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{p.TLS}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // the name is not checked, the chain is, below
		VerifyConnection: func(s tls.ConnectionState) error {
			intermediates := x509.NewCertPool()
			for _, cert := range s.PeerCertificates[1:] {
				intermediates.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates})
			return err
		},
	}, nil
}
