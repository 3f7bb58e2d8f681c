package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/metards/metards/pkg/problem"
)

// registerProblems registers how many Problems there are now.
func registerProblems(r prometheus.Registerer, board *problem.Board) {
	for _, s := range []problem.Severity{problem.Error, problem.Warning} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "metards_problems", Help: "Problems of input objects and files there are now, by severity.",
			ConstLabels: prometheus.Labels{"severity": string(s)},
		}, func() float64 { return float64(board.Count(s)) }))
	}
}
