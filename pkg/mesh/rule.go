package mesh

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/problem"
)

// Rule is what istiod makes of the DestinationRules of one host and namespace: several are joined.
type Rule struct {
	Host    string // folded; may be a wildcard
	From    []problem.Object
	Policy  *Policy
	Subsets []Subset

	namespace string
	exportTo  []string // sorted, "." replaced; empty means everybody
}

// Subset returns the declared subset of a name.
func (r *Rule) Subset(name string) (Subset, bool) {
	for _, s := range r.Subsets {
		if s.Name == name {
			return s, true
		}
	}
	return Subset{}, false
}

func (r *Rule) equal(o *Rule) bool {
	return r == o || r != nil && o != nil && r.Host == o.Host && slices.Equal(r.From, o.From) &&
		r.Policy.equal(o.Policy) && slices.EqualFunc(r.Subsets, o.Subsets, Subset.equal)
}

// private reports whether the rule is exported to its own namespace only.
func (r *Rule) private() bool {
	return len(r.exportTo) > 0 && !slices.ContainsFunc(r.exportTo, func(to string) bool { return to != r.namespace })
}

func (r *Rule) exportedTo(client string) bool { return visible(r.exportTo, nil, r.namespace, client) }

// ruleIndex holds, for each namespace and folded host pattern, the rules that stay apart, oldest first.
type ruleIndex struct {
	objects map[ruleKey][]*Object // oldest first
	rules   map[ruleKey][]*Rule
}

// ruleKey is a namespace and a folded host, or what follows the star of a wildcard.
type ruleKey struct {
	namespace, host string
	wildcard        bool
}

func newRuleKey(namespace, pattern string) ruleKey {
	host, wildcard := strings.CutPrefix(pattern, "*")
	return ruleKey{namespace, host, wildcard}
}

func newRuleIndex() *ruleIndex {
	return &ruleIndex{objects: map[ruleKey][]*Object{}, rules: map[ruleKey][]*Rule{}}
}

// ruleHosts returns the folded hosts that a rule is for. A short host is completed; it stands for itself
// too, because a ServiceEntry may declare a host without a dot.
func ruleHosts(settings *Settings, o *Object) []string {
	host := Fold(o.Spec.(*DestinationRule).Host)
	if full := Fold(settings.Qualify(host, o.Namespace)); full != host {
		return []string{host, full}
	}
	return []string{host}
}

func (x *ruleIndex) add(settings *Settings, o *Object) {
	if !o.counts() {
		return
	}
	for _, host := range ruleHosts(settings, o) {
		k := newRuleKey(o.Namespace, host)
		x.objects[k] = append(slices.Clone(x.objects[k]), o)
		slices.SortFunc(x.objects[k], olderFirst)
		x.rules[k] = joinRules(settings, host, x.objects[k])
	}
}

func (x *ruleIndex) remove(settings *Settings, o *Object) {
	for _, host := range ruleHosts(settings, o) {
		k := newRuleKey(o.Namespace, host)
		x.objects[k] = slices.DeleteFunc(slices.Clone(x.objects[k]), func(p *Object) bool { return p == o })
		x.rules[k] = joinRules(settings, host, x.objects[k])
		if len(x.objects[k]) == 0 {
			delete(x.objects, k)
			delete(x.rules, k)
		}
	}
}

// joinRules joins the rules of one namespace and host, oldest first. A rule exported as an older one, or
// to more namespaces, adds to that its subsets of new names and, if it has none, its policy. Only a rule
// exported exactly alike is thereby used up; others stay apart.
func joinRules(settings *Settings, host string, objects []*Object) []*Rule {
	var out []*Rule
	for _, o := range objects {
		d := o.Spec.(*DestinationRule)
		r := &Rule{
			Host: host, From: []problem.Object{o.Ref()}, Policy: d.Policy, Subsets: slices.Clone(d.Subsets),
			namespace: o.Namespace, exportTo: exportSet(d.ExportTo, settings.DefaultRuleExportTo, o.Namespace),
		}
		apart := true
		for _, older := range out {
			same := slices.Equal(r.exportTo, older.exportTo)
			if same || len(older.exportTo) > 0 && superset(r.exportTo, older.exportTo) {
				older.join(r)
			}
			apart = apart && !same
		}
		if apart {
			out = append(out, r)
		}
	}
	return out
}

