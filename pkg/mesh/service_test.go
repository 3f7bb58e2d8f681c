package mesh_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/mesh"
)

func TestMetaProtocolPortsAreToldByTheSecondPartOfTheirName(t *testing.T) {
	for _, c := range []struct {
		name, protocol, application string
		routed                      bool
	}{
		{"", "", "", false},
		{"metaprotocol", "", "", false},
		{"metaprotocol-x", "x", "", false},
		{"tcp-metaprotocol", "metaprotocol", "", true},
		{"-metaprotocol", "metaprotocol", "", true},
		{"http-metaprotocol-x", "metaprotocol", "x", true},
		{"TCP-MetaProtocol-Dubbo-2", "metaprotocol", "Dubbo", true},
		{"tcp-metaprotocol-", "metaprotocol", "", true},
		{"tcp-dubbo-metaprotocol", "dubbo", "metaprotocol", false},
		{"tcp--metaprotocol-x", "", "metaprotocol", false},
		{"tcp-metaprotocols-x", "metaprotocols", "x", false},
	} {
		p := mesh.Port{Number: 1, Name: c.name}
		if p.Protocol() != c.protocol || p.Application() != c.application || p.Routed() != c.routed {
			t.Errorf("%q is %q, %q, routed %t", c.name, p.Protocol(), p.Application(), p.Routed())
		}
	}
}

// seen is "namespace spelling port,port" of the service that a client sees.
func (w world) seen(client, host string) (out string) {
	w.lens(client, func(l *mesh.Lens) {
		s := l.Service(host)
		if s == nil {
			return
		}
		ports := make([]string, len(s.Ports))
		for i, p := range s.Ports {
			ports[i] = fmt.Sprintf("%d=%s", p.Number, p.Name)
		}
		out = fmt.Sprintf("%s %s %s", s.Namespace, s.Host, strings.Join(ports, ","))
	})
	return out
}

func TestAClientSeesTheServiceOfOneNamespace(t *testing.T) {
	a, b := mesh.Port{Number: 1, Name: "a"}, mesh.Port{Number: 2, Name: "b"}
	for name, c := range map[string]struct {
		objects []*mesh.Object
		client  string
		want    string
	}{
		"no service":                 {nil, "x", ""},
		"a service of a longer name": {[]*mesh.Object{entry("n/a", "my.h.example", a)}, "x", ""},
		"letter case does not matter, the spelling is kept": {[]*mesh.Object{entry("n/a", "H.Example", a)}, "x", "n H.Example 1=a"},
		"the client's own before an older and the synthetic one": {
			[]*mesh.Object{born(1, entry("n/a", "h.example", a)), born(2, entry("k/synthetic-h", "h.example", a)), born(3, entry("x/z", "h.example", b))}, "x", "x h.example 2=b"},
		"the synthetic one before an older": {
			[]*mesh.Object{born(1, entry("n/a", "h.example", a)), born(2, entry("k/synthetic-h", "h.example", b))}, "x", "k h.example 2=b"},
		"a synthetic one that is not exported does not count": {
			[]*mesh.Object{born(1, entry("n/a", "h.example", a)), exported(".", entry("k/synthetic-h", "h.example", b))}, "x", "n h.example 1=a"},
		"the oldest": {
			[]*mesh.Object{born(2, entry("a/a", "h.example", a)), born(1, entry("z/z", "h.example", b))}, "x", "z h.example 2=b"},
		"without age counts as oldest": {
			[]*mesh.Object{born(1, entry("a/a", "h.example", a)), entry("z/z", "h.example", b)}, "x", "z h.example 2=b"},
		"of one age the smaller name before the smaller namespace": {
			[]*mesh.Object{entry("a/z", "h.example", a), entry("z/a", "h.example", b)}, "x", "z h.example 2=b"},
		"of one age and name the smaller namespace": {
			[]*mesh.Object{entry("b/n", "h.example", b), entry("a/n", "h.example", a)}, "x", "a h.example 1=a"},
		"the oldest that is exported to the client": {
			[]*mesh.Object{exported("y .", born(1, entry("a/a", "h.example", a))), exported("y x", born(2, entry("b/b", "h.example", b)))}, "x", "b h.example 2=b"},
		"nothing is exported to the client": {[]*mesh.Object{exported(". y", entry("a/a", "h.example", a))}, "x", ""},
		"not even to its own namespace":     {[]*mesh.Object{exported("y", entry("x/a", "h.example", a))}, "x", ""},
		"the star beside others":            {[]*mesh.Object{exported("y *", entry("a/a", "h.example", a))}, "x", "a h.example 1=a"},
		"the ports of a namespace are joined, by number, the oldest's name, spelled as the oldest does": {
			[]*mesh.Object{born(2, entry("n/a", "h.example", b, mesh.Port{Number: 1, Name: "later"})), born(1, entry("n/b", "H.example", a)), entry("o/o", "h.example", mesh.Port{Number: 3})},
			"n", "n H.example 1=a,2=b"},
		"what is not exported is not joined": {
			[]*mesh.Object{entry("n/a", "h.example", a), exported("y", entry("n/b", "h.example", b))}, "x", "n h.example 1=a"},
		"a number twice in one object":                 {[]*mesh.Object{entry("n/a", "h.example", b, a, mesh.Port{Number: 2, Name: "again"})}, "x", "n h.example 1=a,2=b"},
		"a host twice in one object, in two spellings": {[]*mesh.Object{entry("n/a", "H.example h.example", a)}, "x", "n H.example 1=a"},
		"a second host":                                {[]*mesh.Object{entry("n/a", "other.example h.example", a)}, "x", "n h.example 1=a"},
		"a service without ports is one":               {[]*mesh.Object{object(mesh.KindServiceEntry, "n/a", &mesh.ServiceEntry{Hosts: []string{"h.example"}})}, "x", "n h.example "},
	} {
		t.Run(name, func(t *testing.T) {
			equal(t, "the service", newTruth(t, c.objects...).seen(c.client, "h.EXAMPLE"), c.want)
		})
	}
}

