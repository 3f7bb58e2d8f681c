package mesh_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// world is a store and the Problems it reported.
type world struct {
	*mesh.Store
	board *problem.Board
}

// newWorld returns a store without truth. Its judge refuses MetaRouters that have a route named "bad".
func newWorld(t testing.TB, change ...func(*mesh.Options)) world {
	t.Helper()
	w := world{board: problem.NewBoard(slog.New(slog.DiscardHandler))}
	o := mesh.Options{
		Settings: mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"},
		Expect:   []mesh.Feed{{Source: mesh.Directory, Kind: mesh.KindMetaRouter}},
		Problems: w.board, Judge: refuseBadRoutes,
	}
	for _, f := range change {
		f(&o)
	}
	s, err := mesh.NewStore(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Store = s
	return w
}

func refuseBadRoutes(o *mesh.Object) []problem.Problem {
	for i, r := range o.Spec.(*mesh.MetaRouter).GetRoutes() {
		if r.GetName() == "bad" {
			path := fmt.Sprintf("spec.routes[%d].route", i)
			return []problem.Problem{{Severity: problem.Error, Object: o.Ref(), Path: path, Route: "bad", Reason: problem.Invalid, Detail: "it is bad"}}
		}
	}
	return nil
}

// newTruth returns a store that a directory has delivered to, with nothing to tell yet.
func newTruth(t testing.TB, objects ...*mesh.Object) world {
	t.Helper()
	w := newWorld(t)
	w.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: objects})
	w.changes()
	return w
}

// put delivers single objects.
func (w world) put(source mesh.Source, objects ...*mesh.Object) {
	w.Apply(source, mesh.Batch{Objects: objects})
}

// changes returns what TakeChanges says, and nothing if Changed was not signalled.
func (w world) changes() []string {
	select {
	case <-w.Changed():
		return w.TakeChanges()
	default:
		return nil
	}
}

func (w world) lens(client string, f func(*mesh.Lens)) { w.Read(mesh.View{Namespace: client}, f) }

// router returns "namespace/name" of the MetaRouter that a client sees for a host, "-" if there is no
// service, "" if there is no MetaRouter.
func (w world) router(client, host string) (out string) {
	w.lens(client, func(l *mesh.Lens) {
		s := l.Service(host)
		if s == nil {
			out = "-"
		} else if o := l.MetaRouter(s); o != nil {
			out = o.Namespace + "/" + o.Name
		}
	})
	return out
}

// hash returns the hash key that a client's rule for a host has, "-" if there is no rule.
func (w world) hash(client, host string) (out string) {
	w.lens(client, func(l *mesh.Lens) {
		namespace := ""
		if s := l.Service(host); s != nil {
			namespace = s.Namespace
		}
		switch r := l.Rule(host, namespace); {
		case r == nil:
			out = "-"
		case r.Policy != nil && r.Policy.Balancer != nil:
			out = r.Policy.Balancer.HashHeader
		}
	})
	return out
}

// reasons returns the Problems of an object as "severity Reason".
func (w world) reasons(o *mesh.Object) []string {
	var out []string
	for _, p := range w.board.All() {
		if p.Object == o.Ref() {
			out = append(out, fmt.Sprintf("%s %s", p.Severity, p.Reason))
		}
	}
	return out
}

// one returns the only Problem of a reason.
func (w world) one(t *testing.T, reason problem.Reason) problem.Problem {
	t.Helper()
	var out []problem.Problem
	for _, p := range w.board.All() {
		if p.Reason == reason {
			out = append(out, p)
		}
	}
	if len(out) != 1 {
		t.Fatalf("%d Problems of reason %s, want 1; all: %v", len(out), reason, w.board.All())
	}
	return out[0]
}

func object(kind mesh.Kind, ref string, spec mesh.Spec) *mesh.Object {
	namespace, name, _ := strings.Cut(ref, "/")
	return &mesh.Object{Key: mesh.Key{Kind: kind, Namespace: namespace, Name: name}, Spec: spec}
}

var dubbo = mesh.Port{Number: 20880, Name: "tcp-metaprotocol-dubbo"}

// entry makes a ServiceEntry of "namespace/name"; without ports it has the usual one.
func entry(ref, host string, ports ...mesh.Port) *mesh.Object {
	if len(ports) == 0 {
		ports = []mesh.Port{dubbo}
	}
	return object(mesh.KindServiceEntry, ref, &mesh.ServiceEntry{Hosts: strings.Fields(host), Ports: ports})
}

