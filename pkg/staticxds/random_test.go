package staticxds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// noTables are tables of which there are none.
type noTables struct{}

func (noTables) Set(string, []string)              {}
func (noTables) Change(string, []string, []string) {}
func (noTables) Known(string, string) bool         { return false }

// client is a proxy as the protocol has it: what it took is what it runs with. The server's loop is in send.
type client struct {
	session *Session
	delta   bool
	has     [kinds]map[string]*Resource
	pending []*Response
	warming map[string]bool // clusters that came with other content and wait for their endpoints
}

func newClient(s *Source, delta bool) *client {
	c := &client{delta: delta}
	for k := range kinds {
		c.has[k] = map[string]*Resource{}
	}
	c.connect(s)
	return c
}

// connect opens a stream, in place of one that was cut. All that is asked for comes before the first response is
// taken, but the server answers each request by itself.
func (c *client) connect(s *Source) {
	if c.session != nil {
		c.session.Close()
	}
	c.warming = map[string]bool{}
	c.session, c.pending = s.Open(Peer{Delta: c.delta}, noTables{}, func() {}), nil
	for k := range kinds {
		var names []string
		if !k.whole() {
			names = []string{"a", "b", "c"}
		}
		if c.delta {
			held := map[string]string{}
			for name, r := range c.has[k] {
				held[name] = r.Version
			}
			c.session.Holds(k.typeURL(), held)
			c.session.Change(k.typeURL(), names, nil)
		} else {
			c.session.Set(k.typeURL(), names)
		}
		c.send()
	}
	c.session.whole = time.Time{}
}

// waits reports whether there is a response of a type that was not answered.
func (c *client) waits(typeURL string) bool {
	for _, r := range c.pending {
		if r.Type == typeURL {
			return true
		}
	}
	return false
}

func (c *client) send() {
	waiting := false
	for k := range kinds {
		if waiting && k != endpoints {
			return
		}
		if !c.waits(k.typeURL()) {
			if r := c.session.Next(k.typeURL()); r != nil {
				c.pending = append(c.pending, r)
				c.warm(r)
			}
		}
		waiting = waiting || c.waits(k.typeURL())
	}
	if len(c.pending) == 0 {
		if r := c.session.Removal(); r != nil {
			c.pending = append(c.pending, r)
		}
	}
}

// warm notes which clusters wait for endpoints.
func (c *client) warm(r *Response) {
	for _, x := range r.Resources {
		switch {
		case r.kind == endpoints:
			delete(c.warming, x.Name)
		case r.kind == clusters && (c.has[clusters][x.Name] == nil || c.has[clusters][x.Name].Version != x.Version):
			c.warming[x.Name] = true
		}
	}
}

// answer takes, or refuses, one response.
func (c *client) answer(i int, accept bool) {
	r := c.pending[i]
	c.pending = append(c.pending[:i], c.pending[i+1:]...)
	if !accept {
		c.session.Rejected(r, "no")
		return
	}
	if r.kind.whole() && !c.delta {
		c.has[r.kind] = map[string]*Resource{}
	}
	for _, x := range r.Resources {
		c.has[r.kind][x.Name] = x
	}
	for _, name := range r.Removed {
		delete(c.has[r.kind], name)
	}
	c.session.Accepted(r)
}

// drained drops the subscription to routes that the file does not have, as a proxy does once the last connection
// with them has ended.
func (c *client) drained(set *Set) {
	var keep, drop []string
	for _, n := range []string{"a", "b", "c"} {
		if set.has(routes, n) {
			keep = append(keep, n)
		} else {
			drop = append(drop, n)
		}
	}
	for _, n := range drop {
		delete(c.has[routes], n)
	}
	if c.delta {
		c.session.Change(RouteType, nil, drop)
	} else {
		c.session.Set(RouteType, keep)
	}
}

// file is one of random content. Each listener names a cluster of the file.
func file(random *rand.Rand, salt int) string {
	var b strings.Builder
	var names []string
	b.WriteString("clusters:\n")
	for _, n := range []string{"a", "b", "c", "d"} {
		if random.IntN(3) > 0 || n == "d" && len(names) == 0 {
			names = append(names, n)
			fmt.Fprintf(&b, "- {name: %s, connect_timeout: %ds, type: EDS, eds_cluster_config: {eds_config: {ads: {}}}}\n", n, 1+random.IntN(2)+salt)
		}
	}
	b.WriteString("endpoints:\n")
	for _, n := range names {
		fmt.Fprintf(&b, "- {cluster_name: %s, policy: {overprovisioning_factor: %d}}\n", n, 1+random.IntN(2)+salt)
	}
	b.WriteString("listeners:\n")
	for _, n := range []string{"x", "y"} {
		if random.IntN(4) > 0 {
			fmt.Fprintf(&b, "- {name: %s, stat_prefix: s%d, address: {pipe: {path: %s}}}\n", n, salt, names[random.IntN(len(names))])
		}
	}
	b.WriteString("routes:\n")
	for _, n := range []string{"a", "b", "c"} {
		if random.IntN(3) > 0 {
			fmt.Fprintf(&b, "- {name: %s, request_headers_to_remove: [h%d]}\n", n, random.IntN(2)+salt)
		}
	}
	return b.String()
}

