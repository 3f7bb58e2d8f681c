package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/istiowatch"
	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/kubewatch"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/statedir"
)

// sourceFlags say where the mesh is read from.
type sourceFlags struct {
	dir          string
	settle       time.Duration
	removalDelay time.Duration

	istiod           string
	istiodServerName string
	istiodRoot       string
	istiodPlaintext  bool
	token            string
	revision         string
	resync           time.Duration
	hold             time.Duration
	maxReceive       int
	pod              istiowatch.Node

	kubeconfig  string
	metaRouters []string

	stateDir     string
	stateGrace   time.Duration
	maxStaleness time.Duration
}

func (o *sourceFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.dir, "dir", "", "directory of ServiceEntries, DestinationRules and MetaRouters in YAML or JSON")
	f.DurationVar(&o.settle, "settle", 20*time.Millisecond, "a file is read once its size and time have been the same for this long")
	f.DurationVar(&o.removalDelay, "removal-delay", time.Second, "an object is believed gone once its file has been without it for this long")

	f.StringVar(&o.istiod, "istiod", "", "HOST:PORT of istiod, as a rule port 15012, to read services and rules from")
	f.StringVar(&o.istiodServerName, "istiod-server-name", "", "name in istiod's certificate (default: istiod.<root namespace>.svc)")
	f.StringVar(&o.istiodRoot, "istiod-root", "", "PEM file of the roots that istiod's certificate must chain to (default: --root)")
	f.BoolVar(&o.istiodPlaintext, "istiod-plaintext", false, "talk to istiod without TLS; today's istiod then refuses, unless told not to")
	f.StringVar(&o.token, "token", "", "file of the service account token of audience istio-ca, read again for each connection (default: our certificate has to do)")
	f.StringVar(&o.revision, "revision", "", "leave out objects whose label istio.io/rev names another revision")
	f.DurationVar(&o.resync, "resync", 5*time.Minute, "how often istiod is asked for everything again, as it does not push all changes")
	f.DurationVar(&o.hold, "hold", 30*time.Second, "how long a suddenly empty or much shorter list is held before istiod is asked again and believed")
	f.IntVar(&o.maxReceive, "max-receive", 256<<20, "largest message of istiod, in bytes; half of it is a warning")
	f.StringVar(&o.pod.Pod, "pod-name", "", "name of our pod, which istiod asks for and the status names (default: POD_NAME of the environment, else the host's name)")
	f.StringVar(&o.pod.Namespace, "pod-namespace", "", "namespace of our pod; istiod serves its root namespace only (default: POD_NAMESPACE of the environment, else --root-namespace)")
	f.StringVar(&o.pod.IP, "pod-ip", "", "IP address of our pod, which istiod asks for (default: POD_IP of the environment, else 127.0.0.1)")

	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server to read MetaRouters from (default: the cluster around us)")
	f.StringSliceVar(&o.metaRouters, "metarouter-source", nil,
		"where MetaRouters come from: kubernetes, mcp, dir; several may be given (default: kubernetes with a kubeconfig or within a cluster, else dir)")

	f.StringVar(&o.stateDir, "state-dir", "", "directory for the last valid state, which serves after a restart while a source is away")
	f.DurationVar(&o.stateGrace, "state-grace", 10*time.Second, "how long after the start the saved state waits for the sources")
	f.DurationVar(&o.maxStaleness, "max-staleness", 0, "be unready when a source gave no sign of life for this long; 0 is never, so that an outage of istiod does not take all replicas away")
}

// node is who we are, from the flags, else the environment of the pod, else what is likely.
func (o *sourceFlags) node(settings mesh.Settings) istiowatch.Node {
	host, err := os.Hostname()
	if err != nil {
		host = "metards"
	}
	return istiowatch.Node{
		Pod:       cmp.Or(o.pod.Pod, os.Getenv("POD_NAME"), host),
		Namespace: cmp.Or(o.pod.Namespace, os.Getenv("POD_NAMESPACE"), settings.RootNamespace),
		IP:        cmp.Or(o.pod.IP, os.Getenv("POD_IP"), "127.0.0.1"),
		Domain:    settings.ClusterDomain,
	}
}

