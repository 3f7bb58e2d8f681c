package envoy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/metards/metards/e2e/stock"
)

// attributes reads "a=1 b=2".
func attributes(text string) map[string]string {
	out := map[string]string{}
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		out[name] = value
	}
	return out
}

func TestEachKindOfMatchGoesWhereAPersonWouldExpect(t *testing.T) {
	s := begin(t, options{rules: ordersRouter +
		to("exact", "exact", "method: {exact: getOrder}, tier: {exact: gold}") +
		to("prefix", "prefix", "method: {prefix: get}") +
		to("regex", "regex", "id: {regex: '[0-9]+|none'}") +
		to("several", "several", "Tenant: {exact: a}, zone: {prefix: eu-}, trial: {}") +
		to("presence", "presence", "trial: {}")})
	plan := s.plans()[ordersTable]
	for _, c := range []struct{ request, want string }{
		{"method=getOrder tier=gold", "exact"},
		{"METHOD=getOrder Tier=gold", "exact"}, // names match without regard to letter case
		{"method=getorder tier=gold", "prefix"},
		{"method=getOrder tier=Gold", "prefix"},
		{"method=getOrder", "prefix"}, // one of two conditions is not enough
		{"method=get", "prefix"},
		{"method=ge", stock.NoRoute},
		{"id=17", "regex"},
		{"id=none", "regex"},
		{"id=17x", stock.NoRoute}, // a regex must match the whole value
		{"id=x17", stock.NoRoute},
		{"id=17 method=getAll", "prefix"}, // the first route that matches decides
		{"tenant=a zone=eu-1 trial=1", "several"},
		{"tenant=a zone=eu- trial=", "several"},
		{"tenant=a zone=us-1 trial=1", "presence"},
		{"tenant=a zone=eu-1", stock.NoRoute},
		{"trial=", "presence"}, // an empty value is there
		{"", stock.NoRoute},
	} {
		request := attributes(c.request)
		report.Is(t, fmt.Sprintf("request with %q", c.request), c.want+", as predicted "+c.want,
			s.one(ordersTable, request)+", as predicted "+stock.Short(stock.Predict(plan, request)))
	}
}

func TestAServiceWithoutMetaRouterHasTheDefaultTable(t *testing.T) {
	s := begin(t, options{rules: ordersRouter + to("all", "v1", ""), clusters: []string{cluster("")}})
	report.Soon(t, "with a MetaRouter", "v1", s.who(ordersTable, nil), s)
	s.edit(ordersService + ordersRule)
	report.Soon(t, "the MetaRouter is deleted", ordersHost, s.who(ordersTable, attributes("tier=gold")), s)
	report.Is(t, "  predicted by routes.Plan.Decide", cluster(""), stock.Predict(s.plans()[ordersTable], nil))
}

// TestAttributeNamesThatHTTPCannotCarry shows that such a table is taken, and that no HTTP request can meet the
// condition: Envoy answers one that tries with 400. Other protocols carry such names.
func TestAttributeNamesThatHTTPCannotCarry(t *testing.T) {
	s := begin(t, options{rules: ordersRouter + to("blank", "v1", "curator name: {exact: ada}") + to("cyrillic", "v2", "зал: {exact: x}")})
	report.Is(t, "the table", "taken, update_rejected 0", "taken, update_rejected "+s.now(ordersTable, "update_rejected"))
	for _, header := range []string{"curator name: ada", "зал: x"} {
		report.Is(t, fmt.Sprintf("request with %q", header), "400 Bad Request", raw(t, s.address(ordersTable), header))
	}
}

// raw sends a request with a header as it is, and returns the status.
func raw(t *testing.T, addr, header string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(stock.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: test\r\n%s\r\n\r\n", header); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.Status
}
