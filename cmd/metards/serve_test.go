package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/metards/metards/examples"
	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/tlsboot"
)

const patience = 20 * time.Second

// running is a server of `metards serve` on a copy of the examples.
type running struct {
	*server
	t      *testing.T
	ca     *tlsboot.DevCA
	dir    string
	log    *syncBuffer
	events string
}

func start(t *testing.T, changes ...func(*serveFlags)) *running {
	t.Helper()
	r := &running{t: t, dir: t.TempDir(), log: &syncBuffer{}}
	if err := os.CopyFS(r.dir, examples.Files); err != nil {
		t.Fatal(err)
	}
	var o serveFlags
	o.register(&cobra.Command{})
	r.ca = certificates(t, &o)
	o.sources.dir, o.listen, o.adminListen, o.gracePeriod = r.dir, "127.0.0.1:0", "127.0.0.1:0", 50*time.Millisecond
	r.events = filepath.Join(t.TempDir(), "events")
	o.eventLog = r.events
	for _, change := range changes {
		change(&o)
	}
	var err error
	if r.server, err = newServer(o, slog.New(slog.NewTextHandler(r.log, nil))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the server ended with: %v", err)
			}
		case <-time.After(patience):
			t.Error("the server did not stop")
		}
	})
	return r
}

// certificates writes the server's files and names them in the flags.
func certificates(t *testing.T, o *serveFlags) *tlsboot.DevCA {
	t.Helper()
	ca, err := tlsboot.NewDevCA("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(tlsboot.IssueOptions{Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := ca.WriteFiles(dir, "server", pair); err != nil {
		t.Fatal(err)
	}
	o.identity.cert, o.identity.key, o.identity.root = filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem"), filepath.Join(dir, "root.pem")
	return ca
}

// proxy subscribes as a proxy of a namespace.
func (r *running) proxy(form sampleproxy.Form, namespace string, names ...string) *sampleproxy.Stream {
	r.t.Helper()
	pair, err := r.ca.Issue(tlsboot.IssueOptions{Namespace: namespace, ServiceAccount: "app"})
	if err != nil {
		r.t.Fatal(err)
	}
	config, err := r.ca.ClientConfig(pair, "localhost")
	if err != nil {
		r.t.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///"+r.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(func() { cancel(); _ = cc.Close() })
	s, err := sampleproxy.Open(ctx, cc, form, sampleproxy.Node("sidecar", "app", namespace))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.Want(names...); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// accept returns the next response, accepted.
func (r *running) accept(s *sampleproxy.Stream) sampleproxy.Response {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := s.Next(ctx)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, r.log)
	}
	if err := s.Accept(response); err != nil {
		r.t.Fatal(err)
	}
	return response
}

