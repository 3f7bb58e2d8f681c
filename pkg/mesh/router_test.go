package mesh_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// In these tests the service h.example is declared in namespace svc.
func TestWhichMetaRouterCounts(t *testing.T) {
	for name, c := range map[string]struct {
		routers []*mesh.Object
		client  string
		want    string
	}{
		"none":                              {nil, "cli", ""},
		"of any namespace":                  {[]*mesh.Object{router("far/m", "h.example", "r")}, "cli", "far/m"},
		"letter case of the host":           {[]*mesh.Object{router("far/m", "H.Example", "r")}, "cli", "far/m"},
		"a second host":                     {[]*mesh.Object{router("far/m", "other.example h.example", "r")}, "cli", "far/m"},
		"a host twice":                      {[]*mesh.Object{router("far/m", "h.example H.EXAMPLE", "r")}, "cli", "far/m"},
		"no short names":                    {[]*mesh.Object{router("svc/m", "h", "r")}, "cli", ""},
		"no wildcards":                      {[]*mesh.Object{router("svc/m", "*.example", "r"), router("svc/n", "*", "r")}, "cli", ""},
		"without routes it is no candidate": {[]*mesh.Object{router("svc/a", "h.example", ""), born(5, router("far/m", "h.example", "r"))}, "cli", "far/m"},
		"the service's namespace before older ones": {
			[]*mesh.Object{born(1, router("a/m", "h.example", "r")), born(9, router("svc/m", "h.example", "r"))}, "cli", "svc/m"},
		"the client's namespace has no precedence": {
			[]*mesh.Object{born(1, router("a/m", "h.example", "r")), born(2, router("cli/m", "h.example", "r"))}, "cli", "a/m"},
		"the oldest": {
			[]*mesh.Object{born(2, router("a/a", "h.example", "r")), born(1, router("z/z", "h.example", "r"))}, "cli", "z/z"},
		"without age counts as oldest": {
			[]*mesh.Object{born(1, router("a/a", "h.example", "r")), router("z/z", "h.example", "r")}, "cli", "z/z"},
		"of one age the smaller namespace before the smaller name": {
			[]*mesh.Object{router("z/a", "h.example", "r"), router("a/z", "h.example", "r")}, "cli", "a/z"},
		"of one namespace the smaller name": {
			[]*mesh.Object{router("svc/z", "h.example", "r"), router("svc/a", "h.example", "r")}, "cli", "svc/a"},
		"of the service's namespace the oldest": {
			[]*mesh.Object{born(2, router("svc/a", "h.example", "r")), born(1, router("svc/z", "h.example", "r"))}, "cli", "svc/z"},
		"what is not exported to the client does not exist": {
			[]*mesh.Object{exported(". x", router("svc/m", "h.example", "r")), exported("cli", born(8, router("far/m", "h.example", "r")))}, "cli", "far/m"},
		"for whom it is exported it counts": {
			[]*mesh.Object{exported(". x", router("svc/m", "h.example", "r")), exported("cli", born(8, router("far/m", "h.example", "r")))}, "x", "svc/m"},
		"a star": {[]*mesh.Object{exported("*", router("far/m", "h.example", "r"))}, "cli", "far/m"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTruth(t, append(c.routers, entry("svc/s", "h.example"))...)
			equal(t, "the MetaRouter", w.router(c.client, "h.EXAMPLE"), c.want)
		})
	}
}

func TestWhichMetaRouterCountsDependsOnTheServiceThatTheClientSees(t *testing.T) {
	w := newTruth(t, born(1, entry("a/s", "h.example")), born(2, entry("b/s", "h.example")),
		born(1, router("a/m", "h.example", "r")), born(2, router("b/m", "h.example", "r")))
	equal(t, "for a client in b", w.router("b", "h.example"), "b/m")
	equal(t, "for others", w.router("c", "h.example"), "a/m")
	equal(t, "Problems", w.reasons(router("b/m", "", "")), []string(nil))
}

func TestAMetaRouterThatWinsNowhereIsToldWhoDoes(t *testing.T) {
	loser := func() *mesh.Object { return born(2, router("far/loser", "h.example other.example", "r")) }
	w := newTruth(t, entry("svc/s", "h.example"), entry("svc/t", "other.example"), loser(),
		born(1, router("far/winner", "h.example OTHER.example", "r")))
	p := w.one(t, problem.Conflicted)
	if p.Object != loser().Ref() || p.Severity != problem.Error || !strings.Contains(p.Detail, "MetaRouter far/winner") {
		t.Errorf("the Problem is %v", p)
	}
	w.put(mesh.Directory, born(1, router("far/winner", "h.example", "r")))
	equal(t, "Problems once it wins one host", w.board.All(), []problem.Problem{})
	w.put(mesh.Directory, born(1, router("far/winner", "h.example other.example", "r")))
	equal(t, "Problems once it wins none", w.reasons(loser()), []string{"error Conflicted"})
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{router("far/winner", "", "").Key}})
	equal(t, "Problems once it is alone", w.board.All(), []problem.Problem{})
}

