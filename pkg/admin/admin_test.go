package admin_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metards/metards/pkg/admin"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// nothing is a mesh and a cache without content.
type nothing struct{}

func (nothing) Objects() []*mesh.Object                            { return nil }
func (nothing) Proxies() []cachemgr.ProxyState                     { return []cachemgr.ProxyState{} }
func (nothing) Tables(string) []cachemgr.ServedTable               { return nil }
func (nothing) Plans(mesh.View, string) ([]cachemgr.Planned, bool) { return nil, true }

func newServer(t *testing.T, unready func() []string) *admin.Server {
	t.Helper()
	return newServerOf(t, nothing{}, unready)
}

func newServerOf(t *testing.T, cache admin.Cache, unready func() []string) *admin.Server {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s, err := admin.New(admin.Options{
		Mesh: nothing{}, Cache: cache, Problems: problem.NewBoard(log), Metrics: prometheus.NewRegistry(), Unready: unready, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ready() []string { return nil }

func TestDebugPagesAnswerPeersOnTheSameMachineOnly(t *testing.T) {
	s := newServer(t, ready)
	for peer, want := range map[string]int{
		"127.0.0.1:1234":          http.StatusOK,
		"[::1]:1234":              http.StatusOK,
		"[::ffff:127.0.0.1]:1234": http.StatusOK,
		"10.1.2.3:1234":           http.StatusForbidden,
		"[2001:db8::1]:1234":      http.StatusForbidden,
		"127.0.0.6:1234":          http.StatusForbidden, // a sidecar beside us, for any peer
		"nonsense":                http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/proxies", nil)
		r.RemoteAddr = peer
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d, want %d", peer, w.Code, want)
		}
	}
}

func TestListsOfNothingAreEmptyAndNotNull(t *testing.T) {
	s := newServer(t, ready)
	for _, page := range []string{"/debug/mesh", "/debug/proxies", "/debug/tables"} {
		r := httptest.NewRequest(http.MethodGet, page, nil)
		r.RemoteAddr = "127.0.0.1:1234"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if body := w.Body.String(); w.Code != http.StatusOK || strings.Contains(body, "null") {
			t.Errorf("%s: %d %s", page, w.Code, body)
		}
	}
}

func TestWithoutStaticResourcesTheirPageSaysSo(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/debug/static", nil)
	r.RemoteAddr = "127.0.0.1:1234"
	w := httptest.NewRecorder()
	newServer(t, ready).ServeHTTP(w, r)
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "--static-resources") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestReadinessSaysWhatIsMissing(t *testing.T) {
	for missing, want := range map[string]int{"": http.StatusOK, "waiting for the MetaRouters": http.StatusServiceUnavailable} {
		s := newServer(t, func() []string { return strings.FieldsFunc(missing, func(r rune) bool { return r == ';' }) })
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if w.Code != want || !strings.Contains(w.Body.String(), missing) {
			t.Errorf("missing %q: %d %s", missing, w.Code, w.Body)
		}
	}
}

func TestTheEndOfTheContextIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- newServer(t, ready).Run(ctx, l) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the answer is %d, and closing it %v", resp.StatusCode, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end is an error: %v", err)
	}
}
