package rdsserver_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/tlsboot"
)

// broken are MetaRouters for orders that no proxy could use.
func broken() map[string]*mesh.Object {
	to := func(weight uint32) *v1alpha1.MetaRouteDestination {
		return &v1alpha1.MetaRouteDestination{Destination: &v1alpha1.Destination{Host: host("orders"), Subset: "bad"}, Weight: weight}
	}
	with := func(change func(*v1alpha1.MetaRoute)) *mesh.Object {
		r := &v1alpha1.MetaRoute{Name: "bad", Route: []*v1alpha1.MetaRouteDestination{to(1)}}
		change(r)
		return routerOf("orders", r)
	}
	return map[string]*mesh.Object{
		"weights that sum to zero": with(func(r *v1alpha1.MetaRoute) { r.Route = []*v1alpha1.MetaRouteDestination{to(0), to(0)} }),
		"weights that overflow":    with(func(r *v1alpha1.MetaRoute) { r.Route = []*v1alpha1.MetaRouteDestination{to(math.MaxUint32), to(1)} }),
		"no destination":           with(func(r *v1alpha1.MetaRoute) { r.Route = nil }),
		"a null destination":       with(func(r *v1alpha1.MetaRoute) { r.Route[0].Destination = nil }),
		"an empty host":            with(func(r *v1alpha1.MetaRoute) { r.Route[0].Destination.Host = "" }),
		"a mirror of 101 percent": with(func(r *v1alpha1.MetaRoute) {
			r.Mirror, r.MirrorPercentage = r.Route[0].Destination, &v1alpha1.Percent{Value: 101}
		}),
		"an unclosed regex": with(func(r *v1alpha1.MetaRoute) {
			r.Match = &v1alpha1.MetaRouteMatch{Attributes: map[string]*v1alpha1.StringMatch{"m": {MatchType: &v1alpha1.StringMatch_Regex{Regex: "(a"}}}}
		}),
		"an oversized regex": with(func(r *v1alpha1.MetaRoute) {
			r.Match = &v1alpha1.MetaRouteMatch{Attributes: map[string]*v1alpha1.StringMatch{"m": {MatchType: &v1alpha1.StringMatch_Regex{Regex: "((a{30}){30}){30}"}}}}
		}),
		"a control character in a key": with(func(r *v1alpha1.MetaRoute) {
			r.RequestMutation = []*v1alpha1.KeyValue{{Key: "a\r\nb", Value: "c"}}
		}),
		"an undecodable value": {Key: router("orders", "").Key, Faults: decodeFaults()},
	}
}

// decodeFaults are those of a MetaRouter with a negative weight.
func decodeFaults() []problem.Problem {
	o, err := mesh.Decode(map[string]any{
		"apiVersion": "metaprotocol.aeraki.io/v1alpha1", "kind": "MetaRouter", "metadata": map[string]any{"name": "orders", "namespace": "shop"},
		"spec": map[string]any{"routes": []any{map[string]any{"route": []any{map[string]any{"weight": -1}}}}},
	})
	if err != nil || len(o.Faults) == 0 {
		panic(fmt.Sprint("no faults: ", err))
	}
	return o.Faults
}

func TestABrokenEditHarmsNobodyAndTheLastValidVersionStays(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"), service("fence"), router("orders", "good"))
		x := p.open(form, "shop")
		x.want(table("orders"), table("fence"))
		x.accepted()
		x.accepted()
		n := 0
		for name, o := range broken() {
			p.put(o)
			n++
			p.put(router("fence", fmt.Sprintf("v%d", n))) // others go on
			if got, c := x.accepted(); got != table("fence") || c != cluster("fence", fmt.Sprintf("v%d", n)) {
				t.Fatalf("%s: the next response is %s to %s", name, got, c)
			}
			late := p.open(form, "shop") // and so does what newcomers get
			late.want(table("orders"))
			late.wantAccepted(table("orders"), cluster("orders", "good"))
		}
		if !strings.Contains(p.log.String(), "the last valid version stays in force") {
			t.Error("the log does not say what is in force instead")
		}
		p.put(router("orders", "fixed"))
		x.wantAccepted(table("orders"), cluster("orders", "fixed"))
	})
}

