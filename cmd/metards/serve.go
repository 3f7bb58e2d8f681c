package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/admin"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/routes"
	"github.com/metards/metards/pkg/tlsboot"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	mesh            meshFlags
	dir             string
	listen          string
	adminListen     string
	tls             tlsboot.FilesOptions
	trustDomains    []string
	quietPeriod     time.Duration
	maxDelay        time.Duration
	settle          time.Duration
	removalDelay    time.Duration
	maxNames        int
	responseTimeout time.Duration
	gracePeriod     time.Duration
	connectionAge   time.Duration
	eventLog        string
	logLevel        string
	logFormat       string
}

func newServe() *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use:   "serve --dir DIR --cert FILE --key FILE --root FILE",
		Short: "Serve route tables to the mesh's proxies",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			s, err := newServer(o, log)
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	o.register(cmd)
	return cmd
}

func (o *serveFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "directory of ServiceEntries, DestinationRules and MetaRouters in YAML or JSON (required)")
	f.StringVar(&o.listen, "listen", ":15010", "address that proxies connect to")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:15014", "address of health, metrics and debug pages")
	f.StringVar(&o.tls.Cert, "cert", "", "PEM file of the server's certificate, with intermediates; reloaded on change (required)")
	f.StringVar(&o.tls.Key, "key", "", "PEM file of its key; reloaded on change (required)")
	f.StringVar(&o.tls.Root, "root", "", "PEM file of the mesh's trust roots, which client certificates must chain to; reloaded on change (required)")
	f.StringSliceVar(&o.trustDomains, "trust-domain", []string{"cluster.local"}, "trust domain of the mesh; further ones are aliases")
	f.DurationVar(&o.quietPeriod, "quiet-period", 100*time.Millisecond, "after a first change, which goes out at once, later ones wait until there was none for this long")
	f.DurationVar(&o.maxDelay, "max-delay", time.Second, "the longest that changes wait for the quiet period")
	f.DurationVar(&o.settle, "settle", 20*time.Millisecond, "a file is read once its size and time have been the same for this long")
	f.DurationVar(&o.removalDelay, "removal-delay", time.Second, "an object is believed gone once its file has been without it for this long")
	f.IntVar(&o.maxNames, "max-names", 10_000, "most names that one stream may subscribe to")
	f.DurationVar(&o.responseTimeout, "response-timeout", 30*time.Second, "a stream ends if the proxy does not answer a response within this time")
	f.DurationVar(&o.gracePeriod, "grace-period", 10*time.Second, "time over which streams are closed when the server stops")
	f.DurationVar(&o.connectionAge, "connection-age", 30*time.Minute, "proxies are asked to reconnect after this time, ±10 %, so that load spreads over replicas; 0 is never")
	f.StringVar(&o.eventLog, "event-log", "", "file to append the protocol's steps to, as JSON lines; - is standard output")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	o.mesh.register(f)
}

