package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func newValidate() *cobra.Command {
	var m meshFlags
	var output string
	var strict bool
	var envoy gateFlags
	cmd := &cobra.Command{
		Use:   "validate DIR",
		Short: "Check a directory and print its Problems with file and line",
		Long: "Check a directory of ServiceEntries, DestinationRules and MetaRouters, alone and together, and print the\n" +
			"Problems with file, line, object, route and reason.\n\n" +
			"Exit code: 0 no errors (warnings are printed), 1 errors, 2 the directory could not be read, the Envoy could not\n" +
			"judge, or a wrong use.",
		Example: "  metards validate examples/dubbo-canary",
		Args:    exactlyOneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return &exitError{2, fmt.Errorf("--output %q is not known: use text or json", output)}
			}
			if envoy.envoy == "" && cmd.Flags().Changed("with-envoy") { // a variable that nobody has set must not pass all tables
				return &exitError{2, errors.New("--with-envoy is empty: give an Envoy, or leave it out to have the tables checked without one")}
			}
			l, err := m.load(args[0])
			if err != nil {
				return &exitError{2, err}
			}
			problems := l.validate()
			if envoy.envoy != "" {
				refusals, err := l.askEnvoy(cmd.Context(), envoy)
				if err != nil {
					return &exitError{2, err}
				}
				problems = problem.Sorted(append(problems, refusals...))
			}
			if output == "json" {
				err = printProblemsJSON(cmd.OutOrStdout(), problems)
			} else {
				var text bytes.Buffer
				l.printReport(&text, problems)
				_, err = text.WriteTo(cmd.OutOrStdout())
			}
			switch {
			case err != nil:
				return &exitError{2, err}
			case problem.HasError(problems) || strict && len(problems) > 0:
				return &exitError{code: 1}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings too")
	cmd.Flags().StringVar(&envoy.envoy, "with-envoy", "", "an Envoy to put each table through (envoy --mode validate), as serve does with --validate-with-envoy")
	m.register(cmd.Flags())
	return cmd
}

// validate returns all Problems of a directory: those of each object, and those that show only when the
// tables are compiled, for one client of each kind that can see a difference.
func (l *loaded) validate() []problem.Problem {
	out := append(l.board.All(), l.store.Overlaps()...)
	if len(l.reading.Objects) == 0 && len(out) == 0 {
		out = append(out, problem.Problem{
			Severity: problem.Warning, Reason: problem.Empty, Detail: "the directory has no ServiceEntry, DestinationRule or MetaRouter",
			Consequence: "there is nothing to check",
		})
	}
	l.forClients(func(tables []rendered, problems []problem.Problem) {
		out = append(out, problems...)
		for _, t := range tables {
			if _, err := routes.RouteConfiguration(t.plan, t.name); err != nil {
				out = append(out, problem.Problem{
					Severity: problem.Error, Object: t.plan.MetaRouter, Reason: problem.Internal, Detail: err.Error(),
				})
			}
		}
	})
	return problem.Sorted(out)
}

// forClients compiles the tables of each host for one client of each kind that can see a difference.
func (l *loaded) forClients(take func([]rendered, []problem.Problem)) {
	for _, host := range l.hosts() {
		for _, client := range l.store.Clients(host) {
			take(l.compileHost(mesh.View{Namespace: client}, host))
		}
	}
}

func (l *loaded) printReport(w io.Writer, problems []problem.Problem) {
	printProblems(w, problems)
	for _, kind := range slices.Sorted(maps.Keys(l.reading.Ignored)) {
		fmt.Fprintf(w, "note: %s ignored: %d\n", kind, l.reading.Ignored[kind])
	}
	errors := 0
	for _, p := range problems {
		if p.Severity == problem.Error {
			errors++
		}
	}
	fmt.Fprintf(w, "%s, %s, %s\n", count(len(l.reading.Objects), "object"), count(errors, "error"), count(len(problems)-errors, "warning"))
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func printProblemsJSON(w io.Writer, problems []problem.Problem) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(problems)
}
