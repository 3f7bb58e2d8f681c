package envoy

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metards/metards/e2e/stock"
	"github.com/metards/metards/pkg/routes"
)

// vectors is where the compiler's vectors are: inputs with hand-written expected tables. The compiler's own test
// holds the tables against them; here it is about what an Envoy makes of the tables.
const vectors = "../../pkg/routes/testdata/vectors"

// apart are the vectors that would change the tables of others if all were in one directory.
var apart = map[string]string{
	"hash-rule-not-exported": "its rule in the root namespace is for all hosts",
	"hash-rule-wildcard":     "its rules are for *.example",
	"scope-rule-of-client":   "its rules are for *.svc.cluster.local",
	"service-synthetic-fqdn": "it has a host that hash-rules-merged has rules for",
}

// hidden are the vectors without a table for the Envoy's namespace. In every other one there is traffic.
var hidden = map[string]bool{"port-name-third-position": true, "router-gateways-exportto": true}

// unreached is how many routes of a table no request of this test can take.
var unreached = map[string]struct {
	routes int
	why    string
}{
	"switchboard.exchange.example_8160": {3, "the first route takes everything"},
	"sextant.harbour.example_8540":      {3, "the first route takes every request with the attribute that they want"},
	"registry.museum.example_8180":      {1, "it wants two values of one attribute"},
	"archive.museum.example_8170":       {2, "HTTP cannot carry the attributes' names; Envoy's answer to them is a case of its own"},
}

func TestEveryVectorRoutesAsTheMatcherPredicts(t *testing.T) {
	var together []string
	for _, vector := range entries(t, vectors) {
		if reason := apart[vector]; reason == "" {
			together = append(together, vector)
		} else {
			t.Run(vector+" apart, as "+reason, func(t *testing.T) { routeVectors(t, vector) })
		}
	}
	t.Run("together", func(t *testing.T) { routeVectors(t, together...) })
}

// routeVectors compares all tables of some vectors with the traffic of one Envoy that subscribes to all of them.
func routeVectors(t *testing.T, list ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, vector := range list {
		if err := os.CopyFS(filepath.Join(dir, vector), os.DirFS(filepath.Join(vectors, vector))); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, vector, "expected.json")); err != nil {
			t.Fatal(err)
		}
	}
	s := begin(t, options{dir: dir})
	plans := s.plans()
	for _, vector := range list {
		alone, err := stock.Plans(filepath.Join(dir, vector), namespace)
		s.must(err)
		if hidden[vector] != (len(alone) == 0) {
			t.Errorf("%s has %d tables for namespace %s: see hidden", vector, len(alone), namespace)
		}
		for _, table := range slices.Sorted(maps.Keys(alone)) {
			if got, want := lines(plans[table]), lines(alone[table]); got != want {
				t.Errorf("%s has another meaning among the other vectors than alone: put it apart\nalone:\n%s\nnow:\n%s", table, want, got)
			}
			s.compare(vector, table, plans[table])
		}
	}
}

func lines(p *routes.Plan) string { return strings.Join(p.Lines(), "\n") }

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) < 50 {
		t.Fatalf("%d vectors: %v", len(list), err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// compare sends requests that meet the conditions of a table, miss them by a little, or lack them, in all
// combinations, and holds each answer against the matcher's.
func (s *scene) compare(vector, table string, p *routes.Plan) {
	s.t.Helper()
	addr := s.address(table)
	hit := map[int]bool{}
	right, requests := 0, combinations(p)
	for _, attributes := range requests {
		a, err := stock.Request(context.Background(), addr, attributes)
		s.must(err)
		d := p.Decide(attributes)
		hit[d.Index] = true
		if allowed(d, a) {
			right++
		} else {
			s.t.Errorf("%s: a request with %v is answered by %s, the matcher predicts %v", table, attributes, a.Who(), d)
		}
	}
	delete(hit, -1)
	reachable := len(p.Routes) - unreached[table].routes
	report.Is(s.t, fmt.Sprintf("%s, %s", vector, table),
		fmt.Sprintf("%d of %d answers as predicted, %d routes reached", len(requests), len(requests), reachable),
		fmt.Sprintf("%d of %d answers as predicted, %d routes reached", right, len(requests), len(hit)))
}

// allowed reports whether an answer is one that a decision permits.
func allowed(d routes.Decision, a stock.Answer) bool {
	if d.Route == nil {
		return a.Upstream == "" && a.Code == http.StatusNotFound
	}
	return slices.ContainsFunc(d.Route.Destinations, func(to routes.Destination) bool {
		return to.Cluster() == a.Upstream && (to.Weight > 0 || len(d.Route.Destinations) == 1)
	})
}

// combinations are the attributes of requests: every attribute of the table's conditions absent, or with one of its
// values; a part of them, evenly spread, if there are many.
func combinations(p *routes.Plan) []map[string]string {
	const most = 1500
	values := map[string][]string{} // by attribute, as first spelled
	for i := range p.Routes {
		for _, c := range p.Routes[i].Conditions {
			if !carried(c.Attribute) {
				continue
			}
			name := c.Attribute
			for known := range values {
				if strings.EqualFold(known, name) {
					name = known
				}
			}
			for _, v := range candidates(c) {
				if !slices.Contains(values[name], v) {
					values[name] = append(values[name], v)
				}
			}
		}
	}
	names := slices.Sorted(maps.Keys(values))
	total := 1
	for _, n := range names {
		total *= len(values[n]) + 1
	}
	var out []map[string]string
	for i := range p.Routes { // what meets all conditions of a route comes in any case
		out = append(out, meets(&p.Routes[i]))
	}
	step := max(1, total/most)
	for i := 0; i < total; i += step {
		attributes, rest := map[string]string{}, i
		for _, n := range names {
			k := rest % (len(values[n]) + 1)
			rest /= len(values[n]) + 1
			if k > 0 {
				attributes[n] = values[n][k-1]
			}
		}
		out = append(out, attributes)
	}
	return out
}

// meets are attributes that meet all conditions of a route, as far as HTTP carries them.
func meets(r *routes.Route) map[string]string {
	out := map[string]string{}
	for _, c := range r.Conditions {
		known := slices.ContainsFunc(slices.Collect(maps.Keys(out)), func(n string) bool { return strings.EqualFold(n, c.Attribute) })
		if carried(c.Attribute) && !known {
			out[c.Attribute] = candidates(c)[0]
		}
	}
	return out
}

// carried reports whether an attribute's name can be that of an HTTP header.
func carried(name string) bool {
	return name == ":path" || !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' })
}

// candidates are values that meet a condition, and values that miss it by a little.
func candidates(c routes.Condition) []string {
	v := c.Value
	switch c.Match {
	case routes.Present:
		return []string{"", "anything"}
	case routes.Exact:
		return []string{v, v + "x", strings.ToUpper(v)}
	case routes.Prefix:
		return []string{v, v + "tail", "x" + v}
	default: // an example of what the vectors' regexes match
		v = strings.NewReplacer(".*", "any", "[0-9]+", "42", "(a|b)?", "b").Replace(v)
		return []string{v, v + "\tx", "x" + v}
	}
}
