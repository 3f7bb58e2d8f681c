package stock

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Upstream is a small HTTP server that says who it is, repeats the headers it got, and counts.
type Upstream struct {
	Name string // as a rule that of its cluster
	Addr string

	requests atomic.Int64
	server   *http.Server
	mu       sync.Mutex
	slow     chan struct{} // closed when slow requests may go on
	waiting  chan struct{} // receives once for each slow request that has arrived
}

// SlowPath is the path of requests that are answered after a Release.
const SlowPath = "/slow"

// nameHeader is where an upstream says who it is. Envoy passes it on.
const nameHeader = "X-Upstream"

// StartUpstream starts an upstream on any port.
func StartUpstream(name string) (*Upstream, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &Upstream{Name: name, Addr: l.Addr().String(), slow: make(chan struct{}), waiting: make(chan struct{}, 64)}
	u.server = &http.Server{Handler: u, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := u.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // the listener of a test is gone: nothing that follows means anything
		}
	}()
	return u, nil
}

// ServeHTTP answers with the upstream's name and the headers of the request.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.requests.Add(1)
	if r.URL.Path == SlowPath {
		u.mu.Lock()
		gate := u.slow
		u.mu.Unlock()
		u.waiting <- struct{}{}
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set(nameHeader, u.Name)
	_ = json.NewEncoder(w).Encode(r.Header) // the client sees it if it fails
}

// Arrived receives once for each slow request that has arrived.
func (u *Upstream) Arrived() <-chan struct{} { return u.waiting }

// Release lets the slow requests go on that are waiting.
func (u *Upstream) Release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.slow)
	u.slow = make(chan struct{})
}

// Requests is how many requests have come so far, mirrored ones included.
func (u *Upstream) Requests() int { return int(u.requests.Load()) }

// Stop closes the listener and all connections.
func (u *Upstream) Stop() { _ = u.server.Close() }

// Upstreams are the upstreams of several clusters, one each unless Several made them.
type Upstreams struct {
	byCluster map[string][]*Upstream
}

// Start starts an upstream for each cluster that has none yet.
func (s *Upstreams) Start(clusters ...string) error {
	for _, c := range clusters {
		if len(s.byCluster[c]) > 0 {
			continue
		}
		if err := s.add(c, c); err != nil {
			return err
		}
	}
	return nil
}

// Several starts several upstreams for one cluster, with the given names.
func (s *Upstreams) Several(cluster string, names ...string) error {
	for _, n := range names {
		if err := s.add(cluster, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *Upstreams) add(cluster, name string) error {
	u, err := StartUpstream(name)
	if err != nil {
		return err
	}
	if s.byCluster == nil {
		s.byCluster = map[string][]*Upstream{}
	}
	s.byCluster[cluster] = append(s.byCluster[cluster], u)
	return nil
}

// Of returns the first upstream of a cluster, nil if there is none.
func (s *Upstreams) Of(cluster string) *Upstream {
	if list := s.byCluster[cluster]; len(list) > 0 {
		return list[0]
	}
	return nil
}

// Clusters are the clusters that lead to the upstreams; with several endpoints the hash chooses.
func (s *Upstreams) Clusters() []Cluster {
	var out []Cluster
	for name, list := range s.byCluster {
		c := Cluster{Name: name, Ring: len(list) > 1}
		for _, u := range list {
			c.Endpoints = append(c.Endpoints, u.Addr)
		}
		out = append(out, c)
	}
	return out
}

// Stop ends all.
func (s *Upstreams) Stop() {
	for _, list := range s.byCluster {
		for _, u := range list {
			u.Stop()
		}
	}
}

// Short is a cluster's name without what the clusters of one test have in common.
func Short(cluster string) string {
	parts := strings.Split(cluster, "|")
	if len(parts) != 4 {
		return cluster
	}
	if parts[2] == "" {
		return parts[3]
	}
	return parts[2]
}