func TestABrokenMetaRouterWithoutAValidVersionIsAsIfItDidNotExist(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		for name, o := range broken() {
			p := newPipeline(t)
			p.deliver(service("orders"), o)
			x := p.open(form, "shop")
			x.want(table("orders"))
			if _, c := x.accepted(); c != cluster("orders", "") {
				t.Errorf("%s: the table is to %s, want the default", name, c)
			}
		}
	})
}

func TestOfSeveralMetaRoutersOneWins(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		stranger := router("orders", "stranger")
		stranger.Namespace, stranger.Created = "abroad", time.Unix(1, 0)
		young := router("orders", "young")
		young.Name, young.Created = "young", time.Unix(3, 0)
		old := router("orders", "old")
		old.Name, old.Created = "old", time.Unix(2, 0)
		p.deliver(service("orders"), stranger, young, old)
		x := p.open(form, "web")
		x.want(table("orders"))
		x.wantAccepted(table("orders"), cluster("orders", "old"))
		p.remove(old.Key)
		x.wantAccepted(table("orders"), cluster("orders", "young"))
		p.remove(young.Key)
		x.wantAccepted(table("orders"), cluster("orders", "stranger"))
	})
}

func TestAClientSeesWhatIsExportedToItsNamespace(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		private := service("orders")
		private.Spec.(*mesh.ServiceEntry).ExportTo = []string{"."}
		forWeb := router("stock", "for-web")
		forWeb.Spec.(*mesh.MetaRouter).ExportTo = []string{"web"}
		p.deliver(private, service("stock"), forWeb)
		own, web := p.open(form, "shop"), p.open(form, "web")
		own.want(table("orders"), table("stock"))
		own.wantAccepted(table("orders"), cluster("orders", ""))
		own.wantAccepted(table("stock"), cluster("stock", ""))
		web.want(table("orders"), table("stock"))
		web.wantAccepted(table("stock"), cluster("stock", "for-web"))
		p.put(service("orders")) // now exported
		web.wantAccepted(table("orders"), cluster("orders", ""))
	})
}

func TestATableIsNamedAsAskedForAndItsClustersAsDeclared(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t)
		p.deliver(service("orders"))
		x := p.open(form, "shop")
		asked := strings.ToUpper(host("orders")) + "_20880"
		x.want(asked)
		x.wantAccepted(asked, cluster("orders", ""))
	})
}

func TestAConnectionWithoutACertificateOfTheRootIsRefused(t *testing.T) {
	p := newPipeline(t)
	p.deliver(service("orders"))
	stranger := must(tlsboot.NewDevCA("cluster.local"))
	expired := tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app", NotBefore: time.Now().Add(-2 * time.Hour), Lifetime: time.Hour}
	good := tlsboot.IssueOptions{Namespace: "shop", ServiceAccount: "app"}
	for name, pair := range map[string]*tlsboot.Pair{
		"none":           nil,
		"a stranger's":   must(stranger.Issue(good)),
		"an expired one": must(p.ca.Issue(expired)),
	} {
		config := must(p.ca.ClientConfig(pair, "localhost"))
		cc := must(grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(credentials.NewTLS(config))))
		x, err := openStream(t, cc)
		if err == nil {
			x.want(table("orders"))
			err = x.ended()
		}
		if code := status.Code(err); code != codes.Unavailable {
			t.Errorf("%s: the stream ended with %v", name, err)
		}
		_ = cc.Close()
	}
}

func openStream(t *testing.T, cc *grpc.ClientConn) (*proxy, error) {
	s, err := sampleproxy.Open(t.Context(), cc, sampleproxy.Forms()[0], sampleproxy.Node("sidecar", "app", "shop"))
	return &proxy{Stream: s, t: t}, err
}
