package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/envoygate"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

// gateFlags say who judges tables before they are served.
type gateFlags struct {
	envoy   string
	timeout time.Duration
}

func (o *gateFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.envoy, "validate-with-envoy", "", "an Envoy that each table is put through (envoy --mode validate) before it is served; what it refuses is a Problem, and what was served stays")
	f.DurationVar(&o.timeout, "validate-timeout", 10*time.Second, "a run of --validate-with-envoy is killed after this time")
}

func (o *gateFlags) check() error {
	if o.envoy != "" && o.timeout <= 0 {
		return fmt.Errorf("--validate-timeout %s must be more than 0", o.timeout)
	}
	return nil
}

// newGate builds the gate, nil if there is none. An Envoy that is not there is a fault of the start, as every
// other file that a flag names; one that does not work, or is gone later, is a Problem.
func (o *gateFlags) newGate(board *problem.Board, registry *prometheus.Registry) (*envoygate.Gate, error) {
	if o.envoy == "" {
		return nil, nil
	}
	g, err := envoygate.New(envoygate.Options{
		Path: o.envoy, Timeout: o.timeout, Problems: board, Metrics: envoygate.NewMetrics(registry),
	})
	if err != nil {
		return nil, fmt.Errorf("--validate-with-envoy: %w", err)
	}
	return g, nil
}

// askEnvoy returns the Problems that an Envoy has with the tables of a directory.
func (l *loaded) askEnvoy(ctx context.Context, o gateFlags) ([]problem.Problem, error) {
	g, err := envoygate.New(envoygate.Options{
		Path: o.envoy, Problems: problem.NewBoard(slog.New(slog.DiscardHandler)), Metrics: envoygate.NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		return nil, fmt.Errorf("--with-envoy: %w", err)
	}
	objections, err := g.Objections(ctx, l.tables())
	if err != nil {
		return nil, fmt.Errorf("--with-envoy: %w", err)
	}
	var out []problem.Problem
	for t, objection := range objections {
		p := problem.Problem{
			Severity: problem.Error, Object: t.Plan.MetaRouter, Reason: problem.RefusedByEnvoy,
			Detail: fmt.Sprintf("Envoy refuses the table %s: %s", t.Name.Name, objection),
		}
		for _, x := range l.reading.Objects {
			if x.Ref() == p.Object {
				p.File, p.Line = x.File, x.Line
			}
		}
		out = append(out, p)
	}
	return problem.Sorted(out), nil
}

// tables are those of every client, each content once.
func (l *loaded) tables() []*cachemgr.Table {
	var out []*cachemgr.Table
	known := map[string]bool{}
	l.forClients(func(list []rendered, _ []problem.Problem) {
		for _, t := range list {
			message, err := routes.RouteConfiguration(t.plan, t.name)
			if err != nil {
				continue // a Problem of validate
			}
			value, err := anypb.New(message)
			if err != nil || known[string(value.GetValue())] {
				continue
			}
			known[string(value.GetValue())] = true
			out = append(out, &cachemgr.Table{Name: cachemgr.Name{Type: value.GetTypeUrl(), Name: t.name}, Any: value, Plan: t.plan})
		}
	})
	return out
}