// rule makes a DestinationRule that hashes by a header, or says nothing of it if that is empty.
func rule(ref, host, header string, subsets ...string) *mesh.Object {
	d := &mesh.DestinationRule{Host: host}
	if header != "" {
		d.Policy = &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: header}}
	}
	for _, s := range subsets {
		d.Subsets = append(d.Subsets, mesh.Subset{Name: s})
	}
	return object(mesh.KindDestinationRule, ref, d)
}

// router makes a MetaRouter with one route of the given name, without routes if that is empty.
func router(ref, hosts, route string) *mesh.Object {
	m := &v1alpha1.MetaRouter{Hosts: strings.Fields(hosts)}
	if route != "" {
		m.Routes = []*v1alpha1.MetaRoute{{Name: route}}
	}
	return object(mesh.KindMetaRouter, ref, &mesh.MetaRouter{MetaRouter: m})
}

// born sets the day of creation.
func born(day int, o *mesh.Object) *mesh.Object {
	o.Created = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
	return o
}

func exported(to string, o *mesh.Object) *mesh.Object {
	switch list := strings.Fields(to); spec := o.Spec.(type) {
	case *mesh.ServiceEntry:
		spec.ExportTo = list
	case *mesh.DestinationRule:
		spec.ExportTo = list
	case *mesh.MetaRouter:
		spec.ExportTo = list
	}
	return o
}

// undecodable is a version of an object that could not be decoded.
func undecodable(o *mesh.Object) *mesh.Object {
	return &mesh.Object{Key: o.Key, Faults: []problem.Problem{{
		Severity: problem.Error, Object: o.Ref(), Path: "spec", Reason: problem.Undecodable, Detail: "no spec",
	}}}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestANewStoreNeedsItsOptions(t *testing.T) {
	if _, err := mesh.NewStore(mesh.Options{}); err == nil {
		t.Error("a store without judge is accepted")
	}
}

func TestThereIsTruthOnceEveryExpectedListWasDelivered(t *testing.T) {
	w := newWorld(t, func(o *mesh.Options) {
		o.Expect = []mesh.Feed{{mesh.MCP, mesh.KindServiceEntry}, {mesh.MCP, mesh.KindDestinationRule}, {mesh.Kubernetes, mesh.KindMetaRouter}}
	})
	steps := []struct {
		source   mesh.Source
		complete []mesh.Kind
		missing  int
		signal   bool
	}{
		{mesh.MCP, nil, 3, false},
		{mesh.Directory, mesh.Kinds(), 3, false}, // not the source that is expected
		{mesh.MCP, []mesh.Kind{mesh.KindServiceEntry, mesh.KindMetaRouter}, 2, false},
		{mesh.MCP, []mesh.Kind{mesh.KindServiceEntry}, 2, false},
		{mesh.Kubernetes, []mesh.Kind{mesh.KindMetaRouter}, 1, false},
		{mesh.MCP, []mesh.Kind{mesh.KindDestinationRule}, 0, true},
		{mesh.MCP, mesh.Kinds(), 0, false},
	}
	for i, s := range steps {
		w.Apply(s.source, mesh.Batch{Complete: s.complete})
		if got := len(w.Missing()); got != s.missing {
			t.Errorf("step %d: %d lists are missing, want %d: %v", i, got, s.missing, w.Missing())
		}
		signal := false
		select {
		case <-w.Changed():
			signal = true
		default:
		}
		if signal != s.signal {
			t.Errorf("step %d: signalled %t, want %t", i, signal, s.signal)
		}
	}
}

func TestAnEmptyCompleteListTakesAwayWhatItDoesNotName(t *testing.T) {
	w := newTruth(t, entry("shop/orders", "orders.example"), rule("shop/orders", "orders.example", "user"), router("shop/orders", "orders.example", "all"))
	w.put(mesh.MCP, entry("bank/ledger", "ledger.example"))
	w.changes()
	w.Apply(mesh.Directory, mesh.Batch{})
	equal(t, "objects after a batch that completes nothing", len(w.Objects()), 4)
	w.Apply(mesh.Directory, mesh.Batch{Complete: []mesh.Kind{mesh.KindMetaRouter}})
	equal(t, "objects after the end of MetaRouters", len(w.Objects()), 3)
	w.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds()})
	equal(t, "objects after the end of the directory's objects", len(w.Objects()), 1)
	equal(t, "changes", w.changes(), []string{"orders.example"})
}