// The values of --metarouter-source.
const (
	fromKubernetes = "kubernetes"
	fromMCP        = "mcp"
	fromDir        = "dir"
)

// check judges the flags alone.
func (o *sourceFlags) check() error {
	for _, from := range o.metaRouterSources() {
		switch {
		case !slices.Contains([]string{fromKubernetes, fromMCP, fromDir}, from):
			return fmt.Errorf("--metarouter-source %q is not known: use kubernetes, mcp or dir", from)
		case from == fromMCP && o.istiod == "":
			return errors.New("--metarouter-source mcp needs --istiod, the address of the MCP server")
		case from == fromDir && o.dir == "":
			return errors.New("MetaRouters have no source: give --dir, or --kubeconfig, or --metarouter-source")
		}
	}
	return nil
}

// metaRouterSources are those that were asked for, else the API server where there is one, else the directory.
func (o *sourceFlags) metaRouterSources() []string {
	switch {
	case len(o.metaRouters) > 0:
		return o.metaRouters
	case o.kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "":
		return []string{fromKubernetes}
	default:
		return []string{fromDir}
	}
}

func (o *sourceFlags) metaRoutersFrom(source string) bool {
	return slices.Contains(o.metaRouterSources(), source)
}

func feedsOf(source mesh.Source, kinds ...mesh.Kind) []mesh.Feed {
	out := make([]mesh.Feed, len(kinds))
	for i, k := range kinds {
		out[i] = mesh.Feed{Source: source, Kind: k}
	}
	return out
}

// feeds are the lists that must have arrived before anything is served.
func (o *sourceFlags) feeds() []mesh.Feed {
	return slices.Concat(o.istiodFeeds(), o.kubernetesFeeds(), o.dirFeeds())
}

func (o *sourceFlags) istiodFeeds() []mesh.Feed {
	if o.istiod == "" {
		return nil
	}
	out := feedsOf(mesh.MCP, mesh.KindServiceEntry, mesh.KindDestinationRule, mesh.KindMeshConfig)
	if o.metaRoutersFrom(fromMCP) {
		out = append(out, feedsOf(mesh.MCP, mesh.KindMetaRouter)...)
	}
	return out
}

func (o *sourceFlags) kubernetesFeeds() []mesh.Feed {
	if !o.metaRoutersFrom(fromKubernetes) {
		return nil
	}
	return feedsOf(mesh.Kubernetes, mesh.KindMetaRouter)
}

func (o *sourceFlags) dirFeeds() []mesh.Feed {
	if o.dir == "" {
		return nil
	}
	out := feedsOf(mesh.Directory, mesh.KindServiceEntry, mesh.KindDestinationRule)
	if o.metaRoutersFrom(fromDir) {
		out = append(out, feedsOf(mesh.Directory, mesh.KindMetaRouter)...)
	}
	return out
}

// source is one place that the mesh is read from.
type source struct {
	name    string
	feeds   []mesh.Feed
	run     func(context.Context) error
	trouble func() string    // in one sentence, empty if there is none
	alive   func() time.Time // last proof of life
}

func names(list []*source) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = s.name
	}
	return strings.Join(out, ", ")
}

// newSources builds the sources that the flags ask for.
func (s *server) newSources(registry *prometheus.Registry) ([]*source, error) {
	var out []*source
	for _, build := range []func(*prometheus.Registry) (*source, error){s.istiodSource, s.kubernetesSource, s.dirSource} {
		src, err := build(registry)
		if err != nil {
			return nil, err
		}
		if src != nil {
			out = append(out, src)
		}
	}
	return out, nil
}

