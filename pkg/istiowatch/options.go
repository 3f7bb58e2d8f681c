package istiowatch

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

const (
	defaultResync = 5 * time.Minute
	defaultHold   = 30 * time.Second
	defaultAnswer = 30 * time.Second
	// defaultMaxReceive has room for 200,000 services; gRPC's own 4 MiB end at 4,000.
	defaultMaxReceive = 256 << 20
	defaultMinBackoff = 500 * time.Millisecond
	defaultMaxBackoff = 60 * time.Second
	defaultDomain     = "cluster.local"
)

// Sink takes what is delivered. *mesh.Store is one.
type Sink interface {
	Apply(mesh.Source, mesh.Batch)
}

// MeshConfig is the part of the mesh's settings that can change a table or who may ask for one. Lists are
// sorted. Empty fields are fields that istiod did not set.
type MeshConfig struct {
	RootNamespace          string
	TrustDomain            string
	TrustDomainAliases     []string
	DefaultServiceExportTo []string
	DefaultRuleExportTo    []string
}

// Node is who we say that we are.
type Node struct {
	Pod string // required
	// Namespace is the pod's namespace. istiod serves configuration to its root namespace only. Required.
	Namespace string
	IP        string // the pod's; istiod insists on a valid one. Required.
	Domain    string // of the cluster; default "cluster.local"
}

// id is of type waypoint: istiod pushes to a waypoint whatever changes. To sidecars and routers it does not push
// an edit of a ServiceEntry that their namespace does not see, although its lists have it.
func (n Node) id() string {
	return fmt.Sprintf("waypoint~%s~%s.%s~%s.svc.%s", n.IP, n.Pod, n.Namespace, n.Namespace, n.Domain)
}

// Options configure a Watcher.
type Options struct {
	// Address is HOST:PORT of istiod. Required; its port for this is 15012.
	Address string
	// ServerName is the name in istiod's certificate; default "istiod.<Node.Namespace>.svc".
	ServerName string
	// RootFile holds the certificates that istiod's must chain to, in PEM. It is read for every connection.
	// Required unless Plaintext.
	RootFile string
	// TokenFile holds a service account token of audience istio-ca. It is read for every connection. Optional.
	TokenFile string
	// Certificate returns our certificate, for every handshake. If it fails and there is a token, the token
	// alone has to do. Optional.
	Certificate func() (*tls.Certificate, error)
	// Plaintext asks for a connection without TLS; the token, if there is one, is then readable on the way.
	Plaintext bool
	Node      Node
	// Revision leaves out objects whose label istio.io/rev has another value; those without it are for all
	// revisions. Empty takes in all.
	Revision string
	// MetaRouters asks for MetaRouters too. istiod has none: it answers with an empty list.
	MetaRouters bool
	// Sink receives, of each kind, first a complete list and from then on what differs. Required.
	Sink Sink
	// MeshConfig receives the mesh's settings when they are first known and whenever they differ. It is called
	// before the Sink receives the first KindMeshConfig. Without it they are not asked for.
	MeshConfig func(MeshConfig)
	// Problems receives Problems under owners that start with "mcp/". Required.
	Problems *problem.Board
	Log      *slog.Logger // required
	Metrics  *Metrics     // required
	// Saved returns what an earlier process had of a kind, read once, at the first list: that is held if it is
	// suddenly short by comparison. Optional.
	Saved func(mesh.Kind) []*mesh.Object
	// Resync is how often every list is asked for again, as istiod does not push everything and silence is
	// no proof of life; default 5 min, ±10 %.
	Resync time.Duration
	// Hold is how long what a suddenly short list lacks stays in force before istiod is asked again and
	// believed; default 30 s.
	Hold time.Duration
	// Answer is how long istiod may take to answer before the connection is given up; default 30 s.
	Answer time.Duration
	// MaxReceive is the largest message taken in, in bytes; default 256 MiB. Half of it is a Problem.
	MaxReceive int
	// MinBackoff and MaxBackoff bound the pause between connections; default 0.5 s and 60 s.
	MinBackoff, MaxBackoff time.Duration
}

func (o *Options) validate() error {
	if o.Sink == nil || o.Problems == nil || o.Log == nil || o.Metrics == nil {
		return errors.New("istiowatch: Sink, Problems, Log and Metrics are required")
	}
	if host, port, err := net.SplitHostPort(o.Address); err != nil || host == "" || port == "" {
		return fmt.Errorf("istiowatch: the address %q of istiod is not HOST:PORT, as in istiod.istio-system.svc:15012", o.Address)
	}
	if o.RootFile == "" && !o.Plaintext {
		return errors.New("istiowatch: the file of the roots that istiod's certificate must chain to is required; " +
			"in a pod it is the key root-cert.pem of ConfigMap istio-ca-root-cert")
	}
	if o.Node.Pod == "" || o.Node.Namespace == "" {
		return errors.New("istiowatch: the names of our pod and namespace are required, as istiod asks for them")
	}
	if _, err := netip.ParseAddr(o.Node.IP); err != nil {
		return fmt.Errorf("istiowatch: the pod's IP %q is not an IP address, and istiod refuses nodes without one", o.Node.IP)
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"Resync", &o.Resync, defaultResync}, {"Hold", &o.Hold, defaultHold}, {"Answer", &o.Answer, defaultAnswer},
		{"MinBackoff", &o.MinBackoff, defaultMinBackoff}, {"MaxBackoff", &o.MaxBackoff, defaultMaxBackoff},
	} {
		if *d.value < 0 {
			return fmt.Errorf("istiowatch: %s is %s and must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if o.MaxReceive < 0 || o.MinBackoff > o.MaxBackoff {
		return errors.New("istiowatch: MaxReceive must not be negative, nor MinBackoff above MaxBackoff")
	}
	o.setDefaults()
	return nil
}

func (o *Options) setDefaults() {
	if o.MaxReceive == 0 {
		o.MaxReceive = defaultMaxReceive
	}
	if o.Node.Domain == "" {
		o.Node.Domain = defaultDomain
	}
	if o.ServerName == "" {
		o.ServerName = "istiod." + o.Node.Namespace + ".svc"
	}
}
