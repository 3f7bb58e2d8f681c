package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/metards/metards/pkg/rdsserver"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	mesh            meshFlags
	sources         sourceFlags
	given           map[string]bool // the flags that were set, on the command line or by the environment
	listen          string
	adminListen     string
	adminTLS        bool
	staticResources string
	identity        identityFlags
	gate            gateFlags
	authorize       string
	limits          rdsserver.Limits
	trustDomains    []string
	quietPeriod     time.Duration
	maxDelay        time.Duration
	maxNames        int
	responseTimeout time.Duration
	gracePeriod     time.Duration
	connectionAge   time.Duration
	eventLog        string
	logLevel        string
	logFormat       string
}

func (o *serveFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	addGroup(f, "Where the mesh is read from", o.sources.register)
	addGroup(f, "Who we are, and whom we trust", func(f *pflag.FlagSet) {
		o.identity.register(f)
		f.StringSliceVar(&o.trustDomains, "trust-domain", []string{"cluster.local"}, "trust domain of the mesh; further ones are aliases")
		f.StringVar(&o.authorize, "authorize", string(rdsserver.AuthorizeNamespace),
			"for whom a proxy may speak: namespace (that of its certificate), mesh (any), off (any, whatever its certificate says)")
	})
	addGroup(f, "What is served, and when", func(f *pflag.FlagSet) {
		f.StringVar(&o.listen, "listen", ":15010", "address that proxies connect to")
		f.StringVar(&o.staticResources, "static-resources", "",
			"YAML or JSON file of clusters, endpoints, listeners and routes in Envoy's own form, served on ADS to every authorized proxy of any namespace; read again when it is replaced")
		o.gate.register(f)
		f.DurationVar(&o.quietPeriod, "quiet-period", 100*time.Millisecond, "after a first change, which goes out at once, later ones wait until there was none for this long")
		f.DurationVar(&o.maxDelay, "max-delay", time.Second, "the longest that changes wait for the quiet period")
		f.DurationVar(&o.responseTimeout, "response-timeout", 30*time.Second, "a stream ends if the proxy does not answer a response within this time")
		f.DurationVar(&o.connectionAge, "connection-age", 30*time.Minute, "proxies are asked to reconnect after this time, ±10 %, so that load spreads over replicas; 0 is never")
		f.DurationVar(&o.gracePeriod, "grace-period", 10*time.Second, "time over which streams are closed when the server stops")
	})
	addGroup(f, "Settings of the mesh, where istiod does not tell them", o.mesh.registerSettings)
	addGroup(f, "Limits, none of which a mesh in order meets", func(f *pflag.FlagSet) {
		o.registerLimits(f)
		f.IntVar(&o.maxNames, "max-names", 10_000, "most names that one stream may subscribe to")
		o.mesh.registerLimits(f)
	})
	addGroup(f, "To look inside", func(f *pflag.FlagSet) {
		f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:15014", "address of health, metrics and debug pages")
		f.BoolVar(&o.adminTLS, "admin-tls", false, "serve the admin port with TLS, so that client certificates of the root namespace see the debug pages from elsewhere")
		f.StringVar(&o.eventLog, "event-log", "", "file to append the protocol's steps to, as JSON lines; - is standard output")
		f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
		f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	})
	cmd.SetUsageFunc(groupedUsage)
}

// check reports what is missing, all at once.
func (o *serveFlags) check() error {
	var missing []string
	need := func(given bool, flags string) {
		if !given {
			missing = append(missing, flags)
		}
	}
	who, from := o.identity, o.sources
	need(from.dir != "" || from.istiod != "", "--dir or --istiod")
	need(who.ca != "" || who.cert != "" && who.key != "", "--cert and --key or --ca")
	need(who.root != "" || who.ca != "" && from.istiodRoot != "", "--root")
	need(who.ca == "" || from.token != "", "--token")
	if who.ca != "" && (who.cert != "" || who.key != "") {
		return errors.New("--ca gets a certificate in the place of --cert and --key: give one or the other")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s must be given (to see it run without certificates of a mesh, try: metards demo)", strings.Join(missing, ", "))
	}
	if err := errors.Join(o.sources.check(), o.gate.check()); err != nil {
		return err
	}
	if len(o.trustDomains) == 0 {
		return errors.New("--trust-domain must name at least one trust domain")
	}
	return nil
}
