package istiowatch

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/mesh"
)

// told is a list whose lists a test tells by hand, at times of its choosing.
type told struct {
	*list
	bench bench
	now   time.Time
}

func tell(t *testing.T, kind mesh.Kind, typeURLs ...string) *told {
	x := &told{now: born}
	o := x.bench.optionsFor("127.0.0.1:1")
	o.Hold = 30 * time.Second
	check(t, o.validate())
	x.bench.Watcher = &Watcher{options: o}
	x.list = newList(kind, &o, typeURLs...)
	return x
}

// list tells a list that answers a question of now.
func (x *told) answer(v int, items ...*anypb.Any) { x.take(v, items, x.now, x.now) }

// push tells a list that istiod pushed by itself.
func (x *told) push(v int, items ...*anypb.Any) { x.take(v, items, x.versions[v].basis, x.now) }

func (x *told) pass(d time.Duration) { x.now = x.now.Add(d) }

func (x *told) in(t *testing.T, when string, want int, held bool) {
	t.Helper()
	if got := x.bench.sink.size(); got != want || x.suspicion.held() != held {
		t.Errorf("%s: %d objects, held is %t, want %d and %t", when, got, x.suspicion.held(), want, held)
	}
	if problem := strings.Contains(x.bench.problems(), "shrank all at once"); problem != held {
		t.Errorf("%s: a problem is %t, want %t", when, problem, held)
	}
}

func TestAListThatShrinksToNothingIsBelievedWhenAskedForAgainAfterTheHold(t *testing.T) {
	for kind, item := range map[mesh.Kind]*anypb.Any{
		mesh.KindServiceEntry: resource("shop/a", service("a", "http")), mesh.KindDestinationRule: rule("shop/a", "a", "x"),
	} {
		x := tell(t, kind, "v1")
		x.answer(0, item)
		x.pass(time.Minute)
		x.push(0)
		x.in(t, "at first", 1, true)
		if due := x.due(0); !due.Equal(x.now) {
			t.Errorf("to be asked for again at %v, want at once", due)
		}
		x.answer(0)
		x.in(t, "when asked at once", 1, true)
		if due := x.due(0); !due.Equal(x.now.Add(30 * time.Second)) {
			t.Errorf("to be asked for again at %v, want at the end of the hold", due)
		}
		x.pass(31 * time.Second)
		x.push(0)
		x.in(t, "after the hold, not asked for", 1, true)
		x.answer(0)
		x.in(t, "after the hold, asked for", 0, false)
		if !x.due(0).IsZero() {
			t.Error("to be asked for again with no suspicion")
		}
	}
}

func TestAListThatComesBackWithinTheHoldWasNeverGone(t *testing.T) {
	x := tell(t, mesh.KindServiceEntry, "v1")
	x.answer(0, many(10)...)
	before := x.bench.sink.applies()
	x.push(0)
	x.in(t, "empty", 10, true)
	x.pass(time.Second)
	x.answer(0, many(10)...)
	x.in(t, "back", 10, false)
	if x.bench.sink.applies() != before {
		t.Error("something was delivered")
	}
	x.pass(time.Hour)
	x.push(0, many(4)...)
	x.in(t, "a second time the hold begins anew", 10, true)
}

func TestLosingMoreThanHalfOfTheMetaProtocolServicesIsSuspicious(t *testing.T) {
	plain := resource("shop/plain", service("plain", "http"))
	unrouted := resource("shop/s0", service("s0", "http"))
	for name, c := range map[string]struct {
		after []*anypb.Any
		want  int
		held  bool
	}{
		"half":                           {append(many(5), plain), 6, false},
		"more than half":                 {append(many(4), plain), 11, true},
		"all, with other services left":  {[]*anypb.Any{plain}, 11, true},
		"others only":                    {many(10), 10, false},
		"none":                           {append(many(10), plain), 11, false},
		"more than half by renamed port": {append(many(5)[1:], unrouted, plain), 11, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := tell(t, mesh.KindServiceEntry, "v1")
			x.answer(0, append(many(10), plain)...)
			x.push(0, c.after...)
			x.in(t, "after", c.want, c.held)
		})
	}
}

func TestWhileAListIsHeldAdditionsAndChangesTakeEffect(t *testing.T) {
	x := tell(t, mesh.KindServiceEntry, "v1")
	x.answer(0, many(10)...)
	x.push(0, resource("shop/s0", service("s0", "tcp-metaprotocol-thrift")), entry("shop/new"))
	x.in(t, "after", 11, true)
	if got := x.bench.sink.content(); !strings.Contains(got, "s0=s0:tcp-metaprotocol-thrift") {
		t.Error(got)
	}
	x.pass(time.Minute)
	x.answer(0, entry("shop/new"))
	x.in(t, "in the end", 1, false)
}

