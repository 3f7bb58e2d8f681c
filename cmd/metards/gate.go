package main

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/metards/metards/pkg/envoygate"
	"github.com/metards/metards/pkg/problem"
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