// check reports what is missing, all at once.
func (o *serveFlags) check() error {
	var missing []string
	for _, f := range []struct{ name, value string }{
		{"--dir", o.dir}, {"--cert", o.tls.Cert}, {"--key", o.tls.Key}, {"--root", o.tls.Root},
	} {
		if f.value == "" {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s must be given (to see it run without certificates of a mesh, try: metards demo)", strings.Join(missing, ", "))
	}
	if len(o.trustDomains) == 0 {
		return errors.New("--trust-domain must name at least one trust domain")
	}
	return nil
}

// server is the process of serve: its parts, which run in run.
type server struct {
	flags    serveFlags
	log      *slog.Logger
	problems *problem.Board
	store    *mesh.Store
	files    *filewatch.Watcher
	cache    *cachemgr.Manager
	identity *tlsboot.Files
	rds      *rdsserver.Server
	admin    *admin.Server
	events   *os.File // nil if there is none to close

	listener      net.Listener
	adminListener net.Listener
}

// newServer builds the parts, from the source to the wire, and listens.
func newServer(o serveFlags, log *slog.Logger) (*server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	board := problem.NewBoard(log)
	s := &server{flags: o, log: log, problems: board}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerProblems(registry, board)
	var err error
	if s.store, err = o.mesh.newStore(board); err != nil {
		return nil, err
	}
	if s.files, err = filewatch.New(filewatch.Options{
		Dir: o.dir, Sink: s.store, Problems: board, Log: log, Limits: o.mesh.files, Settle: o.settle, Removal: o.removalDelay,
	}); err != nil {
		return nil, err
	}
	if s.cache, err = cachemgr.New(cachemgr.Options{
		Store: s.store, Spellings: spellings(), QuietPeriod: o.quietPeriod, MaxDelay: o.maxDelay,
		Problems: board, Metrics: cachemgr.NewMetrics(registry), Log: log, Compiler: routes.Compile,
	}); err != nil {
		return nil, err
	}
	o.tls.Log, o.tls.Metrics = log, tlsboot.NewMetrics(registry)
	if s.identity, err = tlsboot.NewFiles(o.tls); err != nil {
		return nil, err
	}
	if err := s.serveTo(o, registry); err != nil {
		return nil, err
	}
	if s.admin, err = admin.New(admin.Options{
		Mesh: s.store, Cache: s.cache, Problems: board, Metrics: registry, Unready: s.unready, Log: log,
	}); err != nil {
		return nil, err
	}
	return s, s.open()
}

// spellings are the resource types that Plans are written in.
func spellings() map[string]cachemgr.Spelling {
	return map[string]cachemgr.Spelling{
		routes.RouteConfigurationType: func(p *routes.Plan, name string) (proto.Message, error) {
			return routes.RouteConfiguration(p, name)
		},
	}
}

// serveTo builds the server that proxies talk to.
func (s *server) serveTo(o serveFlags, registry *prometheus.Registry) error {
	var events *rdsserver.EventLog
	switch o.eventLog {
	case "":
	case "-":
		events = rdsserver.NewEventLog(os.Stdout)
	default:
		file, err := os.OpenFile(o.eventLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("open the event log: %w", err)
		}
		s.events, events = file, rdsserver.NewEventLog(file)
	}
	var err error
	s.rds, err = rdsserver.New(rdsserver.Options{
		Cache: s.cache, TLS: s.identity.ServerConfig(), Types: []string{routes.RouteConfigurationType},
		Metrics: rdsserver.NewMetrics(registry), Log: s.log, Events: events, TrustDomains: o.trustDomains,
		MaxNames: o.maxNames, ResponseTimeout: o.responseTimeout, GracePeriod: o.gracePeriod, ConnectionAge: o.connectionAge,
	})
	return err
}

// open listens on both addresses.
func (s *server) open() error {
	var err error
	if s.listener, err = net.Listen("tcp", s.flags.listen); err != nil {
		return fmt.Errorf("--listen %s: %w", s.flags.listen, err)
	}
	if s.adminListener, err = net.Listen("tcp", s.flags.adminListen); err != nil {
		return errors.Join(fmt.Errorf("--admin-listen %s: %w", s.flags.adminListen, err), s.listener.Close())
	}
	return nil
}

// unready names what keeps the server from being ready.
func (s *server) unready() []string {
	var out []string
	for _, feed := range s.store.Missing() {
		out = append(out, "waiting for the "+feed.String())
	}
	if s.rds.Draining() {
		out = append(out, "shutting down")
	}
	return out
}

// run is the process. It ends when the context does, or when one of its parts fails.
func (s *server) run(ctx context.Context) error {
	s.log.Info("serving", "listen", s.listener.Addr().String(), "admin", s.adminListener.Addr().String(), "dir", s.flags.dir, "version", version)
	pages, closePages := context.WithCancel(context.WithoutCancel(ctx)) // they tell of the stop until it is done
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.files.Run(ctx) })
	g.Go(func() error { return s.cache.Run(ctx) })
	g.Go(func() error { return s.identity.Run(ctx) })
	g.Go(func() error { return s.admin.Run(pages, s.adminListener) })
	g.Go(func() error {
		defer closePages()
		return s.rds.Run(ctx, s.listener)
	})
	err := g.Wait()
	if errors.Is(err, context.Canceled) { // the one place where that is success
		err = nil
	}
	if s.events != nil {
		err = errors.Join(err, s.events.Close())
	}
	s.log.Info("stopped")
	return err
}
