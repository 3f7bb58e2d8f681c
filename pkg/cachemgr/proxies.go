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
	KeptBack      State = "kept back"       // by the gate, and there is no table before it
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
	// KeptBack is the table that the gate keeps back; Current is then the one before it.
	KeptBack *KeptBackState `json:"keptBack,omitempty"`
}

// KeptBackState is a version that the gate keeps back, and its objection; none while it has not judged.
type KeptBackState struct {
	Version   string `json:"version"`
	Objection string `json:"objection,omitempty"`
}

// FactState is a version and when it was sent, accepted or rejected; Error is the proxy's text.
type FactState struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	Error   string    `json:"error,omitempty"`
}

// answers reports whether a fact is the answer to what was sent, not to the same version sent before.
func (f fact) answers(sent fact) bool { return f.version == sent.version && !f.at.Before(sent.at) }

func (f fact) state(reason string) *FactState {
	if f.version == "" {
		return nil
	}
	return &FactState{Version: f.version, At: f.at, Error: reason}
}

// Proxies returns the connected proxies by node and identity, each with its tables by type, name, and when
// their stream opened: a name that two of its streams subscribe to is there twice.
func (m *Manager) Proxies() []ProxyState {
	out := []ProxyState{}
	for _, s := range m.states() {
		if n := len(out); n == 0 || out[n-1].Node != s.peer.Node || out[n-1].Identity != s.peer.Identity {
			out = append(out, ProxyState{
				Node: s.peer.Node, Identity: s.peer.Identity,
				Namespace: s.peer.View.Namespace, Gateway: s.peer.View.Gateway, Tables: []TableState{},
			})
		}
		p := &out[len(out)-1]
		p.Streams++
		p.Tables = append(p.Tables, s.tables...)
	}
	for _, p := range out {
		slices.SortStableFunc(p.Tables, func(a, b TableState) int {
			return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
		})
	}
	return out
}

// streamState is the facts about one stream.
type streamState struct {
	*Stream
	tables []TableState
}

// states returns the streams by node, identity and when they opened. Only reading the facts holds the lock.
func (m *Manager) states() []streamState {
	m.mu.Lock()
	out := make([]streamState, 0, len(m.streams))
	for s := range m.streams {
		state := streamState{s, make([]TableState, 0, len(s.subscriptions))}
		for _, sub := range s.subscriptions {
			state.tables = append(state.tables, sub.state())
		}
		out = append(out, state)
	}
	m.mu.Unlock()
	slices.SortFunc(out, func(a, b streamState) int {
		return cmp.Or(cmp.Compare(a.peer.Node, b.peer.Node), cmp.Compare(a.peer.Identity, b.peer.Identity), a.opened.Compare(b.opened))
	})
	return out
}

func (s *subscription) state() TableState {
	out := TableState{
		Type: s.name.Type, Name: s.name.Name,
		Sent: s.sent.state(""), Accepted: s.acked.state(""), Rejected: s.rejected.state(s.reason),
	}
	if t := s.entry.served; t != nil {
		out.Current = t.Version
	}
	if s.entry.keptBack() {
		out.KeptBack = &KeptBackState{Version: s.entry.wanted().Version, Objection: s.entry.variant.objection}
	}
	switch {
	case s.sent.version == "" && out.Current == "" && out.KeptBack != nil:
		out.State = KeptBack
	case s.sent.version == "" && out.Current == "":
		out.State = NothingToSend
	case out.Current != "" && out.Current != s.sent.version:
		out.State = Waiting
	case s.rejected.answers(s.sent):
		out.State = Rejected
	case s.acked.answers(s.sent):
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

// Tables returns the Tables in use, of all types, under a resource name; all of them if it is empty. They
// are ordered by name, type, version, and sidecars' before gateways'.
func (m *Manager) Tables(name string) []ServedTable {
	out := m.served(name)
	for _, t := range out {
		slices.Sort(t.Namespaces)
	}
	slices.SortFunc(out, func(a, b ServedTable) int {
		order := cmp.Or(cmp.Compare(a.Table.Name.Name, b.Table.Name.Name), cmp.Compare(a.Table.Type, b.Table.Type),
			cmp.Compare(a.Table.Version, b.Table.Version))
		if order == 0 && a.Gateway != b.Gateway {
			order = 1
			if b.Gateway {
				order = -1
			}
		}
		return order
	})
	return out
}

// served is Tables in no order, so that the lock is not held for sorting.
func (m *Manager) served(name string) []ServedTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ServedTable
	for k, f := range m.families {
		if name != "" && k.Name.Name != name {
			continue
		}
		at := map[*Table]int{} // a Table is of one family
		for _, e := range f.entries {
			t := e.served
			if t == nil {
				continue
			}
			i, ok := at[t]
			if !ok {
				i = len(out)
				at[t] = i
				out = append(out, ServedTable{Table: t, Gateway: k.gateway})
			}
			out[i].Namespaces = append(out[i].Namespaces, e.view.Namespace)
		}
	}
	return out
}
