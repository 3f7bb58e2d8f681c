package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/envoygate"
	"github.com/metards/metards/pkg/istiowatch"
	"github.com/metards/metards/pkg/kubestatus"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/statedir"
	"github.com/metards/metards/pkg/staticxds"
	"github.com/metards/metards/pkg/tlsboot"
)

var update = flag.Bool("update", false, "write the generated documents anew")

func TestDocsSayWhatTheProgramSays(t *testing.T) {
	for name, want := range map[string]string{"cli.md": cliDoc(), "metrics.md": metricsDoc(t)} {
		file := filepath.Join("..", "..", "docs", name)
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("docs/%s is not what the program says: run make generate", name)
		}
	}
}

func cliDoc() string {
	var b bytes.Buffer
	b.WriteString("# The command line\n\nWritten by `make generate`. Every flag has an environment variable, which the command line overrides.\n")
	for _, c := range newRoot().Commands() {
		fmt.Fprintf(&b, "\n## metards %s\n\n%s\n\n```\nmetards %s\n```\n", c.Name(), describe(c), c.Use)
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
		}
		if !c.Flags().HasFlags() {
			continue
		}
		for _, g := range groupsOf(c.Flags()) {
			b.WriteString(flagsDoc(g))
		}
	}
	return b.String()
}

func flagsDoc(g flagGroup) string {
	var b bytes.Buffer
	if g.title != "" {
		fmt.Fprintf(&b, "\n%s:\n", g.title)
	}
	b.WriteString("\n| flag | default | meaning | environment |\n|---|---|---|---|\n")
	g.flags.VisitAll(func(f *pflag.Flag) {
		usage, _, _ := strings.Cut(f.Usage, " [METARDS_")
		byDefault := f.DefValue
		if byDefault != "" {
			byDefault = "`" + byDefault + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | `%s` |\n", f.Name, byDefault, usage, variable(f.Name))
	})
	return b.String()
}

func describe(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short + "."
}

// collected notes what is registered, as a Registerer.
type collected struct{ list []prometheus.Collector }

func (c *collected) Register(p prometheus.Collector) error  { c.list = append(c.list, p); return nil }
func (c *collected) MustRegister(p ...prometheus.Collector) { c.list = append(c.list, p...) }
func (c *collected) Unregister(prometheus.Collector) bool   { return false }

var descPattern = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", unit: "[^"]*", constLabels: \{(?:([a-z_]+)=[^}]*)?\}, variableLabels: \{([^}]*)\}`)

func metricsDoc(t *testing.T) string {
	t.Helper()
	var c collected
	cachemgr.NewMetrics(&c)
	rdsserver.NewMetrics(&c)
	tlsboot.NewMetrics(&c)
	statedir.NewMetrics(&c)
	staticxds.NewMetrics(&c)
	istiowatch.NewMetrics(&c)
	kubewatch.NewMetrics(&c)
	kubestatus.NewMetrics(&c)
	envoygate.NewMetrics(&c)
	registerStoodIn(&c, nil)
	registerObjects(&c, nil)
	registerProblems(&c, nil)
	var rows []string
	for _, p := range c.list {
		descs := make(chan *prometheus.Desc, 16)
		p.Describe(descs)
		close(descs)
		for d := range descs {
			m := descPattern.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("cannot read %s", d)
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], m[3]+m[4], m[2]))
		}
	}
	slices.Sort(rows)
	return "# Metrics\n\nWritten by `make generate`. Beside these there are those of the Go runtime and the process.\n\n" +
		"| metric | label | meaning |\n|---|---|---|\n" + strings.Join(slices.Compact(rows), "")
}
