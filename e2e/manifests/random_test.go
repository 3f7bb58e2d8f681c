package manifests

import (
	"math/rand/v2"
	"testing"

	"github.com/metards/metards/pkg/problem"
)

// generator makes objects that are right in most places and wrong in some.
type generator struct{ *rand.Rand }

func (g generator) pick(right []any, wrong ...any) any {
	if len(wrong) > 0 && g.IntN(40) == 0 {
		return wrong[g.IntN(len(wrong))]
	}
	return right[g.IntN(len(right))]
}

// object has the fields that it is given, without some.
func (g generator) object(fields map[string]func() any) any {
	out := map[string]any{}
	for name, make := range fields {
		if g.IntN(10) < 7 {
			out[name] = make()
		}
	}
	if g.IntN(60) == 0 {
		out["other"] = "x"
	}
	return out
}

func (g generator) list(element func() any) func() any {
	return func() any {
		if g.IntN(20) == 0 {
			return g.pick([]any{[]any{}, nil}, map[string]any{}, "x")
		}
		out := []any{}
		for range 1 + g.IntN(3) {
			out = append(out, element())
		}
		return out
	}
}

func (g generator) text() any {
	return g.pick([]any{"a", "ö", "A b"}, "", "a\x00", "\r", "b\n", nil, int64(7))
}
func (g generator) uint32() any {
	return g.pick([]any{int64(0), int64(1), int64(90), nil}, int64(4294967295), int64(4294967296), int64(-1), 0.5, "x", true)
}

func (g generator) attributes() any {
	out := map[string]any{}
	for range g.IntN(3) {
		name, _ := g.text().(string)
		out[name] = g.pick([]any{
			nil, map[string]any{}, map[string]any{"exact": g.text()}, map[string]any{"prefix": g.text()}, map[string]any{"regex": g.text()},
		}, map[string]any{"exact": "a", "regex": "b"}, map[string]any{"suffix": "a"}, "a", map[string]any{"exact": "a", "suffix": "b"})
	}
	return out
}

func (g generator) destination() any {
	return g.object(map[string]func() any{
		"host": g.text, "subset": g.text, "port": func() any { return g.object(map[string]func() any{"number": g.uint32}) },
	})
}

func (g generator) mutations() func() any {
	return g.list(func() any { return g.object(map[string]func() any{"key": g.text, "value": g.text}) })
}

func (g generator) route() any {
	return g.object(map[string]func() any{
		"name":  g.text,
		"match": func() any { return g.object(map[string]func() any{"attributes": g.attributes}) },
		"route": g.list(func() any {
			return g.object(map[string]func() any{"destination": g.destination, "weight": g.uint32})
		}),
		"mirror": g.destination,
		"mirrorPercentage": func() any {
			return g.object(map[string]func() any{"value": func() any { return g.pick([]any{0.0, int64(100), 0.5, nil}, -1.0, 100.5, "x") }})
		},
		"requestMutation": g.mutations(), "responseMutation": g.mutations(),
	})
}

func TestTheCRDRefusesNothingThatMetardsAcceptsInRandomObjects(t *testing.T) {
	const seed, objects = 1, 5_000
	a, g := newAdmission(t), generator{rand.New(rand.NewPCG(seed, 0))}
	both, neither := 0, 0
	for i := range objects {
		spec := map[string]any{"hosts": g.list(g.text)(), "routes": g.list(g.route)()}
		tree := map[string]any{"apiVersion": "metaprotocol.aeraki.io/v1alpha1", "kind": "MetaRouter", "metadata": map[string]any{"name": "a"}, "spec": spec}
		errs, pruned := a.judge(tree)
		f := faults(t, tree)
		switch {
		case len(errs) > 0 && len(f) == 0:
			t.Fatalf("object %d of seed %d: only the CRD refuses: %v\n%v", i, seed, errs, spec)
		case len(errs) == 0 && len(f) > 0 && !onlyUnknownFields(f, len(pruned)):
			t.Fatalf("object %d of seed %d: only metards refuses: %v\n%v", i, seed, f, spec)
		case len(f) > 0:
			both++
		default:
			neither++
		}
	}
	if both < objects/20 || neither < objects/20 {
		t.Errorf("of %d objects %d are refused and %d accepted: too few of one kind to tell anything", objects, both, neither)
	}
}

// onlyUnknownFields reports whether the faults are what the API server pruned, or could be.
func onlyUnknownFields(faults []problem.Problem, pruned int) bool {
	for _, f := range faults {
		if f.Reason != problem.UnknownField {
			return false
		}
	}
	return pruned > 0
}
