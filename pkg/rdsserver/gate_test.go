package rdsserver_test

import (
	"strings"
	"testing"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
)

func TestARefusedEditNeverReachesTheWireAndTheNextGoodOneDoes(t *testing.T) {
	inEveryForm(t, func(t *testing.T, form sampleproxy.Form) {
		p := newPipeline(t, func(_ *rdsserver.Options, o *cachemgr.Options) { o.Gated = true })
		p.deliver(service("orders"), router("orders", "v1"), service("fence"))
		x := p.open(form, "web")
		x.want(table("orders"), table("fence"))
		p.judge(2)
		got := map[string]string{}
		for range 2 {
			name, cluster := x.accepted()
			got[name] = cluster
		}
		if got[table("orders")] != cluster("orders", "v1") || got[table("fence")] != cluster("fence", "") {
			t.Fatalf("the first tables are %v", got)
		}
		p.put(router("orders", "bad"), router("fence", "v1"))
		p.judge(2)
		x.wantAccepted(table("fence"), cluster("fence", "v1"))
		late := p.open(form, "web")
		late.want(table("orders"))
		late.wantAccepted(table("orders"), cluster("orders", "v1"))
		p.put(router("orders", "v2"))
		p.judge(1)
		x.wantAccepted(table("orders"), cluster("orders", "v2"))
		late.wantAccepted(table("orders"), cluster("orders", "v2"))
	})
}

// judge refuses what goes to the subset "bad" and passes the rest, until it has judged some tables.
func (p *pipeline) judge(tables int) {
	p.t.Helper()
	p.eventually("the tables are judged", func() bool {
		for _, t := range p.cache.Unjudged(tables, 1<<20) {
			tables--
			if strings.Contains(t.Plan.Routes[0].Destinations[0].Cluster(), "|bad|") {
				p.cache.Refuse(t, "bad")
			} else {
				p.cache.Pass([]*cachemgr.Table{t})
			}
		}
		return tables == 0
	})
}
