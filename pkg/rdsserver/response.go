package rdsserver

import (
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/staticxds"
)

// response is what one response carries: a Table, or static resources of one type.
type response struct {
	table  *cachemgr.Table
	static *staticxds.Response // nil if it is a Table
}

func (r response) none() bool { return r.table == nil && r.static == nil }

func (r response) typeURL() string {
	if r.static != nil {
		return r.static.Type
	}
	return r.table.Type
}

func (r response) version() string {
	if r.static != nil {
		return r.static.Version
	}
	return r.table.Version
}

func (r response) names() []string {
	if r.static != nil {
		return r.static.Names()
	}
	return []string{r.table.Name.Name}
}

func (r response) removed() []string {
	if r.static != nil {
		return r.static.Removed
	}
	return nil
}

// size is the bytes of the resources.
func (r response) size() int {
	if r.static != nil {
		return r.static.Bytes()
	}
	return len(r.table.Any.GetValue())
}

// sotw is the response in state of the world.
func (r response) sotw(nonce string) *discoveryv3.DiscoveryResponse {
	out := &discoveryv3.DiscoveryResponse{VersionInfo: r.version(), TypeUrl: r.typeURL(), Nonce: nonce}
	if r.static == nil {
		out.Resources = []*anypb.Any{r.table.Any}
		return out
	}
	for _, x := range r.static.Resources {
		out.Resources = append(out.Resources, x.Any)
	}
	return out
}

// delta is the response in delta.
func (r response) delta(nonce string) *discoveryv3.DeltaDiscoveryResponse {
	out := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: r.version(), TypeUrl: r.typeURL(), Nonce: nonce, RemovedResources: r.removed(),
	}
	if r.static == nil {
		out.Resources = []*discoveryv3.Resource{{Name: r.table.Name.Name, Version: r.table.Version, Resource: r.table.Any}}
		return out
	}
	for _, x := range r.static.Resources {
		out.Resources = append(out.Resources, &discoveryv3.Resource{Name: x.Name, Version: x.Version, Resource: x.Any})
	}
	return out
}

// sendOne sends a response, if it is one, and waits for its answer.
func (s *stream) sendOne(r response) error {
	if r.none() {
		return nil
	}
	if s.server.draining.Load() {
		return errStopping
	}
	nonce := newNonce()
	s.pending = append(s.pending, pending{r, nonce, time.AfterFunc(s.server.responseTimeout, s.timeout), true})
	s.tellSent(r, nonce)
	if err := s.wire.send(r, nonce); err != nil {
		return fmt.Errorf("send %q: %w", r.names(), err)
	}
	return nil
}

// tellSent is by itself because a quiet stream keeps the stack that its goroutine once needed, and grpc, called
// next, needs the most.
func (s *stream) tellSent(r response, nonce string) {
	s.server.events.Write(Event{
		Event: EventSent, Stream: s.id, Node: s.node.id, Type: r.typeURL(), Names: r.names(), Removed: r.removed(), Version: r.version(), Nonce: nonce,
	})
	s.server.metrics.sent.Inc()
	s.server.metrics.sentBytes.Add(float64(r.size()))
}
