package istiowatch

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"

	"github.com/metards/metards/pkg/mesh"
)

func TestAGlanceCostsAlmostNothing(t *testing.T) {
	item := entry("shop/a", revision("stable"))
	got := testing.AllocsPerRun(100, func() {
		g, err := look(item)
		if err != nil || g.hash() == 0 || string(g.revision) != "stable" {
			t.Fatal("not understood")
		}
	})
	if got > 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestTheHashIsOfContentAndNotOfTheVersion(t *testing.T) {
	hash := func(item *anypb.Any) uint64 {
		g := must(look(item))
		return g.hash()
	}
	a := hash(entry("shop/a"))
	if a != hash(entry("shop/a")) {
		t.Error("another version gives another hash")
	}
	for name, other := range map[string]*anypb.Any{
		"body": resource("shop/a", service("b", dubbo)), "type": rule("shop/a", "a", "x"),
		"time": entry("shop/a", func(r *mcp.Resource) { r.Metadata.CreateTime.Nanos = 1 }),
	} {
		if hash(other) == a {
			t.Errorf("another %s gives the same hash", name)
		}
	}
}

// FuzzGlance compares with the generated decoder: whatever that takes, a glance reads alike.
func FuzzGlance(f *testing.F) {
	f.Add(entry("shop/a", revision("canary")).GetValue())
	f.Add(entry("shop/b", garbled).GetValue())
	f.Add([]byte("\x0a\x02\x0a\x00\x08\x01\x12\x00"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		g, err := look(&anypb.Any{TypeUrl: resourceTypes + resourceType, Value: wire})
		g.hash()
		g.firstHost()
		g.created()
		var r mcp.Resource
		if proto.Unmarshal(wire, &r) != nil || err != nil {
			return
		}
		if string(g.name) != r.GetMetadata().GetName() || string(g.revision) != r.GetMetadata().GetLabels()[mesh.RevisionLabel] ||
			g.seconds != r.GetMetadata().GetCreateTime().GetSeconds() || g.nanos != r.GetMetadata().GetCreateTime().GetNanos() ||
			string(g.bodyType) != r.GetBody().GetTypeUrl() || !bytes.Equal(g.body, r.GetBody().GetValue()) {
			t.Errorf("%q: got %+v, want %v", wire, g, &r)
		}
	})
}

// FuzzList takes whatever comes, twice, and must take nothing in the second time.
func FuzzList(f *testing.F) {
	f.Add([]byte("shop/a"), []byte("\xff"), true)
	f.Add([]byte("shop/a"), must(proto.Marshal(service("a", dubbo))), false)
	f.Fuzz(func(t *testing.T, name, body []byte, twice bool) {
		var b bench
		o := b.optionsFor("127.0.0.1:1")
		l := newList("ServiceEntry", &o, entries)
		wire := must(proto.Marshal(&mcp.Resource{
			Metadata: &mcp.Metadata{Name: string(bytes.ToValidUTF8(name, nil))},
			Body:     &anypb.Any{TypeUrl: resourceTypes + "istio.networking.v1alpha3.ServiceEntry", Value: body},
		}))
		items := []*anypb.Any{{TypeUrl: resourceTypes + resourceType, Value: wire}}
		if twice {
			items = append(items, items[0])
		}
		l.take(0, items, born, born)
		l.take(0, items, born, born)
		if b.sink.applies() != 1 {
			t.Errorf("%d batches", b.sink.applies())
		}
	})
}
