package kubestatus

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metards/metards/pkg/problem"
)

var orders = problem.Object{Kind: "MetaRouter", Namespace: "shop", Name: "orders"}

func fault(reason problem.Reason, path, route, detail string) problem.Problem {
	return problem.Problem{Severity: problem.Error, Object: orders, Reason: reason, Path: path, Route: route, Detail: detail}
}

func show(c metav1.Condition) string {
	return fmt.Sprintf("%s %s/%s: %s", c.Type, c.Status, c.Reason, c.Message)
}

func TestAcceptedTellsAllReasons(t *testing.T) {
	first := fault(problem.Invalid, "spec.routes[1].route", "canary", "no destination")
	first.Consequence = "the last valid version stays in force"
	second := fault(problem.UnknownField, "spec.rotues", "", "a MetaRouter has no such field")
	second.Consequence = first.Consequence
	warning := problem.Problem{Severity: problem.Warning, Object: orders, Reason: problem.UnknownHost, Path: "spec.hosts[0]", Detail: "no service declares it"}
	lost := fault(problem.Conflicted, "", "", "not used: MetaRouter shop/older has the same host and comes first")
	for name, c := range map[string]struct {
		list []problem.Problem
		want string
	}{
		"nothing":    {nil, "Accepted True/Accepted: "},
		"warnings":   {[]problem.Problem{warning}, "Accepted True/Accepted: hosts[0]: no service declares it"},
		"conflict":   {[]problem.Problem{lost, warning}, "Accepted False/Conflicted: not used: MetaRouter shop/older has the same host and comes first"},
		"not seen":   {[]problem.Problem{fault(problem.Ignored, "spec.exportTo", "", "not used")}, "Accepted False/Ignored: exportTo: not used"},
		"refused":    {[]problem.Problem{second, warning, first}, `Accepted False/UnknownField: rotues: a MetaRouter has no such field; routes[1].route (route "canary"): no destination; the last valid version stays in force`},
		"other copy": {[]problem.Problem{fault(problem.Duplicate, "", "", "the directory has it too")}, "Accepted True/Accepted: "},
	} {
		if got := show(accepted(c.list)); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var list []problem.Problem
	for i := range 200 {
		list = append(list, fault(problem.Invalid, fmt.Sprintf("spec.routes[%d]", i), "", strings.Repeat("é", 40)))
	}
	c := accepted(list)
	if len(c.Message) > maxMessage || !strings.Contains(c.Message, " more") || !utf8.ValidString(c.Message) {
		t.Errorf("%d bytes: %s", len(c.Message), c.Message)
	}
	long := fault(problem.Invalid, "spec", "", strings.Repeat("é", 5000))
	long.Consequence = "it stays"
	if c := accepted([]problem.Problem{long}); len(c.Message) > maxMessage || !strings.HasSuffix(c.Message, "…; it stays") || !utf8.ValidString(c.Message) {
		t.Errorf("%d bytes: %s", len(c.Message), c.Message)
	}
	p := programmed(accepted(nil), 1, map[string]report{"a": {Generation: 1, Proxies: 1, Rejected: 1, FirstError: strings.Repeat("x", 5000)}})
	if len(p.Message) > maxMessage {
		t.Errorf("%d bytes", len(p.Message))
	}
}

func TestProgrammedSumsTheReplicasUp(t *testing.T) {
	used := accepted(nil)
	refused := accepted([]problem.Problem{fault(problem.Invalid, "spec", "", "no")})
	for name, c := range map[string]struct {
		used    metav1.Condition
		reports map[string]report
		want    string
	}{
		"nobody": {used, nil, "Programmed Unknown/NoProxies: no proxy is subscribed to a table that it decides"},
		"all": {used, map[string]report{"a": {Generation: 2, Proxies: 5, UpToDate: 5}, "b": {Generation: 2, Proxies: 7, UpToDate: 7}},
			"Programmed True/Programmed: 12 of 12 proxies"},
		"some": {used, map[string]report{"a": {Generation: 2, Proxies: 5, UpToDate: 5}, "b": {Generation: 2, Proxies: 7, UpToDate: 2}},
			"Programmed False/Pending: 7 of 12 proxies"},
		"a replica is behind": {used, map[string]report{"a": {Generation: 2, Proxies: 5, UpToDate: 5}, "b": {Generation: 1, Proxies: 7, UpToDate: 7}},
			"Programmed False/Pending: 5 of 12 proxies"},
		"one refused": {used, map[string]report{"a": {Generation: 2, Proxies: 5, UpToDate: 5}, "b": {Generation: 2, Proxies: 7, UpToDate: 6, Rejected: 1, FirstError: "node-1: bad regex"}},
			"Programmed False/Rejected: 1 of 12 proxies refused it; first node-1: bad regex"},
		"a refusal of before": {used, map[string]report{"b": {Generation: 1, Proxies: 7, Rejected: 7, FirstError: "node-1: bad regex"}},
			"Programmed False/Pending: 0 of 7 proxies"},
		"not used": {refused, map[string]report{"a": {Generation: 2, Proxies: 5, UpToDate: 5}},
			"Programmed False/NotAccepted: this version is not used, see the condition Accepted"},
	} {
		if got := show(programmed(c.used, 2, c.reports)); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}

func TestTheTransitionTimeChangesWithTheStatusOnly(t *testing.T) {
	before, now := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	old := []metav1.Condition{
		{Type: Accepted, Status: metav1.ConditionTrue, LastTransitionTime: before},
		{Type: Programmed, Status: metav1.ConditionFalse, LastTransitionTime: before},
	}
	got := settle([]metav1.Condition{
		{Type: Accepted, Status: metav1.ConditionTrue, Message: "differs"}, {Type: Programmed, Status: metav1.ConditionTrue},
	}, old, 3, now)
	if got[0].LastTransitionTime != before || got[1].LastTransitionTime != now || got[0].ObservedGeneration != 3 {
		t.Errorf("%+v", got)
	}
}

func TestReportsAreWrittenWhenTheyMatter(t *testing.T) {
	p := Pauses{Count: 10 * time.Second}
	const refresh = time.Minute
	at := time.Unix(1000, 0)
	base := Facts{Proxies: 12, UpToDate: 12}
	for name, c := range map[string]struct {
		facts Facts
		after time.Duration
		want  bool
	}{
		"the same":                      {base, time.Second, false},
		"the same, to stay alive":       {base, refresh, true},
		"one proxy more":                {Facts{Proxies: 13, UpToDate: 13}, time.Second, false},
		"one proxy more, for some time": {Facts{Proxies: 13, UpToDate: 13}, 10 * time.Second, true},
		"not all are up to date":        {Facts{Proxies: 12, UpToDate: 11}, time.Second, true},
		"one refuses":                   {Facts{Proxies: 12, UpToDate: 11, Rejected: 1}, time.Second, true},
		"all went":                      {Facts{}, time.Second, true},
		"not known yet":                 {Facts{Pending: true}, time.Second, false},
		"not known for some time":       {Facts{Pending: true}, refresh, true},
	} {
		x := tracked{facts: c.facts, factsOf: 4, reported: report{Generation: 4, Proxies: 12, UpToDate: 12, At: "x"}, reportedAt: at}
		if got := x.reportDue("a", p, refresh, at.Add(c.after)); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	next := tracked{facts: base, factsOf: 5, reported: report{Generation: 4, Proxies: 12, UpToDate: 12}, reportedAt: at}
	if !next.reportDue("a", p, refresh, at.Add(time.Second)) {
		t.Error("a new generation is not reported")
	}
	var idle tracked
	idle.factsOf = 1
	if idle.reportDue("a", p, refresh, at) {
		t.Error("that there are no proxies is reported")
	}
	idle.replicas = map[string]report{"a": {Proxies: 3}}
	if !idle.reportDue("a", p, refresh, at) {
		t.Error("a report of a former life is not withdrawn")
	}
}
