package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/metards/metards/examples"
	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/tlsboot"
)

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on loopback: a canary is shifted, a broken edit is refused",
		Long: "Run the server on loopback with a throw-away mesh root and the examples, connect two sample proxies, shift\n" +
			"a canary by editing a file, make a broken edit, and end. Nothing outside a temporary directory is touched.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := os.MkdirTemp("", "metards-demo-")
			if err != nil {
				return fmt.Errorf("make a directory for the demo: %w", err)
			}
			defer os.RemoveAll(dir)
			d := &demo{out: cmd.OutOrStdout(), dir: dir}
			return d.run(cmd.Context())
		},
	}
}

// The demo's cast.
const (
	ordersTable    = "orders.shop.svc.cluster.local_20880"
	inventoryTable = "inventory.stock.svc.cluster.local_9090"
	demoPatience   = 10 * time.Second // for everything that takes milliseconds
)

// demo is the story that `metards demo` tells.
type demo struct {
	out    io.Writer
	dir    string
	ca     *tlsboot.DevCA
	server *server

	frontend  *demoProxy
	warehouse *demoProxy
}

// demoProxy is a sample proxy and the responses that it has accepted.
type demoProxy struct {
	name, namespace, table string
	stream                 *sampleproxy.Stream
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.say("metards demo: everything runs on loopback and ends by itself.\n")
	if err := d.prepare(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.server.run(ctx) })
	g.Go(func() error {
		defer stop()
		for _, scene := range []func(context.Context) error{d.connect, d.shift, d.breakIt} {
			if err := scene(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	d.say("\nThat is the product: rules in, tables out, only to those whose table changed, and a bad rule harms nobody.")
	d.say("Next: metards render examples/dubbo-canary --namespace web, or metards serve --help.")
	return nil
}

// prepare makes the mesh root, copies the examples and builds the server.
func (d *demo) prepare() error {
	d.say("1. A throw-away mesh root signs a certificate for the server and one for each proxy.")
	var err error
	if d.ca, err = tlsboot.NewDevCA("cluster.local"); err != nil {
		return err
	}
	own, err := d.ca.Issue(tlsboot.IssueOptions{
		Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		return err
	}
	certs, rules := filepath.Join(d.dir, "certs"), filepath.Join(d.dir, "rules")
	if err := os.Mkdir(certs, 0o700); err != nil {
		return err
	}
	if err := d.ca.WriteFiles(certs, "server", own); err != nil {
		return err
	}
	if err := os.CopyFS(rules, examples.Files); err != nil {
		return fmt.Errorf("copy the examples: %w", err)
	}
	var o serveFlags
	o.register(&cobra.Command{}) // for the defaults
	o.sources.dir, o.listen, o.adminListen = rules, "127.0.0.1:0", "127.0.0.1:0"
	o.identity.cert, o.identity.key, o.identity.root = filepath.Join(certs, "server.pem"), filepath.Join(certs, "server-key.pem"), filepath.Join(certs, "root.pem")
	o.gracePeriod = 100 * time.Millisecond
	if d.server, err = newServer(o, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	d.say("   The server listens on %s with mTLS and watches a copy of the examples:", d.server.listener.Addr())
	d.say("   services, destination rules and MetaRouters in YAML, as a cluster would have them.\n")
	return nil
}

// connect opens the proxies' streams and shows their tables.
func (d *demo) connect(ctx context.Context) error {
	d.say("2. Two proxies connect, each with its own certificate, and ask for the table they need.\n")
	d.frontend = &demoProxy{name: "frontend", namespace: "web", table: ordersTable}
	d.warehouse = &demoProxy{name: "warehouse", namespace: "stock", table: inventoryTable}
	for _, p := range []*demoProxy{d.frontend, d.warehouse} {
		if err := d.open(ctx, p); err != nil {
			return err
		}
		r, err := p.accept(ctx)
		if err != nil {
			return err
		}
		d.say("   %s (namespace %s) asked for %s and got version %.8s:", p.name, p.namespace, p.table, r.Version)
		d.show(p)
		d.say("")
	}
	return nil
}

func (d *demo) open(ctx context.Context, p *demoProxy) error {
	pair, err := d.ca.Issue(tlsboot.IssueOptions{Namespace: p.namespace, ServiceAccount: p.name})
	if err != nil {
		return err
	}
	config, err := d.ca.ClientConfig(pair, "localhost")
	if err != nil {
		return err
	}
	cc, err := grpc.NewClient("passthrough:///"+d.server.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = cc.Close() })
	p.stream, err = sampleproxy.Open(ctx, cc, sampleproxy.Forms()[0], sampleproxy.Node("sidecar", p.name, p.namespace))
	if err != nil {
		return err
	}
	return p.stream.Want(p.table)
}

// accept waits for the next response and accepts it.
func (p *demoProxy) accept(ctx context.Context) (sampleproxy.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	r, err := p.stream.Next(ctx)
	if err != nil {
		return r, fmt.Errorf("%s: %w", p.name, err)
	}
	return r, p.stream.Accept(r)
}

// silent fails if the proxy receives anything within a time in which every push would have arrived.
func (p *demoProxy) silent(ctx context.Context) error {
	select {
	case r := <-p.stream.Responses():
		return fmt.Errorf("%s received version %s, which does not concern it", p.name, r.Version)
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(300 * time.Millisecond):
		return nil
	}
}

// show prints the table in readable form.
func (d *demo) show(p *demoProxy) {
	for _, t := range d.server.cache.Tables(p.table) {
		for i, line := range t.Table.Plan.Lines() {
			d.say("      %d. %s", i+1, line)
		}
	}
}

// edit changes the Dubbo canary's file as an editor does: a new file takes the old one's place.
func (d *demo) edit(replacements ...string) error {
	file := filepath.Join(d.dir, "rules", "dubbo-canary", "orders.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	edited := strings.NewReplacer(replacements...).Replace(string(text))
	if edited == string(text) {
		return fmt.Errorf("the edit %q changes nothing in %s", replacements, file)
	}
	if err := os.WriteFile(file+".new", []byte(edited), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// shift moves the canary from 90/10 to 50/50.
func (d *demo) shift(ctx context.Context) error {
	d.say("3. The canary goes from 90/10 to 50/50: two weights are edited in dubbo-canary/orders.yaml.\n")
	if err := d.warehouse.silent(ctx); err != nil { // calm, in which the first change goes out at once
		return err
	}
	began := time.Now()
	if err := d.edit("weight: 90", "weight: 50", "weight: 10", "weight: 50"); err != nil {
		return err
	}
	r, err := d.frontend.accept(ctx)
	if err != nil {
		return err
	}
	d.say("   frontend received version %.8s, %d ms after the file was written:", r.Version, r.At.Sub(began).Milliseconds())
	d.show(d.frontend)
	if err := d.warehouse.silent(ctx); err != nil {
		return err
	}
	d.say("   warehouse received nothing: its table did not change.\n")
	return nil
}

// breakIt makes an edit that would have crashed MetaProtocol proxies: they divide by the sum of the weights.
func (d *demo) breakIt(ctx context.Context) error {
	d.say("4. A broken edit: both weights become 0, to park the canary, and a regex is not closed.\n")
	if err := d.edit("weight: 50", "weight: 0", "exact: beta", "regex: (beta"); err != nil {
		return err
	}
	problems, err := d.waitForErrors(ctx)
	if err != nil {
		return err
	}
	for _, p := range problems {
		p.File = strings.TrimPrefix(p.File, filepath.Join(d.dir, "rules")+"/")
		d.say("   refused: %s: %s", p.Where(), p)
	}
	for _, p := range []*demoProxy{d.frontend, d.warehouse} {
		if err := p.silent(ctx); err != nil {
			return err
		}
	}
	d.say("\n   Nobody received anything. The rule in force is still:")
	d.show(d.frontend)
	return nil
}

// waitForErrors waits until the server has found errors.
func (d *demo) waitForErrors(ctx context.Context) ([]problem.Problem, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if list := d.server.problems.All(); problem.HasError(list) {
			return list, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the refusal: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
