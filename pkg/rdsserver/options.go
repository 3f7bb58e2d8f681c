package rdsserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/metards/metards/pkg/staticxds"
)

// Options configure a Server.
type Options struct {
	Cache   Cache       // required
	TLS     *tls.Config // required; it must require client certificates
	Types   []string    // type URLs that are served, the RDS service's first; required
	Metrics *Metrics    // required
	Log     *slog.Logger
	Events  *EventLog // nil for none
	// Static is served on ADS, to whoever may have a stream, beside the Tables; nil for nothing.
	Static *staticxds.Source

	Authorize       Authorize     // for whom proxies may speak; default AuthorizeNamespace
	TrustDomains    []string      // of client certificates; required
	Clients         Clients       // is told of each stream's client; nil for nobody
	Limits          Limits        // what clients may take
	MaxNames        int           // of one stream; default 10000
	ResponseTimeout time.Duration // for the proxy's answer to a response; default 30 s
	GracePeriod     time.Duration // in which streams are closed at the end; default 10 s
	ConnectionAge   time.Duration // after which proxies are asked to reconnect, ±10 %; 0 is never
}

// Clients counts clients by the root that vouches for them. *tlsboot.Trust is one.
type Clients interface {
	Connected(tls.ConnectionState) (release func())
}

func (o *Options) check() error {
	if o.Cache == nil || o.TLS == nil || len(o.Types) == 0 || o.Metrics == nil || o.Log == nil || len(o.TrustDomains) == 0 {
		return errors.New("rdsserver: an option is missing")
	}
	switch o.Authorize {
	case "", AuthorizeNamespace, AuthorizeMesh, AuthorizeOff:
	default:
		return fmt.Errorf("rdsserver: authorize is %q; there are %s, %s and %s", o.Authorize, AuthorizeNamespace, AuthorizeMesh, AuthorizeOff)
	}
	return o.Limits.check()
}
