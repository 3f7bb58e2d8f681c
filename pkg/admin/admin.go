package admin

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/staticxds"
)

// Mesh is what the pages tell of the store. *mesh.Store is one.
type Mesh interface {
	Objects() []*mesh.Object
}

// Cache is what the pages tell of the cache. *cachemgr.Manager is one.
type Cache interface {
	Proxies() []cachemgr.ProxyState
	Tables(name string) []cachemgr.ServedTable
	Plans(v mesh.View, host string) (plans []cachemgr.Planned, truth bool)
}

// Options configure a Server. All fields are required, but for Static and those of TLS.
type Options struct {
	Mesh     Mesh
	Cache    Cache
	Static   *staticxds.Source // nil if there are no static resources
	Problems *problem.Board
	Metrics  prometheus.Gatherer
	// Unready lists what keeps the server from being ready; empty means ready.
	Unready func() []string
	Log     *slog.Logger

	// TLS is how the port is served, nil for without. It may be that of the proxies' port: client certificates
	// are verified as it says, but none is required, for probes have none.
	TLS *tls.Config
	// RootNamespace and TrustDomains say whose verified certificate opens the debug pages: that of a workload in
	// this namespace and one of these domains. They are asked for each request. Required with TLS.
	RootNamespace func() string
	TrustDomains  func() []string
}

// Server answers the pages.
type Server struct {
	options Options
	mux     *http.ServeMux
}

// New returns a Server that listens nowhere yet.
func New(o Options) (*Server, error) {
	if o.Mesh == nil || o.Cache == nil || o.Problems == nil || o.Metrics == nil || o.Unready == nil || o.Log == nil {
		return nil, errors.New("admin: an option is missing")
	}
	if o.TLS != nil && (o.RootNamespace == nil || o.TrustDomains == nil) {
		return nil, errors.New("admin: TLS needs to know the root namespace and the trust domains")
	}
	s := &Server{options: o, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.mux.HandleFunc("GET /readyz", s.readyz)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{}))
	for path, page := range map[string]http.HandlerFunc{
		"GET /debug/mesh":             s.mesh,
		"GET /debug/proxies":          s.proxies,
		"GET /debug/tables":           s.tables,
		"GET /debug/tables/{name...}": s.tables,
		"GET /debug/explain":          s.explain,
		"GET /debug/static":           s.static,
		"GET /debug/mem":              mem,
		"GET /debug/pprof/":           pprof.Index,
		"GET /debug/pprof/profile":    pprof.Profile,
		"GET /debug/pprof/trace":      pprof.Trace,
		"GET /debug/pprof/symbol":     pprof.Symbol,
	} {
		s.mux.Handle(path, s.guarded(page))
	}
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Run serves on a listener, which it closes, until the context ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler: s.mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug), // strangers' handshakes, for example
	}
	failed := make(chan error, 1)
	go func() {
		if s.options.TLS == nil {
			failed <- h.Serve(l)
			return
		}
		h.TLSConfig = withoutDemand(s.options.TLS)
		failed <- h.ServeTLS(l, "", "")
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the admin port %s: %w", l.Addr(), err)
	case <-ctx.Done():
		return h.Close()
	}
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	missing := s.options.Unready()
	if len(missing) == 0 {
		fmt.Fprintln(w, "ready")
		return
	}
	http.Error(w, "not ready: "+strings.Join(missing, "; "), http.StatusServiceUnavailable)
}

// object is an object in force, as /debug/mesh shows it.
type object struct {
	problem.Object
	Created *time.Time `json:"created,omitempty"`
	File    string     `json:"file,omitempty"`
	Line    int        `json:"line,omitempty"`
}

func (s *Server) mesh(w http.ResponseWriter, _ *http.Request) {
	page := struct {
		Objects  []object          `json:"objects"`
		Problems []problem.Problem `json:"problems"`
	}{[]object{}, s.options.Problems.All()}
	for _, o := range s.options.Mesh.Objects() {
		shown := object{Object: o.Ref(), File: o.File, Line: o.Line}
		if !o.Created.IsZero() {
			shown.Created = &o.Created
		}
		page.Objects = append(page.Objects, shown)
	}
	s.write(w, page)
}

func (s *Server) proxies(w http.ResponseWriter, _ *http.Request) {
	s.write(w, s.options.Cache.Proxies())
}

// table is a Table in use, as /debug/tables shows it.
type table struct {
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	Version    string          `json:"version"`
	Gateway    bool            `json:"gateway,omitempty"`
	Namespaces []string        `json:"namespaces"`
	From       string          `json:"from"`
	Routes     []string        `json:"routes"`
	Resource   json.RawMessage `json:"resource,omitempty"` // only where a name was asked for
}

func (s *Server) tables(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	list := s.options.Cache.Tables(name)
	if name != "" && len(list) == 0 {
		http.Error(w, fmt.Sprintf("nobody is subscribed to %q, or no service has it; see /debug/tables", name), http.StatusNotFound)
		return
	}
	page := make([]table, len(list))
	for i, t := range list {
		page[i] = table{
			Name: t.Table.Name.Name, Type: t.Table.Type, Version: t.Table.Version, Gateway: t.Gateway, Namespaces: t.Namespaces,
			From: t.Table.Plan.From(), Routes: t.Table.Plan.Lines(),
		}
		if name == "" {
			continue
		}
		message, err := t.Table.Any.UnmarshalNew()
		if err == nil {
			page[i].Resource, err = protojson.Marshal(message)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	s.write(w, page)
}

func (s *Server) static(w http.ResponseWriter, _ *http.Request) {
	if s.options.Static == nil {
		http.Error(w, "there are no static resources: serve has no --static-resources", http.StatusNotFound)
		return
	}
	s.write(w, s.options.Static.State())
}

func (s *Server) write(w http.ResponseWriter, page any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(page); err != nil {
		s.options.Log.Debug("admin page not written", "error", err)
	}
}
