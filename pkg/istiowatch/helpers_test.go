package istiowatch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

const (
	deadline      = 10 * time.Second
	entries       = "networking.istio.io/v1/ServiceEntry"
	olderEntries  = "networking.istio.io/v1alpha3/ServiceEntry"
	rules         = "networking.istio.io/v1/DestinationRule"
	olderRules    = "networking.istio.io/v1alpha3/DestinationRule"
	routers       = "metaprotocol.aeraki.io/v1alpha1/MetaRouter"
	dubbo         = "tcp-metaprotocol-dubbo"
	resourceTypes = "type.googleapis.com/"
)

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); time.Now().Before(end); <-tick.C {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %v: %s", deadline, what)
}

// metadataVersion differs in every item that is made: as in istiod it says nothing.
var metadataVersion struct {
	sync.Mutex
	n int
}

// resource wraps a body as istiod does. The last argument changes the resource, and may be left out.
func resource(name string, body proto.Message, change ...func(*mcp.Resource)) *anypb.Any {
	metadataVersion.Lock()
	metadataVersion.n++
	version := fmt.Sprint(metadataVersion.n)
	metadataVersion.Unlock()
	r := &mcp.Resource{
		Metadata: &mcp.Metadata{Name: name, CreateTime: timestamppb.New(born), Version: version},
		Body:     must(anypb.New(body)),
	}
	for _, f := range change {
		f(r)
	}
	return must(anypb.New(r))
}

func service(host string, ports ...string) *networking.ServiceEntry {
	s := &networking.ServiceEntry{Hosts: []string{host}, Addresses: []string{"10.0.0.1"}}
	for i, name := range ports {
		s.Ports = append(s.Ports, &networking.ServicePort{Number: uint32(20880 + i), Name: name, Protocol: "TCP"})
	}
	return s
}

// entry is a MetaProtocol service of its own host.
func entry(name string, change ...func(*mcp.Resource)) *anypb.Any {
	_, host, _ := strings.Cut(name, "/")
	return resource(name, service(host, dubbo), change...)
}

// many are MetaProtocol services shop/s0, shop/s1, …
func many(n int) []*anypb.Any {
	out := make([]*anypb.Any, n)
	for i := range out {
		out[i] = entry(fmt.Sprintf("shop/s%d", i))
	}
	return out
}

func rule(name, host, header string) *anypb.Any {
	return resource(name, &networking.DestinationRule{Host: host, TrafficPolicy: &networking.TrafficPolicy{
		LoadBalancer: &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{
			ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{
				HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName{HttpHeaderName: header},
			}}}}})
}

// garbled has a body that is no message.
func garbled(r *mcp.Resource) { r.Body.Value = []byte("\xff\xff\xff") }

// revision is for one control plane.
func revision(name string) func(*mcp.Resource) {
	return func(r *mcp.Resource) { r.Metadata.Labels = map[string]string{"istio.io/rev": name, "app": "x"} }
}

// sink keeps what it gets as a Store would.
type sink struct {
	mu       sync.Mutex
	applied  int
	complete []mesh.Kind
	objects  map[mesh.Key]*mesh.Object
	faults   map[mesh.Key]string
	lost     []mesh.Key
}

func newSink() *sink {
	return &sink{objects: map[mesh.Key]*mesh.Object{}, faults: map[mesh.Key]string{}}
}

func (s *sink) Apply(source mesh.Source, b mesh.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if source != mesh.MCP {
		panic(source)
	}
	s.applied++
	s.complete = append(s.complete, b.Complete...)
	for _, o := range b.Objects {
		delete(s.faults, o.Key)
		if len(o.Faults) > 0 {
			s.faults[o.Key] = o.Faults[0].Detail
		}
		if o.Spec != nil {
			s.objects[o.Key] = o
		}
	}
	for _, k := range b.Deleted {
		if _, ok := s.objects[k]; !ok && s.faults[k] == "" {
			panic(fmt.Sprint("deleted and never there: ", k))
		}
		delete(s.objects, k)
		delete(s.faults, k)
		s.lost = append(s.lost, k)
	}
}