func (r *running) replace(file string, pairs ...string) {
	r.t.Helper()
	path := filepath.Join(r.dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// get returns a page of the admin port.
func (r *running) get(path string) (status int, body string) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.adminListener.Addr().String() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// eventually waits until a condition holds.
func (r *running) eventually(what string, holds func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !holds(); {
		select {
		case <-tick.C:
		case <-timeout:
			r.t.Fatalf("never: %s\n%s", what, r.log)
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func firstWeight(t *testing.T, r sampleproxy.Response) uint32 {
	t.Helper()
	table, err := r.Table()
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range table.GetVirtualHosts()[0].GetRoutes() {
		if w := route.GetRoute().GetWeightedClusters().GetClusters(); len(w) > 0 {
			return w[0].GetWeight().GetValue()
		}
	}
	t.Fatal("no weighted route")
	return 0
}

func TestAnEditOfAFileReachesExactlyTheStreamsItConcerns(t *testing.T) {
	for _, form := range sampleproxy.Forms() {
		t.Run(form.Name, func(t *testing.T) {
			r := start(t)
			concerned, other := r.proxy(form, "web", ordersTable), r.proxy(form, "stock", inventoryTable)
			if w := firstWeight(t, r.accept(concerned)); w != 90 {
				t.Fatalf("the canary starts with %d", w)
			}
			r.accept(other)

			r.replace("dubbo-canary/orders.yaml", "weight: 90", "weight: 50", "weight: 10", "weight: 50")
			if w := firstWeight(t, r.accept(concerned)); w != 50 {
				t.Errorf("after the edit the weight is %d", w)
			}

			// A broken edit changes nothing, and says why.
			r.replace("dubbo-canary/orders.yaml", "weight: 50", "weight: 0")
			r.eventually("the broken edit is a Problem", func() bool { return strings.Contains(r.log.String(), "weights sum to 0") })
			// The fence: the other one's next response is that of its own edit.
			r.replace("thrift-canary/inventory.yaml", "weight: 80", "weight: 70")
			if w := firstWeight(t, r.accept(other)); w != 70 {
				t.Errorf("the other proxy received a table with weight %d", w)
			}
			r.replace("dubbo-canary/orders.yaml", "weight: 0", "weight: 7")
			if w := firstWeight(t, r.accept(concerned)); w != 7 {
				t.Errorf("the concerned proxy received a table with weight %d", w)
			}
		})
	}
}

func TestAVanishedDirectoryTakesNothingAway(t *testing.T) {
	r := start(t)
	s := r.proxy(sampleproxy.Forms()[0], "web", ordersTable)
	r.accept(s)
	aside := r.dir + ".aside"
	if err := os.Rename(r.dir, aside); err != nil {
		t.Fatal(err)
	}
	r.eventually("it is a Problem", func() bool { return strings.Contains(r.log.String(), "reason=Unreadable") })
	late := r.proxy(sampleproxy.Forms()[0], "web", ordersTable)
	if w := firstWeight(t, r.accept(late)); w != 90 {
		t.Errorf("a newcomer gets weight %d", w)
	}
	if code, body := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz says %d %s", code, body)
	}
	if err := os.Rename(aside, r.dir); err != nil {
		t.Fatal(err)
	}
	r.replace("dubbo-canary/orders.yaml", "weight: 90", "weight: 60")
	if w := firstWeight(t, r.accept(s)); w != 60 {
		t.Errorf("after it is back the weight is %d", w)
	}
}

func TestTheAdminPagesTellWhatIsServed(t *testing.T) {
	r := start(t)
	r.eventually("it is ready", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	s := r.proxy(sampleproxy.Forms()[0], "web", ordersTable, "nobody.example_1")
	r.accept(s)
	r.eventually("the ack is noted", func() bool { _, body := r.get("/debug/proxies"); return strings.Contains(body, `"accepted"`) })
	for path, parts := range map[string][]string{
		"/livez":                       {"ok"},
		"/metrics":                     {"metards_streams 1", "metards_problems", "go_goroutines"},
		"/debug/mesh":                  {`"kind": "MetaRouter"`, "orders.yaml", `"problems": []`},
		"/debug/proxies":               {"sidecar~127.0.0.1~app.web~web.svc.cluster.local", "nothing to send", "spiffe://cluster.local/ns/web/sa/app"},
		"/debug/tables":                {ordersTable, "90% subset v1, 10% subset v2"},
		"/debug/tables/" + ordersTable: {`"virtualHosts"`, `"web"`},
		"/debug/pprof/":                {"goroutine"},
	} {
		code, body := r.get(path)
		if code != http.StatusOK {
			t.Errorf("%s answers %d: %s", path, code, body)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				t.Errorf("%s does not say %q:\n%s", path, part, body)
			}
		}
	}
	var mem map[string]float64
	if _, body := r.get("/debug/mem"); json.Unmarshal([]byte(body), &mem) != nil || mem["heap_alloc"] == 0 || mem["rss"] == 0 || mem["goroutines"] == 0 || mem["stack_inuse"] == 0 {
		t.Errorf("/debug/mem says %v", mem)
	}
	if code, _ := r.get("/debug/tables/nobody.example_1"); code != http.StatusNotFound {
		t.Errorf("a table that nobody is served answers %d", code)
	}
}

func TestTheEventLogIsWrittenAsJSONLines(t *testing.T) {
	r := start(t)
	r.accept(r.proxy(sampleproxy.Forms()[0], "web", ordersTable))
	r.eventually("the ack is logged", func() bool {
		data, err := os.ReadFile(r.events)
		return err == nil && strings.Contains(string(data), `"event":"ack"`)
	})
	data, err := os.ReadFile(r.events)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil || event["time"] == nil || event["event"] == nil {
			t.Errorf("line %q: %v", line, err)
		}
	}
}

func TestAFaultOfTheStartSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	var o serveFlags
	certificates(t, &o)
	good := []string{"serve", "--dir", dir, "--cert", o.identity.cert, "--key", o.identity.key, "--root", o.identity.root, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
	with := func(extra ...string) []string { return append(append([]string{}, good...), extra...) }
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no flags":                      {[]string{"serve"}, 1, "--dir or --istiod, --cert and --key or --ca, --root must be given"},
		"an unknown flag":               {[]string{"serve", "--dirr", "x"}, 1, "--dirr"},
		"an unknown command":            {[]string{"sevre"}, 1, "sevre"},
		"a directory without its flag":  {[]string{"serve", dir}, 1, "serve takes no arguments, got \"" + dir + "\": a directory is given with --dir"},
		"no such directory":             {with("--dir", dir+"/none"), 1, dir + "/none"},
		"no such certificate":           {with("--cert", dir+"/none.pem"), 1, dir + "/none.pem"},
		"another one's key":             {with("--root", o.identity.key), 1, o.identity.key},
		"a port that is taken":          {with("--listen", taken.Addr().String()), 1, "--listen " + taken.Addr().String()},
		"a broken kubeconfig":           {with("--kubeconfig", o.identity.cert), 1, o.identity.cert},
		"no such kubeconfig":            {with("--kubeconfig", dir+"/none"), 1, dir + "/none"},
		"an istiod without port":        {with("--istiod", "istiod"), 1, "HOST:PORT"},
		"an unknown source":             {with("--metarouter-source", "etcd"), 1, "etcd"},
		"MCP without istiod":            {with("--metarouter-source", "mcp"), 1, "--istiod"},
		"an unknown authorization":      {with("--authorize", "maybe"), 1, "maybe"},
		"an anchor without file":        {with("--trust-anchor", "other.domain"), 1, "DOMAIN=FILE"},
		"an anchor of our domain":       {with("--trust-anchor", "cluster.local="+o.identity.root), 1, "cluster.local"},
		"a CA without token":            {[]string{"serve", "--dir", dir, "--ca", "127.0.0.1:1", "--root", o.identity.root}, 1, "--token"},
		"a CA beside files":             {with("--ca", "127.0.0.1:1", "--token", o.identity.cert), 1, "one or the other"},
		"an unwritable state directory": {with("--state-dir", "/proc/self"), 1, "state directory"},
		"a limit below zero":            {with("--max-streams", "-1"), 1, "-1"},
		"a bad log level":               {with("--log-level", "loud"), 1, "loud"},
		"a bad duration":                {with("--max-delay", "soon"), 1, "soon"},
		"render without a namespace":    {[]string{"render", dir}, 2, "--namespace is required"},
		"render of nothing":             {[]string{"render", dir + "/none", "--namespace", "a"}, 2, dir + "/none"},
		"render in an unknown form":     {[]string{"render", dir, "--namespace", "a", "--output", "xml"}, 2, "xml"},
		"explain without a host":        {[]string{"explain"}, 2, "HOST:PORT"},
		"explain without a namespace":   {[]string{"explain", "a.b", "--dir", dir}, 2, "--namespace"},
		"explain of a bad port":         {[]string{"explain", "a.b:x", "--dir", dir, "-n", "a"}, 2, "a.b:x"},
		"explain of a bad attribute":    {[]string{"explain", "a.b", "--dir", dir, "-n", "a", "-a", "method"}, 2, "NAME=VALUE"},
		"explain of an unknown host":    {[]string{"explain", "a.b", "--dir", dir, "-n", "a"}, 1, "no MetaProtocol port"},
		"validate with an unknown flag": {[]string{"validate", dir, "--sctrict"}, 2, "--sctrict"},
		"validate with a bad flag":      {[]string{"validate", dir, "--max-entries", "many"}, 2, "many"},
		"validate without a directory":  {[]string{"validate"}, 2, "exactly one directory"},
		"validate of nothing":           {[]string{"validate", dir + "/none"}, 2, dir + "/none"},
		"validate in an unknown form":   {[]string{"validate", dir, "--output", "xml"}, 2, "xml"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), c.args, &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stderr.String(), c.says) {
				t.Errorf("standard error does not say %q: %s", c.says, &stderr)
			}
			if n := strings.Count(stderr.String(), "\n"); n > 6 {
				t.Errorf("standard error has %d lines: %s", n, &stderr)
			}
		})
	}
}

