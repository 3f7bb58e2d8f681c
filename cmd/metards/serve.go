package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/admin"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/envoygate"
	"github.com/metards/metards/pkg/kubestatus"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/rdsserver"
	"github.com/metards/metards/pkg/routes"
	"github.com/metards/metards/pkg/statedir"
	"github.com/metards/metards/pkg/staticxds"
	"github.com/metards/metards/pkg/tlsboot"
)

func newServe() *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use:   "serve --dir DIR --cert FILE --key FILE --root FILE",
		Short: "Serve route tables to the mesh's proxies",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("serve takes no arguments, got %q: a directory is given with --dir", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.given = map[string]bool{}
			cmd.Flags().Visit(func(f *pflag.Flag) { o.given[f.Name] = true })
			log, err := newLogger(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			s, err := newServer(o, log)
			if err != nil {
				return err
			}
			signal.Ignore(syscall.SIGHUP) // everything is reloaded by itself
			return s.run(cmd.Context())
		},
	}
	o.register(cmd)
	return cmd
}

// server is the process of serve: its parts, which run in run.
type server struct {
	flags    serveFlags
	log      *slog.Logger
	problems *problem.Board
	store    *mesh.Store
	sources  []*source
	state    *statedir.Keeper   // nil if there is no state directory
	status   *kubestatus.Writer // nil if MetaRouters do not come from the API server
	facts    *statusFacts
	gate     *envoygate.Gate // nil if tables are served without asking an Envoy
	cache    *cachemgr.Manager
	identity identity
	ca       *tlsboot.MeshCA   // nil if the certificate comes from files
	foreign  []string          // trust domains with anchors of their own
	static   *staticxds.Source // nil if there is no file
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
	if s.store, err = o.mesh.newStore(board, o.sources.feeds()); err != nil {
		return nil, err
	}
	registerObjects(registry, s.store)
	if s.sources, err = s.newSources(registry); err != nil {
		return nil, err
	}
	if s.state, err = s.newState(registry); err != nil {
		return nil, err
	}
	if s.gate, err = o.gate.newGate(board, registry); err != nil {
		return nil, err
	}
	if s.cache, err = cachemgr.New(cachemgr.Options{
		Store: s.store, Spellings: spellings(), QuietPeriod: o.quietPeriod, MaxDelay: o.maxDelay,
		Problems: board, Metrics: cachemgr.NewMetrics(registry), Log: log, Compiler: routes.Compile,
		Gated: s.gate != nil,
	}); err != nil {
		return nil, err
	}
	if err := s.newIdentity(tlsboot.NewMetrics(registry)); err != nil {
		return nil, err
	}
	if s.static, err = o.newStatic(board, registry, log); err != nil {
		return nil, err
	}
	if err := s.serveTo(o, registry); err != nil {
		return nil, err
	}
	pages := admin.Options{Mesh: s.store, Cache: s.cache, Static: s.static, Problems: board, Metrics: registry, Unready: s.unready, Log: log}
	if o.adminTLS {
		pages.TLS, pages.TrustDomains = s.identity.ServerConfig(), s.rds.TrustDomains
		pages.RootNamespace = func() string { return s.store.Settings().RootNamespace }
	}
	if s.admin, err = admin.New(pages); err != nil {
		return nil, err
	}
	return s, s.open()
}

// newStatic builds the source of static resources, nil if there is none.
func (o *serveFlags) newStatic(board *problem.Board, registry *prometheus.Registry, log *slog.Logger) (*staticxds.Source, error) {
	if o.staticResources == "" {
		return nil, nil
	}
	s, err := staticxds.New(staticxds.Options{File: o.staticResources, Problems: board, Metrics: staticxds.NewMetrics(registry), Log: log})
	if err != nil {
		return nil, fmt.Errorf("--static-resources: %w", err)
	}
	return s, nil
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
		events = rdsserver.NewEventLog(os.Stdout, s.eventLogEnded)
	default:
		file, err := os.OpenFile(o.eventLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("open the event log: %w", err)
		}
		s.events, events = file, rdsserver.NewEventLog(file, s.eventLogEnded)
	}
	var err error
	s.rds, err = rdsserver.New(rdsserver.Options{
		Cache: s.cache, Static: s.static, TLS: s.identity.ServerConfig(), Types: []string{routes.RouteConfigurationType},
		Metrics: rdsserver.NewMetrics(registry), Log: s.log, Events: events,
		TrustDomains: slices.Concat(o.trustDomains, s.foreign), Authorize: rdsserver.Authorize(o.authorize), Limits: o.limits, Clients: s.identity.Trust(),
		MaxNames: o.maxNames, ResponseTimeout: o.responseTimeout, GracePeriod: o.gracePeriod, ConnectionAge: o.connectionAge,
	})
	return err
}

func (s *server) eventLogEnded(err error) {
	s.log.Error("the event log cannot be written, nothing more is", "error", err)
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

// run is the process. It ends when the context does, or when one of its parts fails.
func (s *server) run(ctx context.Context) error {
	s.log.Info("serving", "listen", s.listener.Addr().String(), "admin", s.adminListener.Addr().String(), "sources", names(s.sources), "version", version)
	pages, closePages := context.WithCancel(context.WithoutCancel(ctx)) // they tell of the stop until it is done
	g, ctx := errgroup.WithContext(ctx)
	for _, src := range s.sources {
		g.Go(func() error { return src.run(ctx) })
	}
	if s.status != nil {
		g.Go(func() error { return s.status.Run(ctx) })
		g.Go(func() error { return s.facts.run(ctx) })
	}
	if s.state != nil {
		g.Go(func() error { return s.state.Run(ctx) })
	}
	if s.static != nil {
		g.Go(func() error { return s.static.Run(ctx) })
	}
	g.Go(func() error { return s.cache.Run(ctx) })
	if s.gate != nil {
		g.Go(func() error { return s.gate.Run(ctx, s.cache) })
	}
	g.Go(func() error { return s.identity.Run(ctx) })
	g.Go(func() error { return s.admin.Run(pages, s.adminListener) })
	g.Go(func() error { return s.tellReady(ctx) })
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