func TestDeletingWhatIsNotThereDoesNothing(t *testing.T) {
	w := newTruth(t, entry("shop/orders", "orders.example"))
	w.Apply(mesh.MCP, mesh.Batch{Deleted: []mesh.Key{entry("shop/orders", "").Key, entry("shop/none", "").Key}})
	equal(t, "changes", w.changes(), []string(nil))
	equal(t, "objects", len(w.Objects()), 1)
}

func TestChangesNameExactlyTheHostsWhoseTablesMayDiffer(t *testing.T) {
	orders := func() *mesh.Object { return entry("shop/orders", "Orders.example") }
	moved := orders()
	moved.File, moved.Line = "b.yaml", 7
	selected := rule("shop/sel", "orders.example", "user")
	selected.Spec.(*mesh.DestinationRule).Selected = true
	for name, c := range map[string]struct {
		before, after *mesh.Object
		want          []string
	}{
		"a new service, folded":                     {nil, orders(), []string{"orders.example"}},
		"a service that goes":                       {orders(), nil, []string{"orders.example"}},
		"the same content again":                    {orders(), orders(), nil},
		"the same content at another place":         {orders(), moved, nil},
		"another port":                              {orders(), entry("shop/orders", "Orders.example", mesh.Port{Number: 1, Name: "tcp"}), []string{"orders.example"}},
		"another spelling":                          {orders(), entry("shop/orders", "ORDERS.example"), []string{"orders.example"}},
		"another age":                               {orders(), born(3, orders()), []string{"orders.example"}},
		"another exportTo":                          {orders(), exported(".", orders()), []string{"orders.example"}},
		"other hosts: the old and the new":          {entry("shop/a", "a.example b.example"), entry("shop/a", "b.example c.example"), []string{"a.example", "b.example", "c.example"}},
		"a service without hosts":                   {nil, entry("shop/a", ""), nil},
		"a wildcard rule gives its pattern":         {nil, rule("shop/r", "*.Example", "user"), []string{"*.example"}},
		"a rule for everything":                     {nil, rule("shop/r", "*", "user"), []string{"*"}},
		"a short host is completed":                 {nil, rule("shop/r", "Orders", "user"), []string{"orders", "orders.shop.svc.cluster.local"}},
		"a rule's other key":                        {rule("shop/r", "a.example", "user"), rule("shop/r", "a.example", "User"), []string{"a.example"}},
		"a rule's same content":                     {rule("shop/r", "a.example", "user", "v1"), rule("shop/r", "a.example", "user", "v1"), nil},
		"a rule with a selector has no effect":      {nil, selected, nil},
		"a rule that gets a selector ends":          {rule("shop/sel", "orders.example", "user"), selected, []string{"orders.example"}},
		"a MetaRouter":                              {nil, router("shop/m", "A.example b.example", "all"), []string{"a.example", "b.example"}},
		"a MetaRouter's other hosts":                {router("shop/m", "a.example", "all"), router("shop/m", "b.example", "all"), []string{"a.example", "b.example"}},
		"a MetaRouter's same content":               {router("shop/m", "a.example", "all"), router("shop/m", "a.example", "all"), nil},
		"a MetaRouter without routes has no effect": {nil, router("shop/m", "a.example", ""), nil},
		"a MetaRouter that loses its routes":        {router("shop/m", "a.example", "all"), router("shop/m", "a.example", ""), []string{"a.example"}},
		"an invalid edit":                           {router("shop/m", "a.example", "all"), router("shop/m", "b.example", "bad"), nil},
		"an invalid newcomer":                       {nil, router("shop/m", "b.example", "bad"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTruth(t)
			b := mesh.Batch{}
			if c.before != nil {
				w.put(mesh.Directory, c.before)
				w.changes()
				b.Deleted = []mesh.Key{c.before.Key}
			}
			if c.after != nil {
				b = mesh.Batch{Objects: []*mesh.Object{c.after}}
			}
			w.Apply(mesh.Directory, b)
			equal(t, "changes", w.changes(), c.want)
		})
	}
}

