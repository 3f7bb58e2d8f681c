package staticxds

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Envoy sends all its requests at once when a stream is new, and the clusters go out before that of the endpoints is read.
func TestAReconnectingProxyGetsTheEndpointsOfAChangedClusterAlthoughItHoldsThem(t *testing.T) {
	const text = "clusters: [{name: a, connect_timeout: 1s, type: EDS, eds_cluster_config: {eds_config: {ads: {}}}}, {name: b, type: EDS, eds_cluster_config: {eds_config: {ads: {}}}}]\n" +
		"endpoints: [{cluster_name: a}, {cluster_name: b}]\n"
	for _, order := range [][]kind{{clusters, endpoints}, {endpoints, clusters}} {
		s, _ := newSource(t)
		s.take([]byte(text), nil)
		before := s.current()
		s.take([]byte(strings.Replace(text, "1s", "2s", 1)), nil)
		x := s.Open(Peer{Delta: true}, noTables{}, func() {})
		sent := map[kind][]string{}
		for _, k := range order {
			held := map[string]string{}
			for name, r := range before.types[k].byName {
				held[name] = r.Version
			}
			x.Holds(k.typeURL(), held)
			var names []string
			if k == endpoints {
				names = []string{"a", "b"}
			}
			x.Change(k.typeURL(), names, nil)
			for _, k := range []kind{clusters, endpoints} {
				if r := x.Next(k.typeURL()); r != nil {
					sent[k] = append(sent[k], r.Names()...)
					x.Accepted(r)
				}
			}
		}
		for _, k := range order {
			if !slices.Equal(sent[k], []string{"a"}) {
				t.Errorf("asked for in the order %v: of %s it was sent %v, want a, which changed", order, k, sent[k])
			}
		}
	}
}

func TestWhatAnAnswerCostsDoesNotGrowWithTheNamesOfTables(t *testing.T) {
	s, _ := newSource(t)
	s.take([]byte("routes: [{name: a}]"), nil)
	names := make([]string, 10_000)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	x := s.Open(Peer{Delta: true}, noTables{}, func() {})
	x.Change(RouteType, append(names, "a"), nil)
	if r := x.Next(RouteType); r == nil || x.Count() != 1 {
		t.Fatalf("got %v, %d names", r, x.Count())
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		x.Change(RouteType, nil, nil)
		x.Next(RouteType)
		x.Count()
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 100_000 {
		t.Errorf("ten answers allocate %d bytes", n)
	}
}