func TestAnEnvironmentVariableStandsInForAFlag(t *testing.T) {
	t.Setenv("METARDS_NAMESPACE", "web")
	t.Setenv("METARDS_OUTPUT", "json")
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"render", filepath.Join("..", "..", "examples")}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var tables []map[string]any
	if err := json.Unmarshal(stdout.Bytes(), &tables); err != nil || len(tables) != 2 {
		t.Errorf("%d tables: %v", len(tables), err)
	}
	t.Setenv("METARDS_OUTPUT", "xml")
	if code := run(t.Context(), []string{"render", filepath.Join("..", "..", "examples")}, &stdout, &stderr); code != 2 {
		t.Errorf("a bad value of the environment gives exit code %d", code)
	}
	t.Setenv("METARDS_OUTPUT", "json")
	t.Setenv("METARDS_MAX_ENTRIES", "many")
	if code := run(t.Context(), []string{"render", filepath.Join("..", "..", "examples")}, &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), "METARDS_MAX_ENTRIES") {
		t.Errorf("a value of the environment that is no number gives exit code %d: %s", code, &stderr)
	}
}

func TestTheDemoTellsItsStoryAndEnds(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"demo"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, &stderr, &stdout)
	}
	for _, part := range []string{
		"90% subset v1, 10% subset v2", "50% subset v1, 50% subset v2", "ms after the file was written",
		"warehouse received nothing", "refused: dubbo-canary/orders.yaml:", "weights sum to 0", "not RE2", "Nobody received anything",
	} {
		if !strings.Contains(stdout.String(), part) {
			t.Errorf("the demo does not say %q:\n%s", part, &stdout)
		}
	}
}

func TestAnEventLogThatCannotBeWrittenIsTold(t *testing.T) {
	r := start(t, func(o *serveFlags) { o.eventLog = "/dev/full" })
	r.accept(r.proxy(sampleproxy.Forms()[0], "web", ordersTable))
	r.eventually("it is logged", func() bool { return strings.Contains(r.log.String(), "the event log cannot be written") })
}

func TestAChangedTableIsLogged(t *testing.T) {
	r := start(t)
	s := r.proxy(sampleproxy.Forms()[0], "web", ordersTable)
	r.accept(s)
	r.replace("dubbo-canary/orders.yaml", "weight: 90", "weight: 50")
	r.accept(s)
	r.eventually("it is logged", func() bool {
		return strings.Contains(r.log.String(), `msg="tables changed" count=1 names=[`+ordersTable+"]")
	})
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `metards_objects{kind="MetaRouter"} 2`) {
		t.Error("the metrics do not count the MetaRouters")
	}
}

func TestTheLogSaysOnceThatTheServerIsReadyAndOfHowMuch(t *testing.T) {
	r := start(t)
	const line = `msg=ready service_entries=2 destination_rules=2 meta_routers=2`
	r.eventually(line, func() bool { return strings.Contains(r.log.String(), line) })
}
