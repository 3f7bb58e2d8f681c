package tlsboot

import (
	"log/slog"
	"time"
)

// patience is how long files may be unusable before it is an alarm: a certificate and its key that are
// written one after the other do not fit in between.
const patience = time.Second

// alarm follows the failure to reload one thing: logged once for each distinct failure and once when
// it clears, counted, and shown while it lasts.
type alarm struct {
	what    string
	log     *slog.Logger
	metrics *Metrics

	failing bool
	since   time.Time // when what is failing began to
	raised  string    // the failure logged last; empty while all is well
}

// report takes the outcome of one look at the files. It returns true for a failure that is too young
// to be an alarm: look again after patience.
func (a *alarm) report(err error, now time.Time) (undecided bool) {
	if err == nil {
		a.clear()
		return false
	}
	if !a.failing {
		a.failing, a.since = true, now
	}
	if a.raised == err.Error() {
		return false
	}
	if now.Sub(a.since) < patience {
		return true
	}
	a.raised = err.Error()
	a.metrics.failures.WithLabelValues(a.what).Inc()
	a.metrics.failing.WithLabelValues(a.what).Set(1)
	a.log.Error("TLS files unusable, older content stays in force", "what", a.what, "error", err)
	return false
}

func (a *alarm) clear() {
	a.failing = false
	if a.raised == "" {
		return
	}
	a.raised = ""
	a.metrics.failing.WithLabelValues(a.what).Set(0)
	a.log.Info("TLS files usable again", "what", a.what)
}
