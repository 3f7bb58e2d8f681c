// Package envoy tests metards with a stock Envoy as its client: real traffic, Envoy's own statistics and metards'
// event log. An HTTP request stands for a call, its headers for the call's attributes.
package envoy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/metards/metards/e2e/stock"
	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/routes"
	"github.com/metards/metards/pkg/tlsboot"
)

var report = &stock.Report{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	code := m.Run()
	fmt.Fprintln(os.Stdout, "\nmetards with a stock Envoy: case | expected | seen")
	report.Print(os.Stdout)
	return code
}

// namespace is that of the Envoy's node and certificate.
const namespace = "web"

// scene is a metards on a directory, an upstream for each cluster that its tables name, and an Envoy between.
type scene struct {
	t         *testing.T
	dir       string
	rules     string // what metards reads
	ca        *tlsboot.DevCA
	server    *stock.Certificates // of metards
	own       *stock.Certificates // of Envoy
	metards   *stock.Metards
	upstreams *stock.Upstreams
	envoy     *stock.Envoy
}

// options change a scene from the usual.
type options struct {
	rules     string           // YAML, in one file
	dir       string           // or a directory to copy
	form      sampleproxy.Form // default: RDS, state of the world
	clusters  []string         // beside those that the first tables name
	ring      map[string][]string
	runtime   map[string]any
	ports     map[string]int        // of tables; default: all tables, any port
	hot       bool                  // Envoy can be restarted hot
	prepare   func(*scene) []string // what metards needs beside the rules; returns flags
	bootstrap func(*stock.Bootstrap)
}

func begin(t *testing.T, o options) *scene {
	t.Helper()
	s := &scene{t: t, dir: t.TempDir(), upstreams: &stock.Upstreams{}}
	s.rules = filepath.Join(s.dir, "rules")
	s.must(os.Mkdir(s.rules, 0o755))
	if o.dir != "" {
		s.must(os.CopyFS(s.rules, os.DirFS(o.dir)))
	} else {
		s.edit(o.rules)
	}
	s.identities()
	t.Cleanup(func() { s.end() })
	plans := s.plans()
	for cluster, names := range o.ring {
		s.must(s.upstreams.Several(cluster, names...))
	}
	s.must(s.upstreams.Start(append(stock.ClustersOf(plans), o.clusters...)...))
	flags := []string{"--dir", s.rules, "--removal-delay", "100ms"}
	if o.prepare != nil {
		flags = append(flags, o.prepare(s)...)
	}
	var err error
	s.metards, err = stock.StartMetards(s.dir, s.server, flags...)
	s.must(err)
	b := stock.Bootstrap{
		Metards: s.metards.Listen, Certs: s.own, Form: o.form, Namespace: namespace, Tables: o.ports,
		Clusters: s.upstreams.Clusters(), Runtime: o.runtime,
	}
	if b.Tables == nil {
		b.Tables = map[string]int{}
		for name := range plans {
			b.Tables[name] = 0
		}
	}
	if o.bootstrap != nil {
		o.bootstrap(&b)
	}
	start := stock.StartEnvoy
	if o.hot {
		start = stock.StartHot
	}
	s.envoy, err = start(s.dir, b)
	s.must(err)
	return s
}

// identities makes a mesh root, and with it certificates for metards and Envoy.
func (s *scene) identities() {
	s.t.Helper()
	var err error
	s.ca, err = tlsboot.NewDevCA("cluster.local")
	s.must(err)
	s.server, err = stock.NewCertificates(filepath.Join(s.dir, "server-certs"))
	s.must(err)
	s.own, err = stock.NewCertificates(filepath.Join(s.dir, "envoy-certs"))
	s.must(err)
	s.must(s.server.Put(s.serverPair(s.ca), s.ca))
	s.must(s.own.Put(s.clientPair(s.ca), s.ca))
}

func (s *scene) serverPair(ca *tlsboot.DevCA) *tlsboot.Pair {
	s.t.Helper()
	pair, err := stock.ServerPair(ca)
	s.must(err)
	return pair
}

func (s *scene) clientPair(ca *tlsboot.DevCA) *tlsboot.Pair {
	s.t.Helper()
	pair, err := ca.Issue(tlsboot.IssueOptions{Namespace: namespace, ServiceAccount: "web"})
	s.must(err)
	return pair
}

