package kubewatch_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

func TestObjectsAreDeliveredAndFollowed(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	s := play(t, api, fast())
	s.untilNames("shop/orders")
	api.Put("shop", "carts", router("carts"))
	s.untilNames("shop/carts shop/orders")
	api.Put("shop", "orders", router("orders2"))
	s.until("the edit", func() bool { return s.hosts("shop", "orders") == "orders2" })
	s.until("the observer saw it too", func() bool { return s.seen.generation("shop", "orders") == 2 })
	api.Delete("shop", "orders")
	s.untilNames("shop/carts")
	s.until("the observer knows that it is gone", func() bool { return s.seen.generation("shop", "orders") == 0 })
	if st := s.watcher.Status(); !st.Synced || st.Failure != "" || time.Since(st.LastContact) > time.Minute {
		t.Errorf("status %+v", st)
	}
}

func TestObjectsOfAnotherRevisionAreAsIfTheyWereNotThere(t *testing.T) {
	api := kubefake.New(t)
	for _, name := range []string{"all", "ours", "theirs", "moving"} {
		api.Put("shop", name, router(name))
	}
	api.Label("shop", "ours", "istio.io/rev", "blue")
	api.Label("shop", "theirs", "istio.io/rev", "green")
	s := play(t, api, fast(), func(o *kubewatch.Options) { o.Revision = "blue" })
	s.untilNames("shop/all shop/moving shop/ours")
	api.Label("shop", "moving", "istio.io/rev", "green")
	s.untilNames("shop/all shop/ours")
	s.until("its status is not ours to write", func() bool { return s.seen.generation("shop", "moving") == 0 })
	api.Label("shop", "theirs", "istio.io/rev", "blue")
	s.untilNames("shop/all shop/ours shop/theirs")
	api.CutWatches()
	api.Compact()
	api.Label("shop", "moving", "istio.io/rev", "blue")
	s.untilNames("shop/all shop/moving shop/ours shop/theirs")
}

func TestOneBadObjectHidesNoOther(t *testing.T) {
	api := kubefake.New(t)
	misspelt := router("a")
	misspelt["rotues"] = []any{}
	api.Put("shop", "misspelt", misspelt)
	api.Put("shop", "mistyped", map[string]any{"hosts": "not a list"})
	api.Put("shop", "good", router("good"))
	s := play(t, api, fast())
	s.untilNames("shop/good")
	s.untilProblem("rotues")
	s.untilProblem("MetaRouter shop/mistyped")
	api.Put("shop", "good", map[string]any{"hosts": []any{"good"}, "unheardOf": true})
	s.untilProblem("unheardOf")
	if s.hosts("shop", "good") != "good" {
		t.Error("the last valid version is not in force any more")
	}
}

func TestALongListComesInPages(t *testing.T) {
	api := kubefake.New(t)
	for i := range 1200 {
		api.Put("shop", fmt.Sprintf("r%d", i), router("h"))
	}
	s := play(t, api, fast())
	s.until("all of them", func() bool { return s.synced() && len(s.store.Objects()) == 1200 })
	if n := api.Requests("list", "metarouters"); n < 3 {
		t.Errorf("%d requests for the list", n)
	}
}

func TestAForbiddenListIsNoEmptyList(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	api.Deny("list", "metarouters", http.StatusForbidden)
	s := play(t, api, fast())
	s.untilProblem("does not let us list metarouters.metaprotocol.aeraki.io: give our service account this verb in a ClusterRole")
	s.untilProblem("nothing is known of the API server's MetaRouters yet")
	if s.synced() || s.watcher.Status().Synced || !strings.Contains(s.watcher.Status().Failure, "list metarouters") {
		t.Errorf("missing %v, status %+v", s.store.Missing(), s.watcher.Status())
	}
	api.Deny("list", "metarouters", 0)
	s.untilNames("shop/orders")
	s.untilFine()
	api.Deny("list", "metarouters", http.StatusForbidden)
	api.Deny("watch", "metarouters", http.StatusForbidden)
	api.CutWatches()
	s.untilProblem("what is known of MetaRouters stays in force")
	if s.names() != "shop/orders" {
		t.Errorf("in force: %s", s.names())
	}
}

func TestEachRefusalIsOneProblemThatSaysWhatToDo(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusUnauthorized:        "does not accept our credentials",
		http.StatusInternalServerError: "refuses to list metarouters",
		http.StatusServiceUnavailable:  "refuses to list metarouters",
	} {
		api := kubefake.New(t)
		api.Deny("list", "metarouters", code)
		s := play(t, api, fast())
		s.untilProblem(want)
		before := api.Requests("list", "metarouters")
		s.until("more attempts", func() bool { return api.Requests("list", "metarouters") > before+3 })
		if s.synced() || strings.Contains(s.problems(), "\n") {
			t.Errorf("%d: synced %v, problems:\n%s", code, s.synced(), s.problems())
		}
	}
}

