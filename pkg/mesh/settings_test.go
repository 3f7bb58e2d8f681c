package mesh_test

import (
	"slices"
	"testing"

	"github.com/metards/metards/pkg/mesh"
)

func TestChangedSettingsConcernEveryHostAndEqualOnesNone(t *testing.T) {
	private := &mesh.Object{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "orders"}, Spec: &mesh.ServiceEntry{
		Hosts: []string{"orders.example"}, Ports: []mesh.Port{{Number: 1, Name: "tcp-metaprotocol-dubbo"}},
	}}
	short := &mesh.Object{Key: mesh.Key{Kind: mesh.KindDestinationRule, Namespace: "shop", Name: "orders"}, Spec: &mesh.DestinationRule{
		Host: "orders", Policy: &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: "user"}},
	}}
	w := newTruth(t, private, short)
	settings := mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"}
	w.SetSettings(settings)
	if got := w.changes(); len(got) != 0 {
		t.Errorf("equal settings change %q", got)
	}
	if got := w.seen("web", "orders.example"); got == "" {
		t.Error("web does not see the service")
	}

	settings.DefaultServiceExportTo, settings.ClusterDomain = []string{"."}, "mesh.internal"
	w.SetSettings(settings)
	if got := w.changes(); !slices.Equal(got, []string{"*"}) || !mesh.Covers(got[0], "orders.example") {
		t.Errorf("changed settings change %q, want every host", got)
	}
	if got := w.seen("web", "orders.example"); got != "" {
		t.Errorf("by the new default the service is its own namespace's, web sees %s", got)
	}
	if got := w.hash("shop", "orders.shop.svc.mesh.internal"); got != "user" {
		t.Errorf("in the new domain the rule gives the key %q", got)
	}
}