func TestChangesAddUpUntilTheyAreTaken(t *testing.T) {
	w := newTruth(t)
	w.put(mesh.Directory, entry("a/b", "b.example"))
	w.put(mesh.Directory, entry("a/a", "a.example"))
	equal(t, "changes", w.changes(), []string{"a.example", "b.example"})
	equal(t, "changes once taken", w.TakeChanges(), []string{})
}

func TestListingEverythingAgainChangesNothing(t *testing.T) {
	list := func() []*mesh.Object {
		return []*mesh.Object{
			entry("shop/orders", "orders.example"), rule("shop/orders", "*.example", "user", "v1"),
			router("shop/orders", "orders.example", "all"), router("shop/broken", "orders.example", "bad"),
		}
	}
	w := newTruth(t, list()...)
	before := w.board.All()
	w.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: list()})
	equal(t, "changes", w.changes(), []string(nil))
	equal(t, "Problems", w.board.All(), before)
}

func TestAnInvalidEditLeavesTheLastValidVersionInForce(t *testing.T) {
	for name, c := range map[string]struct{ valid, faulty *mesh.Object }{
		"an invalid MetaRouter":          {router("shop/orders", "orders.example", "good"), router("shop/orders", "elsewhere.example", "bad")},
		"an undecodable MetaRouter":      {router("shop/orders", "orders.example", "good"), undecodable(router("shop/orders", "", ""))},
		"an undecodable ServiceEntry":    {entry("shop/orders", "orders.example"), undecodable(entry("shop/orders", ""))},
		"an undecodable DestinationRule": {rule("shop/orders", "orders.example", "user"), undecodable(rule("shop/orders", "", ""))},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTruth(t, c.valid)
			w.put(mesh.Directory, c.faulty)
			equal(t, "changes", w.changes(), []string(nil))
			if got := w.Objects(); len(got) != 1 || got[0] != c.valid {
				t.Errorf("in force is %v, want the valid version", got)
			}
			errors := slices.DeleteFunc(w.board.All(), func(p problem.Problem) bool { return p.Severity != problem.Error })
			if len(errors) != 1 || errors[0].Object != c.valid.Ref() || errors[0].Consequence != "the last valid version stays in force" {
				t.Errorf("Problems are %v, want one with the consequence", errors)
			}
			fixed := *c.valid
			w.put(mesh.Directory, &fixed)
			equal(t, "changes by the fix", w.changes(), []string(nil))
			if problem.HasError(w.board.All()) {
				t.Errorf("after the fix the Problems are %v", w.board.All())
			}
		})
	}
}

func TestAfterARestartAnInvalidObjectIsAsIfItDidNotExist(t *testing.T) {
	w := newTruth(t, entry("shop/orders", "orders.example"),
		router("shop/invalid", "orders.example", "bad"), born(9, router("other/valid", "orders.example", "good")))
	equal(t, "the MetaRouter", w.router("any", "orders.example"), "other/valid")
	equal(t, "objects in force", len(w.Objects()), 2)
	p := w.one(t, problem.Invalid)
	equal(t, "consequence", p.Consequence, "no valid version is known: nothing of it is in force")
	equal(t, "path and route", p.Path+" "+p.Route, "spec.routes[0].route bad")
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{p2key(p)}})
	equal(t, "Problems after the deletion", w.board.All(), []problem.Problem{})
}

func p2key(p problem.Problem) mesh.Key {
	return mesh.Key{Kind: mesh.Kind(p.Object.Kind), Namespace: p.Object.Namespace, Name: p.Object.Name}
}

func TestADeletionTakesTheLastValidVersionToo(t *testing.T) {
	w := newTruth(t, entry("shop/orders", "orders.example"), router("shop/orders", "orders.example", "good"))
	w.put(mesh.Directory, router("shop/orders", "orders.example", "bad"))
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{router("shop/orders", "", "").Key}})
	equal(t, "changes", w.changes(), []string{"orders.example"})
	equal(t, "the MetaRouter", w.router("any", "orders.example"), "")
	equal(t, "Problems", w.board.All(), []problem.Problem{})
	w.put(mesh.Directory, router("shop/orders", "orders.example", "bad"))
	equal(t, "the MetaRouter after it came back invalid", w.router("any", "orders.example"), "")
}

func TestAProblemSaysWhereItWasWritten(t *testing.T) {
	w := newTruth(t)
	o := router("shop/orders", "orders.example", "bad")
	o.File, o.Line = "orders.yaml", 3
	o.Locate = func(path string) int { return len(path) }
	w.put(mesh.Directory, o)
	equal(t, "place", w.one(t, problem.Invalid).Where(), fmt.Sprintf("orders.yaml:%d", len("spec.routes[0].route")))
	if o.Locate != nil {
		t.Error("Locate is kept, and with it the text of the file")
	}
}