func TestTheMeshSaysToWhomServicesWithoutExportToAreExported(t *testing.T) {
	w := newWorld(t, func(o *mesh.Options) { o.Settings.DefaultServiceExportTo = []string{".", "friend"} })
	w.put(mesh.Directory, entry("n/a", "h.example"), exported("*", entry("n/b", "public.example")))
	for client, want := range map[string]bool{"n": true, "friend": true, "x": false} {
		if got := w.seen(client, "h.example") != ""; got != want {
			t.Errorf("%s sees the service: %t", client, got)
		}
	}
	if w.seen("x", "public.example") == "" {
		t.Error("an exportTo does not override the mesh's default")
	}
}

func TestAServiceGoesWithItsLastDeclaration(t *testing.T) {
	w := newTruth(t, entry("n/a", "h.example", mesh.Port{Number: 1, Name: "a"}), entry("n/b", "H.example", mesh.Port{Number: 2, Name: "b"}))
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{entry("n/a", "").Key}})
	equal(t, "the service", w.seen("x", "h.example"), "n H.example 2=b")
	w.Apply(mesh.Directory, mesh.Batch{Deleted: []mesh.Key{entry("n/b", "").Key}})
	equal(t, "the service", w.seen("x", "h.example"), "")
}

func TestAHostDeclaredInSeveralNamespacesIsToldWithBoth(t *testing.T) {
	w := newTruth(t, born(2, entry("b/b", "H.example")), born(1, entry("a/a", "h.example")), born(3, entry("a/c", "h.example")), entry("c/c", "other.example"))
	got := w.Overlaps()
	if len(got) != 1 || got[0].Object != entry("b/b", "").Ref() || !strings.Contains(got[0].Detail, "ServiceEntry a/a") {
		t.Errorf("Overlaps are %v", got)
	}
}

func TestClientsAreTheNamespacesThatCanDiffer(t *testing.T) {
	w := newWorld(t, func(o *mesh.Options) { o.Settings.DefaultServiceExportTo = []string{"*", "def"} })
	w.put(mesh.Directory, entry("svc/a", "H.example"), exported(". * friend", router("rt/m", "h.example", "all")), entry("no/no", "other.example"))
	equal(t, "clients", w.Clients("h.EXAMPLE"), []string{"", "def", "friend", "rt", "svc"})
}

func TestAPortIsFoundByItsNumber(t *testing.T) {
	s := mesh.Service{Ports: []mesh.Port{{Number: 1, Name: "a"}, {Number: 2, Name: "b"}}}
	if p, ok := s.Port(2); !ok || p.Name != "b" {
		t.Errorf("port 2 is %v, %t", p, ok)
	}
	if _, ok := s.Port(3); ok {
		t.Error("there is a port 3")
	}
}
