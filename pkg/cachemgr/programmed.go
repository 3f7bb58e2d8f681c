package cachemgr

import (
	"cmp"

	"github.com/metards/metards/pkg/problem"
)

// Programmed is how far a MetaRouter has come at the proxies of this replica.
type Programmed struct {
	Proxies  int // that are subscribed to a table made of it
	UpToDate int // of those, that have accepted all of these tables as they are now; what the gate keeps back nobody has
	Rejected int // of those, that rejected one of them as it is now
	// FirstError is "node: the proxy's text" of the first rejection, by node.
	FirstError string
}

// Programmed returns how far each MetaRouter that a subscribed table is made of has come.
func (m *Manager) Programmed() map[problem.Object]Programmed {
	type proxy struct{ node, identity string }
	type progress struct {
		behind bool
		reason string // of a rejection
		node   string
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	byRouter := map[problem.Object]map[proxy]progress{}
	for s := range m.streams {
		who := proxy{s.peer.Node, s.peer.Identity}
		for _, sub := range s.subscriptions {
			t := sub.entry.wanted()
			if t == nil || t.Plan.MetaRouter == (problem.Object{}) {
				continue
			}
			if byRouter[t.Plan.MetaRouter] == nil {
				byRouter[t.Plan.MetaRouter] = map[proxy]progress{}
			}
			p := byRouter[t.Plan.MetaRouter][who]
			p.node = who.node
			p.behind = p.behind || sub.entry.keptBack() || sub.acked.version != t.Version
			if sub.rejected.version == t.Version {
				p.reason = cmp.Or(p.reason, sub.reason, "rejected without a reason")
			}
			byRouter[t.Plan.MetaRouter][who] = p
		}
	}
	out := make(map[problem.Object]Programmed, len(byRouter))
	for router, proxies := range byRouter {
		var sum Programmed
		first := ""
		for _, p := range proxies {
			sum.Proxies++
			switch {
			case p.reason != "":
				sum.Rejected++
				if first == "" || p.node < first {
					first, sum.FirstError = p.node, p.node+": "+p.reason
				}
			case !p.behind:
				sum.UpToDate++
			}
		}
		out[router] = sum
	}
	return out
}
