package routes_test

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// newMesh returns a store with what a directory holds.
func newMesh(t *testing.T, dir string) (*mesh.Store, *filewatch.Reading) {
	t.Helper()
	reading, err := filewatch.Read(dir, filewatch.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return storeOf(t, reading.Objects...), reading
}

func storeOf(t testing.TB, objects ...*mesh.Object) *mesh.Store {
	t.Helper()
	s, err := mesh.NewStore(mesh.Options{
		Settings: mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"},
		Expect:   []mesh.Feed{{Source: mesh.Directory, Kind: mesh.KindMetaRouter}},
		Problems: problem.NewBoard(slog.New(slog.DiscardHandler)),
		Judge:    func(o *mesh.Object) []problem.Problem { return routes.Validate(o, routes.Limits{}) },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: objects})
	return s
}

// reduced is a route in the form of the vectors' expected.json.
type reduced struct {
	Name     string      `json:"name"`
	Match    [][3]string `json:"match"`
	Cluster  string      `json:"cluster,omitempty"`
	Weighted [][2]any    `json:"weighted,omitempty"`
	Hash     []string    `json:"hash"`
	Mirror   *[2]any     `json:"mirror"`
	Request  [][2]string `json:"request"`
	Response [][2]string `json:"response"`
}

func reduce(r *routev3.Route) reduced {
	out := reduced{Name: r.GetName(), Match: [][3]string{}, Hash: []string{}, Request: [][2]string{}, Response: [][2]string{}}
	for _, h := range r.GetMatch().GetHeaders() {
		kind, value := "present", ""
		switch m := h.GetHeaderMatchSpecifier().(type) {
		case *routev3.HeaderMatcher_ExactMatch:
			kind, value = "exact", m.ExactMatch
		case *routev3.HeaderMatcher_PrefixMatch:
			kind, value = "prefix", m.PrefixMatch
		case *routev3.HeaderMatcher_SafeRegexMatch:
			kind, value = "regex", m.SafeRegexMatch.GetRegex()
		}
		out.Match = append(out.Match, [3]string{h.GetName(), kind, value})
	}
	action := r.GetRoute()
	out.Cluster = action.GetCluster()
	for _, c := range action.GetWeightedClusters().GetClusters() {
		out.Weighted = append(out.Weighted, [2]any{c.GetName(), float64(c.GetWeight().GetValue())})
	}
	for _, h := range action.GetHashPolicy() {
		out.Hash = append(out.Hash, h.GetHeader().GetHeaderName())
	}
	for _, m := range action.GetRequestMirrorPolicies() {
		out.Mirror = &[2]any{m.GetCluster(), float64(m.GetRuntimeFraction().GetDefaultValue().GetNumerator())}
	}
	add := func(list []*corev3.HeaderValueOption) [][2]string {
		pairs := [][2]string{}
		for _, h := range list {
			pairs = append(pairs, [2]string{h.GetHeader().GetKey(), h.GetHeader().GetValue()})
		}
		return pairs
	}
	out.Request, out.Response = add(r.GetRequestHeadersToAdd()), add(r.GetResponseHeadersToAdd())
	return out
}

// normalize brings expected routes to what a table may say in their place.
func normalize(list []reduced) []reduced {
	for i := range list {
		for j, m := range list[i].Match {
			if m[1] == "exact" && m[2] == "" {
				list[i].Match[j][1] = "present"
			}
		}
		slices.SortStableFunc(list[i].Match, func(a, b [3]string) int { return cmp.Compare(a[0], b[0]) })
		if m := list[i].Mirror; m != nil && m[1] == float64(0) {
			list[i].Mirror = nil
		}
	}
	return list
}

// tablesOf compiles every name that the clients of a namespace can ask for.
func tablesOf(t testing.TB, s *mesh.Store, namespace string) map[string]*routev3.RouteConfiguration {
	t.Helper()
	out := map[string]*routev3.RouteConfiguration{}
	for _, o := range s.Objects() {
		entry, ok := o.Spec.(*mesh.ServiceEntry)
		if !ok {
			continue
		}
		for _, host := range entry.Hosts {
			for _, p := range entry.Ports {
				name := routes.Name(host, p.Number)
				s.Read(mesh.View{Namespace: namespace}, func(l *mesh.Lens) {
					plan, _ := routes.Compile(l, name)
					if plan == nil {
						return
					}
					table, err := routes.RouteConfiguration(plan, name)
					if err != nil {
						t.Errorf("%s for %s: %v", name, namespace, err)
						return
					}
					out[name] = table
				})
			}
		}
	}
	return out
}

func TestEveryVectorCompilesToTheExpectedTables(t *testing.T) {
	for _, dir := range vectors(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			s, reading := newMesh(t, dir)
			for namespace, want := range expected(t, dir) {
				got := tablesOf(t, s, namespace)
				for name, raw := range want {
					var refused struct{ Invalid string }
					if json.Unmarshal(raw, &refused) == nil && refused.Invalid != "" {
						mustRefuse(t, reading, got[name], refused.Invalid)
						delete(got, name)
						continue
					}
					compare(t, namespace, name, raw, got[name])
					delete(got, name)
				}
				for name := range got {
					t.Errorf("namespace %s sees the table %s, which it should not", namespace, name)
				}
			}
		})
	}
}