func (r *Rule) join(younger *Rule) {
	r.From = append(r.From, younger.From...)
	for _, s := range younger.Subsets {
		if _, declared := r.Subset(s.Name); !declared {
			r.Subsets = append(r.Subsets, s)
		}
	}
	if r.Policy == nil {
		r.Policy = younger.Policy
	}
}

func exportSet(exportTo, byDefault []string, own string) []string {
	if len(exportTo) == 0 {
		exportTo = byDefault
	}
	out := slices.Clone(exportTo)
	for i, to := range out {
		if to == "." {
			out[i] = own
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func superset(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// lookup returns the rule that istiod gives a client's cluster of a host, nil if none: the client's
// namespace first, then the service's, then the root namespace.
func (x *ruleIndex) lookup(settings *Settings, client, service, host string) *Rule {
	own := func(r *Rule) bool { return r.exportedTo(r.namespace) }
	if client == settings.RootNamespace {
		own = (*Rule).private
	}
	if found := x.mostSpecific(client, host, own); len(found) > 0 {
		return found[0]
	}
	for _, namespace := range []string{service, settings.RootNamespace} {
		// The most specific host first, then the question whether it is exported: if it is not, the
		// namespace's less specific rules do not step in.
		found := x.mostSpecific(namespace, host, func(r *Rule) bool { return !r.private() })
		for _, r := range found {
			if r.exportedTo(client) {
				return r
			}
		}
	}
	return nil
}

// mostSpecific returns a namespace's rules that pass the filter, of the same host or else of the
// longest wildcard that covers it.
func (x *ruleIndex) mostSpecific(namespace, host string, pass func(*Rule) bool) []*Rule {
	passing := func(k ruleKey) []*Rule {
		var out []*Rule
		for _, r := range x.rules[k] {
			if pass(r) {
				out = append(out, r)
			}
		}
		return out
	}
	if out := passing(newRuleKey(namespace, host)); len(out) > 0 {
		return out
	}
	for i := range len(host) + 1 {
		if out := passing(ruleKey{namespace, host[i:], true}); len(out) > 0 {
			return out
		}
	}
	return nil
}

// judge returns a warning if the rule has no effect on hash keys, and the header names that a proxy would
// refuse as a hash key, and with it the table.
func (d *DestinationRule) judge() []problem.Problem {
	var out []problem.Problem
	if d.Selected {
		out = append(out, problem.Problem{
			Severity: problem.Warning, Path: "spec.workloadSelector", Reason: problem.Ignored,
			Detail: "the rule has a workload selector, so its effect depends on labels: it gives no hash key to routes",
		})
	}
	balancer := func(b *Balancer, path string) {
		if b != nil && strings.ContainsAny(b.HashHeader, "\x00\r\n") {
			out = append(out, problem.Problem{
				Severity: problem.Error, Path: path + ".loadBalancer.consistentHash.httpHeaderName", Reason: problem.Invalid,
				Detail: fmt.Sprintf("the header name %q has a NUL, CR or LF in it", b.HashHeader),
			})
		}
	}
	policy := func(p *Policy, path string) {
		if p == nil {
			return
		}
		balancer(p.Balancer, path)
		for i, entry := range p.Ports {
			balancer(entry.Balancer, fmt.Sprintf("%s.portLevelSettings[%d]", path, i))
		}
	}
	policy(d.Policy, "spec.trafficPolicy")
	for i, s := range d.Subsets {
		policy(s.Policy, fmt.Sprintf("spec.subsets[%d].trafficPolicy", i))
	}
	return out
}