func TestWhateverChangesAndIsRefusedNoListenerLosesItsClusterAndInTheEndTheProxyHasWhatTheFileSays(t *testing.T) {
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 7))
		s, _ := newSource(t)
		s.options.File = "f.yaml"
		c := newClient(s, seed%2 == 0)
		for range 60 {
			if random.IntN(3) == 0 {
				s.take([]byte(file(random, 0)), nil)
			}
			if c.delta && random.IntN(10) == 0 { // in state of the world nobody knows what it holds
				c.connect(s)
			}
			c.send()
			if len(c.pending) > 0 {
				i := random.IntN(len(c.pending))
				r := c.pending[i] // what only takes away is not refused: that is never made good
				c.answer(i, r.kind == clusters || len(r.changed) == 0 || random.IntN(3) > 0)
			}
			wantClusters(t, seed, c)
		}
		s.take([]byte(file(random, 5)), nil) // with other content throughout
		steps := 0
		settle := func() {
			for c.send(); len(c.pending) > 0; c.send() {
				c.answer(random.IntN(len(c.pending)), true)
				wantClusters(t, seed, c)
				if steps++; steps > 100 {
					t.Fatalf("seed %d: it never ends", seed)
				}
			}
		}
		settle()
		c.drained(s.set)
		settle()
		for _, n := range []string{"a", "b", "c"} {
			if c.warming[n] && c.has[clusters][n] != nil {
				t.Fatalf("seed %d: cluster %s waits for its endpoints", seed, n)
			}
		}
		for k := range kinds {
			want := map[string]*Resource{}
			for name, r := range s.set.types[k].byName {
				if c.session.types[k].has(name) {
					want[name] = r
				}
			}
			if !c.delta && !k.whole() { // there is no way to take these back
				maps.DeleteFunc(c.has[k], func(name string, _ *Resource) bool { return want[name] == nil })
			}
			if !maps.Equal(c.has[k], want) {
				t.Fatalf("seed %d: of %s the proxy has %v, the file says %v", seed, k, c.has[k], want)
			}
		}
	}
}

func TestWhatARefusedRemovalLeavesBehindKeepsItsCluster(t *testing.T) {
	for _, delta := range []bool{true, false} {
		s, _ := newSource(t)
		c := newClient(s, delta)
		s.take([]byte("clusters: [{name: a}]\nlisteners: [{name: x, address: {pipe: {path: a}}}, {name: y, address: {pipe: {path: a}}}]"), nil)
		for c.send(); len(c.pending) > 0; c.send() {
			c.answer(0, true)
		}
		s.take([]byte("listeners: [{name: y, address: {pipe: {path: a}}}]"), nil)
		c.send()
		if len(c.pending) != 1 || c.pending[0].kind != listeners {
			t.Fatalf("first comes %v", c.pending)
		}
		c.answer(0, false)
		if c.send(); len(c.pending) > 0 {
			t.Errorf("then comes %v", c.pending[0])
		}
		s.take([]byte("clusters: [{name: a}]\nlisteners: [{name: x, address: {pipe: {path: b}}}]"), nil)
		for c.send(); len(c.pending) > 0; c.send() {
			c.answer(0, true)
		}
		s.take([]byte("{}"), nil)
		for c.send(); len(c.pending) > 0; c.send() {
			c.answer(0, true)
		}
		if len(c.has[clusters])+len(c.has[listeners]) > 0 {
			t.Errorf("in the end it has %v", c.has)
		}
	}
}

// wantClusters checks that the clusters which the proxy's listeners name are there.
func wantClusters(t *testing.T, seed uint64, c *client) {
	t.Helper()
	for name, l := range c.has[listeners] {
		for _, cluster := range []string{"a", "b", "c", "d"} {
			if strings.Contains(string(l.Any.GetValue()), "\x0a\x01"+cluster) && c.has[clusters][cluster] == nil {
				t.Fatalf("seed %d: listener %s has lost its cluster %s", seed, name, cluster)
			}
		}
	}
}
