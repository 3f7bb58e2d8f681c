package staticxds

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// State is what the debug page shows.
type State struct {
	File    string        `json:"file"`
	Loaded  *time.Time    `json:"loaded,omitempty"` // when it was last read without a fault
	Types   []TypeState   `json:"types"`
	Streams []StreamState `json:"streams"` // those that ask for any of it, by their number
}

// TypeState is what is served of a type.
type TypeState struct {
	Type    string   `json:"type"`
	Version string   `json:"version"`
	Names   []string `json:"names"`
}

// State returns what is served, and to whom.
func (s *Source) State() State {
	s.mu.Lock()
	out := State{File: s.options.File, Types: []TypeState{}, Streams: []StreamState{}}
	if !s.loaded.IsZero() {
		loaded := s.loaded
		out.Loaded = &loaded
	}
	for k := kind(0); s.set != nil && k < kinds; k++ {
		out.Types = append(out.Types, TypeState{k.String(), s.set.types[k].version, s.set.types[k].names()})
	}
	open := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, x := range open {
		out.Streams = append(out.Streams, x.state())
	}
	slices.SortFunc(out.Streams, func(a, b StreamState) int { return cmp.Compare(a.Stream, b.Stream) })
	return out
}

// StreamState is what one stream was sent, as the debug page shows it.
type StreamState struct {
	Stream   uint64      `json:"stream"`
	Node     string      `json:"node"`
	Identity string      `json:"identity"`
	Types    []SentState `json:"types"`
}

// SentState is how far a type has come on a stream.
type SentState struct {
	Type     string     `json:"type"`
	Names    []string   `json:"names"` // asked for; * is all
	Sent     *FactState `json:"sent,omitempty"`
	Accepted *FactState `json:"accepted,omitempty"`
	Rejected *FactState `json:"rejected,omitempty"` // until everything of it is replaced
}

// FactState is a version and when it was sent, accepted or rejected; Error is the proxy's text.
type FactState struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	Error   string    `json:"error,omitempty"`
}

func (f fact) state() *FactState {
	if f.at.IsZero() {
		return nil
	}
	return &FactState{f.version, f.at, f.reason}
}

func (x *Session) state() StreamState {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := StreamState{Stream: x.peer.Stream, Node: x.peer.Node, Identity: x.peer.Identity, Types: []SentState{}}
	for k := range kinds {
		sub := &x.types[k]
		names := slices.Sorted(maps.Keys(sub.names))
		if sub.wildcard {
			names = append([]string{"*"}, names...)
		}
		if len(names) > 0 {
			out.Types = append(out.Types, SentState{k.String(), names, sub.sent.state(), sub.accepted.state(), sub.rejected.state()})
		}
	}
	return out
}
