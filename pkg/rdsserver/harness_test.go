package rdsserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/routes"
	"github.com/metards/metards/pkg/tlsboot"
)

var discard = slog.New(slog.DiscardHandler)

func newRegistry() *prometheus.Registry { return prometheus.NewRegistry() }

// patience bounds every wait of a test; it is reached only where something is broken.
const patience = 20 * time.Second

// pipeline is the whole way from the store to the wire in one process, with a fake source.
type pipeline struct {
	t        testing.TB
	store    *mesh.Store
	cache    *cachemgr.Manager
	server   *rdsserver.Server
	registry *prometheus.Registry
	ca       *tlsboot.DevCA
	addr     string
	log      *lockedBuffer
	events   *lockedBuffer
	stop     context.CancelFunc
	stopped  chan error
}

// change adapts a pipeline before it starts.
type change func(*rdsserver.Options, *cachemgr.Options)

func newPipeline(t testing.TB, changes ...change) *pipeline {
	t.Helper()
	p := &pipeline{t: t, registry: prometheus.NewRegistry(), log: &lockedBuffer{}, events: &lockedBuffer{}, stopped: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(p.log, nil))
	board := problem.NewBoard(log)
	p.store = must(mesh.NewStore(mesh.Options{
		Settings: mesh.Settings{RootNamespace: "istio-system", ClusterDomain: "cluster.local"},
		Judge:    func(o *mesh.Object) []problem.Problem { return routes.Validate(o, routes.Limits{}) },
		Expect: []mesh.Feed{
			{Source: mesh.Directory, Kind: mesh.KindServiceEntry},
			{Source: mesh.Directory, Kind: mesh.KindDestinationRule},
			{Source: mesh.Directory, Kind: mesh.KindMetaRouter},
		},
		Problems: board,
	}))
	cacheOptions := cachemgr.Options{
		Store: p.store, Spellings: map[string]cachemgr.Spelling{sampleproxy.RouteType: spell},
		QuietPeriod: time.Millisecond, MaxDelay: 10 * time.Millisecond,
		Problems: board, Metrics: cachemgr.NewMetrics(p.registry), Log: log, Compiler: routes.Compile,
	}
	p.ca = must(tlsboot.NewDevCA("cluster.local"))
	options := rdsserver.Options{
		TLS: p.serverTLS(), Types: []string{sampleproxy.RouteType}, Metrics: rdsserver.NewMetrics(p.registry), Log: log,
		Events: rdsserver.NewEventLog(p.events, func(err error) { t.Errorf("the event log has ended: %v", err) }), TrustDomains: []string{"cluster.local"}, GracePeriod: 50 * time.Millisecond,
	}
	for _, c := range changes {
		c(&options, &cacheOptions)
	}
	p.cache = must(cachemgr.New(cacheOptions))
	options.Cache = p.cache
	p.server = must(rdsserver.New(options))
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	p.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() { p.stopped <- p.server.Run(ctx, l) }()
	go func() { _ = p.cache.Run(ctx) }()
	t.Cleanup(p.end)
	return p
}

func spell(p *routes.Plan, name string) (proto.Message, error) {
	return routes.RouteConfiguration(p, name)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// end stops the server and waits for it.
func (p *pipeline) end() {
	p.stop()
	select {
	case err := <-p.stopped:
		if err != nil {
			p.t.Errorf("the server ended with: %v", err)
		}
		p.stopped <- nil
	case <-time.After(patience):
		p.t.Error("the server did not stop")
	}
}

func (p *pipeline) serverTLS() *tls.Config {
	pair := must(p.ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}}))
	dir := p.t.TempDir()
	if err := p.ca.WriteFiles(dir, "server", pair); err != nil {
		p.t.Fatal(err)
	}
	files := must(tlsboot.NewFiles(tlsboot.FilesOptions{
		Cert: dir + "/server.pem", Key: dir + "/server-key.pem", Root: dir + "/root.pem",
		Log: slog.New(slog.DiscardHandler), Metrics: tlsboot.NewMetrics(prometheus.NewRegistry()),
	}))
	return files.ServerConfig()
}

// dial connects with a certificate of a namespace.
func (p *pipeline) dial(namespace string, options ...grpc.DialOption) *grpc.ClientConn {
	return p.dialAs(tlsboot.IssueOptions{Namespace: namespace, ServiceAccount: "app"}, options...)
}

func (p *pipeline) dialAs(as tlsboot.IssueOptions, options ...grpc.DialOption) *grpc.ClientConn {
	p.t.Helper()
	config := must(p.ca.ClientConfig(must(p.ca.Issue(as)), "localhost"))
	cc := must(grpc.NewClient("passthrough:///"+p.addr, append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))...))
	p.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// proxy is one stream of a sample proxy, with what a test asserts about it.
type proxy struct {
	*sampleproxy.Stream
	t      testing.TB
	cancel context.CancelFunc
}

func (p *pipeline) open(form sampleproxy.Form, namespace string) *proxy {
	p.t.Helper()
	return p.openOn(p.dial(namespace), form, sampleproxy.Node("sidecar", "app", namespace))
}

func (p *pipeline) openOn(cc *grpc.ClientConn, form sampleproxy.Form, node *corev3.Node) *proxy {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(cancel)
	s, err := sampleproxy.Open(ctx, cc, form, node)
	if err != nil {
		p.t.Fatal(err)
	}
	return &proxy{Stream: s, t: p.t, cancel: cancel}
}

