package meshca

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons of errors: a closed list, for metrics and logs.
const (
	ReasonRoots       = "roots"       // the file of roots is unusable
	ReasonToken       = "token"       // the file of the token is unusable
	ReasonUnreachable = "unreachable" // no connection to the CA
	ReasonTLS         = "tls"         // no trust between the CA and us
	ReasonRefused     = "refused"     // the CA does not believe who we are
	ReasonRequest     = "request"     // the CA does not give what we ask for
	ReasonUnavailable = "unavailable" // the CA cannot answer now
	ReasonReply       = "reply"       // the CA's answer is not what we asked for
)

// Reasons are all of them.
func Reasons() []string {
	return []string{ReasonRoots, ReasonToken, ReasonUnreachable, ReasonTLS, ReasonRefused, ReasonRequest, ReasonUnavailable, ReasonReply}
}

const clipTo = 300 // bytes of a CA's words in an error

// Error is why there is no certificate, and what to do about it.
type Error struct {
	Reason string
	// Retriable is true for what passes by itself; what is not needs a person, but is worth asking again,
	// more slowly, since files and the CA's configuration change without us.
	Retriable bool

	code  codes.Code // of the CA's refusal; OK if there was none
	text  string
	cause error
	todo  string
}

// Error is one line: what happened, why, and what to do.
func (e *Error) Error() string {
	s := e.text
	if e.cause != nil {
		s += ": " + clip(e.cause.Error())
	}
	if e.todo != "" {
		s += "; " + e.todo
	}
	return s
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.cause }

// tokenToBlame tells whether another proof of who we are could help.
func (e *Error) tokenToBlame() bool { return e.Reason == ReasonToken || e.Reason == ReasonRefused }

// and adds how a second attempt ended.
func (e *Error) and(what string, err error) *Error {
	out := *e
	out.cause = fmt.Errorf("%w (%s: %s)", e.cause, what, clip(err.Error()))
	return &out
}

func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > clipTo {
		return strings.ToValidUTF8(s[:clipTo], "") + "…"
	}
	return s
}

// ofCall reads the error of a call. A connection that failed is told apart by what was seen of it, since
// gRPC has it as text only.
func (c *Client) ofCall(err error, seen *attempts) error {
	dial, handshake := seen.failures()
	code := status.Code(err)
	at := "the CA " + c.opts.Address
	switch {
	case handshake != nil && code == codes.Unavailable:
		return &Error{Reason: ReasonTLS, Retriable: true, cause: handshake, text: "no TLS connection to " + at,
			todo: fmt.Sprintf("its certificate must be for %s and chain to a root in %s", c.opts.ServerName, c.opts.RootFile)}
	case dial != nil && code == codes.Unavailable:
		return &Error{Reason: ReasonUnreachable, Retriable: true, cause: dial, text: "no connection to " + at,
			todo: "check the address, that the CA runs, and network policies"}
	case code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return &Error{Reason: ReasonUnavailable, Retriable: true, code: code, text: fmt.Sprintf("no answer of %s within %v", at, c.opts.Timeout),
			todo: "check that the CA runs and that network policies let us reach it"}
	}
	out := &Error{Reason: ReasonUnavailable, Retriable: true, code: code, cause: errors.New(status.Convert(err).Message()),
		text: fmt.Sprintf("%s gave no certificate (%s)", at, code), todo: "see the CA's log"}
	switch code {
	case codes.Unauthenticated, codes.PermissionDenied:
		out.Reason, out.Retriable = ReasonRefused, false
		out.todo = fmt.Sprintf("%s must hold a token of our service account of the audience that the CA expects (istiod: istio-ca) "+
			"and our cluster id must be known to it", c.opts.TokenFile)
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		out.Reason, out.Retriable = ReasonRequest, false
		out.todo = fmt.Sprintf("check the lifetime asked for (%v) and the trust domain (%s)", c.opts.Lifetime, c.opts.TrustDomain)
	case codes.Unimplemented:
		out.Reason, out.Retriable = ReasonRequest, false
		out.todo = "the address must be that of a mesh CA (istiod: port 15012)"
	}
	return out
}