func (s *server) dirSource(*prometheus.Registry) (*source, error) {
	o := s.flags.sources
	if o.dir == "" {
		return nil, nil
	}
	feeds := o.dirFeeds()
	w, err := filewatch.New(filewatch.Options{
		Dir: o.dir, Sink: only{s.store, feeds}, Problems: s.problems, Log: s.log, Limits: s.flags.mesh.files, Settle: o.settle, Removal: o.removalDelay,
	})
	if err != nil {
		return nil, err
	}
	return &source{
		name: "the directory " + o.dir, feeds: feeds, run: w.Run,
		trouble: func() string { return "" }, alive: time.Now, // what it cannot read is a Problem
	}, nil
}

// only passes on the kinds that a source is asked for.
type only struct {
	store *mesh.Store
	feeds []mesh.Feed
}

// Apply is that of the store.
func (o only) Apply(from mesh.Source, b mesh.Batch) {
	other := func(k mesh.Kind) bool { return !slices.Contains(o.feeds, mesh.Feed{Source: from, Kind: k}) }
	b.Complete = slices.DeleteFunc(slices.Clone(b.Complete), other)
	b.Objects = slices.DeleteFunc(slices.Clone(b.Objects), func(x *mesh.Object) bool { return other(x.Kind) })
	o.store.Apply(from, b)
}

func (s *server) istiodSource(registry *prometheus.Registry) (*source, error) {
	o := s.flags.sources
	if o.istiod == "" {
		return nil, nil
	}
	options := istiowatch.Options{
		Address: o.istiod, ServerName: o.istiodServerName, RootFile: cmp.Or(o.istiodRoot, s.flags.identity.root), TokenFile: o.token, Plaintext: o.istiodPlaintext,
		Node: o.node(s.flags.mesh.settings), Revision: o.revision, MetaRouters: o.metaRoutersFrom(fromMCP), Sink: s.store, MeshConfig: s.takeMeshConfig,
		Saved:    func(k mesh.Kind) []*mesh.Object { return s.store.Remembered(mesh.MCP, k) },
		Problems: s.problems, Log: s.log, Metrics: istiowatch.NewMetrics(registry), Resync: o.resync, Hold: o.hold, MaxReceive: o.maxReceive,
	}
	if o.token == "" {
		options.Certificate = func() (*tls.Certificate, error) { return s.identity.Certificate() }
	}
	w, err := istiowatch.New(options)
	if err != nil {
		return nil, err
	}
	return &source{
		name: "istiod " + o.istiod, feeds: o.istiodFeeds(), run: w.Run,
		trouble: func() string { return w.Status().Error }, alive: func() time.Time { return w.Status().LastProof },
	}, nil
}

func (s *server) kubernetesSource(registry *prometheus.Registry) (*source, error) {
	feeds := s.flags.sources.kubernetesFeeds()
	if len(feeds) == 0 {
		return nil, nil
	}
	config, err := kubeclient.Config(s.flags.sources.kubeconfig)
	if err != nil {
		return nil, err
	}
	observer, err := s.newStatus(config, registry)
	if err != nil {
		return nil, err
	}
	w, err := kubewatch.New(kubewatch.Options{
		Config: config, Observer: observer, Sink: s.store, Problems: s.problems, Log: s.log, Metrics: kubewatch.NewMetrics(registry),
		Revision: s.flags.sources.revision, HasValid: func(k mesh.Key) bool { return s.store.HasValid(mesh.Kubernetes, k) },
	})
	if err != nil {
		return nil, err
	}
	return &source{
		name: "the API server " + config.Host, feeds: feeds, run: w.Run,
		trouble: func() string { return w.Status().Failure }, alive: func() time.Time { return w.Status().LastContact },
	}, nil
}

// newState builds the keeper of the state directory, nil if there is none.
func (s *server) newState(registry *prometheus.Registry) (*statedir.Keeper, error) {
	o := s.flags.sources
	if o.stateDir == "" {
		return nil, nil
	}
	registerStoodIn(registry, s.store)
	return statedir.New(statedir.Options{
		Dir: o.stateDir, Store: s.store, Problems: s.problems, Log: s.log, Metrics: statedir.NewMetrics(registry), Grace: o.stateGrace,
	})
}
