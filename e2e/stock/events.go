package stock

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/rdsserver"
)

// Events returns all events so far, of all lives of the process. The event log's form is in docs/events.md.
func (m *Metards) Events() ([]rdsserver.Event, error) {
	data, err := os.ReadFile(m.EventLog)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []rdsserver.Event
	for {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole { // a line that is being written comes next time
			return out, nil
		}
		var e rdsserver.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return out, err
		}
		out, data = append(out, e), rest
	}
}

// EventsOf returns what happened to a resource name since the last start of the process: requests for it, what
// was sent, how that was answered, and the end of a stream that asked for it.
func (m *Metards) EventsOf(name string) ([]rdsserver.Event, error) {
	all, err := m.Events()
	if err != nil {
		return nil, err
	}
	type response struct {
		stream uint64
		nonce  string
	}
	sent, streams := map[response]bool{}, map[uint64]bool{}
	var out []rdsserver.Event
	for _, e := range all {
		of := response{e.Stream, e.Nonce}
		switch e.Event {
		case rdsserver.EventServerStarted:
			out = nil
			clear(sent)
			clear(streams)
			continue
		case rdsserver.EventAck, rdsserver.EventNack:
			if !sent[of] {
				continue
			}
		case rdsserver.EventStreamClosed:
			if !streams[e.Stream] {
				continue
			}
		default:
			if !slices.Contains(e.Names, name) {
				continue
			}
			streams[e.Stream] = true
			sent[of] = sent[of] || e.Event == rdsserver.EventSent
		}
		out = append(out, e)
	}
	return out, nil
}

// Steps is a short form of events for people: their kinds, in order.
func Steps(events []rdsserver.Event) string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.Event
	}
	return strings.Join(out, " ")
}
