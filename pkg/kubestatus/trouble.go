package kubestatus

import (
	"fmt"
	"sync"

	"github.com/metards/metards/pkg/kubeclient"
	"github.com/metards/metards/pkg/problem"
)

const (
	ownerLease  = "kubernetes/lease"
	ownerStatus = "kubernetes/status"
)

// trouble keeps what fails on the board, one Problem per owner.
type trouble struct {
	problems *problem.Board

	mu   sync.Mutex
	verb map[string]string // by owner: what failed last
}

// set notes how an attempt went: only a success of what failed clears the Problem.
func (t *trouble) set(owner, verb string, f *kubeclient.Failure, consequence string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case f == nil && t.verb[owner] == verb:
		delete(t.verb, owner)
		t.problems.Set(owner, nil)
	case f != nil && f.Class != kubeclient.Unreachable && t.verb[owner] != verb:
		t.verb[owner] = verb
		t.problems.Set(owner, []problem.Problem{{
			Severity: problem.Warning, Reason: problem.Unreadable, Detail: f.Text, Consequence: consequence,
		}})
	}
}

// explain makes a Failure of an error, nil of none.
func (w *Writer) explain(err error, a kubeclient.Access) *kubeclient.Failure {
	if err == nil {
		return nil
	}
	f := kubeclient.Explain(err, w.options.Config.Host, a)
	switch {
	case f.Class != kubeclient.NotFound:
	case a.Verb == "create":
		f.Text = fmt.Sprintf("the namespace %q of the Lease does not exist: name the one that metards runs in", w.options.Namespace)
	case a.Verb == "patch":
		f.Text = fmt.Sprintf("the CRD %s has no status subresource, or is gone: install the one of metards (kubectl apply -k manifests)", kubeclient.MetaRouterCRD)
	}
	return &f
}
