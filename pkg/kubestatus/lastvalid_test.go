package kubestatus_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
	"github.com/metards/metards/pkg/kubestatus"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

func object(t *testing.T, host string) *mesh.Object {
	t.Helper()
	o, err := mesh.Decode(map[string]any{
		"apiVersion": "metaprotocol.aeraki.io/v1alpha1", "kind": "MetaRouter",
		"metadata": map[string]any{"namespace": "shop", "name": "orders"}, "spec": router(host),
	})
	must(t, err)
	return o
}

func TestTheLastValidSpecGoesRoundToANewReplica(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", map[string]any{"hosts": []any{"refused"}})
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Problems: []problem.Problem{refused}, LastValid: object(t, "good")})
	r.until("it is kept", func() bool { return fmt.Sprint(r.status("orders").LastValid["hosts"]) == "[good]" })

	fresh := newStore(t)
	watcher, err := kubewatch.New(kubewatch.Options{
		Config: api.Config(), Sink: fresh, Problems: problem.NewBoard(slog.New(slog.DiscardHandler)), Metrics: kubewatch.NewMetrics(nil), Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	go func() { _ = watcher.Run(t.Context()) }()
	r.until("a new replica serves it", func() bool {
		list := fresh.Objects()
		return len(list) == 1 && list[0].Spec.(*mesh.MetaRouter).GetHosts()[0] == "good"
	})

	second := start(t, api, "b", fast())
	second.facts.set("orders", kubestatus.Facts{Problems: []problem.Problem{refused}})
	r.stop()
	second.until("b leads", second.writer.Leads)
	second.rounds()
	if fmt.Sprint(second.status("orders").LastValid["hosts"]) != "[good]" {
		t.Errorf("a holder that does not know it dropped it: %v", second.status("orders"))
	}
	second.facts.set("orders", kubestatus.Facts{})
	second.until("it goes once it is not needed", func() bool { return second.status("orders").LastValid == nil })
	second.untilCondition("orders", "Accepted", "True")
}

func newStore(t *testing.T) *mesh.Store {
	t.Helper()
	store, err := mesh.NewStore(mesh.Options{
		Expect: []mesh.Feed{{Source: mesh.Kubernetes, Kind: mesh.KindMetaRouter}}, Problems: problem.NewBoard(slog.New(slog.DiscardHandler)),
		Judge: func(o *mesh.Object) []problem.Problem {
			if o.Spec.(*mesh.MetaRouter).GetHosts()[0] == "refused" {
				return []problem.Problem{refused}
			}
			return nil
		},
	})
	must(t, err)
	return store
}

func TestALastValidSpecThatIsTooLargeIsNotKept(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Problems: []problem.Problem{refused}, LastValid: object(t, strings.Repeat("x", 40<<10))})
	r.untilCondition("orders", "Accepted", "False")
	if r.status("orders").LastValid != nil {
		t.Error("it is kept")
	}
}
