package cachemgr

import (
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

// Plans returns what the proxies of a View are served for the ports of a host: the Plans of the Tables in use,
// and for a name that nobody is subscribed to what would be compiled. It reports false before there is truth.
func (m *Manager) Plans(v mesh.View, host string) (out []*routes.Plan, truth bool) {
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
			if p := m.inUse(name, v); p != nil {
				out = append(out, p)
			} else if p, _ := m.compiler(l, name); p != nil {
				out = append(out, p)
			}
		}
	})
	return out, true
}

// inUse is the Plan of the Table that a View has under a name, of whatever type. m.mu is held.
func (m *Manager) inUse(name string, v mesh.View) *routes.Plan {
	for typeURL := range m.spellings {
		if f := m.families[familyKey{Name{typeURL, name}, v.Gateway}]; f != nil {
			if e := f.entries[v.Namespace]; e != nil && e.served != nil {
				return e.served.Plan
			}
		}
	}
	return nil
}