// end ends everything; after a failure it shows what the processes wrote.
func (s *scene) end() {
	if s.t.Failed() {
		s.t.Log(s)
	}
	if s.envoy != nil {
		s.envoy.Stop()
	}
	if s.metards != nil && s.metards.Process != nil {
		s.metards.Stop()
	}
	s.upstreams.Stop()
}

// String is what there is to know after a failure.
func (s *scene) String() string {
	out := ""
	if s.metards != nil && s.metards.Process != nil {
		out += "metards:\n" + s.metards.Tail() + "\n"
	}
	if s.envoy != nil && s.envoy.Process != nil {
		out += "Envoy:\n" + s.envoy.Tail() + "\n"
	}
	return out
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// edit replaces the file with the rules, as an editor does.
func (s *scene) edit(text string) {
	s.t.Helper()
	replace(s.t, filepath.Join(s.rules, "rules.yaml"), text)
}

func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// plans is what the rules mean, by metards' own code.
func (s *scene) plans() map[string]*routes.Plan {
	s.t.Helper()
	plans, err := stock.Plans(s.rules, namespace)
	s.must(err)
	return plans
}

// address is where the listener of a table listens.
func (s *scene) address(table string) string {
	s.t.Helper()
	a, err := s.envoy.Address(table)
	s.must(err)
	return a
}

// ask sends one request.
func (s *scene) ask(table string, attributes map[string]string) stock.Answer {
	s.t.Helper()
	a, err := stock.Request(context.Background(), s.address(table), attributes)
	s.must(err)
	return a
}

// who is the answer's short name, for conditions to wait for.
func (s *scene) who(table string, attributes map[string]string) func() (string, error) {
	return func() (string, error) {
		a, err := stock.Request(context.Background(), s.address(table), attributes)
		return stock.Short(a.Who()), err
	}
}

// figure reads a figure of a table's subscription.
func (s *scene) figure(table, name string) func() (string, error) {
	return func() (string, error) { return s.envoy.Table(table, name) }
}

// now reads a figure once.
func (s *scene) now(table, name string) string {
	s.t.Helper()
	v, err := s.envoy.Table(table, name)
	s.must(err)
	return v
}

// stat reads one of Envoy's statistics once.
func (s *scene) stat(name string) string {
	s.t.Helper()
	v, err := s.envoy.Stat(name)
	s.must(err)
	return v
}

// steps reads what the event log says of a table, in short.
func (s *scene) steps(table string) func() (string, error) {
	return func() (string, error) {
		events, err := s.metards.EventsOf(table)
		return stock.Steps(events), err
	}
}

// one sends one request and returns the answer's short name.
func (s *scene) one(table string, attributes map[string]string) string {
	s.t.Helper()
	return stock.Short(s.ask(table, attributes).Who())
}

// load starts traffic to a table's listener.
func (s *scene) load(table string) *stock.Load { return stock.StartLoad(s.address(table), nil) }

// undisturbed waits until traffic has seen some more requests answered by an upstream, ends it, and checks that no
// request has failed.
func (s *scene) undisturbed(l *stock.Load, upstream string) {
	s.t.Helper()
	const more = 50
	before := answered(l, upstream)
	report.Until(s.t, "traffic goes on", fmt.Sprintf("%d more answers of %s", more, upstream), func() (string, bool, error) {
		n := answered(l, upstream) - before
		return fmt.Sprint(n), n >= more, nil
	}, s)
	s.unfailing(l)
}

func answered(l *stock.Load, short string) int {
	n := 0
	for who, count := range l.Now() {
		if stock.Short(who) == short {
			n += count
		}
	}
	return n
}

// unfailing ends traffic and checks that no request has failed.
func (s *scene) unfailing(l *stock.Load) {
	s.t.Helper()
	got := l.Stop()
	seen := fmt.Sprintf("0 of %d", got.Total)
	if len(got.Failed) > 0 {
		seen = fmt.Sprintf("%d of %d, the first: %s", len(got.Failed), got.Total, got.Failed[0])
	}
	report.Is(s.t, "failed requests meanwhile", fmt.Sprintf("0 of %d", got.Total), seen)
}
