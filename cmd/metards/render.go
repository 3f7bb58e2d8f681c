package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func newRender() *cobra.Command {
	var m meshFlags
	var view mesh.View
	var output string
	cmd := &cobra.Command{
		Use:   "render DIR --namespace NS",
		Short: "Print the tables that a directory gives to the proxies of a namespace",
		Long: "Print the tables that a directory of ServiceEntries, DestinationRules and MetaRouters gives to the proxies\n" +
			"of a namespace on a fresh start. Problems go to standard error; the exit code is 1 if one of them is an\n" +
			"error, and the output is complete all the same.",
		Example: "  metards render examples/dubbo-canary --namespace shop\n" +
			"  metards render examples/dubbo-canary --namespace shop --output yaml",
		Args: exactlyOneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			if view.Namespace == "" {
				return &exitError{2, fmt.Errorf("--namespace is required: the tables depend on the namespace of the proxy that asks")}
			}
			print, err := printer(output)
			if err != nil {
				return &exitError{2, err}
			}
			l, err := m.load(args[0])
			if err != nil {
				return &exitError{2, err}
			}
			tables, problems := l.compile(view)
			if err := print(cmd.OutOrStdout(), tables); err != nil {
				return err
			}
			problems = problem.Sorted(append(problems, l.board.All()...))
			printProblems(cmd.ErrOrStderr(), problems)
			if problem.HasError(problems) {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&view.Namespace, "namespace", "n", "", "namespace of the proxies (required)")
	cmd.Flags().BoolVar(&view.Gateway, "gateway", false, "the proxies are gateways (node type router)")
	cmd.Flags().StringVarP(&output, "output", "o", "summary", "summary, yaml or json")
	m.register(cmd.Flags())
	return cmd
}

func exactlyOneDir(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &exitError{2, fmt.Errorf("want exactly one directory, got %d arguments", len(args))}
	}
	return nil
}

// rendered is a name and the Plan under it.
type rendered struct {
	name string
	plan *routes.Plan
}

// compile makes every table that a View can ask for, by name.
func (l *loaded) compile(v mesh.View) ([]rendered, []problem.Problem) {
	var out []rendered
	var problems []problem.Problem
	for _, host := range l.hosts() {
		tables, found := l.compileHost(v, host)
		out, problems = append(out, tables...), append(problems, found...)
	}
	slices.SortFunc(out, func(a, b rendered) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return out, problems
}

// hosts are the folded hosts that services declare.
func (l *loaded) hosts() []string {
	var out []string
	for _, o := range l.store.Objects() {
		if s, ok := o.Spec.(*mesh.ServiceEntry); ok {
			for _, h := range s.Hosts {
				out = append(out, mesh.Fold(h))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// compileHost makes the tables of a host that a View can ask for.
func (l *loaded) compileHost(v mesh.View, host string) (out []rendered, problems []problem.Problem) {
	l.store.Read(v, func(lens *mesh.Lens) {
		service := lens.Service(host)
		if service == nil {
			return
		}
		for _, name := range routes.Names(service) {
			plan, found := routes.Compile(lens, name)
			if plan != nil {
				out = append(out, rendered{name, plan})
			}
			problems = append(problems, found...)
		}
	})
	return out, problems
}

func printer(output string) (func(io.Writer, []rendered) error, error) {
	switch output {
	case "summary":
		return printSummary, nil
	case "json":
		return printJSON, nil
	case "yaml":
		return printYAML, nil
	default:
		return nil, fmt.Errorf("--output %q is not known: use summary, yaml or json", output)
	}
}

// printSummary prints a block for each host and a line for each route.
func printSummary(w io.Writer, tables []rendered) error {
	var b bytes.Buffer
	if len(tables) == 0 {
		fmt.Fprintln(&b, "no tables: this namespace sees no service with a MetaProtocol port (named like tcp-metaprotocol-dubbo)")
	}
	host := ""
	for _, t := range tables {
		if t.plan.Service != host {
			if host != "" {
				fmt.Fprintln(&b)
			}
			host = t.plan.Service
			fmt.Fprintln(&b, host)
		}
		fmt.Fprintf(&b, "  port %d %s (%s)\n", t.plan.Port, t.plan.Spoken(), t.plan.From())
		for i, line := range t.plan.Lines() {
			fmt.Fprintf(&b, "    %d. %s\n", i+1, line)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// marshal gives the tables in protobuf's JSON form, as one array.
func marshal(tables []rendered) ([]byte, error) {
	list := make([]json.RawMessage, len(tables))
	for i, t := range tables {
		message, err := routes.RouteConfiguration(t.plan, t.name)
		if err != nil {
			return nil, err
		}
		if list[i], err = protojson.Marshal(message); err != nil {
			return nil, fmt.Errorf("write %s as JSON: %w", t.name, err)
		}
	}
	return json.MarshalIndent(list, "", "  ")
}

func printJSON(w io.Writer, tables []rendered) error {
	data, err := marshal(tables)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", data)
	return err
}

func printYAML(w io.Writer, tables []rendered) error {
	data, err := marshal(tables)
	if err != nil {
		return err
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil { // JSON is YAML
		return fmt.Errorf("convert to YAML: %w", err)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(tree); err != nil {
		return err
	}
	return enc.Close()
}

// printProblems prints a line for each Problem, with its place first, as compilers do.
func printProblems(w io.Writer, list []problem.Problem) {
	for _, p := range list {
		if at := p.Where(); at != "" {
			fmt.Fprintf(w, "%s: ", at)
		}
		fmt.Fprintf(w, "%s: %s\n", p.Severity, p)
	}
}
