package mesh_test

import (
	"strings"
	"testing"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// In these tests the service h.example is declared in namespace svc, and the client is in namespace cli.
func TestTheRuleOfAClientIsFoundInIstiosOrder(t *testing.T) {
	for name, c := range map[string]struct {
		rules  []*mesh.Object
		client string
		want   string
	}{
		"none": {nil, "cli", "-"},
		"of the client's namespace first": {
			[]*mesh.Object{rule("cli/r", "h.example", "c"), rule("svc/r", "h.example", "s"), rule("istio-system/r", "h.example", "r")}, "cli", "c"},
		"then of the service's": {
			[]*mesh.Object{rule("svc/r", "h.example", "s"), rule("istio-system/r", "h.example", "r")}, "cli", "s"},
		"then of the root namespace": {[]*mesh.Object{rule("istio-system/r", "h.example", "r")}, "cli", "r"},
		"of no other namespace":      {[]*mesh.Object{rule("other/r", "h.example", "o")}, "cli", "-"},
		"letter case of the host":    {[]*mesh.Object{rule("cli/r", "H.Example", "c")}, "cli", "c"},

		"the client's private rule counts for it":             {[]*mesh.Object{exported(".", rule("cli/r", "h.example", "c"))}, "cli", "c"},
		"by its name too":                                     {[]*mesh.Object{exported("cli", rule("cli/r", "h.example", "c"))}, "cli", "c"},
		"the client's rule for others does not":               {[]*mesh.Object{exported("x", rule("cli/r", "h.example", "c"))}, "cli", "-"},
		"the client's less specific rule steps in there":      {[]*mesh.Object{exported("x", rule("cli/r", "h.example", "c")), rule("cli/w", "*.example", "w")}, "cli", "w"},
		"the service's private rule does not":                 {[]*mesh.Object{exported(".", rule("svc/r", "h.example", "s")), rule("istio-system/r", "h.example", "r")}, "cli", "r"},
		"a private rule lets the wider one step in":           {[]*mesh.Object{exported(".", rule("svc/r", "h.example", "s")), rule("svc/w", "*.example", "w")}, "cli", "w"},
		"the service's rule for others does not, nor a wider": {[]*mesh.Object{exported("x", rule("svc/r", "h.example", "s")), rule("svc/w", "*.example", "w")}, "cli", "-"},
		"but the root namespace does":                         {[]*mesh.Object{exported("x", rule("svc/r", "h.example", "s")), rule("istio-system/w", "*.example", "r")}, "cli", "r"},
		"the service's rule for this client":                  {[]*mesh.Object{exported("x cli", rule("svc/r", "h.example", "s"))}, "cli", "s"},
		"the service's own clients see the private rule":      {[]*mesh.Object{exported(".", rule("svc/r", "h.example", "s"))}, "svc", "s"},

		"a client in the root namespace sees its private rule first": {
			[]*mesh.Object{exported(".", rule("istio-system/p", "h.example", "p")), rule("svc/r", "h.example", "s")}, "istio-system", "p"},
		"its public rule only after the service's": {
			[]*mesh.Object{rule("istio-system/p", "h.example", "p"), rule("svc/r", "h.example", "s")}, "istio-system", "s"},
		"nobody else sees the root's private rule": {[]*mesh.Object{exported(".", rule("istio-system/p", "h.example", "p"))}, "cli", "-"},

		"the same host before a wildcard":   {[]*mesh.Object{rule("cli/w", "*.example", "w"), rule("cli/r", "h.example", "c")}, "cli", "c"},
		"the longest wildcard":              {[]*mesh.Object{rule("cli/all", "*", "all"), rule("cli/w", "*.example", "w")}, "cli", "w"},
		"the wildcard for all":              {[]*mesh.Object{rule("cli/all", "*", "all")}, "cli", "all"},
		"a wildcard within a name":          {[]*mesh.Object{rule("cli/all", "*", "all"), rule("cli/w", "*ample", "part")}, "cli", "part"},
		"a wildcard in another letter case": {[]*mesh.Object{rule("cli/w", "*.EXAMPLE", "w")}, "cli", "w"},
		"a wildcard that does not cover":    {[]*mesh.Object{rule("cli/w", "*.h.example", "w")}, "cli", "-"},
		"a nearer namespace's wildcard before a further one's host": {
			[]*mesh.Object{rule("cli/w", "*", "w"), rule("svc/r", "h.example", "s")}, "cli", "w"},

		"of rules that stay apart the oldest visible": {
			[]*mesh.Object{exported("x", born(1, rule("svc/a", "h.example", "x"))), exported("cli", born(2, rule("svc/b", "h.example", "c"))), exported("cli y", born(3, rule("svc/c", "h.example", "y")))}, "cli", "c"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTruth(t, append(c.rules, entry("svc/h", "h.example"))...)
			equal(t, "the rule", w.hash(c.client, "h.EXAMPLE"), c.want)
		})
	}
}

