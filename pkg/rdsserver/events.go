package rdsserver

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Kinds of Events.
const (
	EventServerStarted = "server_started"
	EventStreamOpened  = "stream_opened" // the first request was accepted
	EventRequest       = "request"       // neither ack nor nack
	EventAck           = "ack"
	EventNack          = "nack"
	EventSent          = "sent"
	EventStreamClosed  = "stream_closed"
)

// Event is one step of the protocol, so that a person can read it. Fields that an event has not are left out.
type Event struct {
	Time    time.Time         `json:"time"`
	Event   string            `json:"event"`
	Stream  uint64            `json:"stream,omitempty"` // number of the stream since the start
	Method  string            `json:"method,omitempty"` // as in StreamRoutes
	Node    string            `json:"node,omitempty"`
	Type    string            `json:"type,omitempty"`
	Names   []string          `json:"names,omitempty"`
	Dropped []string          `json:"unsubscribed,omitempty"` // delta only
	Removed []string          `json:"removed,omitempty"`      // delta only
	Held    map[string]string `json:"held,omitempty"`         // delta only
	Version string            `json:"version"`                // empty in a first request: the proxy holds nothing
	Nonce   string            `json:"nonce,omitempty"`
	Error   string            `json:"error,omitempty"`
}

// EventLog writes Events as JSON lines. A nil EventLog writes nothing.
type EventLog struct {
	ended func(error)

	mu  sync.Mutex
	enc *json.Encoder
	err error
}

// NewEventLog returns an EventLog that writes to w, and calls ended with the error of the first write that
// fails, which is the last.
func NewEventLog(w io.Writer, ended func(error)) *EventLog {
	return &EventLog{enc: json.NewEncoder(w), ended: ended}
}

// Write adds an Event. After a failed write it does nothing more.
func (l *EventLog) Write(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if l.err = l.enc.Encode(e); l.err != nil {
		l.ended(l.err)
	}
}
