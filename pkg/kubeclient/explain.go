package kubeclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Class is a kind of failure, one of a closed list, for metrics.
type Class string

// The classes.
const (
	Unreachable  Class = "unreachable"  // no answer: down, refused, timed out, cut
	Untrusted    Class = "untrusted"    // TLS: the server's certificate, or ours
	Unauthorized Class = "unauthorized" // who are we?
	Forbidden    Class = "forbidden"    // we may not
	NotFound     Class = "notfound"     // it is not there
	Other        Class = "other"        // any other answer
)

// Classes lists all classes.
func Classes() []Class {
	return []Class{Unreachable, Untrusted, Unauthorized, Forbidden, NotFound, Other}
}

// Access is what was asked for, in the words of a ClusterRole.
type Access struct {
	Verb     string
	Resource string // with its API group, as in "leases.coordination.k8s.io"
}

// Failure is an error of a request, made for people.
type Failure struct {
	Class Class
	// Text is one sentence without a full stop, which says what to do where that is known. It has nothing in
	// it that differs between two failures of one cause, such as port numbers.
	Text string
}

// Explain makes a Failure of an error that a request to host gave.
func Explain(err error, host string, a Access) Failure {
	var (
		unverified *tls.CertificateVerificationError
		alert      tls.AlertError
		record     tls.RecordHeaderError
	)
	switch {
	case apierrors.IsForbidden(err):
		return Failure{Forbidden, fmt.Sprintf("the API server does not let us %s %s: give our service account this verb in a ClusterRole (%s)", a.Verb, a.Resource, short(err))}
	case apierrors.IsUnauthorized(err):
		return Failure{Unauthorized, fmt.Sprintf("the API server %s does not accept our credentials: renew the token or client certificate of the kubeconfig or the pod", host)}
	case apierrors.IsNotFound(err):
		return Failure{NotFound, fmt.Sprintf("the server %s has no %s: check that the kubeconfig names an API server that has them (%s)", host, a.Resource, short(err))}
	case errors.As(err, &unverified):
		return Failure{Untrusted, fmt.Sprintf("the certificate of the API server %s is not trusted (%v): correct the certificate authority of the kubeconfig", host, unverified.Err)}
	case errors.As(err, &alert), errors.As(err, &record):
		return Failure{Untrusted, fmt.Sprintf("no TLS with the API server %s (%v): check address and client certificate of the kubeconfig", host, innermost(err))}
	case isStatus(err):
		return Failure{Other, fmt.Sprintf("the API server %s refuses to %s %s: %s", host, a.Verb, a.Resource, short(err))}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, new(*url.Error)), errors.As(err, new(net.Error)):
		return Failure{Unreachable, fmt.Sprintf("the API server %s cannot be reached: %v", host, innermost(err))}
	}
	return Failure{Other, fmt.Sprintf("cannot %s %s at the API server %s: %v", a.Verb, a.Resource, host, innermost(err))}
}

func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest
}

// innermost leaves out what differs from one attempt to the next, such as our own port.
func innermost(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return fmt.Errorf("no such host %q", lookup.Name)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// short is an error's text, bounded.
func short(err error) string {
	const limit = 400
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	return strings.ToValidUTF8(text, "")
}