func TestAWildcardCoversWholeNamesToo(t *testing.T) {
	w := newTruth(t, rule("cli/a", "*.b.c", "abc"), rule("cli/b", "*-x.b.c", "x"), rule("cli/c", "*.c", "c"))
	for host, want := range map[string]string{
		"a.b.c": "abc", "d.a.b.c": "abc", "b.c": "c", "a-x.b.c": "x", "-x.b.c": "x", "x.b.c": "abc", "*.b.c": "abc", "*.x.c": "c", "c": "-", "": "-",
	} {
		equal(t, "the rule of "+host, w.hash("cli", host), want)
	}
}

func TestCoversIsWhatTheLookupDoes(t *testing.T) {
	for _, pattern := range []string{"*", "*.c", "*.b.c", "*c", "*-x.b.c", "a.b.c", "*.a.b.c"} {
		for _, host := range []string{"a.b.c", "b.c", "c", "a-x.b.c", "x"} {
			w := newTruth(t, rule("cli/r", pattern, "k"))
			if found, covers := w.hash("cli", host) == "k", mesh.Covers(pattern, host); found != covers && strings.Contains(pattern, ".") {
				t.Errorf("%s covers %s: %t, but its rule is found: %t", pattern, host, covers, found)
			}
		}
	}
}

func TestAShortHostIsCompletedWithTheRulesOwnNamespace(t *testing.T) {
	w := newTruth(t, rule("svc/r", "Orders", "k"),
		entry("svc/synthetic-o", "orders.svc.svc.cluster.local"), entry("other/synthetic-o", "orders.other.svc.cluster.local"))
	equal(t, "of its namespace", w.hash("cli", "orders.svc.svc.cluster.local"), "k")
	equal(t, "of another namespace", w.hash("cli", "orders.other.svc.cluster.local"), "-")
}

// joined is "policy: subset subset" of the rule that a client sees.
func (w world) joined(client string) (out string) {
	w.lens(client, func(l *mesh.Lens) {
		r := l.Rule("h.example", "svc")
		if r == nil {
			return
		}
		if r.Policy != nil {
			out = r.Policy.Balancer.HashHeader
		}
		out += ":"
		for _, s := range r.Subsets {
			out += " " + s.Name
			if s.Policy != nil {
				out += "=" + s.Policy.Balancer.HashHeader
			}
		}
	})
	return out
}

func TestRulesOfOneHostAndNamespaceAreJoinedOldestFirst(t *testing.T) {
	hashed := func(o *mesh.Object, header string) *mesh.Object {
		d := o.Spec.(*mesh.DestinationRule)
		for i := range d.Subsets {
			d.Subsets[i].Policy = &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: header}}
		}
		return o
	}
	for name, c := range map[string]struct {
		rules []*mesh.Object
		want  string
	}{
		"subsets of new names are added, the older of a name stays": {
			[]*mesh.Object{born(2, hashed(rule("svc/a", "h.example", "k", "v1", "v2"), "young")), born(1, rule("svc/b", "h.example", "", "v1"))}, "k: v1 v2=young"},
		"the older policy stays": {
			[]*mesh.Object{born(2, rule("svc/a", "h.example", "young")), born(1, rule("svc/b", "H.example", "old"))}, "old:"},
		"without age counts as oldest": {
			[]*mesh.Object{born(1, rule("svc/a", "h.example", "young")), rule("svc/b", "h.example", "old")}, "old:"},
		"of one age the smaller name": {
			[]*mesh.Object{rule("svc/b", "h.example", "b"), rule("svc/a", "h.example", "a")}, "a:"},
		"three": {
			[]*mesh.Object{born(1, rule("svc/a", "h.example", "", "v1")), born(2, rule("svc/b", "h.example", "", "v2")), born(3, rule("svc/c", "h.example", "k", "v3"))}, "k: v1 v2 v3"},
		"exported alike, in another order": {
			[]*mesh.Object{exported("cli x", born(1, rule("svc/a", "h.example", "", "v1"))), exported("x cli", born(2, rule("svc/b", "h.example", "k", "v2")))}, "k: v1 v2"},
		"a younger one exported to more adds to the older": {
			[]*mesh.Object{exported("cli", born(1, rule("svc/a", "h.example", "", "v1"))), exported("cli x", born(2, rule("svc/b", "h.example", "k", "v2")))}, "k: v1 v2"},
		"a younger one exported to fewer does not": {
			[]*mesh.Object{exported("cli x", born(1, rule("svc/a", "h.example", "", "v1"))), exported("cli", born(2, rule("svc/b", "h.example", "k", "v2")))}, ": v1"},
		"other namespaces' are not joined": {
			[]*mesh.Object{rule("svc/a", "h.example", "", "v1"), rule("istio-system/b", "h.example", "k", "v2")}, ": v1"},
		"a wildcard is another host": {
			[]*mesh.Object{rule("svc/a", "h.example", "", "v1"), rule("svc/b", "*.example", "k", "v2")}, ": v1"},
	} {
		t.Run(name, func(t *testing.T) {
			equal(t, "the rule", newTruth(t, c.rules...).joined("cli"), c.want)
		})
	}
}

