package problem

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var router = Object{Kind: "MetaRouter", Namespace: "shop", Name: "orders"}

func TestAProblemIsOneLine(t *testing.T) {
	for want, p := range map[string]Problem{
		"it is gone [Unreadable]": {Reason: Unreadable, Detail: "it is gone", File: "a.yaml"},
		"MetaRouter shop/orders: hosts: none [Invalid]": {
			Object: router, Path: "spec.hosts", Reason: Invalid, Detail: "none"},
		`MetaRouter shop/orders: routes[1].route (route "canary"): no destination [Invalid]; it stays`: {
			Object: router, Path: "spec.routes[1].route", Route: "canary", Reason: Invalid, Detail: "no destination", Consequence: "it stays"},
	} {
		if got := p.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestWhereIsFileAndLineAsFarAsKnown(t *testing.T) {
	for want, p := range map[string]Problem{
		"": {Line: 3}, "a.yaml": {File: "a.yaml"}, "a.yaml:3": {File: "a.yaml", Line: 3},
	} {
		if got := p.Where(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// different returns Problems of which each two differ in one field, in order.
func different() []Problem {
	var out []Problem
	for _, change := range []func(*Problem){
		func(*Problem) {},
		func(p *Problem) { p.Consequence = "c" },
		func(p *Problem) { p.Route = "r" },
		func(p *Problem) { p.Severity = Error },
		func(p *Problem) { p.Detail = "d" },
		func(p *Problem) { p.Reason = Invalid },
		func(p *Problem) { p.Path = "spec" },
		func(p *Problem) { p.Object.Name = "n" },
		func(p *Problem) { p.Object.Namespace = "n" },
		func(p *Problem) { p.Object.Kind = "K" },
		func(p *Problem) { p.Line = 2 },
		func(p *Problem) { p.File = "f" },
	} {
		p := Problem{}
		change(&p)
		out = append(out, p)
	}
	return out
}

func TestProblemsAreInOneOrderHoweverTheyCome(t *testing.T) {
	want := different()
	for seed := range uint64(20) {
		list := append(different(), different()...)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		before := slices.Clone(list)
		if got := Sorted(list); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if !slices.Equal(list, before) {
			t.Fatal("Sorted changed its argument")
		}
	}
}

func TestOneErrorIsEnough(t *testing.T) {
	warning, fault := Problem{Severity: Warning}, Problem{Severity: Error}
	if HasError(nil) || HasError([]Problem{warning}) || !HasError([]Problem{warning, fault}) {
		t.Error("HasError is wrong")
	}
}

func TestTheBoardLogsAProblemWhenItAppearsAndWhenItClears(t *testing.T) {
	var log bytes.Buffer
	b := NewBoard(slog.New(slog.NewTextHandler(&log, nil)))
	lines := func() []string {
		defer log.Reset()
		return strings.FieldsFunc(log.String(), func(r rune) bool { return r == '\n' })
	}
	p := Problem{Severity: Error, Object: router, Path: "spec.hosts", Reason: Invalid, Detail: "none", File: "a.yaml", Line: 2}
	w := Problem{Severity: Warning, Reason: Ignored, Detail: "too bad"}

	b.Set("a", []Problem{p, p, w})
	if got := lines(); len(got) != 2 || !strings.Contains(strings.Join(got, "\n"), `level=ERROR msg=problem reason=Invalid detail=none object="MetaRouter shop/orders" path=spec.hosts at=a.yaml:2`) {
		t.Errorf("at first: %q", got)
	}
	b.Set("a", []Problem{w, p})
	b.Set("b", []Problem{p})
	b.Set("a", []Problem{w})
	b.Set("c", nil)
	if got := lines(); len(got) != 0 {
		t.Errorf("while an owner has it: %q", got)
	}
	if b.Count(Error) != 1 || b.Count(Warning) != 1 || !slices.Equal(b.All(), []Problem{w, p}) {
		t.Errorf("on the board: %v", b.All())
	}
	b.Set("b", nil)
	if got := lines(); len(got) != 1 || !strings.Contains(got[0], `level=INFO msg="problem cleared" reason=Invalid`) {
		t.Errorf("when the last owner has it no more: %q", got)
	}
	if b.Count(Error) != 0 || len(b.All()) != 1 {
		t.Errorf("in the end: %v", b.All())
	}
}
