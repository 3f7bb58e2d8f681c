package rdsserver

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
)

// door is where connections come in. It bounds how many are open, and the work of their handshakes, which is
// all that a client without a certificate can cause.
type door struct {
	server *Server
	turns  [2]chan struct{} // one for each handshake that computes, in its first half and after it
	rate   *rate.Limiter
	ctx    context.Context // ends the waiting of handshakes
	cancel context.CancelFunc

	mu   sync.Mutex
	open map[*conn]struct{}
}

func newDoor(s *Server) *door {
	d := &door{
		server: s, turns: [2]chan struct{}{make(chan struct{}, s.limits.Handshakes), make(chan struct{}, s.limits.Handshakes)},
		rate: rate.NewLimiter(rate.Limit(s.limits.HandshakeRate), 2*s.limits.HandshakeRate),
		open: map[*conn]struct{}{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// admit returns the connection with what is kept of it, nil if there are too many.
func (d *door) admit(raw net.Conn) *conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.open) >= d.server.limits.Connections {
		return nil
	}
	c := &conn{Conn: raw, door: d}
	d.open[c] = struct{}{}
	d.server.metrics.connections.Set(float64(len(d.open)))
	return c
}

func (d *door) forget(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, c)
	d.server.metrics.connections.Set(float64(len(d.open)))
}

// closeAll closes what is open, and ends the waiting of handshakes.
func (d *door) closeAll() {
	d.cancel()
	d.mu.Lock()
	open := slices.Collect(maps.Keys(d.open))
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // fails where it is closed already
	}
}

// failed tells of a handshake that failed. A client that goes away without a word, as probes do, is counted only.
func (d *door) failed(c *conn, limit string, err error) {
	if d.ctx.Err() != nil {
		return // it is the stop's doing
	}
	who := c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(who); err == nil {
		who = host
	}
	if limit == "" && errors.Is(err, os.ErrDeadlineExceeded) {
		limit = limitHandshakeTime
	}
	if limit != "" {
		_ = d.server.limited(limit, who, codes.Unavailable, "handshake ended: %v", err) // there is no stream yet to tell it to
		return
	}
	reason := failureOf(err)
	d.server.metrics.handshakesFailed.WithLabelValues(reason).Inc()
	if reason != failedGone && d.server.logged.first("handshake "+reason+" "+who) {
		d.server.log.Warn("handshake failed", "reason", reason, "from", who, "detail", clip(err.Error()))
	}
}

// Reasons of failed handshakes, for the metric and the log.
const (
	failedExpired       = "expired"        // the client's certificate is over, or not yet valid
	failedUnknownRoot   = "unknown_root"   // it chains to no root of ours
	failedNoCertificate = "no_certificate" // there is none
	failedOurs          = "refused_ours"   // the client ended it, mostly because it does not trust our certificate
	failedGone          = "gone"           // the client went away
	failedOther         = "other"
)

func failureOf(err error) string {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var alert *net.OpError // of a peer's alert
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return failedExpired
	case errors.As(err, &unknown):
		return failedUnknownRoot
	case strings.Contains(err.Error(), "didn't provide a certificate"): // crypto/tls has no type for it
		return failedNoCertificate
	case errors.As(err, &alert) && alert.Op == "remote error":
		return failedOurs
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return failedGone
	default:
		return failedOther
	}
}

// listener hands out connections that passed the door.
type listener struct {
	net.Listener
	door *door
}

// Accept closes connections that are too many: without a handshake there is no way to tell them more.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.door.admit(raw); c != nil {
			return c, nil
		}
		_ = l.door.server.limited(limitConnections, "", codes.Unavailable, "%d connections are open", l.door.server.limits.Connections)
		_ = raw.Close() // nobody uses it
	}
}

// conn is a connection that passed the door.
type conn struct {
	net.Conn
	door      *door
	handshake *handshake // nil before and after
}

// Read is the handshake's while there is one.
func (c *conn) Read(b []byte) (int, error) {
	if c.handshake != nil {
		return c.handshake.read(c.Conn, b)
	}
	return c.Conn.Read(b)
}

// Close makes room for another connection.
func (c *conn) Close() error {
	c.door.forget(c)
	return c.Conn.Close()
}

// handshake takes a turn only while it computes, so that clients which stall keep nobody from it, and counts for
// the rate only once its client has said something. Its second half, after our answer, does not queue behind the
// first ones of newcomers: in a storm nobody would come to an end in time.
type handshake struct {
	ctx    context.Context
	door   *door
	second bool          // the client has said something
	turn   chan struct{} // taken; nil if none is
	limit  string        // that ended it
}

var errBusy = errors.New("too many handshakes at once")

func (h *handshake) read(raw net.Conn, b []byte) (int, error) {
	h.yield()
	n, err := raw.Read(b)
	if err != nil {
		return n, err
	}
	turns := h.door.turns[1]
	if !h.second {
		if err := h.door.rate.Wait(h.ctx); err != nil {
			h.limit = limitHandshakeRate
			return 0, errBusy
		}
		turns, h.second = h.door.turns[0], true
	}
	select {
	case turns <- struct{}{}:
		h.turn = turns
		return n, nil
	case <-h.ctx.Done():
		h.limit = limitHandshakes
		return 0, errBusy
	}
}

func (h *handshake) yield() {
	if h.turn != nil {
		<-h.turn
		h.turn = nil
	}
}

// doorCredentials are credentials whose handshakes wait for their turn.
type doorCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake runs in the connection's own goroutine, before anything else reads from it.
func (dc doorCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return dc.TransportCredentials.ServerHandshake(raw)
	}
	ctx, cancel := context.WithTimeout(c.door.ctx, c.door.server.limits.HandshakeTime)
	defer cancel()
	h := &handshake{ctx: ctx, door: c.door}
	c.handshake = h
	secured, info, err := dc.TransportCredentials.ServerHandshake(c)
	h.yield()
	c.handshake = nil
	if err != nil {
		c.door.failed(c, h.limit, err)
	}
	return secured, info, err
}
