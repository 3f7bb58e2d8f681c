package kubewatch_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// scene is a Watcher, with a real store behind it, and the API server that it watches.
type scene struct {
	t       *testing.T
	api     *kubefake.Server
	store   *mesh.Store
	board   *problem.Board
	watcher *kubewatch.Watcher
	seen    *observer
	stop    func()
}

const forever = time.Hour

// fast makes everything quick but what a test waits for in vain.
func fast() kubewatch.Pauses {
	return kubewatch.Pauses{
		Batch: 10 * time.Millisecond, CRD: 20 * time.Millisecond, Hold: forever,
		Retry: 5 * time.Millisecond, MaxRetry: 20 * time.Millisecond, Grace: time.Millisecond,
	}
}

// play starts a Watcher of an API server, which ends with the test.
func play(t *testing.T, api *kubefake.Server, pauses kubewatch.Pauses, changes ...func(*kubewatch.Options)) *scene {
	t.Helper()
	board := problem.NewBoard(slog.New(slog.DiscardHandler))
	store, err := mesh.NewStore(mesh.Options{
		Expect: []mesh.Feed{{Source: mesh.Kubernetes, Kind: mesh.KindMetaRouter}}, Problems: board,
		Judge: func(o *mesh.Object) []problem.Problem {
			if slices.Contains(o.Spec.(*mesh.MetaRouter).GetHosts(), "refused") {
				return []problem.Problem{{Severity: problem.Error, Reason: problem.Invalid, Path: "spec.hosts[0]", Detail: "refused"}}
			}
			return nil
		},
	})
	must(t, err)
	s := &scene{t: t, api: api, store: store, board: board, seen: &observer{objects: map[mesh.Key]int64{}}}
	o := kubewatch.Options{
		Config: api.Config(), Sink: store, Problems: board, Metrics: kubewatch.NewMetrics(nil), Log: slog.New(slog.DiscardHandler),
		Observer: s.seen, Pauses: pauses,
		HasValid: func(k mesh.Key) bool { return s.hosts(k.Namespace, k.Name) != "" },
	}
	for _, change := range changes {
		change(&o)
	}
	s.watcher, err = kubewatch.New(o)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.watcher.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// router is the spec of a MetaRouter for a host.
func router(host string) map[string]any {
	return map[string]any{"hosts": []any{host}, "routes": []any{map[string]any{"name": "default", "route": []any{map[string]any{
		"destination": map[string]any{"host": host}}}}}}
}

// hosts is the hosts of the version in force of a MetaRouter, empty if none is.
func (s *scene) hosts(namespace, name string) string {
	for _, o := range s.store.Objects() {
		if o.Namespace == namespace && o.Name == name {
			return strings.Join(o.Spec.(*mesh.MetaRouter).GetHosts(), ",")
		}
	}
	return ""
}

// names is the names of the MetaRouters in force.
func (s *scene) names() string {
	var out []string
	for _, o := range s.store.Objects() {
		out = append(out, o.Namespace+"/"+o.Name)
	}
	return strings.Join(out, " ")
}

// problems is all Problems, a line each, but that there are no services here.
func (s *scene) problems() string {
	var out []string
	for _, p := range s.board.All() {
		if p.Reason != problem.UnknownHost {
			out = append(out, p.String())
		}
	}
	return strings.Join(out, "\n")
}

func (s *scene) synced() bool { return len(s.store.Missing()) == 0 }

// until waits for a condition.
func (s *scene) until(what string, ok func() bool) {
	s.t.Helper()
	wait(s.t, what, ok, func() string {
		return fmt.Sprintf("in force: %q, status: %+v, problems:\n%s", s.names(), s.watcher.Status(), s.problems())
	})
}

func wait(t *testing.T, what string, ok func() bool, state func() string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not in time: %s\n%s", what, state())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *scene) untilNames(want string) {
	s.t.Helper()
	s.until("in force: "+want, func() bool { return s.synced() && s.names() == want })
}

func (s *scene) untilProblem(want string) {
	s.t.Helper()
	s.until("a Problem that says: "+want, func() bool { return strings.Contains(s.problems(), want) })
}

func (s *scene) untilFine() {
	s.t.Helper()
	s.until("no Problem", func() bool { return s.problems() == "" && s.watcher.Status().Failure == "" })
}

// looks waits until the CRD was looked at some more times, and whatever follows from the first of them is done.
func (s *scene) looks() {
	s.t.Helper()
	before := s.api.Requests("get", "customresourcedefinitions")
	s.until("looks at the CRD", func() bool { return s.api.Requests("get", "customresourcedefinitions") > before+2 })
}

// observer remembers the generations of what it saw last.
type observer struct {
	mu      sync.Mutex
	objects map[mesh.Key]int64
}

func (o *observer) Seen(u *unstructured.Unstructured) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.objects[key(u.GetNamespace(), u.GetName())] = u.GetGeneration()
}

func (o *observer) Gone(k mesh.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.objects, k)
}

func (o *observer) generation(namespace, name string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.objects[key(namespace, name)]
}

func key(namespace, name string) mesh.Key {
	return mesh.Key{Kind: mesh.KindMetaRouter, Namespace: namespace, Name: name}
}