func TestA404ThatIsNotAboutTheCRDIsNoEmptyList(t *testing.T) {
	t.Run("the CRD is not served yet", func(t *testing.T) {
		api := kubefake.New(t)
		api.Put("shop", "orders", router("orders"))
		api.Serve(false)
		s := play(t, api, fast())
		s.untilProblem("does not serve metaprotocol.aeraki.io/v1alpha1")
		if s.synced() {
			t.Error("taken for an empty list")
		}
		api.Serve(true)
		s.untilNames("shop/orders")
		s.untilFine()
	})
	t.Run("the server is no API server", func(t *testing.T) {
		api := kubefake.New(t)
		for _, what := range []string{"list metarouters", "get customresourcedefinitions", "get discovery"} {
			verb, resource, _ := strings.Cut(what, " ")
			api.Deny(verb, resource, http.StatusNotFound)
		}
		s := play(t, api, fast())
		s.untilProblem("check that the kubeconfig names an API server")
		if s.synced() {
			t.Error("taken for an empty list")
		}
	})
}

func TestTheAPIServerMayRestart(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	api.Put("shop", "carts", router("carts"))
	s := play(t, api, fast())
	s.untilNames("shop/carts shop/orders")
	api.Stop()
	s.untilProblem("cannot be reached: connect: connection refused")
	if s.names() != "shop/carts shop/orders" || strings.Contains(s.problems(), "\n") {
		t.Errorf("in force: %s, problems:\n%s", s.names(), s.problems())
	}
	api.Put("shop", "orders", router("orders2"))
	api.Delete("shop", "carts")
	api.Put("shop", "new", router("new"))
	api.Start()
	s.untilNames("shop/new shop/orders")
	if s.hosts("shop", "orders") != "orders2" {
		t.Error("the edit is missing")
	}
	s.untilFine()
}

func TestAnAPIServerThatIsDownAtStartIsWaitedFor(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	api.Stop()
	s := play(t, api, fast())
	s.untilProblem("cannot be reached")
	if s.synced() {
		t.Error("taken for an empty list")
	}
	api.Start()
	s.untilNames("shop/orders")
	s.untilFine()
}

func TestAVersionThatIsTooOldLeadsToANewList(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	api.Put("shop", "carts", router("carts"))
	s := play(t, api, fast())
	s.untilNames("shop/carts shop/orders")
	api.Forget("shop", "carts")
	api.Compact()
	s.untilNames("shop/orders")
	s.untilFine()
}

func TestWatchesThatAreCutAgainAndAgainLoseNothing(t *testing.T) {
	api := kubefake.New(t)
	s := play(t, api, fast())
	s.until("the list", s.synced)
	for i := range 20 {
		api.Put("shop", fmt.Sprintf("r%02d", i), router("h"))
		api.CutWatches()
	}
	s.until("all of them", func() bool { return len(s.store.Objects()) == 20 })
}

func TestABookmarkIsAProofOfLife(t *testing.T) {
	api := kubefake.New(t)
	s := play(t, api, fast())
	s.until("a watch", func() bool { return api.Requests("watch", "metarouters") == 1 })
	before := s.watcher.Status().LastContact
	s.until("a later contact", func() bool {
		api.Bookmark()
		return s.watcher.Status().LastContact.After(before)
	})
	if n := api.Requests("list", "metarouters"); n != 1 {
		t.Errorf("%d lists", n)
	}
}

// broken is a MetaRouter that is refused, with the last valid spec in its status.

func TestNothingIsLeftAfterRun(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, state := range []string{"watching", "down", "forbidden", "missing"} {
		t.Run(state, func(t *testing.T) {
			api := kubefake.New(t)
			api.Put("shop", "orders", router("orders"))
			switch state {
			case "down":
				api.Stop()
			case "forbidden":
				api.Deny("list", "metarouters", http.StatusForbidden)
			case "missing":
				api.RemoveCRD()
			}
			s := play(t, api, fast())
			switch state {
			case "watching":
				s.until("a watch", func() bool { return api.Requests("watch", "metarouters") == 1 })
			case "missing":
				s.until("the list", s.synced)
			default:
				s.until("a failure", func() bool { return s.watcher.Status().Failure != "" })
			}
			s.stop()
			api.Stop()
		})
	}
	wait(t, "the goroutines end", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() <= before+2 // idle connections of client-go's cached transport
	}, func() string {
		stacks := make([]byte, 1<<20)
		return string(stacks[:runtime.Stack(stacks, true)])
	})
}

func TestOptionsAreChecked(t *testing.T) {
	store, board, log := &mesh.Store{}, problem.NewBoard(slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler)
	complete := kubewatch.Options{
		Config: &rest.Config{Host: "http://127.0.0.1:1"}, Sink: store, Problems: board, Metrics: kubewatch.NewMetrics(nil), Log: log,
	}
	for name, change := range map[string]func(*kubewatch.Options){
		"no Config":       func(o *kubewatch.Options) { o.Config = nil },
		"no Sink":         func(o *kubewatch.Options) { o.Sink = nil },
		"negative pause":  func(o *kubewatch.Options) { o.Pauses.Hold = -1 },
		"unusable Config": func(o *kubewatch.Options) { o.Config = &rest.Config{Host: "://"} },
	} {
		o := complete
		change(&o)
		if _, err := kubewatch.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := kubewatch.New(complete); err != nil {
		t.Error(err)
	}
}
