package envoy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/metards/metards/e2e/stock"
	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/rdsserver"
)

// events are what the log says of a table.
func (s *scene) events(table string) []rdsserver.Event {
	s.t.Helper()
	list, err := s.metards.EventsOf(table)
	s.must(err)
	if len(list) == 0 {
		s.t.Fatalf("the event log says nothing of %s", table)
	}
	return list
}

func (s *scene) last(table string) rdsserver.Event {
	s.t.Helper()
	list := s.events(table)
	return list[len(list)-1]
}

func TestTheFirstRequestIsEmptyAndAnEditArrivesUnasked(t *testing.T) {
	s := begin(t, options{rules: ordersRouter + to("all", "v1", ""), clusters: []string{cluster("v2")}})
	report.Soon(t, "event log", "request sent ack", s.steps(ordersTable), s)
	first := s.events(ordersTable)
	report.Is(t, "the first request holds the version", `""`, fmt.Sprintf("%q", first[0].Version))
	report.Is(t, "the ack names the version that was sent", first[1].Version, first[2].Version)
	report.Is(t, "Envoy's version_text", first[1].Version, s.now(ordersTable, "version_text"))
	report.Is(t, "config_reload", "1", s.now(ordersTable, "config_reload"))
	s.edit(ordersRouter + to("all", "v2", ""))
	report.Soon(t, "after an edit: traffic", "v2", s.who(ordersTable, nil), s)
	report.Soon(t, "after an edit: event log, no request before what is sent", "request sent ack sent ack", s.steps(ordersTable), s)
	report.Is(t, "after an edit: version_text", s.last(ordersTable).Version, s.now(ordersTable, "version_text"))
	report.Is(t, "after an edit: config_reload", "2", s.now(ordersTable, "config_reload"))
}

// largeRegex is one that metards takes (600 instructions as Go counts them) and an Envoy does not whose runtime
// bounds programs to programBound.
const (
	largeRegex   = "(abc|def){100}"
	programBound = 200
)

// programSize is what another release of Envoy may count differently.
var programSize = regexp.MustCompile(`RE2 program size of \d+`)

// TestAContentThatEnvoyRefusesIsNotSentAgain ends with an edit that must be sent: that it is the very next response
// shows that nothing was sent in between.
func TestAContentThatEnvoyRefusesIsNotSentAgain(t *testing.T) {
	s := begin(t, options{
		rules: ordersRouter + to("all", "v1", "") + other("v1"), clusters: []string{cluster("v2"), otherCluster("v2")},
		runtime: map[string]any{"re2.max_program_size.error_level": programBound},
	})
	version := s.now(ordersTable, "version_text")
	refused := ordersRouter + to("large", "v2", "id: {regex: '"+largeRegex+"'}") + to("all", "v1", "")
	s.edit(refused)
	report.Soon(t, "event log", "request sent ack sent nack", s.steps(ordersTable), s)
	nack := s.last(ordersTable)
	want := fmt.Sprintf("regex '%s' RE2 program size of N > max program size of %d set for the error level threshold. "+
		"Increase configured max program size if necessary.", largeRegex, programBound)
	report.Is(t, "Envoy's reason, in the event log", want, programSize.ReplaceAllString(nack.Error, "RE2 program size of N"))
	report.Is(t, "the nack names the version that is in force", version, nack.Version)
	report.Is(t, "version_text", version, s.now(ordersTable, "version_text"))
	report.Is(t, "update_rejected", "1", s.now(ordersTable, "update_rejected"))
	report.Is(t, "config_reload", "1", s.now(ordersTable, "config_reload"))
	report.Is(t, "traffic goes on", "v1", s.one(ordersTable, nil))
	report.Soon(t, "metards' log: lines of level WARN with the reason", 1, func() (string, error) {
		return fmt.Sprint(strings.Count(s.metards.Log(), "level=WARN msg=\"a proxy rejected a table")), nil
	}, s)
	s.edit(refused + other("v2"))
	report.Soon(t, "the same again, beside an edit of another service: its traffic", "v2", s.who(otherTable, nil), s)
	report.Is(t, "  event log", "request sent ack sent nack", stock.Steps(s.events(ordersTable)))
	s.edit(ordersRouter + to("all", "v2", "") + other("v2"))
	report.Soon(t, "the next content: traffic", "v2", s.who(ordersTable, nil), s)
	report.Soon(t, "the next content: event log", "request sent ack sent nack sent ack", s.steps(ordersTable), s)
	report.Is(t, "update_rejected", "1", s.now(ordersTable, "update_rejected"))
}

func TestAnOutageOfMetardsChangesNothing(t *testing.T) {
	for _, form := range sampleproxy.Forms() {
		t.Run(form.Name, func(t *testing.T) {
			s := begin(t, options{rules: ordersRouter + to("all", "v1", ""), form: form, clusters: []string{cluster("v2")}})
			s.edit(ordersRouter + to("all", "v2", ""))
			report.Soon(t, "an edit, so that there is something to keep", "v2", s.who(ordersTable, nil), s)
			version, reloads := s.now(ordersTable, "version_text"), s.now(ordersTable, "config_reload")
			load := s.load(ordersTable)
			s.metards.Stop()
			report.Soon(t, "metards stopped: connected_state", "0", s.figure(ordersTable, "control_plane.connected_state"), s)
			report.Is(t, "metards stopped: traffic", "v2", s.one(ordersTable, nil))
			s.must(s.metards.Start())
			report.Soon(t, "metards started: event log", "request sent ack", s.steps(ordersTable), s)
			first := s.events(ordersTable)[0]
			held := first.Version
			if form.Delta { // there a request says it name by name
				held = first.Held[ordersTable]
			}
			report.Is(t, "the first request holds the last accepted version", version, held)
			report.Is(t, "connected_state", "1", s.now(ordersTable, "control_plane.connected_state"))
			report.Is(t, "config_reload", reloads, s.now(ordersTable, "config_reload"))
			report.Is(t, "version_text", version, s.now(ordersTable, "version_text"))
			s.undisturbed(load, "v2")
			s.edit(ordersRouter + to("all", "v1", ""))
			report.Soon(t, "the next edit", "v1", s.who(ordersTable, nil), s)
		})
	}
}

func TestAnUnknownNameWaitsUntilTheServiceAppears(t *testing.T) {
	for _, form := range sampleproxy.Forms() {
		t.Run(form.Name, func(t *testing.T) {
			s := begin(t, options{
				rules: ordersRouter + to("all", "v1", ""), form: form, clusters: []string{otherCluster("v1")},
				ports:     map[string]int{ordersTable: 0, otherTable: 0},
				bootstrap: func(b *stock.Bootstrap) { b.FetchTimeout = "0.3s" },
			})
			report.Is(t, "the known name beside it: traffic", "v1", s.one(ordersTable, nil))
			report.Is(t, "the unknown name: traffic", stock.NoRoute, s.one(otherTable, nil))
			report.Is(t, "the unknown name: event log", "request", stock.Steps(s.events(otherTable)))
			s.edit(ordersRouter + to("all", "v1", "") + other("v1"))
			report.Soon(t, "the service appears: traffic", "v1", s.who(otherTable, nil), s)
			report.Soon(t, "the service appears: event log", "request sent ack", s.steps(otherTable), s)
		})
	}
}
