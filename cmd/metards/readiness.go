package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/metards/metards/pkg/mesh"
)

// unready names what keeps the server from being ready: lists that were never delivered, and what their
// source is in trouble with. Later trouble keeps nobody from being served, so it is no reason by itself.
func (s *server) unready() []string {
	var out []string
	missing := s.store.Missing()
	for _, feed := range missing {
		out = append(out, "waiting for the "+feed.String())
	}
	if s.ca != nil && !s.ca.Ready() {
		out = append(out, s.ca.Trouble())
	}
	if s.gate != nil && s.gate.Trouble() != "" {
		out = append(out, s.gate.Trouble())
	}
	if s.static != nil {
		if waiting := s.static.Waiting(); waiting != "" {
			out = append(out, waiting)
		}
	}
	for _, src := range s.sources {
		if trouble := src.trouble(); trouble != "" && slices.ContainsFunc(missing, func(f mesh.Feed) bool { return slices.Contains(src.feeds, f) }) {
			out = append(out, trouble)
		}
		if limit := s.flags.sources.maxStaleness; limit > 0 && len(missing) == 0 {
			if age := time.Since(src.alive()); age > limit {
				out = append(out, fmt.Sprintf("%s gave no sign of life for %s", src.name, age.Round(time.Second)))
			}
		}
	}
	if s.rds.Draining() {
		out = append(out, "shutting down")
	}
	return out
}

// tellReady logs once that the server is ready, and of how much.
func (s *server) tellReady(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for len(s.unready()) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	counts := map[mesh.Kind]int{}
	for _, o := range s.store.Objects() {
		counts[o.Kind]++
	}
	s.log.Info("ready", "service_entries", counts[mesh.KindServiceEntry], "destination_rules", counts[mesh.KindDestinationRule],
		"meta_routers", counts[mesh.KindMetaRouter])
	return nil
}