func TestAListOfItemsThatCannotBeDecodedHasNotShrunk(t *testing.T) {
	x := tell(t, mesh.KindServiceEntry, "v1")
	x.answer(0, many(2)...)
	x.push(0, entry("shop/s0", garbled), entry("shop/s1", garbled))
	x.in(t, "garbled", 2, false)
	x.push(0, entry("shop/s0", garbled))
	x.in(t, "half gone", 1, false)
	x.push(0)
	x.in(t, "all gone", 1, true)
}

func TestNothingIsGoneOnANewStreamUntilEveryVersionAnswered(t *testing.T) {
	x := tell(t, mesh.KindServiceEntry, "v1", "v1alpha3")
	x.answer(0)
	x.in(t, "one version only", 0, false)
	x.answer(1, many(10)...)
	x.in(t, "both", 10, false)
	before := x.bench.sink.applies()

	x.newStream() // to an istiod that has them in the other version
	x.answer(1)
	x.in(t, "the older version is empty", 10, false)
	x.answer(0, many(9)...)
	x.in(t, "the newer version has them, but one", 9, false)
	if got := x.bench.sink.applies() - before; got != 1 {
		t.Errorf("%d batches for one loss", got)
	}
}

func TestTheFirstListAfterAReconnectIsComparedWithTheLastBefore(t *testing.T) {
	x := tell(t, mesh.KindServiceEntry, "v1", "v1alpha3")
	x.answer(1)
	x.answer(0, many(10)...)
	x.pass(time.Hour)
	x.newStream()
	x.answer(1)
	x.answer(0)
	x.in(t, "empty after a reconnect", 10, true)
	x.pass(time.Minute)
	x.newStream()
	x.answer(0)
	x.in(t, "empty again, one version", 10, true)
	x.answer(1)
	x.in(t, "empty again, the other too", 0, false)
}

func TestAnEmptiedServerIsBelievedAfterTheHoldAndNotBefore(t *testing.T) {
	s := start(t, nil)
	s.set(entries, many(4)...)
	s.set(rules, rule("shop/r", "a", "x"))
	b := watch(t, s.address, func(o *Options) { o.Hold = time.Second })
	eventually(t, "all there", func() bool { return b.sink.size() == 5 })
	s.waitForAnswer(t, entries, func() { s.update(entries) })
	b.expectProblem(t, "from 4 (4 of them MetaProtocol services) to 0")
	if b.sink.losses() != 0 || b.metric(t, "metards_mcp_held_lists") != 1 || b.logs.count("shrank all at once") != 1 {
		t.Errorf("%d lost, %v lists held", b.sink.losses(), b.metric(t, "metards_mcp_held_lists"))
	}
	s.update(entries, many(4)...)
	eventually(t, "no suspicion", func() bool { return b.metric(t, "metards_mcp_held_lists") == 0 })
	if b.sink.losses() != 0 {
		t.Errorf("%d lost", b.sink.losses())
	}
	emptied := time.Now()
	s.update(entries)
	b.expect(t, "shop/r=a?x")
	if held := time.Since(emptied); held < time.Second {
		t.Errorf("believed after %v", held)
	}
	eventually(t, "no problem", func() bool { return !strings.Contains(b.problems(), "shrank") })
}

func TestTheFirstListAfterARestartIsHeldAgainstWhatAnEarlierProcessHad(t *testing.T) {
	saved := func(kind mesh.Kind) []*mesh.Object {
		out := make([]*mesh.Object, 0, 4)
		for _, name := range []string{"a", "b", "c", "d"} {
			out = append(out, &mesh.Object{
				Key:  mesh.Key{Kind: kind, Namespace: "shop", Name: name},
				Spec: &mesh.ServiceEntry{Hosts: []string{name}, Ports: []mesh.Port{{Number: 1, Name: "tcp-metaprotocol-x"}}},
			})
		}
		return out
	}
	for name, c := range map[string]struct {
		items []*anypb.Any
		held  bool
	}{
		"nothing":           {nil, true},
		"a quarter of them": {[]*anypb.Any{resource("shop/a", service("a", "tcp-metaprotocol-x"))}, true},
		"half of them": {[]*anypb.Any{
			resource("shop/a", service("a", "tcp-metaprotocol-x")), resource("shop/b", service("b", "tcp-metaprotocol-x")),
		}, false},
	} {
		x := tell(t, mesh.KindServiceEntry, "v1")
		x.saved = saved
		x.answer(0, c.items...)
		if x.delivered == c.held || x.suspicion.held() != c.held {
			t.Errorf("%s: delivered is %t, held is %t, want %t", name, x.delivered, x.suspicion.held(), c.held)
		}
		x.pass(31 * time.Second)
		x.push(0, c.items...) // nobody asked for it
		if x.delivered == c.held {
			t.Errorf("%s: a list that was pushed is believed", name)
		}
		x.answer(0, c.items...)
		if !x.delivered || x.suspicion.held() || x.bench.sink.size() != len(c.items) {
			t.Errorf("%s: asked for again after the hold, delivered is %t with %d objects", name, x.delivered, x.bench.sink.size())
		}
	}
}
