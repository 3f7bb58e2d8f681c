package kubestatus_test

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
	"github.com/metards/metards/pkg/kubestatus"
	"github.com/metards/metards/pkg/problem"
)

var (
	refused = problem.Problem{
		Severity: problem.Error, Reason: problem.Invalid, Path: "spec.routes[0].route", Route: "default", Detail: "no destination",
		Consequence: "the last valid version stays in force",
	}
	loses = problem.Problem{
		Severity: problem.Error, Reason: problem.Conflicted, Detail: "not used: MetaRouter shop/older has the same host and comes first",
	}
)

func TestConditionsFollowTheFacts(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{})
	r.untilCondition("orders", "Accepted", "True/Accepted@1: ")
	r.untilCondition("orders", "Programmed", "Unknown/NoProxies@1: ")
	for _, step := range []struct {
		facts                kubestatus.Facts
		accepted, programmed string
	}{
		{kubestatus.Facts{Proxies: 12, UpToDate: 7}, "True/Accepted@1", "False/Pending@1: 7 of 12 proxies"},
		{kubestatus.Facts{Proxies: 12, UpToDate: 12}, "True/Accepted@1", "True/Programmed@1: 12 of 12 proxies"},
		{kubestatus.Facts{Proxies: 12, UpToDate: 11, Rejected: 1, FirstError: "node-7: bad regex"}, "True/Accepted@1",
			"False/Rejected@1: 1 of 12 proxies refused it; first node-7: bad regex"},
		{kubestatus.Facts{Problems: []problem.Problem{loses}}, "False/Conflicted@1: not used: MetaRouter shop/older", "False/NotAccepted@1"},
		{kubestatus.Facts{Problems: []problem.Problem{refused}, Proxies: 12, UpToDate: 12},
			`False/Invalid@1: routes[0].route (route "default"): no destination; the last valid version stays in force`, "False/NotAccepted@1"},
		{kubestatus.Facts{}, "True/Accepted@1", "Unknown/NoProxies@1"},
	} {
		r.facts.set("orders", step.facts)
		r.untilCondition("orders", "Accepted", step.accepted)
		r.untilCondition("orders", "Programmed", step.programmed)
	}
	r.until("no report without proxies", func() bool { return len(r.status("orders").Replicas) == 0 })
	for _, c := range r.status("orders").Conditions {
		if time.Since(c.LastTransitionTime.Time) > time.Minute {
			t.Errorf("%s changed at %s", c.Type, c.LastTransitionTime)
		}
	}
}

func TestANewGenerationIsProgrammedOnceItsFactsAreKnown(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Proxies: 2, UpToDate: 2})
	r.untilCondition("orders", "Programmed", "True/Programmed@1")
	r.facts.set("orders", kubestatus.Facts{Pending: true})
	r.rounds()
	api.Put("shop", "orders", router("orders2"))
	r.rounds()
	if got := r.condition("orders", "Programmed"); !strings.HasPrefix(got, "True/Programmed@1") {
		t.Errorf("while pending: %s", got)
	}
	r.facts.set("orders", kubestatus.Facts{Proxies: 2, UpToDate: 1})
	r.untilCondition("orders", "Programmed", "False/Pending@2: 1 of 2 proxies")
	r.facts.set("orders", kubestatus.Facts{Proxies: 2, UpToDate: 2})
	r.untilCondition("orders", "Programmed", "True/Programmed@2")
}

func TestReplicasAreSummedUpByTheHolderOfTheLease(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	a := start(t, api, "a", fast())
	a.until("a leads", a.writer.Leads)
	b := start(t, api, "b", fast())
	a.facts.set("orders", kubestatus.Facts{Proxies: 5, UpToDate: 5})
	b.facts.set("orders", kubestatus.Facts{Proxies: 7, UpToDate: 7})
	a.untilCondition("orders", "Programmed", "True/Programmed@1: 12 of 12 proxies")
	if b.writer.Leads() || len(a.status("orders").Replicas) != 2 {
		t.Errorf("b leads: %v, replicas %v", b.writer.Leads(), a.status("orders").Replicas)
	}
	a.stop()
	b.untilCondition("orders", "Programmed", "True/Programmed@1: 7 of 7 proxies")
	if !b.writer.Leads() || len(b.status("orders").Replicas) != 1 {
		t.Errorf("b leads: %v, replicas %v", b.writer.Leads(), b.status("orders").Replicas)
	}
}