func TestAMetaRouterThatWinsForOneClientOnlyHasNoProblem(t *testing.T) {
	w := newTruth(t, entry("svc/s", "h.example"), router("far/loser", "h.example", "r"), exported("x", router("svc/winner", "h.example", "r")))
	equal(t, "Problems", w.board.All(), []problem.Problem{})
}

func TestAMetaRouterThatNobodyCanSeeIsToldSo(t *testing.T) {
	w := newTruth(t, exported(".", entry("svc/s", "h.example")), exported(".", router("far/m", "h.example", "r")))
	p := w.one(t, problem.Ignored)
	equal(t, "severity: it has no effect", p.Severity, problem.Error)
	equal(t, "path", p.Path, "spec.exportTo")
	w.put(mesh.Directory, exported(". far", entry("svc/s", "h.example")))
	equal(t, "Problems once somebody does", w.board.All(), []problem.Problem{})
}

func TestALoserThatGivesUpItsRoutesHasNoProblem(t *testing.T) {
	w := newTruth(t, entry("svc/s", "h.example"), born(1, router("far/winner", "h.example", "r")), born(2, router("far/loser", "h.example", "r")))
	w.one(t, problem.Conflicted)
	w.put(mesh.Directory, born(2, router("far/loser", "h.example", "")))
	equal(t, "Problems", w.board.All(), []problem.Problem{})
}

func TestHostsThatNobodyDeclaresAreWarnedOfOnceThereIsTruth(t *testing.T) {
	w := newWorld(t, func(o *mesh.Options) {
		o.Expect = []mesh.Feed{{mesh.Directory, mesh.KindMetaRouter}, {mesh.MCP, mesh.KindServiceEntry}}
	})
	m := router("shop/m", "ok.example none.example tcp.example", "r")
	limits := router("shop/limits", "none.example", "") // rate limits alone reach nobody either
	w.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: []*mesh.Object{m, limits}})
	equal(t, "Problems before there is truth", w.board.All(), []problem.Problem{})
	w.Apply(mesh.MCP, mesh.Batch{Complete: mesh.Kinds(), Objects: []*mesh.Object{
		entry("shop/ok", "OK.example"), entry("shop/tcp", "tcp.example", mesh.Port{Number: 1, Name: "tcp-metaprotocols"}),
	}})
	var got []string
	for _, p := range w.board.All() {
		got = append(got, fmt.Sprintf("%s %s %s %s", p.Severity, p.Object.Name, p.Path, p.Reason))
	}
	equal(t, "Problems", got, []string{
		"warning limits spec.hosts[0] UnknownHost", "warning m spec.hosts[1] UnknownHost", "warning m spec.hosts[2] NotMetaProtocol",
	})
	w.put(mesh.MCP, entry("shop/none", "None.example"), entry("shop/tcp", "tcp.example"))
	equal(t, "Problems once there are such services", w.board.All(), []problem.Problem{})
	w.Apply(mesh.MCP, mesh.Batch{Deleted: []mesh.Key{entry("shop/ok", "").Key}})
	equal(t, "Problems once one goes", w.reasons(m), []string{"warning UnknownHost"})
	w.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds()})
	equal(t, "Problems once the MetaRouter goes", w.board.All(), []problem.Problem{})
}

func TestAProblemOfAConflictMovesWithItsObject(t *testing.T) {
	m := func(line int) *mesh.Object {
		o := router("shop/m", "none.example", "r")
		o.File, o.Line = "m.yaml", line
		return o
	}
	w := newTruth(t, m(1))
	w.put(mesh.Directory, m(5))
	equal(t, "place", w.one(t, problem.UnknownHost).Where(), "m.yaml:5")
	equal(t, "changes", w.changes(), []string(nil))
}

func TestTheOrderOfArrivalChangesNothing(t *testing.T) {
	var objects []*mesh.Object
	for i := range 40 {
		ns := string(rune('a' + i%4))
		objects = append(objects,
			born(1+i%3, entry(fmt.Sprintf("%s/s%d", ns, i), "h.example", mesh.Port{Number: uint32(1 + i%5), Name: fmt.Sprintf("tcp-metaprotocol-%d", i)})),
			born(1+i%3, router(fmt.Sprintf("%s/m%d", ns, i), "h.example", "r")),
			exported([]string{"", ". x", "*", "x y", "a b c"}[i%5], born(1+i%3, rule(fmt.Sprintf("%s/r%d", ns, i), []string{"h.example", "*.example", "*"}[i%3], fmt.Sprint(i%7), fmt.Sprint(i)))))
	}
	all := func(w world) (out string) {
		for _, client := range []string{"a", "b", "c", "d", "x", "y", "istio-system"} {
			out += w.seen(client, "h.example") + w.router(client, "h.example") + w.hash(client, "h.example") + w.joined(client) + "\n"
		}
		return out + fmt.Sprint(w.board.All())
	}
	want := all(newTruth(t, objects...))
	for seed := range uint64(10) {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		w := newTruth(t)
		for i := range objects {
			fresh := *objects[i]
			w.put(mesh.Directory, &fresh)
		}
		equal(t, fmt.Sprintf("answers, shuffled by %d", seed), all(w), want)
	}
}

