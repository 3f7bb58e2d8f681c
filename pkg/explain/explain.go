// Package explain says in words where a request goes, and why not elsewhere.
package explain

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

// Question is where a request to a host goes.
type Question struct {
	Host       string
	Port       uint32    // 0 is each port that has a table
	View       mesh.View // of the proxy that sends the request
	Attributes map[string]string
}

// ParseHost takes HOST or HOST:PORT; without a port it returns 0.
func ParseHost(text string) (host string, port uint32, err error) {
	host, number, ok := strings.Cut(text, ":")
	if !ok {
		return text, 0, nil
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, fmt.Errorf("%q is not HOST:PORT", text)
	}
	return host, uint32(n), nil
}

// ParseAttributes takes NAME=VALUE texts.
func ParseAttributes(list []string) (map[string]string, error) {
	out := make(map[string]string, len(list))
	seen := make(map[string]bool, len(list))
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("the attribute %q is not NAME=VALUE", text)
		}
		folded := strings.ToLower(name)
		if seen[folded] {
			return nil, fmt.Errorf("the attribute %q is given twice (letter case does not count); a request has one value", name)
		}
		seen[folded], out[name] = true, value
	}
	return out, nil
}

// Query is the Question as URL parameters: host (HOST or HOST:PORT), namespace, gateway (true or absent), and
// attribute (NAME=VALUE) any number of times.
func (q Question) Query() url.Values {
	out := url.Values{"host": {q.Host}, "namespace": {q.View.Namespace}}
	if q.Port != 0 {
		out.Set("host", q.Host+":"+strconv.FormatUint(uint64(q.Port), 10))
	}
	if q.View.Gateway {
		out.Set("gateway", "true")
	}
	for name, value := range q.Attributes {
		out.Add("attribute", name+"="+value)
	}
	return out
}

// ParseQuery takes what Query gives.
func ParseQuery(values url.Values) (Question, error) {
	q := Question{View: mesh.View{Namespace: values.Get("namespace"), Gateway: values.Get("gateway") == "true"}}
	var err error
	if q.Host, q.Port, err = ParseHost(values.Get("host")); err != nil {
		return q, err
	}
	if q.Host == "" || q.View.Namespace == "" {
		return q, fmt.Errorf("host and namespace are required, as in ?host=orders.shop.svc.cluster.local&namespace=web&attribute=method=getOrder")
	}
	q.Attributes, err = ParseAttributes(values["attribute"])
	return q, err
}

// Table is what the proxies have for one port, and what else there is to know of it.
type Table struct {
	Plan *routes.Plan
	Note string // a sentence, empty if there is none
}

// Answer writes what happens to the request on the ports of the host, given the tables of these ports. Without
// attributes it writes the tables in words. An error means that there is nothing to say.
func (q Question) Answer(w io.Writer, tables []Table) error {
	shown := 0
	for _, t := range tables {
		p := t.Plan
		if q.Port != 0 && p.Port != q.Port {
			continue
		}
		shown++
		fmt.Fprintf(w, "%s:%d, %s, as proxies of namespace %s have it (%s)\n", p.Service, p.Port, p.Spoken(), q.View.Namespace, p.From())
		if t.Note != "" {
			fmt.Fprintf(w, "  note: %s\n", t.Note)
		}
		if len(q.Attributes) > 0 {
			q.request(w, p)
			continue
		}
		for i, line := range p.Lines() {
			fmt.Fprintf(w, "  %d. %s\n", i+1, line)
		}
	}
	if shown > 0 {
		return nil
	}
	if q.Port != 0 && len(tables) > 0 {
		return fmt.Errorf("port %d of %q is no MetaProtocol port; %s", q.Port, q.Host, ports(tables))
	}
	return fmt.Errorf("proxies of namespace %s see no MetaProtocol port of %q", q.View.Namespace, q.Host)
}

func ports(tables []Table) string {
	list := make([]string, len(tables))
	for i, t := range tables {
		list[i] = strconv.FormatUint(uint64(t.Plan.Port), 10)
	}
	return "it has " + strings.Join(list, ", ")
}

func (q Question) request(w io.Writer, p *routes.Plan) {
	d := p.Decide(q.Attributes)
	for i, why := range d.Passed {
		fmt.Fprintf(w, "  %d. no: %s wants %s\n", i+1, named(&p.Routes[i]), why)
	}
	if d.Route == nil {
		fmt.Fprintln(w, "  no route matches: the request fails")
		return
	}
	fmt.Fprintf(w, "  %d. yes: %s\n", d.Index+1, p.Lines()[d.Index])
	for _, dest := range d.Route.Destinations {
		fmt.Fprintf(w, "     cluster %s", dest.Cluster())
		if len(d.Route.Destinations) > 1 {
			fmt.Fprintf(w, ", weight %d", dest.Weight)
		}
		fmt.Fprintln(w)
	}
}

func named(r *routes.Route) string {
	if r.Name == "" {
		return "the route"
	}
	return r.Name
}
