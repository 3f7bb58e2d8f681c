// Package kubefake is a small Kubernetes API server for tests. In: the requests that pkg/kubewatch and
// pkg/kubestatus make, and what a test does to it. Out: answers as a real one gives them on the wire, with
// lists in pages, watches, bookmarks, server-side apply of a status, Leases, and every way to fail.
// Not here: schemas, admission, and every other resource.
package kubefake

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/metards/metards/pkg/kubeclient"
)

// Server is the API server. Its methods may be called concurrently.
type Server struct {
	mu      sync.Mutex
	http    *httptest.Server // nil while it is down
	address string

	version  int // the resource version of all
	uids     int
	crd      *definition
	objects  map[string]*object
	history  []event
	oldest   int           // watches from before this version are refused
	news     chan struct{} // closed when there is an event
	cut      chan struct{} // closed when watches end
	leases   map[string]map[string]any
	denied   map[string]int // status code by "verb resource"
	requests map[string]int // by "verb resource"
}

type definition struct {
	uid    string
	going  bool
	served bool
}

// New starts a server that has the CRD and ends with the test.
func New(t interface{ Cleanup(func()) }) *Server {
	s := &Server{
		address: "127.0.0.1:0", version: 100, objects: map[string]*object{}, leases: map[string]map[string]any{},
		news: make(chan struct{}), cut: make(chan struct{}), denied: map[string]int{}, requests: map[string]int{},
	}
	s.InstallCRD()
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start makes the server listen, at the same address as before.
func (s *Server) Start() {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		panic(fmt.Sprintf("kubefake: listen again: %v", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = listener.Addr().String()
	s.http = &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(s.serve)}}
	s.http.Start()
}

// Stop closes all connections and stops listening. What it stores stays.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.http
	s.http = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	s.CutWatches()
	server.CloseClientConnections()
	server.Close()
}

// Config is how to reach the server.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://" + s.address, QPS: 1000, Burst: 1000}
}

// Deny makes the server answer a verb on a resource with a status code, 0 to stop that. Resources are named as
// in a ClusterRole, without their group: "metarouters/status".
func (s *Server) Deny(verb, resource string, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[verb+" "+resource] = code
}

// Requests is how many requests there were with a verb on a resource.
func (s *Server) Requests(verb, resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[verb+" "+resource]
}

// resource tells what a path is about.
type resource struct{ name, namespace, object string }

func parse(path string) resource {
	p := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(p) == 5 && p[3] == "customresourcedefinitions":
		return resource{name: p[3], object: p[4]}
	case len(p) == 4 && p[3] == "metarouters":
		return resource{name: p[3]}
	case len(p) == 8 && p[5] == "metarouters" && p[7] == "status":
		return resource{"metarouters/status", p[4], p[6]}
	case len(p) >= 6 && p[5] == "leases":
		return resource{"leases", p[4], strings.Join(p[6:], "")}
	case len(p) >= 1 && len(p) <= 3 && p[0] == "apis":
		return resource{name: "discovery"}
	}
	return resource{}
}

func verb(r *http.Request, of resource) string {
	switch {
	case r.URL.Query().Get("watch") != "":
		return "watch"
	case r.Method == http.MethodGet && of.object == "" && of.name != "discovery":
		return "list"
	}
	return map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch"}[r.Method]
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	of := parse(r.URL.Path)
	did := verb(r, of)
	s.mu.Lock()
	s.requests[did+" "+of.name]++
	code := s.denied[did+" "+of.name]
	s.mu.Unlock()
	switch {
	case code == http.StatusForbidden:
		fail(w, code, "Forbidden", of.object, fmt.Sprintf(`%s is forbidden: User "system:serviceaccount:istio-system:metards" cannot %s resource %q`, of.name, did, of.name))
	case code == http.StatusNotFound:
		http.NotFound(w, r)
	case code != 0:
		fail(w, code, "", of.object, "denied by the test")
	case of.name == "customresourcedefinitions":
		s.getCRD(w, of.object)
	case of.name == "discovery":
		s.discover(w, r)
	case did == "list":
		s.list(w, r)
	case did == "watch":
		s.watch(w, r)
	case of.name == "metarouters/status" && did == "patch":
		s.patchStatus(w, r, of)
	case of.name == "leases":
		s.lease(w, r, of)
	default:
		http.NotFound(w, r)
	}
}

// fail answers with a Status, as a real server does.
func fail(w http.ResponseWriter, code int, reason, name, message string) {
	reply(w, code, status(code, reason, name, message))
}

func status(code int, reason, name, message string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
		"details": map[string]any{"name": name},
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}

func groupVersion() string { return kubeclient.MetaRouters.GroupVersion().String() }
