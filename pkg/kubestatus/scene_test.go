package kubestatus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
	"github.com/metards/metards/pkg/kubestatus"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

const (
	namespace = "istio-system"
	never     = time.Hour
)

// replica is a Writer with what is around it: it is fed by a real Watcher of the API server.
type replica struct {
	t      *testing.T
	api    *kubefake.Server
	facts  *facts
	board  *problem.Board
	writer *kubestatus.Writer
	stop   func()
}

// fast makes everything quick but what happens without a reason.
func fast() kubestatus.Pauses {
	return kubestatus.Pauses{
		Interval: 5 * time.Millisecond, Count: never, Refresh: never, Retry: 5 * time.Millisecond, MaxRetry: 20 * time.Millisecond,
	}
}

func start(t *testing.T, api *kubefake.Server, name string, pauses kubestatus.Pauses) *replica {
	t.Helper()
	r := &replica{t: t, api: api, facts: &facts{byKey: map[mesh.Key]kubestatus.Facts{}, changed: make(chan struct{}, 1)}}
	log := slog.New(slog.DiscardHandler)
	r.board = problem.NewBoard(log)
	var err error
	r.writer, err = kubestatus.New(kubestatus.Options{
		Config: api.Config(), Rate: 500, Source: r.facts, Replica: name, Namespace: namespace, Problems: r.board,
		Metrics: kubestatus.NewMetrics(nil), Log: log, Pauses: pauses,
		Election: kubestatus.Election{Duration: 2 * time.Second, Deadline: time.Second, Retry: 20 * time.Millisecond},
	})
	must(t, err)
	watcher, err := kubewatch.New(kubewatch.Options{
		Config: api.Config(), Sink: discard{}, Problems: problem.NewBoard(log), Metrics: kubewatch.NewMetrics(nil), Log: log, Observer: r.writer,
		Pauses: kubewatch.Pauses{Retry: 5 * time.Millisecond, MaxRetry: 20 * time.Millisecond},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- watcher.Run(ctx) }()
	go func() { done <- r.writer.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
	t.Cleanup(r.stop)
	return r
}

type discard struct{}

func (discard) Apply(mesh.Source, mesh.Batch) {}

// facts is a Source that tests fill.
type facts struct {
	changed chan struct{}

	mu    sync.Mutex
	byKey map[mesh.Key]kubestatus.Facts
	reads int
}

func (f *facts) Changed() <-chan struct{} { return f.changed }

func (f *facts) Facts() map[mesh.Key]kubestatus.Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return maps.Clone(f.byKey)
}

func (f *facts) set(name string, x kubestatus.Facts) {
	f.setQuietly(name, x)
	f.signal()
}

func (f *facts) setQuietly(name string, x kubestatus.Facts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byKey[mesh.Key{Kind: mesh.KindMetaRouter, Namespace: "shop", Name: name}] = x
}

func (f *facts) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *facts) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// rounds waits until the facts were read some more times, and what follows from them was put in the queue.
func (r *replica) rounds() {
	r.t.Helper()
	before := r.facts.count()
	r.until("the facts are read", func() bool {
		r.facts.signal()
		return r.facts.count() > before+5
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func router(host string) map[string]any {
	return map[string]any{"hosts": []any{host}, "routes": []any{map[string]any{"name": "default", "route": []any{map[string]any{
		"destination": map[string]any{"host": host}}}}}}
}

// status is the status of a MetaRouter at the API server.
type status struct {
	Conditions []metav1.Condition        `json:"conditions"`
	Replicas   map[string]map[string]any `json:"replicas"`
	LastValid  map[string]any            `json:"lastValid"`
}

func (r *replica) status(name string) status {
	r.t.Helper()
	var out status
	if object := r.api.Get("shop", name); object != nil {
		data, err := json.Marshal(object["status"])
		must(r.t, err)
		must(r.t, json.Unmarshal(data, &out))
	}
	return out
}

// condition is one in the form "Status/Reason@generation: message".
func (r *replica) condition(name, kind string) string {
	r.t.Helper()
	for _, c := range r.status(name).Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s/%s@%d: %s", c.Status, c.Reason, c.ObservedGeneration, c.Message)
		}
	}
	return ""
}

func (r *replica) until(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			r.t.Fatalf("not in time: %s\norders: %+v\nproblems: %v", what, r.status("orders"), r.board.All())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (r *replica) untilCondition(name, kind, want string) {
	r.t.Helper()
	r.until(kind+" of "+name+" is "+want, func() bool { return strings.HasPrefix(r.condition(name, kind), want) })
}

// writes is how many writes to statuses there were.
func (r *replica) writes() int { return r.api.Requests("patch", "metarouters/status") }

// merge changes the status of shop/orders, as anybody else could.
func (r *replica) merge(body string) {
	r.t.Helper()
	url := r.api.Config().Host + "/apis/metaprotocol.aeraki.io/v1alpha1/namespaces/shop/metarouters/orders/status"
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPatch, url, strings.NewReader(body))
	must(r.t, err)
	request.Header.Set("Content-Type", "application/merge-patch+json")
	answer, err := http.DefaultClient.Do(request)
	must(r.t, err)
	must(r.t, answer.Body.Close())
}