func TestAWarningClearsWithTheTextThatCausedIt(t *testing.T) {
	warned := entry("shop/orders", "orders.example")
	warned.Faults = []problem.Problem{{Severity: problem.Warning, Path: "spec.extra", Reason: problem.UnknownField, Detail: "there is no such field"}}
	w := newTruth(t, warned)
	p := w.one(t, problem.UnknownField)
	equal(t, "consequence of a warning", p.Consequence, "")
	equal(t, "the service counts", w.router("any", "orders.example"), "")
	w.put(mesh.Directory, entry("shop/orders", "orders.example"))
	equal(t, "Problems without the field", w.board.All(), []problem.Problem{})
	equal(t, "changes", w.changes(), []string(nil))
}

func TestOfOneObjectFromSeveralSourcesTheFirstSourceCounts(t *testing.T) {
	w := newTruth(t, entry("shop/s", "from-directory.example"))
	in := func() string { return w.Objects()[0].Spec.(*mesh.ServiceEntry).Hosts[0] }

	w.put(mesh.Kubernetes, entry("shop/s", "from-kubernetes.example"))
	equal(t, "changes by Kubernetes", w.changes(), []string{"from-directory.example", "from-kubernetes.example"})
	equal(t, "in force", in(), "from-kubernetes.example")
	if p := w.one(t, problem.Duplicate); p.Severity != problem.Error || !strings.Contains(p.Detail, "the Kubernetes API") {
		t.Errorf("the Problem is %v", p)
	}

	w.put(mesh.MCP, entry("shop/s", "from-mcp.example"))
	equal(t, "changes by MCP", w.changes(), []string(nil))
	equal(t, "in force", in(), "from-kubernetes.example")

	w.Apply(mesh.Kubernetes, mesh.Batch{Deleted: []mesh.Key{entry("shop/s", "").Key}})
	equal(t, "in force", in(), "from-mcp.example")
	if p := w.one(t, problem.Duplicate); !strings.Contains(p.Detail, "MCP") {
		t.Errorf("the Problem is %v", p)
	}

	w.Apply(mesh.MCP, mesh.Batch{Complete: mesh.Kinds()})
	equal(t, "in force", in(), "from-directory.example")
	equal(t, "Problems", w.board.All(), []problem.Problem{})
	w.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds()})
	equal(t, "objects", len(w.Objects()), 0)
}

func TestAnInvalidObjectDoesNotHideAValidOneOfALaterSource(t *testing.T) {
	w := newTruth(t, entry("shop/orders", "orders.example"), router("shop/orders", "orders.example", "good"))
	w.put(mesh.Kubernetes, router("shop/orders", "orders.example", "bad"))
	equal(t, "the MetaRouter", w.router("any", "orders.example"), "shop/orders")
	equal(t, "Problems", w.reasons(router("shop/orders", "", "")), []string{"error Invalid"})
	w.put(mesh.Kubernetes, router("shop/orders", "orders.example", "fixed"))
	equal(t, "Problems of the fixed one", w.reasons(router("shop/orders", "", "")), []string{"error Duplicate"})
	w.put(mesh.Kubernetes, router("shop/orders", "orders.example", "bad"))
	equal(t, "Problems of a later invalid edit", w.reasons(router("shop/orders", "", "")), []string{"error Duplicate", "error Invalid"})
}

func TestObjectsAreListedByKindNamespaceAndName(t *testing.T) {
	w := newTruth(t, entry("b/a", "x"), router("a/a", "x", "all"), rule("a/b", "x", ""), rule("a/a", "x", ""), entry("a/z", "x"))
	var got []string
	for _, o := range w.Objects() {
		got = append(got, o.Ref().String())
	}
	equal(t, "objects", got, []string{"DestinationRule a/a", "DestinationRule a/b", "MetaRouter a/a", "ServiceEntry a/z", "ServiceEntry b/a"})
}

func TestWhatAListIsCalledIsForPeople(t *testing.T) {
	equal(t, "name", mesh.Feed{Source: mesh.MCP, Kind: mesh.KindServiceEntry}.String(), "ServiceEntry list of MCP")
}
