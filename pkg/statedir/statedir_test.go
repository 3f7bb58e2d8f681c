package statedir_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
	"github.com/metards/metards/pkg/statedir"
)

// process is one life of a server on a state directory.
type process struct {
	store *mesh.Store
	board *problem.Board
}

// live runs f within a process whose state is in dir, on a fake clock, and ends the process.
func live(t *testing.T, dir string, f func(t *testing.T, p *process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		p := &process{board: problem.NewBoard(log)}
		var err error
		p.store, err = mesh.NewStore(mesh.Options{
			Settings: mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"},
			Judge:    func(o *mesh.Object) []problem.Problem { return routes.Validate(o, routes.Limits{}) },
			Expect:   feeds(), Problems: p.board,
		})
		if err != nil {
			t.Fatal(err)
		}
		k, err := statedir.New(statedir.Options{
			Dir: dir, Store: p.store, Problems: p.board, Log: log, Metrics: statedir.NewMetrics(prometheus.NewRegistry()),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		f(t, p)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func feeds() []mesh.Feed {
	return []mesh.Feed{
		{Source: mesh.MCP, Kind: mesh.KindServiceEntry}, {Source: mesh.MCP, Kind: mesh.KindDestinationRule},
		{Source: mesh.MCP, Kind: mesh.KindMeshConfig}, {Source: mesh.Kubernetes, Kind: mesh.KindMetaRouter},
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func service() *mesh.Object {
	return &mesh.Object{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "orders"}, Spec: &mesh.ServiceEntry{
		Hosts: []string{"orders.example"}, Ports: []mesh.Port{{Number: 1, Name: "tcp-metaprotocol-dubbo"}}, ExportTo: []string{"*"},
	}}
}

func rule() *mesh.Object {
	return &mesh.Object{Key: mesh.Key{Kind: mesh.KindDestinationRule, Namespace: "shop", Name: "orders"}, Spec: &mesh.DestinationRule{
		Host: "orders.example", Policy: &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: "user"}, Ports: []mesh.PortPolicy{{Number: 2}}},
		Subsets: []mesh.Subset{{Name: "v1"}},
	}}
}

func router(subset string, weights ...uint32) *mesh.Object {
	r := &v1alpha1.MetaRoute{Name: "all"}
	for _, w := range weights {
		r.Route = append(r.Route, &v1alpha1.MetaRouteDestination{Weight: w, Destination: &v1alpha1.Destination{Host: "orders.example", Subset: subset}})
	}
	return &mesh.Object{
		Key: mesh.Key{Kind: mesh.KindMetaRouter, Namespace: "shop", Name: "orders"}, Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		Spec: &mesh.MetaRouter{MetaRouter: &v1alpha1.MetaRouter{Hosts: []string{"orders.example"}, Routes: []*v1alpha1.MetaRoute{r}}},
	}
}

func (p *process) mcp() {
	p.store.Apply(mesh.MCP, mesh.Batch{
		Complete: []mesh.Kind{mesh.KindServiceEntry, mesh.KindDestinationRule, mesh.KindMeshConfig}, Objects: []*mesh.Object{service(), rule()},
	})
}

func (p *process) kubernetes(list ...*mesh.Object) {
	p.store.Apply(mesh.Kubernetes, mesh.Batch{Complete: []mesh.Kind{mesh.KindMetaRouter}, Objects: list})
}

// table is what a client is served: the plan's lines, or why there is none.
func (p *process) table() string {
	if missing := p.store.Missing(); len(missing) > 0 {
		return "silence"
	}
	out := "unknown"
	p.store.Read(mesh.View{Namespace: "web"}, func(l *mesh.Lens) {
		if plan, _ := routes.Compile(l, "orders.example_1"); plan != nil {
			out = strings.Join(plan.Lines(), "; ")
		}
	})
	return out
}

const canary = "all: any request -> subset v1, sticky by user"

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("served is %q, want %q", got, want)
	}
}

func TestAfterARestartDuringAnOutageTheSavedStateServesAfterTheGracePeriod(t *testing.T) {
	dir := t.TempDir()
	live(t, dir, func(t *testing.T, p *process) {
		p.store.SetSettings(mesh.Settings{RootNamespace: "root", ClusterDomain: "cluster.local"})
		p.mcp()
		p.kubernetes(router("v1", 1))
		want(t, p.table(), canary)
		pass(6 * time.Second)
	})
	live(t, dir, func(t *testing.T, p *process) {
		pass(9 * time.Second)
		want(t, p.table(), "silence")
		pass(2 * time.Second)
		want(t, p.table(), canary)
		if got := p.store.Remembered(mesh.MCP, mesh.KindServiceEntry); len(got) != 1 || got[0].Name != "orders" {
			t.Errorf("remembered are %v", got)
		}
		stood, at := p.store.StoodIn()
		if len(stood) != 4 || at.IsZero() {
			t.Errorf("the saved state of %v stands in for %v", at, stood)
		}
		p.kubernetes(router("v2", 1)) // back, with an edit made meanwhile
		want(t, p.table(), strings.Replace(canary, "v1, sticky by user", "v2", 1))
		p.mcp()
		if stood, _ := p.store.StoodIn(); len(stood) != 0 {
			t.Errorf("after all sources are back the saved state stands in for %v", stood)
		}
	})
}

func TestASourceThatDeliversInTimeIsNotStoodInFor(t *testing.T) {
	dir := t.TempDir()
	live(t, dir, func(_ *testing.T, p *process) {
		p.mcp()
		p.kubernetes(router("v1", 1))
		pass(6 * time.Second)
	})
	live(t, dir, func(t *testing.T, p *process) {
		p.mcp()
		p.kubernetes() // deleted meanwhile
		want(t, p.table(), "default: any request -> all endpoints, sticky by user")
		pass(time.Minute)
		want(t, p.table(), "default: any request -> all endpoints, sticky by user")
	})
}

func TestWhatWasNeverDeliveredCompletelyIsNotStoodInFor(t *testing.T) {
	dir := t.TempDir()
	live(t, dir, func(_ *testing.T, p *process) {
		p.mcp()
		pass(time.Minute)
	})
	live(t, dir, func(t *testing.T, p *process) {
		pass(time.Minute)
		want(t, p.table(), "silence")
	})
}

func TestARefusedObjectHasItsLastValidVersionAfterARestart(t *testing.T) {
	dir := t.TempDir()
	live(t, dir, func(t *testing.T, p *process) {
		p.mcp()
		p.kubernetes(router("v1", 1))
		p.kubernetes(router("v1", 0, 0))
		want(t, p.table(), canary)
		pass(6 * time.Second)
	})
	live(t, dir, func(t *testing.T, p *process) {
		p.mcp()
		p.kubernetes(router("v1", 0, 0))
		want(t, p.table(), canary)
		if !slices.ContainsFunc(p.board.All(), func(p problem.Problem) bool { return strings.Contains(p.Consequence, "last valid version stays") }) {
			t.Errorf("the Problems are %v", p.board.All())
		}
	})
}

func TestACorruptFileIsAProblemAndIgnored(t *testing.T) {
	for name, text := range map[string]string{
		"cut":                  `{"format": 1, "mesh": {"objects": [{"sou`,
		"of another format":    `{"format": 99}`,
		"of an unknown kind":   `{"format": 1, "mesh": {"objects": [{"kind": "Pod", "spec": {}}]}}`,
		"of an unknown source": `{"format": 1, "mesh": {"objects": [{"kind": "ServiceEntry", "source": 9, "spec": {}}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "mesh.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			live(t, dir, func(t *testing.T, p *process) {
				if list := p.board.All(); len(list) != 1 || list[0].File != file {
					t.Errorf("the Problems are %v", list)
				}
				p.mcp()
				p.kubernetes(router("v1", 1))
				pass(6 * time.Second)
				if list := p.board.All(); len(list) != 0 {
					t.Errorf("after the next write there are still %v", list)
				}
			})
			live(t, dir, func(t *testing.T, p *process) {
				pass(time.Minute)
				want(t, p.table(), canary)
			})
		})
	}
}

func TestTheStateIsWrittenOnlyWhenItChanged(t *testing.T) {
	dir := t.TempDir()
	live(t, dir, func(t *testing.T, p *process) {
		p.mcp()
		p.kubernetes(router("v1", 1))
		pass(6 * time.Second)
		if err := os.Remove(filepath.Join(dir, "mesh.json")); err != nil {
			t.Fatal(err)
		}
		p.mcp()
		p.kubernetes(router("v1", 1))
		pass(time.Minute)
		if _, err := os.Stat(filepath.Join(dir, "mesh.json")); err == nil {
			t.Error("the state was written though nothing changed")
		}
		p.kubernetes(router("v2", 1))
		pass(6 * time.Second)
		if _, err := os.Stat(filepath.Join(dir, "mesh.json")); err != nil {
			t.Error(err)
		}
	})
}