func TestSameIsTrueExactlyWhenTheAnswersAreTheSame(t *testing.T) {
	start := func() []*mesh.Object {
		return []*mesh.Object{
			entry("svc/s", "h.example"), rule("svc/r", "h.example", "k", "v1"), router("svc/m", "h.example", "r"),
			entry("svc/x", "unasked.example"),
		}
	}
	ask := func(l *mesh.Lens) {
		l.MetaRouter(l.Service("H.example"))
		l.Rule("h.example", "svc")
		l.Service("none.example")
		l.Rule("none.example", "")
	}
	moved := entry("svc/s", "h.example")
	moved.Line = 9
	for name, c := range map[string]struct {
		change []*mesh.Object
		gone   string
		want   bool
	}{
		"nothing":                          {nil, "", true},
		"the service moved":                {[]*mesh.Object{moved}, "", true},
		"an unasked host":                  {[]*mesh.Object{entry("svc/x", "unasked.example", mesh.Port{Number: 1})}, "", true},
		"the service's ports":              {[]*mesh.Object{entry("svc/s", "h.example", mesh.Port{Number: 1})}, "", false},
		"the service's spelling":           {[]*mesh.Object{entry("svc/s", "H.example")}, "", false},
		"a declaration that adds nothing":  {[]*mesh.Object{entry("svc/t", "h.example")}, "", true},
		"a declaration elsewhere":          {[]*mesh.Object{born(3, entry("other/t", "h.example"))}, "", true},
		"the client's own declaration":     {[]*mesh.Object{entry("cli/t", "h.example")}, "", false},
		"the MetaRouter":                   {[]*mesh.Object{router("svc/m", "h.example", "other")}, "", false},
		"a MetaRouter that comes second":   {[]*mesh.Object{born(4, router("svc/n", "h.example", "r"))}, "", true},
		"a MetaRouter that comes first":    {[]*mesh.Object{router("svc/a", "h.example", "r")}, "", false},
		"the rule's key":                   {[]*mesh.Object{rule("svc/r", "h.example", "other", "v1")}, "", false},
		"a subset":                         {[]*mesh.Object{rule("svc/r", "h.example", "k", "v1", "v2")}, "", false},
		"a rule of the client's namespace": {[]*mesh.Object{rule("cli/r", "*.example", "k")}, "", false},
		"a rule that others see only":      {[]*mesh.Object{exported("x", born(5, rule("svc/q", "h.example", "k")))}, "", true},
		"the missing service appears":      {[]*mesh.Object{entry("svc/n", "None.example")}, "", false},
		"a rule for the missing service":   {[]*mesh.Object{rule("cli/n", "none.example", "k")}, "", false},
		"the service goes":                 {nil, "svc/s", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTruth(t, start()...)
			var trace mesh.Trace
			w.lens("cli", func(l *mesh.Lens) { ask(l); trace = l.Trace() })
			b := mesh.Batch{Objects: c.change}
			if c.gone != "" {
				b.Deleted = []mesh.Key{entry(c.gone, "").Key}
			}
			w.Apply(mesh.Directory, b)
			w.lens("cli", func(l *mesh.Lens) {
				if got := l.Same(trace); got != c.want {
					t.Errorf("Same is %t, want %t", got, c.want)
				}
				if len(l.Trace()) != 0 {
					t.Error("Same left something in the Lens's own Trace")
				}
			})
		})
	}
}

func TestSameComparesViews(t *testing.T) {
	w := newTruth(t, entry("svc/s", "h.example"), exported("a", rule("svc/r", "h.example", "k")))
	var trace mesh.Trace
	w.lens("b", func(l *mesh.Lens) { l.Rule("h.example", l.Service("h.example").Namespace); trace = l.Trace() })
	for client, want := range map[string]bool{"b": true, "c": true, "a": false} {
		w.lens(client, func(l *mesh.Lens) { equal(t, "same for "+client, l.Same(trace), want) })
	}
}

func TestATraceNamesTheHostsThatWereAskedFor(t *testing.T) {
	w := newTruth(t, entry("svc/s", "h.example"))
	w.lens("cli", func(l *mesh.Lens) {
		l.MetaRouter(l.Service("H.example"))
		l.Service("h.EXAMPLE")
		l.Rule("h.example", "svc")
		equal(t, "hosts", l.Trace().Hosts(), []string{"h.example"})
		equal(t, "questions", len(l.Trace()), 3)
		equal(t, "the View", l.View(), mesh.View{Namespace: "cli"})
		equal(t, "the root namespace", l.Settings().RootNamespace, "istio-system")
	})
}

func TestManyMetaRoutersOfOneHostAreJudgedQuickly(t *testing.T) {
	objects := []*mesh.Object{entry("svc/s", "h.example")}
	for i := range 1000 {
		objects = append(objects, router(fmt.Sprintf("n%04d/m", i), "h.example", "r"))
	}
	w := newTruth(t, objects...)
	losers := 0
	for _, p := range w.board.All() {
		if p.Reason == problem.Conflicted && strings.Contains(p.Detail, "n0000/m") {
			losers++
		}
	}
	equal(t, "losers", losers, 999)
}
