package kubestatus

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metards/metards/pkg/problem"
)

// The conditions.
const (
	// Accepted tells whether the object is used: valid, and it wins somewhere.
	Accepted = "Accepted"
	// Programmed tells whether every proxy that it concerns has accepted it.
	Programmed = "Programmed"
)

// The reasons that are not those of a Problem.
const (
	reasonAccepted    = "Accepted"
	reasonProgrammed  = "Programmed"
	reasonNotAccepted = "NotAccepted"
	reasonNoProxies   = "NoProxies"
	reasonPending     = "Pending"
	reasonRejected    = "Rejected"
)

// maxMessage bounds a condition's message, in bytes.
const maxMessage = 1024

// report is what one replica says of its proxies, under its name in status.replicas.
type report struct {
	Generation int64  `json:"generation"`
	Proxies    int    `json:"proxies"`
	UpToDate   int    `json:"upToDate"`
	Rejected   int    `json:"rejected"`
	FirstError string `json:"firstError,omitempty"`
	At         string `json:"at"`
}

// sameFacts reports whether two reports differ in their time at most.
func (r report) sameFacts(o report) bool {
	o.At = r.At
	return r == o
}

// accepted judges from the Problems of an object whether it is used.
func accepted(list []problem.Problem) metav1.Condition {
	refusals, losses, warnings := split(list)
	c := metav1.Condition{Type: Accepted, Status: metav1.ConditionTrue, Reason: reasonAccepted}
	switch {
	case len(refusals) > 0:
		c.Status, c.Reason = metav1.ConditionFalse, string(refusals[0].Reason)
		c.Message = join(append(refusals, losses...))
		if consequence := refusals[0].Consequence; consequence != "" {
			c.Message = bounded(c.Message, maxMessage-len("; ")-len(consequence)) + "; " + consequence
		}
	case len(losses) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(losses[0].Reason), join(losses)
	default:
		c.Message = join(warnings)
	}
	return c
}

// split parts Problems into those for which an object was refused, those for which it wins nowhere, and warnings.
func split(list []problem.Problem) (refusals, losses, warnings []problem.Problem) {
	for _, p := range problem.Sorted(list) {
		switch {
		case p.Severity != problem.Error:
			warnings = append(warnings, p)
		case p.Reason == problem.Conflicted || p.Reason == problem.Ignored:
			losses = append(losses, p)
		case p.Reason != problem.Duplicate: // of this object the API server's version counts
			refusals = append(refusals, p)
		}
	}
	return refusals, losses, warnings
}

// join makes one line of Problems. What does not fit is counted.
func join(list []problem.Problem) string {
	const room = maxMessage - len(" and 1000000 more")
	var b strings.Builder
	for i, p := range list {
		p.Object, p.Consequence = problem.Object{}, ""
		text := bounded(strings.TrimSuffix(p.String(), fmt.Sprintf(" [%s]", p.Reason)), room/2)
		if b.Len()+len("; ")+len(text) > room {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(text)
	}
	return b.String()
}

// bounded cuts a text to a number of bytes.
func bounded(text string, limit int) string {
	const mark = "…"
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text
	}
	end := max(limit-len(mark), 0)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// programmed sums the reports of all replicas up. A report of another generation counts as not up to date.
func programmed(used metav1.Condition, generation int64, reports map[string]report) metav1.Condition {
	var proxies, upToDate, rejected int
	firstError, current := "", true
	for _, id := range sortedKeys(reports) {
		r := reports[id]
		proxies += r.Proxies
		if r.Generation != generation {
			current = false
			continue
		}
		upToDate += r.UpToDate
		rejected += r.Rejected
		if firstError == "" {
			firstError = r.FirstError
		}
	}
	c := metav1.Condition{Type: Programmed, Status: metav1.ConditionFalse}
	c.Message = fmt.Sprintf("%d of %d proxies", upToDate, proxies)
	switch {
	case used.Status != metav1.ConditionTrue:
		c.Reason, c.Message = reasonNotAccepted, "this version is not used, see the condition "+Accepted
	case rejected > 0:
		c.Reason = reasonRejected
		c.Message = bounded(fmt.Sprintf("%d of %d proxies refused it; first %s", rejected, proxies, firstError), maxMessage)
	case proxies == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonNoProxies, "no proxy is subscribed to a table that it decides"
	case !current || upToDate < proxies:
		c.Reason = reasonPending
	default:
		c.Status, c.Reason = metav1.ConditionTrue, reasonProgrammed
	}
	return c
}

// settle completes new conditions with the generation, and with the time of the change, which is that of the
// old condition as long as the status is the same.
func settle(list, old []metav1.Condition, generation int64, now metav1.Time) []metav1.Condition {
	for i := range list {
		c := &list[i]
		c.ObservedGeneration, c.LastTransitionTime = generation, now
		for _, o := range old {
			if o.Type == c.Type && o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	return list
}

// alike reports whether the conditions that are wanted are there already.
func alike(wanted, there []metav1.Condition) bool {
	for _, c := range wanted {
		if !slices.ContainsFunc(there, func(o metav1.Condition) bool {
			return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason && o.Message == c.Message &&
				o.ObservedGeneration == c.ObservedGeneration
		}) {
			return false
		}
	}
	return true
}
