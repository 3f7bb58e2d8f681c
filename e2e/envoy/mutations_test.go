package envoy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// mutating is a route that changes requests and responses, for requests with kind=NAME.
func mutating(name string, request, response [][2]string) string {
	out := fmt.Sprintf("  - name: %s\n    match: {attributes: {kind: {exact: %s}}}\n    route: [{destination: {host: %s, subset: v1}}]\n", name, name, ordersHost)
	for _, m := range []struct {
		key  string
		list [][2]string
	}{{"requestMutation", request}, {"responseMutation", response}} {
		if len(m.list) == 0 {
			continue
		}
		out += fmt.Sprintf("    %s:\n", m.key)
		for _, kv := range m.list {
			out += fmt.Sprintf("    - {key: %q, value: %q}\n", kv[0], kv[1])
		}
	}
	return out
}

// headers writes the values of some headers as a person would.
func headers(h http.Header, names ...string) string {
	out := make([]string, len(names))
	for i, n := range names {
		values := h.Values(n)
		out[i] = fmt.Sprintf("%s=%q", n, values)
	}
	return strings.Join(out, " ")
}

func TestMutationsReachTheUpstreamAndTheCaller(t *testing.T) {
	s := begin(t, options{rules: ordersRouter +
		mutating("both", [][2]string{{"visa-class", "B2"}, {"Declared-By", "zoe"}}, [][2]string{{"stamped-by", "desk-4"}}) +
		mutating("repeated", [][2]string{{"visa-class", "B2"}, {"visa-class", "C1"}}, nil) +
		mutating("escaped", [][2]string{{"progress", "100%%"}}, nil) +
		to("all", "v1", "")})
	both := s.ask(ordersTable, attributes("kind=both"))
	report.Is(t, "request, as the upstream saw it", `Visa-Class=["B2"] Declared-By=["zoe"]`, headers(both.Seen, "Visa-Class", "Declared-By"))
	report.Is(t, "response, as the caller saw it", `Stamped-By=["desk-4"]`, headers(both.Header, "Stamped-By"))
	report.Is(t, "a response mutation is not one of the request", `Stamped-By=[]`, headers(both.Seen, "Stamped-By"))
	all := s.ask(ordersTable, nil)
	report.Is(t, "another route: request and response", "Visa-Class=[] Stamped-By=[]", headers(all.Seen, "Visa-Class")+" "+headers(all.Header, "Stamped-By"))
	// From here on an HTTP filter and a MetaProtocol proxy differ.
	report.Is(t, "HTTP: a repeated key, or one that the caller sent, is appended (MetaProtocol: the last one counts)", `Visa-Class=["A" "B2" "C1"]`,
		headers(s.ask(ordersTable, attributes("kind=repeated visa-class=A")).Seen, "Visa-Class"))
	report.Is(t, "HTTP: %% in a value is one % (MetaProtocol: both stay)", `Progress=["100%"]`, headers(s.ask(ordersTable, attributes("kind=escaped")).Seen, "Progress"))
}

// TestMutationsThatAnHTTPFilterRefuses is about tables that are right for MetaProtocol proxies, to which mutations
// are mere keys and values, and that an HTTP filter does not take: Envoy says why, keeps the table that it has, and
// is not sent the same again. docs/envoy-gate.md lists what HTTP filters judge more strictly, with the reasons.
func TestMutationsThatAnHTTPFilterRefuses(t *testing.T) {
	s := begin(t, options{rules: ordersRouter + to("all", "v1", "")})
	version, steps := s.now(ordersTable, "version_text"), "request sent ack"
	for i, c := range []struct{ what, key, value, reason string }{
		{"a bare % in a value", "progress", "100%", "Incorrect configuration: 100%. Couldn't find valid command at position 3"},
		{"a command that does not exist in a value", "progress", "%NO_SUCH%", "Not supported field in StreamInfo: NO_SUCH"},
		{"a name that begins with :", ":path", "/x", ":-prefixed or host headers may not be modified"},
		{"the name host", "host", "x", ":-prefixed or host headers may not be modified"},
	} {
		s.edit(ordersRouter + mutating("mutating", [][2]string{{c.key, c.value}}, nil) + to("all", "v1", ""))
		steps += " sent nack"
		report.Soon(t, c.what+": event log", steps, s.steps(ordersTable), s)
		report.Is(t, "  refused by Envoy with", c.reason, s.lastError(ordersTable))
		report.Is(t, "  version_text stays, update_rejected", version+" "+fmt.Sprint(i+1), s.now(ordersTable, "version_text")+" "+s.now(ordersTable, "update_rejected"))
		report.Is(t, "  traffic goes on with the table before", "v1", s.one(ordersTable, attributes("kind=mutating")))
	}
}

// lastError is the reason of the last rejection.
func (s *scene) lastError(table string) string {
	s.t.Helper()
	events, err := s.metards.EventsOf(table)
	s.must(err)
	return events[len(events)-1].Error
}

// TestMutationsThatAnHTTPFilterTakesAndCannotCarry is about tables that Envoy accepts, although an HTTP filter then
// fails each request of the route, or leaves the mutation out.
func TestMutationsThatAnHTTPFilterTakesAndCannotCarry(t *testing.T) {
	s := begin(t, options{rules: ordersRouter +
		mutating("blank", [][2]string{{"curator name", "x"}}, nil) +
		mutating("cyrillic", [][2]string{{"зал", "x"}}, nil) +
		mutating("control", [][2]string{{"city", "a\x01b"}}, nil) +
		mutating("empty", [][2]string{{"city", ""}}, nil) +
		mutating("umlaut", [][2]string{{"city", "Zürich"}}, nil)})
	report.Is(t, "the table", "taken, update_rejected 0", "taken, update_rejected "+s.now(ordersTable, "update_rejected"))
	for _, c := range []struct{ what, kind, want string }{
		{"a name with a blank: each request fails", "blank", "503 invalid header name: curator name"},
		{"a name beyond ASCII: each request fails", "cyrillic", "503 invalid header name: зал"},
		{"a control character in a value: each request fails", "control", "503 invalid header value for: city"},
		{"an empty value: the header is left out (MetaProtocol: it is there)", "empty", "200 City=[]"},
		{"a value beyond ASCII arrives byte for byte", "umlaut", `200 City=["Zürich"]`},
	} {
		a := s.ask(ordersTable, attributes("kind="+c.kind))
		seen := a.Body
		if a.Upstream != "" {
			seen = headers(a.Seen, "City")
		}
		report.Is(t, c.what, c.want, fmt.Sprint(a.Code, " ", seen))
	}
}
