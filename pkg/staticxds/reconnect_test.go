package staticxds

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

// known are tables with one name.
type known struct {
	noTables
	name string
}

func (k known) Known(_, name string) bool { return name == k.name }

func TestNothingIsTakenAwayBeforeAProxyCanHaveSaidAllThatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(t)
		s.take([]byte("clusters: [{name: new}]\nlisteners: [{name: l, address: {pipe: {path: new}}}]"), nil)
		woken := make(chan struct{}, 1)
		x := s.Open(Peer{Delta: true}, noTables{}, func() { woken <- struct{}{} })
		x.Holds(ClusterType, map[string]string{"new": s.current().versionOf(clusters, "new"), "old": "1"})
		x.Change(ClusterType, nil, nil)
		if r := x.Next(ClusterType); r != nil {
			t.Errorf("of clusters it is sent %v", r.Names())
		}
		if r := x.Removal(); r != nil {
			t.Errorf("before it could say that it holds a listener which needs the cluster, %v is taken away", r.Removed)
		}
		x.Holds(ListenerType, map[string]string{"l": "1"})
		x.Change(ListenerType, nil, nil)
		r := x.Next(ListenerType)
		if r == nil {
			t.Fatal("it is not sent the listener")
		}
		x.Accepted(r)
		<-woken
		if r := x.Removal(); r == nil || !slices.Equal(r.Removed, []string{"old"}) {
			t.Errorf("in the end it is sent %v", r)
		}
	})
}

func TestClustersStayWhileAReconnectedProxyGoesOnWithRoutesThatTheFileHasNot(t *testing.T) {
	for name, replaced := range map[string]bool{"table": true, "gone": false} {
		s, _ := newSource(t)
		s.take([]byte("{}"), nil)
		x := s.Open(Peer{Delta: true}, known{name: "table"}, func() {})
		for _, k := range []kind{clusters, routes} {
			x.Holds(k.typeURL(), map[string]string{name: "1"})
		}
		x.Change(ClusterType, nil, nil)
		x.Change(RouteType, []string{name}, nil)
		x.whole = time.Time{}
		if r := x.Removal(); (r != nil) != replaced {
			t.Errorf("%s: while it is subscribed to the routes it is sent %v", name, r)
		}
		x.Change(RouteType, nil, []string{name})
		if r := x.Removal(); (r != nil) == replaced {
			t.Errorf("%s: then it is sent %v", name, r)
		}
	}
}

func TestARefusalOfWhatThereIsIsNoneOfANameThatThereIsNot(t *testing.T) {
	s, _ := newSource(t)
	s.take([]byte("clusters: [{name: a}]\nendpoints: [{cluster_name: a}]"), nil)
	x := s.Open(Peer{Delta: true}, noTables{}, func() {})
	x.Change(ClusterType, nil, nil)
	x.Accepted(x.Next(ClusterType))
	x.Change(EndpointType, []string{"a", "nobody"}, nil)
	x.Rejected(x.Next(EndpointType), "no")
	s.take([]byte("endpoints: [{cluster_name: a, policy: {overprovisioning_factor: 1}}]"), nil)
	x.Accepted(x.Next(EndpointType))
	if r := x.Removal(); r == nil || r.Type != ClusterType {
		t.Errorf("once what it refused is good it is sent %v", r)
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