// content is "NAMESPACE/NAME=HOST:PORT …" of services and "NAMESPACE/NAME=HOST?HEADER" of rules, sorted.
func (s *sink) content() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for k, o := range s.objects {
		text := k.Namespace + "/" + k.Name + "="
		switch spec := o.Spec.(type) {
		case *mesh.ServiceEntry:
			text += strings.Join(spec.Hosts, "+")
			for _, p := range spec.Ports {
				text += ":" + p.Name
			}
		case *mesh.DestinationRule:
			text += spec.Host + "?" + spec.Policy.Balancer.HashHeader
		case *mesh.MetaRouter:
			text += strings.Join(spec.GetHosts(), "+")
		}
		out = append(out, strings.ReplaceAll(text, ":"+dubbo, ""))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (s *sink) applies() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}

func (s *sink) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}

func (s *sink) losses() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lost)
}

func (s *sink) completed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds := slices.Clone(s.complete)
	slices.Sort(kinds)
	return fmt.Sprint(kinds)
}

// logs is a log that may be read while it is written.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// bench is a watcher with all that is around it.
type bench struct {
	*Watcher
	sink     *sink
	logs     *logs
	registry *prometheus.Registry

	mu      sync.Mutex
	configs []MeshConfig
	stop    func()
}

// options are those of a watcher that is quick and needs no files.
func (b *bench) optionsFor(address string) Options {
	b.sink, b.logs, b.registry = newSink(), &logs{}, prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(b.logs, nil))
	return Options{
		Address: address, Plaintext: true, Node: Node{Pod: "metards-0", Namespace: "istio-system", IP: "10.1.2.3"},
		Sink: b.sink, Problems: problem.NewBoard(log), Log: log, Metrics: NewMetrics(b.registry),
		MeshConfig: func(c MeshConfig) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.configs = append(b.configs, c)
		},
		MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond,
	}
}

func (b *bench) told() []MeshConfig {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.configs)
}

// watch runs a watcher until the test ends.
func watch(t testing.TB, address string, change ...func(*Options)) *bench {
	t.Helper()
	b := &bench{}
	o := b.optionsFor(address)
	for _, f := range change {
		f(&o)
	}
	var err error
	b.Watcher, err = New(o)
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run did not return")
		}
	})
	t.Cleanup(b.stop)
	return b
}

func (b *bench) expect(t testing.TB, want string) {
	t.Helper()
	var got string
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); time.Now().Before(end); <-tick.C {
		if got = b.sink.content(); got == want {
			return
		}
	}
	t.Fatalf("got  %s\nwant %s", got, want)
}

// problems are those on the board, as one text.
func (b *bench) problems() string {
	var out []string
	for _, p := range b.options.Problems.All() {
		out = append(out, p.String())
	}
	return strings.Join(out, "\n")
}

func (b *bench) expectProblem(t testing.TB, part string) {
	t.Helper()
	eventually(t, "a problem with "+part, func() bool { return strings.Contains(b.problems(), part) })
}

// expectError waits for a status, and checks that the log says it too, once.
func (b *bench) expectError(t testing.TB, part string) {
	t.Helper()
	eventually(t, "the error "+part, func() bool { return strings.Contains(b.Status().Error, part) })
	b.expectProblem(t, part)
}

// metric is the value of a metric; of all label values together, if it has labels.
func (b *bench) metric(t testing.TB, name string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	check(t, err)
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// acknowledgedAll waits until n more responses of a type are answered, which is after they took effect.
func (s *istiod) waitForAnswer(t testing.TB, typeURL string, do func()) {
	t.Helper()
	before, _ := s.acknowledged(typeURL)
	do()
	eventually(t, "an answer to "+typeURL, func() bool {
		after, _ := s.acknowledged(typeURL)
		return after > before
	})
}

func write(t testing.TB, path string, data ...[]byte) {
	t.Helper()
	check(t, os.WriteFile(path, bytes.Join(data, nil), 0o600))
}
