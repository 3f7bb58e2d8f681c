package mesh

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/problem"
)

// record is one object: at most one version in force from each source.
type record [numSources]*held

// held is what is known of an object from one source.
type held struct {
	latest *Object // as it arrived last
	valid  *Object // the last valid version, nil if there never was one
}

// inForce returns the object that counts, nil if none.
func (r *record) inForce() *Object {
	if r == nil {
		return nil
	}
	for _, h := range r {
		if h != nil && h.valid != nil {
			return h.valid
		}
	}
	return nil
}

// put takes in one version of an object.
func (s *Store) put(source Source, o *Object, e effects) {
	r := s.records[o.Key]
	if r == nil {
		r = &record{}
		s.records[o.Key] = r
	}
	if r[source] == nil {
		r[source] = &held{}
	}
	before, h := r.inForce(), r[source]
	if h.latest == o {
		return // delivered again, and judged before
	}
	if h.latest == h.valid && h.valid.SameContent(o) && len(o.Faults)+len(h.valid.Faults) == 0 &&
		h.valid.File == o.File && h.valid.Line == o.Line {
		return
	}
	faults := append(slices.Clone(o.Faults), notFollowing(o.Faults, s.judged(o))...)
	h.latest = o
	switch {
	case o.Spec != nil && !problem.HasError(faults):
		h.valid = o
		s.generation++
	case h.valid == nil:
		h.valid = s.recall(source, o.Key)
	}
	s.report(source, o, h.valid, faults)
	o.Locate = nil
	s.replace(o.Key, before, e)
}

// judged returns the faults of a decoded object.
func (s *Store) judged(o *Object) []problem.Problem {
	switch spec := o.Spec.(type) {
	case *DestinationRule:
		return spec.judge()
	case *MetaRouter:
		return s.judge(o)
	}
	return nil
}

// notFollowing leaves out of judged what only follows from a fault of decoding: the decoder took the
// faulty value out, so the judge may miss it there, above or below.
func notFollowing(decoding, judged []problem.Problem) []problem.Problem {
	return slices.DeleteFunc(slices.Clone(judged), func(j problem.Problem) bool {
		return slices.ContainsFunc(decoding, func(d problem.Problem) bool {
			return d.Severity == problem.Error && (within(d.Path, j.Path) || within(j.Path, d.Path))
		})
	})
}

// within reports whether a path is, or leads into, another.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// remove forgets what a source said of an object.
func (s *Store) remove(source Source, k Key, e effects) {
	r := s.records[k]
	if r == nil || r[source] == nil {
		return
	}
	before := r.inForce()
	r[source] = nil
	s.generation++
	s.problems.Set(owner(source, k), nil)
	s.replace(k, before, e)
	if *r == (record{}) {
		delete(s.records, k)
	}
}

// report tells the faults of one object, with their place and consequence.
func (s *Store) report(source Source, o, valid *Object, faults []problem.Problem) {
	list := make([]problem.Problem, 0, len(faults))
	for _, p := range faults {
		p.Object, p.File = o.Ref(), o.File
		if p.Line == 0 {
			p.Line = o.Line
			if o.Locate != nil {
				p.Line = o.Locate(p.Path)
			}
		}
		if p.Severity == problem.Error {
			p.Consequence = "the last valid version stays in force"
			if valid == nil {
				p.Consequence = "no valid version is known: nothing of it is in force"
			}
		}
		list = append(list, p)
	}
	s.problems.Set(owner(source, o.Key), list)
}

// reportDuplicates tells which sources' word about an object does not count because an earlier one's does.
func (s *Store) reportDuplicates(k Key, r *record) {
	var list []problem.Problem
	first := numSources
	for source, h := range r {
		switch {
		case h == nil || h.latest == nil:
		case first == numSources:
			if h.valid != nil {
				first = Source(source)
			}
		default:
			list = append(list, problem.Problem{
				Severity: problem.Error, Object: k.Ref(), Reason: problem.Duplicate, File: h.latest.File, Line: h.latest.Line,
				Detail: fmt.Sprintf("not used: %s has an object of this name too, and comes first", first),
			})
		}
	}
	s.problems.Set("duplicate/"+k.Ref().String(), list)
}

func owner(source Source, k Key) string { return fmt.Sprintf("object/%d/%s", source, k.Ref()) }

// replace brings the indexes from the version that was in force to the one that is now.
func (s *Store) replace(k Key, before *Object, e effects) {
	r := s.records[k]
	s.reportDuplicates(k, r)
	after := r.inForce()
	if before == after {
		return
	}
	differs := !before.SameContent(after)
	if before != nil {
		s.index(before, false)
		e.add(s.concerned(before), differs && before.counts())
	}
	if after != nil {
		s.index(after, true)
		e.add(s.concerned(after), differs && after.counts())
	}
	if after == nil && k.Kind == KindMetaRouter {
		s.problems.Set(conflictOwner(k), nil)
	}
}

// index adds an object to the index of its kind, or removes it.
func (s *Store) index(o *Object, add bool) {
	switch o.Kind {
	case KindServiceEntry:
		if add {
			s.services.add(o)
		} else {
			s.services.remove(o)
		}
	case KindDestinationRule:
		if add {
			s.rules.add(&s.settings, o)
		} else {
			s.rules.remove(&s.settings, o)
		}
	case KindMetaRouter:
		if add {
			s.routers.add(o)
		} else {
			s.routers.remove(o)
		}
	}
}

// concerned returns the hosts and wildcards that an object is about.
func (s *Store) concerned(o *Object) []string {
	switch spec := o.Spec.(type) {
	case *ServiceEntry:
		return spec.Hosts
	case *DestinationRule:
		return ruleHosts(&s.settings, o)
	case *MetaRouter:
		return spec.GetHosts()
	}
	return nil
}

// effects are the folded hosts and wildcards that a batch touches: true if their tables may differ,
// false if objects only moved to another place in a file.
type effects map[string]bool

func (e effects) add(hosts []string, differs bool) {
	for _, h := range hosts {
		h = Fold(h)
		e[h] = e[h] || differs
	}
}

// judgeConflicts renews the Problems of the MetaRouters of the given folded hosts.
func (s *Store) judgeConflicts(hosts effects) {
	known := map[string][]*Object{}
	winners := func(host string) []*Object {
		if _, ok := known[host]; !ok {
			known[host] = s.winners(host)
		}
		return known[host]
	}
	done := map[*Object]struct{}{}
	for h := range hosts {
		for _, o := range s.routers[h] {
			if _, ok := done[o]; !ok {
				done[o] = struct{}{}
				s.problems.Set(conflictOwner(o.Key), s.conflicts(o, winners))
			}
		}
	}
}

func conflictOwner(k Key) string { return "conflict/" + k.Ref().String() }
