package istiowatch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The reasons why a connection ends, for the metric.
const (
	reasonEnded       = "ended"       // by istiod, as it does every half an hour
	reasonUnreachable = "unreachable" // no connection
	reasonTLS         = "tls"         // its certificate, or ours
	reasonFile        = "file"        // the root or token file
	reasonRefused     = "refused"     // our identity, or what we ask for
	reasonOverloaded  = "overloaded"  // it asks for patience
	reasonSilent      = "silent"      // no answer
	reasonTooLarge    = "too_large"   // a list beyond our limit
	reasonOther       = "other"
)

// failure is why there is no connection (any more), as one sentence that says what to do.
type failure struct {
	reason string
	text   string
	slow   bool // nothing gets better without a person
	brief  bool // it is the ordinary end of a stream, if that stream was of use
}

func (f *failure) Error() string { return f.text }

// explain makes a failure of the error of a stream, and of the connection's, which may be nil.
func (w *Watcher) explain(err, cause error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	if errors.Is(err, io.EOF) {
		return &failure{reason: reasonEnded, text: "istiod ended the stream", brief: true}
	}
	s, _ := status.FromError(err)
	text := stable(s.Message())
	switch s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		if f := w.explainConnection(cause, text); f != nil {
			return f
		}
		return &failure{reason: reasonEnded, text: "istiod is not available: " + text, brief: true}
	case codes.ResourceExhausted:
		if strings.Contains(text, "larger than max") { // ours; istiod has no limit
			return &failure{reason: reasonTooLarge, slow: true,
				text: fmt.Sprintf("a list of istiod is larger than what is taken in (%d bytes): raise the limit", w.options.MaxReceive)}
		}
		return &failure{reason: reasonOverloaded, text: "istiod is overloaded: " + text}
	case codes.Unauthenticated:
		return &failure{reason: reasonRefused, slow: true, text: "istiod does not accept our identity: " + w.identityAdvice() + "; it says: " + text}
	case codes.PermissionDenied:
		return &failure{reason: reasonRefused, slow: true, text: fmt.Sprintf("istiod refuses us, in namespace %s: "+
			"run in the root namespace of the mesh (istio-system as a rule), with a service account of it; it says: %s", w.options.Node.Namespace, text)}
	case codes.InvalidArgument:
		return &failure{reason: reasonRefused, slow: true,
			text: fmt.Sprintf("istiod refuses our node %q: check the pod's IP, name and namespace; it says: %s", w.options.Node.id(), text)}
	case codes.Unimplemented:
		return &failure{reason: reasonRefused, slow: true,
			text: fmt.Sprintf("%s does not serve ADS: is it istiod, and is its port 15012?", w.options.Address)}
	case codes.Canceled:
		return &failure{reason: reasonEnded, text: "istiod canceled the stream: " + text, brief: true}
	}
	return &failure{reason: reasonOther, text: fmt.Sprintf("the stream failed: %s: %s", s.Code(), text)}
}

func (w *Watcher) identityAdvice() string {
	switch {
	case w.options.Plaintext:
		return "it knows nobody on a port without TLS; connect to port 15012 with TLS"
	case w.options.TokenFile != "":
		return fmt.Sprintf("the token in %s must be of audience istio-ca and not be expired", w.options.TokenFile)
	case w.options.Certificate != nil:
		return "our certificate must be of the mesh's CA and not be expired"
	}
	return "give a service account token of audience istio-ca"
}

// explainConnection returns nil if it was not the connection's making that failed.
func (w *Watcher) explainConnection(cause error, text string) *failure {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		noTLS     tls.RecordHeaderError
		dns       *net.DNSError
		dial      *net.OpError
		ours      *failure
	)
	o := &w.options
	bad := func(format string, args ...any) *failure {
		return &failure{reason: reasonTLS, text: fmt.Sprintf(format, args...)}
	}
	gone := func(format string, args ...any) *failure {
		return &failure{reason: reasonUnreachable, text: fmt.Sprintf(format, args...)}
	}
	switch {
	case errors.As(cause, &ours):
		return ours
	case errors.As(cause, &authority):
		return bad("the certificate of %s is not signed by a root in %s: that must be the mesh's (ConfigMap istio-ca-root-cert)", o.Address, o.RootFile)
	case errors.As(cause, &name):
		return bad("the certificate of %s is for %s and not for %s: correct the server name", o.Address, strings.Join(name.Certificate.DNSNames, ", "), o.ServerName)
	case errors.As(cause, &invalid):
		return bad("the certificate of %s is not valid: %s", o.Address, invalid.Error())
	case errors.As(cause, &noTLS):
		return bad("%s does not speak TLS: istiod's port for TLS is 15012", o.Address)
	case errors.As(cause, &dns):
		return gone("the host of %s is not found: correct the address, or is istiod's Service missing?", o.Address)
	case errors.Is(cause, syscall.ECONNREFUSED):
		return gone("%s refuses connections: is istiod running, and is that its port?", o.Address)
	case errors.Is(cause, context.DeadlineExceeded):
		return gone("%s does not answer: correct the address, or does a network policy forbid it?", o.Address)
	case errors.As(cause, &dial):
		return gone("%s cannot be reached: %s", o.Address, dial.Err)
	case cause != nil:
		return bad("no TLS connection to %s: %s", o.Address, stable(cause.Error()))
	case strings.Contains(text, "remote error: tls:"):
		return bad("%s refuses our certificate: %s", o.Address, text)
	case o.Plaintext && strings.Contains(text, "server preface"):
		return gone("%s does not speak gRPC without TLS: istiod's port for that is 15010", o.Address)
	}
	return nil
}

// stable leaves out of an error what differs each time: the port that we called from.
func stable(text string) string {
	if strings.Contains(text, "->") {
		return text[strings.LastIndex(text, ": ")+1:]
	}
	return text
}
