package tlsboot

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/metards/metards/pkg/meshca"
)

const (
	retryMin = 500 * time.Millisecond
	retryMax = time.Minute
	// retrySlow is where the pauses begin after a failure that does not pass by itself.
	retrySlow = 10 * time.Second
)

// pause yields the pauses between requests that fail: doubling from retryMin to retryMax, of which the
// upper half is random.
type pause struct {
	bound time.Duration // of the last one; zero after a success
}

func (p *pause) next(err error) time.Duration {
	if err == nil {
		p.bound = 0
		return 0
	}
	p.bound = max(2*p.bound, 2*retryMin)
	if e, ok := errors.AsType[*meshca.Error](err); ok && !e.Retriable {
		p.bound = max(p.bound, retrySlow)
	}
	p.bound = min(p.bound, retryMax)
	return p.bound/2 + rand.N(p.bound/2+1)
}

// outage follows the failure to get a certificate: each reason is logged once until it is over, and its
// end once; counted, and shown while it lasts.
type outage struct {
	log     *slog.Logger
	metrics *Metrics

	mu     sync.Mutex
	logged map[string]bool // by reason; empty while all is well
	now    string          // the last failure
}

// last is the failure in the words of its error; empty if there is none.
func (o *outage) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

// report takes the outcome of a request, and whether the certificate in force has expired meanwhile.
func (o *outage) report(err error, expired bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.metrics.requests.WithLabelValues(resultGranted).Inc()
		if o.now != "" {
			o.now, o.logged = "", nil
			o.metrics.failing.WithLabelValues(whatCertificate).Set(0)
			o.log.Info("the mesh's CA gives certificates again")
		}
		return
	}
	reason := meshca.ReasonRequest
	if e, ok := errors.AsType[*meshca.Error](err); ok {
		reason = e.Reason
	}
	o.now = err.Error()
	o.metrics.requests.WithLabelValues(reason).Inc()
	o.metrics.failing.WithLabelValues(whatCertificate).Set(1)
	if expired && o.first("expired") {
		o.log.Error("our certificate has expired, clients refuse us until there is another", "reason", reason, "error", err)
	}
	if o.first(reason) {
		o.metrics.failures.WithLabelValues(whatCertificate).Inc()
		o.log.Error("no certificate from the mesh's CA, an older one stays in force until it expires", "reason", reason, "error", err)
	}
}

// first is true for what was not logged since all was well.
func (o *outage) first(what string) bool {
	if o.logged[what] {
		return false
	}
	if o.logged == nil {
		o.logged = map[string]bool{}
	}
	o.logged[what] = true
	return true
}
