package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/metards/metards/pkg/kubestatus"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// statusFacts tells the status writer how MetaRouters do, from what the store, the Problems and the cache
// know.
type statusFacts struct {
	server  *server
	changed chan struct{}
}

// newStatus builds the writer of the MetaRouters' status, which sees the API server's objects.
func (s *server) newStatus(config *rest.Config, registry *prometheus.Registry) (kubewatch.Observer, error) {
	s.facts = &statusFacts{server: s, changed: make(chan struct{}, 1)}
	us := s.flags.sources.node(s.flags.mesh.settings)
	var err error
	s.status, err = kubestatus.New(kubestatus.Options{
		Config: config, Source: s.facts, Replica: us.Pod, Namespace: us.Namespace,
		Problems: s.problems, Metrics: kubestatus.NewMetrics(registry), Log: s.log,
	})
	return s.status, err
}

// Changed is signalled when Facts may differ.
func (f *statusFacts) Changed() <-chan struct{} { return f.changed }

// run passes on what signals that something changed.
func (f *statusFacts) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.server.problems.Changed():
		case <-f.server.cache.FactsChanged():
		}
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// Facts returns those of all MetaRouters of the API server.
func (f *statusFacts) Facts() map[mesh.Key]kubestatus.Facts {
	s := f.server
	pending := s.store.Untaken() || s.cache.Renewing()
	held := s.store.Held(mesh.Kubernetes, mesh.KindMetaRouter)
	problems := map[problem.Object][]problem.Problem{}
	for _, p := range s.problems.All() {
		problems[p.Object] = append(problems[p.Object], p)
	}
	programmed := s.cache.Programmed()
	out := make(map[mesh.Key]kubestatus.Facts, len(held))
	for k, h := range held {
		p := programmed[k.Ref()]
		facts := kubestatus.Facts{
			Problems: problems[k.Ref()], Pending: pending,
			Proxies: p.Proxies, UpToDate: p.UpToDate, Rejected: p.Rejected, FirstError: p.FirstError,
		}
		if h.Refused {
			facts.LastValid = h.Valid
		}
		out[k] = facts
	}
	return out
}