func TestTheReportOfAGoneReplicaExpires(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	pauses := fast()
	pauses.Refresh = 100 * time.Millisecond
	r := start(t, api, "a", pauses)
	r.facts.set("orders", kubestatus.Facts{Proxies: 5, UpToDate: 5})
	r.untilCondition("orders", "Programmed", "True/Programmed@1: 5 of 5 proxies")
	r.merge(`{"status":{"replicas":{"ghost":{"generation":1,"proxies":3,"upToDate":0,"rejected":0,"at":"2026-01-01T00:00:00Z"}}}}`)
	r.untilCondition("orders", "Programmed", "False/Pending@1: 5 of 8 proxies")
	r.untilCondition("orders", "Programmed", "True/Programmed@1: 5 of 5 proxies")
	r.until("its entry is gone", func() bool { return len(r.status("orders").Replicas) == 1 })
	at := r.status("orders").Replicas["a"]["at"]
	r.until("the own report is refreshed", func() bool { return r.status("orders").Replicas["a"]["at"] != at })
}

func TestAReportOfAFormerLifeIsWithdrawn(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	first := start(t, api, "other", fast())
	first.merge(`{"status":{"replicas":{"a":{"generation":1,"proxies":3,"upToDate":3,"rejected":0,"at":"2026-01-01T00:00:00Z"}}}}`)
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
	r.until("it is replaced", func() bool { return fmt.Sprint(r.status("orders").Replicas["a"]["proxies"]) == "1" })
	r.facts.set("orders", kubestatus.Facts{})
	r.until("it is withdrawn", func() bool { return len(r.status("orders").Replicas) == 0 })
}

