package cachemgr

import (
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

// Planned is what the proxies of a View have under a name.
type Planned struct {
	*routes.Plan
	Served   bool           // it is that of a Table in use; else it is what would be compiled
	KeptBack *KeptBackState // of the Table after it, or of this one if it is not served; nil without
}

// Plans returns what the proxies of a View are served for the ports of a host: the Plans of the Tables in use,
// and for a name that nobody is subscribed to what would be compiled. It reports false before there is truth.
func (m *Manager) Plans(v mesh.View, host string) (out []Planned, truth bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.truth && len(m.store.Missing()) > 0 {
		return nil, false
	}
	m.store.Read(v, func(l *mesh.Lens) {
		service := l.Service(host)
		if service == nil {
			return
		}
		for _, name := range routes.Names(service) {
			p := m.inUse(name, v)
			if p.Plan == nil {
				p.Plan, _ = m.compiler(l, name)
			}
			if p.Plan != nil {
				out = append(out, p)
			}
		}
	})
	return out, true
}

// inUse is what a View has under a name, of whatever type. m.mu is held.
func (m *Manager) inUse(name string, v mesh.View) (p Planned) {
	for typeURL := range m.spellings {
		f := m.families[familyKey{Name{typeURL, name}, v.Gateway}]
		if f == nil || f.entries[v.Namespace] == nil {
			continue
		}
		e := f.entries[v.Namespace]
		if e.keptBack() {
			p.KeptBack = &KeptBackState{Version: e.wanted().Version, Objection: e.variant.objection}
		}
		if e.served != nil {
			p.Plan, p.Served = e.served.Plan, true
			return p
		}
	}
	return p
}
