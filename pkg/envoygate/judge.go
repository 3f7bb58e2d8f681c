package envoygate

import (
	"context"
	"errors"
	"fmt"
	"os"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/cachemgr"
)

// errReplaced means that another binary judged than the one that was probed, so its verdict does not count.
var errReplaced = errors.New("the binary was replaced")

// judge finds the verdict on each of some tables. Where they do not pass together, each half is judged: so a bad
// one is found and the others pass. It returns an error, and gives back what is left, if the binary does not
// work at all, or is not the probed one any more, or the context has ended.
func (g *Gate) judge(ctx context.Context, q Verdicts, probed os.FileInfo, tables []*cachemgr.Table) error {
	objection, err := g.run(ctx, tables)
	switch {
	case ctx.Err() != nil:
		q.GiveBack(tables)
		return ctx.Err()
	case !same(g.binary(), probed):
		q.GiveBack(tables)
		return errReplaced
	case err != nil:
		if broken := g.probe(ctx); broken != nil {
			q.GiveBack(tables)
			return broken
		}
		if len(tables) == 1 {
			q.PutOff(tables[0], err.Error())
			return nil
		}
	case objection == "":
		q.Pass(tables)
		return nil
	case len(tables) == 1:
		q.Refuse(tables[0], objection)
		return nil
	}
	half := len(tables) / 2
	if err := g.judge(ctx, q, probed, tables[:half]); err != nil {
		q.GiveBack(tables[half:])
		return err
	}
	return g.judge(ctx, q, probed, tables[half:])
}

// run puts tables through the binary, together.
func (g *Gate) run(ctx context.Context, tables []*cachemgr.Table) (objection string, err error) {
	configuration, err := bootstrap(tables)
	if err != nil {
		return "", err
	}
	return g.validate(ctx, configuration)
}

// probe checks that the binary judges: it has to take a table that every Envoy takes, and to refuse one that
// every Envoy refuses, or it is no Envoy.
func (g *Gate) probe(ctx context.Context) error {
	good, err := probeTable(&corev3.HeaderValue{Key: "a", Value: "b"})
	if err != nil {
		return err
	}
	bad, err := probeTable(&corev3.HeaderValue{Key: ":path", Value: "b"})
	if err != nil {
		return err
	}
	objection, err := g.run(ctx, []*cachemgr.Table{good})
	switch {
	case err != nil:
		return err
	case objection != "":
		return fmt.Errorf("it refuses a table that every Envoy takes: %s", objection)
	}
	objection, err = g.run(ctx, []*cachemgr.Table{bad})
	switch {
	case err != nil:
		return err
	case objection == "":
		return errors.New("it takes a table that every Envoy refuses, so it is none")
	}
	return nil
}

// probeTable makes a table that adds a header.
func probeTable(add *corev3.HeaderValue) (*cachemgr.Table, error) {
	const name = "probe"
	value, err := anypb.New(&routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{
		Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:               &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action:              &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name}}},
			RequestHeadersToAdd: []*corev3.HeaderValueOption{{Header: add}},
		}},
	}}})
	if err != nil {
		return nil, fmt.Errorf("write the probe: %w", err)
	}
	return &cachemgr.Table{Name: cachemgr.Name{Type: value.GetTypeUrl(), Name: name}, Any: value}, nil
}
