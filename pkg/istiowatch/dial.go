package istiowatch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// keepaliveTime and keepaliveTimeout are istiod's own; it cuts off clients that ping twice as often.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// connection is to istiod, for one stream. It tells why it could not be made, which gRPC has only as text.
type connection struct {
	*grpc.ClientConn
	mu    sync.Mutex
	cause error
}

func (c *connection) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cause = err
}

// why is nil if the connection could be made.
func (c *connection) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// dial prepares a connection with the roots that are in the file now. It is made when it is used.
func (w *Watcher) dial() (*connection, error) {
	c := &connection{}
	secure := insecure.NewCredentials()
	if !w.options.Plaintext {
		config, err := w.tlsConfig()
		if err != nil {
			return nil, err
		}
		secure = credentials.NewTLS(config)
	}
	var dialer net.Dialer
	// It is tried once: one that fails is replaced, with the roots that are in the file then. The name is resolved
	// by the dialer, so that its error can be told from others.
	once := grpcbackoff.Config{BaseDelay: w.options.Answer, MaxDelay: w.options.Answer}
	client, err := grpc.NewClient("passthrough:///"+w.options.Address,
		grpc.WithTransportCredentials(observed{secure, c.failed}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "tcp", address)
			c.failed(err)
			return conn, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: once, MinConnectTimeout: w.options.Answer}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(w.options.MaxReceive)),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", w.options.Address, err)
	}
	c.ClientConn = client
	return c, nil
}

// observed tells of handshakes that fail.
type observed struct {
	credentials.TransportCredentials
	failed func(error)
}

func (o observed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := o.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		o.failed(err)
	}
	return secured, info, err
}

func (o observed) Clone() credentials.TransportCredentials {
	return observed{o.TransportCredentials.Clone(), o.failed}
}

func (w *Watcher) tlsConfig() (*tls.Config, error) {
	data, err := os.ReadFile(w.options.RootFile)
	if err != nil {
		return nil, &failure{reason: reasonFile, text: fmt.Sprintf("the roots that istiod's certificate must chain to cannot be read: %s: "+
			"mount ConfigMap istio-ca-root-cert there, as a directory", err)}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, &failure{reason: reasonFile, text: fmt.Sprintf("%s holds no certificate in PEM: "+
			"it must hold the mesh's roots (key root-cert.pem of ConfigMap istio-ca-root-cert)", w.options.RootFile)}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: w.options.ServerName}
	if w.options.Certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, err := w.options.Certificate()
			if err != nil && w.options.TokenFile != "" || err == nil && certificate == nil {
				return &tls.Certificate{}, nil // which is none
			}
			if err != nil {
				return nil, &failure{reason: reasonTLS, text: fmt.Sprintf("there is no certificate to show to istiod: %s", err)}
			}
			return certificate, nil
		}
	}
	return config, nil
}

// token returns what is in the token file now; empty if there is to be none.
func (w *Watcher) token() (string, error) {
	if w.options.TokenFile == "" {
		return "", nil
	}
	const advice = "mount a projected service account token of audience istio-ca there"
	data, err := os.ReadFile(w.options.TokenFile)
	if err != nil {
		return "", &failure{reason: reasonFile, text: fmt.Sprintf("our token cannot be read: %s: %s", err, advice)}
	}
	token := bytes.TrimSpace(data)
	if len(token) == 0 || bytes.ContainsAny(token, "\r\n \x00") {
		return "", &failure{reason: reasonFile, text: fmt.Sprintf("%s holds no token: %s", w.options.TokenFile, advice)}
	}
	return string(token), nil
}