func TestARuleThatAddedToAnOlderOneStillCountsForItsOtherClients(t *testing.T) {
	w := newTruth(t, exported("cli", born(1, rule("svc/a", "h.example", "", "v1"))), exported("cli x", born(2, rule("svc/b", "h.example", "k", "v2"))))
	equal(t, "for the client that sees the younger only", w.joined("x"), "k: v2")
}

func TestARuleThatGoesTakesItsSubsetsWithIt(t *testing.T) {
	w := newTruth(t, born(1, rule("svc/a", "h.example", "", "v1")), born(2, rule("svc/b", "h.example", "k", "v2")))
	equal(t, "both", w.joined("cli"), "k: v1 v2")
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{rule("svc/b", "", "").Key}})
	equal(t, "the older", w.joined("cli"), ": v1")
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{rule("svc/a", "", "").Key}})
	equal(t, "none", w.joined("cli"), "")
}

func TestARuleWithAWorkloadSelectorIsLeftOutWithAWarning(t *testing.T) {
	o := rule("svc/sel", "h.example", "k")
	o.Spec.(*mesh.DestinationRule).Selected = true
	w := newTruth(t, o, rule("istio-system/r", "h.example", "root"))
	equal(t, "the rule", w.joined("cli"), "root:")
	p := w.one(t, problem.Ignored)
	equal(t, "the warning", p.Path+" "+string(p.Severity), "spec.workloadSelector warning")
	w.put(mesh.Directory, rule("svc/sel", "h.example", "k"))
	equal(t, "the rule without selector", w.joined("cli"), "k:")
	equal(t, "Problems", w.board.All(), []problem.Problem{})
}

func TestAHashHeaderThatNoProxyTakesMakesTheRuleInvalid(t *testing.T) {
	bad := func() *mesh.Policy { return &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: "a\nb"}} }
	for path, change := range map[string]func(*mesh.DestinationRule){
		"spec.trafficPolicy.loadBalancer.consistentHash.httpHeaderName": func(d *mesh.DestinationRule) { d.Policy = bad() },
		"spec.trafficPolicy.portLevelSettings[1].loadBalancer.consistentHash.httpHeaderName": func(d *mesh.DestinationRule) {
			d.Policy.Ports = []mesh.PortPolicy{{Number: 1}, {Number: 2, Balancer: bad().Balancer}}
		},
		"spec.subsets[0].trafficPolicy.loadBalancer.consistentHash.httpHeaderName": func(d *mesh.DestinationRule) {
			d.Subsets = []mesh.Subset{{Name: "v1", Policy: bad()}}
		},
	} {
		w := newTruth(t, rule("svc/r", "h.example", "good"))
		o := rule("svc/r", "h.example", "edited")
		change(o.Spec.(*mesh.DestinationRule))
		w.put(mesh.Directory, o)
		p := w.one(t, problem.Invalid)
		equal(t, "path", p.Path, path)
		equal(t, "consequence", p.Consequence, "the last valid version stays in force")
		equal(t, "the rule", w.joined("cli"), "good:")
	}
}

func TestTheMeshSaysToWhomRulesWithoutExportToAreExported(t *testing.T) {
	w := newWorld(t, func(o *mesh.Options) { o.Settings.DefaultRuleExportTo = []string{"."} })
	w.put(mesh.Directory, rule("svc/a", "h.example", "private"), entry("svc/h", "h.example"), exported("*", rule("svc/b", "*.example", "public")))
	equal(t, "its own namespace", w.hash("svc", "h.example"), "private")
	equal(t, "another", w.hash("cli", "h.example"), "public")
}