func compare(t *testing.T, namespace, name string, raw json.RawMessage, got *routev3.RouteConfiguration) {
	t.Helper()
	var want []reduced
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	if got == nil {
		t.Errorf("namespace %s does not see the table %s", namespace, name)
		return
	}
	if got.GetName() != name {
		t.Errorf("the table is named %s, want %s", got.GetName(), name)
	}
	var have []reduced
	for _, r := range got.GetVirtualHosts()[0].GetRoutes() {
		have = append(have, reduce(r))
	}
	if diff := gocmp.Diff(normalize(want), have); diff != "" {
		t.Errorf("%s for %s (-want +got):\n%s", name, namespace, diff)
	}
}

// mustRefuse checks that the MetaRouter was refused and that its host is served as if there were none.
func mustRefuse(t *testing.T, reading *filewatch.Reading, table *routev3.RouteConfiguration, reason string) {
	t.Helper()
	host, _, _ := routes.ParseName(table.GetName())
	refused := slices.ContainsFunc(reading.Objects, func(o *mesh.Object) bool {
		m, ok := o.Spec.(*mesh.MetaRouter)
		return ok && slices.Contains(m.GetHosts(), host) &&
			problem.HasError(append(slices.Clone(o.Faults), routes.Validate(o, routes.Limits{})...))
	})
	if !refused {
		t.Errorf("the MetaRouter of %s is not refused, want: %s", host, reason)
	}
	if routes := table.GetVirtualHosts()[0].GetRoutes(); len(routes) != 1 || routes[0].GetName() != "default" {
		t.Errorf("the host of a refused MetaRouter has %d routes, want the default one", len(routes))
	}
}

func vectors(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/vectors/*")
	if err != nil || len(dirs) < 50 {
		t.Fatalf("%d vectors found: %v", len(dirs), err)
	}
	return dirs
}

func expected(t testing.TB, dir string) map[string]map[string]json.RawMessage {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]map[string]json.RawMessage
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheOrderOfArrivalChangesNoByte(t *testing.T) {
	for _, dir := range vectors(t) {
		_, reading := newMesh(t, dir)
		reversed := slices.Clone(reading.Objects)
		slices.Reverse(reversed)
		for namespace := range expected(t, dir) {
			forward, backward := tablesOf(t, storeOf(t, reading.Objects...), namespace), tablesOf(t, storeOf(t, reversed...), namespace)
			if len(forward) != len(backward) {
				t.Errorf("%s: %d tables forwards, %d backwards", dir, len(forward), len(backward))
			}
			for name, table := range forward {
				if !proto.Equal(table, backward[name]) {
					t.Errorf("%s: %s for %s depends on the order of arrival", dir, name, namespace)
				}
			}
		}
	}
}
