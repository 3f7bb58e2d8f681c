package cachemgr

import (
	"cmp"
	"slices"
	"time"
)

// ProxyState is what is known of a connected proxy: its Snapshot.
type ProxyState struct {
	Node      string       `json:"node"`
	Identity  string       `json:"identity"`
	Namespace string       `json:"namespace"`
	Gateway   bool         `json:"gateway,omitempty"`
	Streams   int          `json:"streams"`
	Tables    []TableState `json:"tables"`
}

// State is how far a subscribed name has come.
type State string

// The states, in the order in which a name comes to them.
const (
	NothingToSend State = "nothing to send" // the name is not known; it is sent as soon as it is
	Waiting       State = "waiting"         // to be sent, after the response before it is answered
	Sent          State = "sent"            // not yet answered
	Accepted      State = "accepted"
	Rejected      State = "rejected" // the proxy has what it accepted before
)

// TableState is the fact about one name on one stream.
type TableState struct {
	Type     string     `json:"type"`
	Name     string     `json:"name"`
	State    State      `json:"state"`
	Current  string     `json:"current,omitempty"` // version that the proxy should have
	Sent     *FactState `json:"sent,omitempty"`
	Accepted *FactState `json:"accepted,omitempty"`
	Rejected *FactState `json:"rejected,omitempty"`
}

// FactState is a version and when it was sent, accepted or rejected; Error is the proxy's text.
type FactState struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	Error   string    `json:"error,omitempty"`
}

func (f fact) state(reason string) *FactState {
	if f.version == "" {
		return nil
	}
	return &FactState{Version: f.version, At: f.at, Error: reason}
}

// Proxies returns the connected proxies by node and identity, each with its tables by type and name. A
// name that two of its streams subscribe to is there twice.
func (m *Manager) Proxies() []ProxyState {
	m.mu.Lock()
	defer m.mu.Unlock()
	type key struct{ node, identity string }
	byKey := map[key]*ProxyState{}
	for s := range m.streams {
		k := key{s.peer.Node, s.peer.Identity}
		p := byKey[k]
		if p == nil {
			p = &ProxyState{
				Node: s.peer.Node, Identity: s.peer.Identity,
				Namespace: s.peer.View.Namespace, Gateway: s.peer.View.Gateway, Tables: []TableState{},
			}
			byKey[k] = p
		}
		p.Streams++
		for _, sub := range s.subscriptions {
			p.Tables = append(p.Tables, sub.state())
		}
	}
	out := make([]ProxyState, 0, len(byKey))
	for _, p := range byKey {
		slices.SortFunc(p.Tables, func(a, b TableState) int {
			return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
		})
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b ProxyState) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Identity, b.Identity))
	})
	return out
}

func (s *subscription) state() TableState {
	out := TableState{
		Type: s.name.Type, Name: s.name.Name,
		Sent: s.sent.state(""), Accepted: s.acked.state(""), Rejected: s.rejected.state(s.reason),
	}
	if t := s.entry.table(); t != nil {
		out.Current = t.Version
	}
	switch {
	case s.sent.version == "" && out.Current == "":
		out.State = NothingToSend
	case s.due != nil || s.sent.version == "":
		out.State = Waiting
	case s.rejected.version == s.sent.version:
		out.State = Rejected
	case s.acked.version == s.sent.version:
		out.State = Accepted
	default:
		out.State = Sent
	}
	return out
}

// ServedTable is a Table and the namespaces of the Views that are served it.
type ServedTable struct {
	Table      *Table
	Gateway    bool
	Namespaces []string // sorted
}

// Tables returns the Tables in use, of all types, under a resource name; all of them if it is empty.
func (m *Manager) Tables(name string) []ServedTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ServedTable
	for k, f := range m.families {
		if name != "" && k.Name.Name != name {
			continue
		}
		for _, e := range f.sorted() {
			t := e.table()
			if t == nil {
				continue
			}
			i := slices.IndexFunc(out, func(s ServedTable) bool { return s.Table == t && s.Gateway == k.gateway })
			if i < 0 {
				i = len(out)
				out = append(out, ServedTable{Table: t, Gateway: k.gateway})
			}
			out[i].Namespaces = append(out[i].Namespaces, e.view.Namespace)
		}
	}
	slices.SortFunc(out, func(a, b ServedTable) int {
		return cmp.Or(cmp.Compare(a.Table.Name.Name, b.Table.Name.Name), cmp.Compare(a.Table.Type, b.Table.Type),
			cmp.Compare(a.Table.Version, b.Table.Version))
	})
	return out
}
