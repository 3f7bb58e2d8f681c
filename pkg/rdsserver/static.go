package rdsserver

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/metards/metards/pkg/staticxds"
)

// mayBeStatic reports whether there may be static resources of a type on this stream.
func (s *stream) mayBeStatic(typeURL string) bool {
	return s.server.static != nil && s.ads && (typeURL == staticxds.RouteType || slices.Contains(staticxds.Types(), typeURL))
}

// subscriptionsFor returns those that a request is about. The session is opened by the first one of such a type:
// streams of plain RDS have none.
func (s *stream) subscriptionsFor(r request) (subscriptions, error) {
	if !s.mayBeStatic(r.typeURL) {
		return s.cache, nil
	}
	if s.static == nil {
		s.static = s.server.static.Open(staticxds.Peer{
			Stream: s.id, Node: s.node.id, Identity: s.identity, Delta: s.wire.delta(),
		}, s.cache, func() { s.server.pusher.push(s) })
	}
	for name, version := range r.held {
		if err := checkWords([]string{name, version}); err != nil {
			return nil, err
		}
	}
	if n := s.static.Holds(r.typeURL, r.held); n > s.server.maxNames {
		return nil, s.server.limited(limitNames, s.identity, codes.ResourceExhausted, "the client holds %d names that the file of static resources does not have, at most %d are allowed", n, s.server.maxNames)
	}
	return s.static, nil
}

// wants reports whether the stream is subscribed to anything of a type.
func (s *stream) wants(typeURL string) bool {
	if s.static != nil && s.mayBeStatic(typeURL) {
		return s.static.Wants(typeURL)
	}
	return s.cache.Wants(typeURL)
}

// checkCount refuses a stream that is subscribed to too many names, of all types.
func (s *stream) checkCount() error {
	n := s.cache.Count()
	if s.static != nil {
		n += s.static.Count()
	}
	if n <= s.server.maxNames {
		return nil
	}
	return s.server.limited(limitNames, s.identity, codes.ResourceExhausted, "%d names on one stream, at most %d are allowed", n, s.server.maxNames)
}

// next returns what is to be sent of a type, and notes it as sent.
func (s *stream) next(typeURL string) response {
	if s.static != nil {
		if r := s.static.Next(typeURL); r != nil {
			return response{static: r}
		}
	}
	if !s.server.cache.Serves(typeURL) {
		return response{}
	}
	t := s.cache.Next(typeURL)
	if t != nil && s.static != nil {
		s.static.TableSent(t.Name.Name)
	}
	return response{table: t}
}

// removal returns what is to be sent once everything else was answered.
func (s *stream) removal() response {
	if s.static == nil || slices.ContainsFunc(s.pending, func(p pending) bool { return p.owed }) {
		return response{}
	}
	return response{static: s.static.Removal()}
}

func (s *stream) accepted(r response) {
	switch {
	case r.static != nil:
		s.static.Accepted(r.static)
		return
	case s.static != nil:
		s.static.TableAnswered(r.table.Name.Name, true)
	}
	s.cache.Accepted(r.table)
}

func (s *stream) rejected(r response, reason string) {
	switch {
	case r.static != nil:
		s.static.Rejected(r.static, reason)
		return
	case s.static != nil:
		s.static.TableAnswered(r.table.Name.Name, false)
	}
	s.cache.Rejected(r.table, reason)
}

// maxLogged bounds how many names of static resources are logged at once.
const maxLogged = 10

// logRejected tells of a rejection once, however many proxies have it.
func (s *stream) logRejected(r response, reason string) {
	what := r.typeURL()
	if r.table != nil {
		what = r.table.Name.Name
	}
	if !s.server.logged.first("rejected " + what + " " + r.version() + " " + reason) {
		return
	}
	if r.table != nil {
		s.server.log.Warn("a proxy rejected a table; it is sent again when its bytes differ", "name", r.table.Name.Name,
			"version", r.version(), "node", s.node.id, "error", reason)
		return
	}
	names := r.names()
	s.server.log.Warn("a proxy rejected static resources; they are sent again when they differ", "type", r.typeURL(), "count", len(names),
		"names", names[:min(len(names), maxLogged)], "removed", r.removed(), "version", r.version(), "node", s.node.id, "error", reason)
}
