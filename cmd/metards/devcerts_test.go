package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/metards/metards/internal/sampleproxy"
)

func TestDevCertsAreGoodForAServerAndAProxyThatKnowOnlyTheFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"dev-certs", dir, "--namespace", "shop"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if !strings.Contains(stdout.String(), "spiffe://cluster.local/ns/shop/sa/default until ") {
		t.Errorf("it does not say whose the certificates are and for how long: %s", &stdout)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	r := start(t, func(o *serveFlags) {
		o.identity.cert, o.identity.key, o.identity.root = file("server.pem"), file("server-key.pem"), file("root.pem")
	})
	pair, err := tls.LoadX509KeyPair(file("proxy.pem"), file("proxy-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(file("root.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	cc, err := grpc.NewClient("passthrough:///"+r.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, // and the name is the address: 127.0.0.1
	})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); _ = cc.Close() }()
	s, err := sampleproxy.Open(ctx, cc, sampleproxy.Forms()[0], sampleproxy.Node("sidecar", "default", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Want("orders.shop.svc.cluster.local_20880"); err != nil {
		t.Fatal(err)
	}
	r.accept(s)
}

func TestDevCertsReplaceNothing(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"dev-certs", dir}, &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), "is there already") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the directory has %v, error %v", entries, err)
	}
}