// want subscribes.
func (x *proxy) want(names ...string) {
	x.t.Helper()
	if err := x.Want(names...); err != nil {
		x.t.Fatal(err)
	}
}

// next returns the next response, unanswered, and checks that it has one table.
func (x *proxy) next() sampleproxy.Response {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := x.Next(ctx)
	if err != nil {
		x.t.Fatal(err)
	}
	if len(r.Resources) != 1 || len(r.Removed) != 0 {
		x.t.Fatalf("a response with %d tables and %d removals, want one table", len(r.Resources), len(r.Removed))
	}
	return r
}

// accepted returns the next response's name and cluster, and accepts it.
func (x *proxy) accepted() (name, cluster string) {
	x.t.Helper()
	r := x.next()
	x.accept(r)
	return r.Names[0], clusterOf(x.t, r)
}

func (x *proxy) accept(r sampleproxy.Response) {
	x.t.Helper()
	if err := x.Accept(r); err != nil {
		x.t.Fatal(err)
	}
}

func (x *proxy) reject(r sampleproxy.Response, reason string) {
	x.t.Helper()
	if err := x.Reject(r, reason); err != nil {
		x.t.Fatal(err)
	}
}

// wantAccepted checks the next response and accepts it.
func (x *proxy) wantAccepted(name, cluster string) {
	x.t.Helper()
	if n, c := x.accepted(); n != name || c != cluster {
		x.t.Fatalf("got table %s to %s, want %s to %s", n, c, name, cluster)
	}
}

// ended waits for the stream's end and returns why it ended.
func (x *proxy) ended() error {
	x.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-x.Responses():
			if !ok {
				return x.Err()
			}
		case <-timeout:
			x.t.Fatal("the stream did not end")
			return errors.New("unreachable")
		}
	}
}

// clusterOf returns the first route's cluster, or its first weighted one.
func clusterOf(t testing.TB, r sampleproxy.Response) string {
	t.Helper()
	table, err := r.Table()
	if err != nil {
		t.Fatal(err)
	}
	action := table.GetVirtualHosts()[0].GetRoutes()[0].GetRoute()
	if c := action.GetCluster(); c != "" {
		return c
	}
	return action.GetWeightedClusters().GetClusters()[0].GetName()
}

// The mesh of the tests: services NAME.shop.example with the port 20880, in the namespace shop.

func host(name string) string            { return name + ".shop.example" }
func table(name string) string           { return host(name) + "_20880" }
func cluster(name, subset string) string { return "outbound|20880|" + subset + "|" + host(name) }

func service(name string) *mesh.Object {
	return &mesh.Object{
		Key:  mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: name},
		Spec: &mesh.ServiceEntry{Hosts: []string{host(name)}, Ports: []mesh.Port{{Number: 20880, Name: "tcp-metaprotocol-dubbo"}}},
	}
}

// router sends everything for a service to one subset.
func router(name, subset string) *mesh.Object {
	return routerOf(name, &v1alpha1.MetaRoute{Name: "all", Route: []*v1alpha1.MetaRouteDestination{
		{Destination: &v1alpha1.Destination{Host: host(name), Subset: subset}},
	}})
}

func routerOf(name string, list ...*v1alpha1.MetaRoute) *mesh.Object {
	return &mesh.Object{
		Key:  mesh.Key{Kind: mesh.KindMetaRouter, Namespace: "shop", Name: name},
		Spec: &mesh.MetaRouter{MetaRouter: &v1alpha1.MetaRouter{Hosts: []string{host(name)}, Routes: list}},
	}
}

// deliver makes these objects all there is.
func (p *pipeline) deliver(objects ...*mesh.Object) {
	p.store.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: objects})
}

// put adds or changes objects.
func (p *pipeline) put(objects ...*mesh.Object) {
	p.store.Apply(mesh.Directory, mesh.Batch{Objects: objects})
}

func (p *pipeline) remove(keys ...mesh.Key) {
	p.store.Apply(mesh.Directory, mesh.Batch{Deleted: keys})
}

// metric returns the sum of a counter or gauge over its labels, or over those with a value that is given.
func (p *pipeline) metric(name string, value ...string) float64 {
	p.t.Helper()
	sum, families := 0.0, must(p.registry.Gather())
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				if len(value) > 0 && m.GetLabel()[0].GetValue() != value[0] {
					continue
				}
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// eventually waits until a condition holds.
func (p *pipeline) eventually(what string, holds func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			p.t.Fatalf("never: %s", what)
		}
		<-tick.C
	}
}

// protocol returns the events so far, in short form: kind, names.
func (p *pipeline) protocol() []rdsserver.Event {
	p.t.Helper()
	var out []rdsserver.Event
	dec := json.NewDecoder(strings.NewReader(p.events.String()))
	for dec.More() {
		var e rdsserver.Event
		if err := dec.Decode(&e); err != nil {
			p.t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// inEveryForm runs a test in all four stream forms.
func inEveryForm(t *testing.T, test func(t *testing.T, form sampleproxy.Form)) {
	t.Helper()
	for _, form := range sampleproxy.Forms() {
		t.Run(form.Name, func(t *testing.T) {
			t.Parallel()
			test(t, form)
		})
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
