package rdsserver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/staticxds"
)

// staticPipeline is a pipeline with a file of static resources, in a mesh that has nothing.
type staticPipeline struct {
	*pipeline
	file     string
	source   *staticxds.Source
	problems *problem.Board
}

// newStatic starts one with what say makes of the words. Without words there is no file.
func newStatic(t testing.TB, words ...string) *staticPipeline {
	t.Helper()
	return newStaticWith(t, func(*rdsserver.Options, *cachemgr.Options) {}, words...)
}

// newStaticWith is newStatic with options of the server.
func newStaticWith(t testing.TB, c change, words ...string) *staticPipeline {
	t.Helper()
	s := &staticPipeline{file: filepath.Join(t.TempDir(), "static.yaml"), problems: problem.NewBoard(discard)}
	s.source = must(staticxds.New(staticxds.Options{
		File: s.file, Problems: s.problems, Metrics: staticxds.NewMetrics(prometheus.NewRegistry()), Log: discard, Settle: time.Millisecond,
	}))
	s.pipeline = newPipeline(t, c, func(o *rdsserver.Options, _ *cachemgr.Options) { o.Static = s.source })
	s.deliver()
	if len(words) > 0 {
		s.say(words...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// say replaces the file by what words like "clusters a=1 b=2" mean: resources by name, each with a number in it
// that tells versions apart. "versions clusters=7" are versions, and a word that begins with "text" is taken as it is.
func (s *staticPipeline) say(words ...string) {
	s.t.Helper()
	var b strings.Builder
	b.WriteString("{")
	for i, w := range words {
		if text, ok := strings.CutPrefix(w, "text "); ok {
			b.Reset()
			b.WriteString(text + " #")
			break
		}
		if i > 0 {
			b.WriteString(",\n")
		}
		f := strings.Fields(w)
		form := map[string][3]string{
			"versions":  {"{", `"%s": "%s"`, "}"},
			"clusters":  {"[", `{"name": "%[1]s", "type": "EDS", "eds_cluster_config": {"eds_config": {"ads": {}}, "service_name": "of-%[1]s"}, "connect_timeout": "%[2]ss"}`, "]"},
			"endpoints": {"[", `{"cluster_name": "%s", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %s}}}}]}]}`, "]"},
			"listeners": {"[", `{"name": "%s", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %s}}}`, "]"},
			"routes":    {"[", `{"name": "%s", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "%s"}}]}]}`, "]"},
		}[f[0]]
		var items []string
		for _, item := range f[1:] {
			name, value, _ := strings.Cut(item, "=")
			items = append(items, fmt.Sprintf(form[1], name, value))
		}
		fmt.Fprintf(&b, "%s: %s%s%s", f[0], form[0], strings.Join(items, ", "), form[2])
	}
	b.WriteString("}\n")
	if err := os.WriteFile(s.file+".new", []byte(b.String()), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.file+".new", s.file); err != nil {
		s.t.Fatal(err)
	}
}

// found waits until there is a Problem with a text.
func (s *staticPipeline) found(text string) {
	s.t.Helper()
	s.eventually("a Problem that says "+text, func() bool { return s.has(text) })
}

func (s *staticPipeline) has(text string) bool {
	return slices.ContainsFunc(s.problems.All(), func(p problem.Problem) bool { return strings.Contains(p.String(), text) })
}

var typeURLs = map[string]string{
	"clusters": staticxds.ClusterType, "endpoints": staticxds.EndpointType, "listeners": staticxds.ListenerType, "routes": staticxds.RouteType,
}

// envoy is a stream on ADS that keeps, as Envoy does, names and version for each type.
type envoy struct {
	*proxy
	delta    bool
	names    map[string][]string
	accepted map[string]string
	opened   bool
}

func (s *staticPipeline) envoy(form sampleproxy.Form) *envoy {
	s.t.Helper()
	return &envoy{s.open(form, "shop"), form.Delta, map[string][]string{}, map[string]string{}, false}
}

// ask makes the names all that is asked for of a type.
func (x *envoy) ask(kind string, names ...string) {
	x.t.Helper()
	r := sampleproxy.Request{Names: names, Version: x.accepted[kind]}
	if x.delta {
		r.Names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(x.names[kind], n) })
		r.Dropped = slices.DeleteFunc(slices.Clone(x.names[kind]), func(n string) bool { return slices.Contains(names, n) })
	}
	x.names[kind] = names
	x.request(kind, r)
}

func (x *envoy) request(kind string, r sampleproxy.Request) {
	x.t.Helper()
	r.Type = typeURLs[kind]
	if !x.opened {
		r.Node, x.opened = sampleproxy.Node("sidecar", "app", "shop"), true
	}
	if err := x.Send(r); err != nil {
		x.t.Fatal(err)
	}
}

// get returns the next response, which has to be of a type and have these names; those with a minus are removed.
func (x *envoy) get(kind string, names ...string) sampleproxy.Response {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := x.Next(ctx)
	if err != nil {
		x.t.Fatalf("waiting for %s %v: %v", kind, names, err)
	}
	got := slices.Sorted(slices.Values(r.Names))
	for _, n := range r.Removed {
		got = append(got, "-"+n)
	}
	if r.Type != typeURLs[kind] || !slices.Equal(got, names) {
		x.t.Fatalf("got %s %v, want %s %v", r.Type, got, kind, names)
	}
	return r
}

// take is get, accepted.
func (x *envoy) take(kind string, names ...string) sampleproxy.Response {
	x.t.Helper()
	r := x.get(kind, names...)
	x.ack(kind, r)
	return r
}

func (x *envoy) ack(kind string, r sampleproxy.Response) {
	x.t.Helper()
	x.accepted[kind] = r.Version
	x.answer(kind, r, nil)
}

func (x *envoy) refuse(kind string, names ...string) {
	x.t.Helper()
	x.answer(kind, x.get(kind, names...), &rpcstatus.Status{Code: 13, Message: "I do not like it"})
}

func (x *envoy) answer(kind string, r sampleproxy.Response, err *rpcstatus.Status) {
	x.t.Helper()
	q := sampleproxy.Request{Nonce: r.Nonce, Version: x.accepted[kind], Error: err}
	if !x.delta {
		q.Names = x.names[kind]
	}
	x.request(kind, q)
}

// inBothForms runs a test in both forms of ADS.
func inBothForms(t *testing.T, test func(t *testing.T, form sampleproxy.Form)) {
	t.Helper()
	for _, form := range sampleproxy.Forms() {
		if form.ADS {
			t.Run(form.Name, func(t *testing.T) {
				t.Parallel()
				test(t, form)
			})
		}
	}
}
