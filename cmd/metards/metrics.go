package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// registerObjects registers how many objects are in force.
func registerObjects(r prometheus.Registerer, store *mesh.Store) {
	for _, kind := range mesh.Kinds() {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "metards_objects", Help: "Objects in force, by kind.", ConstLabels: prometheus.Labels{"kind": string(kind)},
		}, func() float64 { return float64(store.Count(kind)) }))
	}
}

// registerStoodIn registers how old the saved state is that stands in for silent sources.
func registerStoodIn(r prometheus.Registerer, store *mesh.Store) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "metards_state_stood_in_age_seconds", Help: "Age of the saved state that stands in for a silent source; 0 if none has to.",
	}, func() float64 {
		feeds, at := store.StoodIn()
		if len(feeds) == 0 {
			return 0
		}
		return time.Since(at).Seconds()
	}))
}

// registerProblems registers how many Problems there are now.
func registerProblems(r prometheus.Registerer, board *problem.Board) {
	for _, s := range []problem.Severity{problem.Error, problem.Warning} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "metards_problems", Help: "Problems of input objects and files there are now, by severity.",
			ConstLabels: prometheus.Labels{"severity": string(s)},
		}, func() float64 { return float64(board.Count(s)) }))
	}
}
