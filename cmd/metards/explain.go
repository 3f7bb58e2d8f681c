package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

func newExplain() *cobra.Command {
	var m meshFlags
	var view mesh.View
	var dir string
	var attributes []string
	cmd := &cobra.Command{
		Use:   "explain HOST[:PORT] --dir DIR --namespace NS [--attribute NAME=VALUE ...]",
		Short: "Say where a request goes, and why not elsewhere",
		Long: "Say which route a request with the given attributes takes in the tables that a directory gives to the proxies\n" +
			"of a namespace, why the earlier routes do not match, and to which clusters with what weights it goes. Without\n" +
			"attributes, the tables in words.",
		Example: "  metards explain orders.shop.svc.cluster.local --dir examples/dubbo-canary --namespace web\n" +
			"  metards explain orders.shop.svc.cluster.local:20880 --dir examples/dubbo-canary --namespace web --attribute method=getOrder",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &exitError{2, fmt.Errorf("want exactly one HOST or HOST:PORT, got %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" || view.Namespace == "" {
				return &exitError{2, fmt.Errorf("--dir and --namespace are required")}
			}
			host, port, err := splitHost(args[0])
			if err != nil {
				return &exitError{2, err}
			}
			request, err := parseAttributes(attributes)
			if err != nil {
				return &exitError{2, err}
			}
			l, err := m.load(dir)
			if err != nil {
				return &exitError{2, err}
			}
			return l.explain(cmd.OutOrStdout(), view, host, port, request)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of ServiceEntries, DestinationRules and MetaRouters (required)")
	cmd.Flags().StringVarP(&view.Namespace, "namespace", "n", "", "namespace of the proxy that sends the request (required)")
	cmd.Flags().BoolVar(&view.Gateway, "gateway", false, "the proxy is a gateway (node type router)")
	cmd.Flags().StringArrayVarP(&attributes, "attribute", "a", nil, "NAME=VALUE of the request, as in method=sayHello; may be given several times")
	m.register(cmd.Flags())
	return cmd
}

// splitHost returns the port 0 if there is none.
func splitHost(text string) (host string, port uint32, err error) {
	host, number, ok := strings.Cut(text, ":")
	if !ok {
		return text, 0, nil
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q is not HOST:PORT", text)
	}
	return host, uint32(n), nil
}

func parseAttributes(list []string) (map[string]string, error) {
	out := make(map[string]string, len(list))
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attribute %q is not NAME=VALUE", text)
		}
		out[name] = value
	}
	return out, nil
}

// explain prints what happens to a request on the ports of a host: all that have a table if port is 0.
func (l *loaded) explain(w io.Writer, v mesh.View, host string, port uint32, request map[string]string) error {
	tables, _ := l.compileHost(v, host)
	shown := 0
	for _, t := range tables {
		if port != 0 && t.plan.Port != port {
			continue
		}
		shown++
		fmt.Fprintf(w, "%s:%d, %s, as proxies of namespace %s have it (%s)\n", t.plan.Service, t.plan.Port, spoken(t.plan), v.Namespace, t.plan.From())
		if len(request) == 0 {
			for i, line := range t.plan.Lines() {
				fmt.Fprintf(w, "  %d. %s\n", i+1, line)
			}
			continue
		}
		explainRequest(w, t.plan, request)
	}
	if shown == 0 {
		return &exitError{1, fmt.Errorf("proxies of namespace %s see no MetaProtocol port of %q; see metards render", v.Namespace, host)}
	}
	return nil
}

func explainRequest(w io.Writer, p *routes.Plan, request map[string]string) {
	d := p.Decide(request)
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

// spoken is the protocol of a port, as in metaprotocol/dubbo.
func spoken(p *routes.Plan) string {
	if p.Application == "" {
		return p.Protocol
	}
	return p.Protocol + "/" + p.Application
}
