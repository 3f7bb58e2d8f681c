package kubewatch

import (
	"sync"
	"time"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/problem"
)

// Status is how it goes with the API server.
type Status struct {
	// Synced is set once a complete list was delivered.
	Synced bool
	// LastContact is when the API server last gave a list or an event; zero is never.
	LastContact time.Time
	// Failure is one sentence about what fails now and what to do, empty if nothing does.
	Failure string
}

// health keeps the Status. Its methods may be called concurrently.
type health struct {
	problems *problem.Board
	metrics  *Metrics
	grace    time.Duration // how long the API server may be unreachable before that is a Problem

	mu       sync.Mutex
	status   Status
	class    kubeclient.Class // of the current failure
	since    time.Time        // when it began
	reported bool
}

const ownerServer = "kubernetes/server"

// contact notes a proof of life.
func (h *health) contact(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.LastContact = now
	h.metrics.contact.Set(float64(now.UnixMilli()) / 1000)
	h.status.Failure, h.class, h.since = "", "", time.Time{}
	if h.reported {
		h.reported = false
		h.problems.Set(ownerServer, nil)
	}
}

func (h *health) synced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Synced = true
}

// fail notes a failed request. One that lasts is one Problem, in the words of its first time.
func (h *health) fail(f kubeclient.Failure, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.metrics.failures.WithLabelValues(string(f.Class)).Inc()
	if h.since.IsZero() {
		h.since = now
	}
	if h.class != f.Class {
		h.class, h.status.Failure, h.reported = f.Class, f.Text, false
	}
	if h.reported || h.status.Synced && f.Class == kubeclient.Unreachable && now.Sub(h.since) < h.grace {
		return
	}
	h.reported = true
	consequence := "what is known of MetaRouters stays in force"
	if !h.status.Synced {
		consequence = "nothing is known of the API server's MetaRouters yet"
	}
	h.problems.Set(ownerServer, []problem.Problem{{
		Severity: problem.Error, Reason: problem.Unreadable, Detail: h.status.Failure, Consequence: consequence,
	}})
}

func (h *health) get() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}
