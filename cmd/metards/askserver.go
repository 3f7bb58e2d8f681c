package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/metards/metards/pkg/explain"
	"github.com/metards/metards/pkg/tlsboot"
)

// longestAnswer bounds what is read of a server's answer, in bytes: a table of ten thousand routes has less.
const longestAnswer = 16 << 20

// askServer has a running server answer.
func askServer(ctx context.Context, w io.Writer, server, root string, q explain.Question) error {
	address := server
	if !strings.Contains(server, "://") {
		address = "http://" + server
	}
	at, err := url.Parse(address)
	if err != nil || at.Host == "" || address != server && at.Port() == "" {
		return &exitError{2, fmt.Errorf("--server %q is neither HOST:PORT nor a URL", server)}
	}
	at = at.JoinPath("/debug/explain")
	at.RawQuery = q.Query().Encode()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return &exitError{2, fmt.Errorf("--server: %w", err)}
	}
	client, err := clientFor(root)
	if err != nil {
		return &exitError{2, fmt.Errorf("--server-root: %w", err)}
	}
	response, err := client.Do(request)
	if err != nil {
		return &exitError{2, fmt.Errorf("--server: %w (it is the admin port that is asked, --admin-listen of metards serve)", err)}
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer))
	switch {
	case err != nil:
		return &exitError{2, fmt.Errorf("read the server's answer: %w", err)}
	case response.StatusCode == http.StatusUnprocessableEntity:
		return &exitError{1, fmt.Errorf("%s", strings.TrimSpace(string(text)))}
	case response.StatusCode != http.StatusOK:
		return &exitError{2, fmt.Errorf("the server answers %s: %s", response.Status, strings.TrimSpace(string(text[:min(len(text), 1000)])))}
	}
	_, err = w.Write(text)
	return err
}

// clientFor trusts servers whose certificate chains to the roots in a file: a mesh's certificates have no name of
// a machine, and the way is often a forwarded port. Without a file it is the usual client.
func clientFor(root string) (*http.Client, error) {
	if root == "" {
		return http.DefaultClient, nil
	}
	pem, err := os.ReadFile(root)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", root)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, // of the name; the chain is verified here
		VerifyConnection:   func(c tls.ConnectionState) error { return tlsboot.VerifyChain(c.PeerCertificates, roots) },
	}}}, nil
}