func TestALostLeaseEndsTheWritingOfConditionsOnly(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
	r.untilCondition("orders", "Programmed", "True")
	api.SetHolder(namespace, "metards", "somebody", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	r.until("the Lease is lost", func() bool { return !r.writer.Leads() })
	r.facts.set("orders", kubestatus.Facts{Proxies: 2, UpToDate: 1})
	r.until("reports go on", func() bool { return fmt.Sprint(r.status("orders").Replicas["a"]["proxies"]) == "2" })
	r.rounds()
	if got := r.condition("orders", "Programmed"); !strings.HasPrefix(got, "True") {
		t.Errorf("written without the Lease: %s", got)
	}
}

func TestWithoutAReasonNothingIsWritten(t *testing.T) {
	api := kubefake.New(t)
	for i := range 20 {
		api.Put("shop", fmt.Sprintf("r%d", i), router("h"))
	}
	api.Put("shop", "orders", router("orders"))
	a, b := start(t, api, "a", fast()), start(t, api, "b", fast())
	for i := range 20 {
		a.facts.set(fmt.Sprintf("r%d", i), kubestatus.Facts{Proxies: 3, UpToDate: 3})
		b.facts.set(fmt.Sprintf("r%d", i), kubestatus.Facts{Proxies: 4, UpToDate: 4})
	}
	a.facts.set("orders", kubestatus.Facts{Problems: []problem.Problem{refused}, LastValid: object(t, "good")})
	b.facts.set("orders", kubestatus.Facts{Problems: []problem.Problem{refused}, LastValid: object(t, "good")})
	for i := range 20 {
		a.untilCondition(fmt.Sprintf("r%d", i), "Programmed", "True/Programmed@1: 7 of 7 proxies")
	}
	a.untilCondition("orders", "Accepted", "False")
	a.rounds()
	b.rounds()
	before := a.writes()
	for i := range 20 { // acks of a growing mesh
		a.facts.set("r0", kubestatus.Facts{Proxies: 3 + i, UpToDate: 3 + i})
		a.rounds()
		if i%10 == 0 {
			b.rounds()
		}
	}
	if n := a.writes() - before; n != 0 {
		t.Errorf("%d writes without a reason", n)
	}
}

func TestManyAcksAreFewWrites(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	pauses := fast()
	pauses.Interval = 50 * time.Millisecond
	r := start(t, api, "a", pauses)
	r.facts.set("orders", kubestatus.Facts{Proxies: 1000})
	r.untilCondition("orders", "Programmed", "False/Pending")
	before := r.writes()
	for i := range 1001 {
		r.facts.set("orders", kubestatus.Facts{Proxies: 1000, UpToDate: i})
	}
	r.untilCondition("orders", "Programmed", "True/Programmed@1: 1000 of 1000 proxies")
	if n := r.writes() - before; n > 6 {
		t.Errorf("%d writes", n)
	}
}

func TestWhatCannotBeWrittenIsOneProblemAndIsWrittenLater(t *testing.T) {
	for what, c := range map[string]struct {
		verb, resource string
		code           int
		want           string
	}{
		"no right to patch":     {"patch", "metarouters/status", http.StatusForbidden, "does not let us patch metarouters.metaprotocol.aeraki.io/status"},
		"no status subresource": {"patch", "metarouters/status", http.StatusNotFound, "has no status subresource"},
		"no right to a Lease":   {"get", "leases", http.StatusForbidden, "does not let us get leases.coordination.k8s.io"},
		"no namespace":          {"create", "leases", http.StatusNotFound, `the namespace "istio-system" of the Lease does not exist`},
	} {
		t.Run(what, func(t *testing.T) {
			api := kubefake.New(t)
			api.Put("shop", "orders", router("orders"))
			api.Deny(c.verb, c.resource, c.code)
			r := start(t, api, "a", fast())
			r.facts.set("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
			r.until("a Problem", func() bool { return len(r.board.All()) == 1 && strings.Contains(r.board.All()[0].Detail, c.want) })
			before := api.Requests(c.verb, c.resource)
			r.until("it is tried again", func() bool { return api.Requests(c.verb, c.resource) > before+3 })
			if len(r.board.All()) != 1 {
				t.Errorf("problems: %v", r.board.All())
			}
			api.Deny(c.verb, c.resource, 0)
			r.untilCondition("orders", "Programmed", "True")
			r.until("no Problem", func() bool { return len(r.board.All()) == 0 })
		})
	}
}

func TestTheAPIServerMayRestart(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
	r.untilCondition("orders", "Programmed", "True")
	api.Stop()
	r.facts.set("orders", kubestatus.Facts{Proxies: 2, UpToDate: 1})
	r.rounds()
	api.Start()
	r.untilCondition("orders", "Programmed", "False/Pending@1: 1 of 2 proxies")
	if len(r.board.All()) != 0 {
		t.Errorf("problems: %v", r.board.All())
	}
}

func TestAnObjectThatIsDeletedMeanwhileDoesNoHarm(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	api.Put("shop", "other", router("other"))
	r := start(t, api, "a", fast())
	r.facts.set("other", kubestatus.Facts{})
	r.untilCondition("other", "Accepted", "True")
	api.Forget("shop", "orders")
	r.facts.set("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
	before := r.writes()
	r.until("writes in vain", func() bool { return r.writes() > before })
	r.rounds()
	if len(r.board.All()) != 0 {
		t.Errorf("problems: %v", r.board.All())
	}
	if n := r.writes() - before; n > 2 {
		t.Errorf("%d writes in vain", n)
	}
}

func TestNothingIsLeftAfterRun(t *testing.T) {
	before := runtime.NumGoroutine()
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
	r.untilCondition("orders", "Programmed", "True")
	r.stop()
	if len(r.status("orders").Replicas) != 0 || api.Holder(namespace, "metards") != "" {
		t.Errorf("left: replicas %v, holder %q", r.status("orders").Replicas, api.Holder(namespace, "metards"))
	}
	api.Stop()
	r.until("the goroutines end", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() <= before+3
	})
}

func TestOptionsAreChecked(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	complete := kubestatus.Options{
		Config: &rest.Config{Host: "http://127.0.0.1:1"}, Source: &facts{}, Replica: "a", Namespace: namespace,
		Problems: problem.NewBoard(log), Metrics: kubestatus.NewMetrics(nil), Log: log,
	}
	for name, change := range map[string]func(*kubestatus.Options){
		"no Source":         func(o *kubestatus.Options) { o.Source = nil },
		"no Replica":        func(o *kubestatus.Options) { o.Replica = "" },
		"negative pause":    func(o *kubestatus.Options) { o.Pauses.Count = -1 },
		"unusable Config":   func(o *kubestatus.Options) { o.Config = &rest.Config{Host: "://"} },
		"unusable Election": func(o *kubestatus.Options) { o.Election.Deadline = time.Hour },
	} {
		o := complete
		change(&o)
		if _, err := kubestatus.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := kubestatus.New(complete); err != nil {
		t.Error(err)
	}
}
