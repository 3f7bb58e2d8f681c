package filewatch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// resolution is what a directory amounts to.
type resolution struct {
	objects  []*mesh.Object               // each key once
	problems map[string][]problem.Problem // by the name of the file or directory
	ignored  map[string]int               // "apiVersion Kind" -> how many
}

// resolve decides which of the objects with one key counts: the first in path order, then in the order of its
// file, of those that a file has now; only without one of these, one that a file had before.
func (k *keeper) resolve(root string) resolution {
	r := resolution{problems: map[string][]problem.Problem{}, ignored: map[string]int{}}
	first := map[mesh.Key]*mesh.Object{}
	for _, f := range k.files {
		for kind, n := range f.ignored {
			r.ignored[kind] += n
		}
		if f.doubt != nil {
			r.add(f.doubt.problem(filepath.Join(root, f.path), f.had()))
		}
		for _, o := range f.objects {
			switch winner, taken := first[o.Key]; {
			case f.silent:
			case taken:
				r.add(duplicate(o, winner))
			default:
				first[o.Key] = o
				r.objects = append(r.objects, o)
			}
		}
	}
	for _, f := range k.files {
		r.fill(first, f.gone)
		if f.silent {
			r.fill(first, f.objects)
		}
	}
	for path, err := range k.hidden {
		hidden := fault{problem.Unreadable, 0, err.Error()}
		r.add(hidden.problem(filepath.Join(root, path), k.hasBeneath(path)))
	}
	return r
}

// fill adds the objects whose keys nothing has.
func (r *resolution) fill(first map[mesh.Key]*mesh.Object, objects []*mesh.Object) {
	for _, o := range objects {
		if _, taken := first[o.Key]; !taken {
			first[o.Key] = o
			r.objects = append(r.objects, o)
		}
	}
}

func (r *resolution) add(p problem.Problem) { r.problems[p.File] = append(r.problems[p.File], p) }

// hasBeneath reports whether a path has, or is, a file with objects in force.
func (k *keeper) hasBeneath(path string) bool {
	return slices.ContainsFunc(k.files, func(f *file) bool {
		beneath := path == "" || f.path == path || strings.HasPrefix(f.path, path+"/")
		return beneath && f.had()
	})
}

// problem is a fault as people see it. kept tells whether objects of an earlier version are in force.
func (f *fault) problem(name string, kept bool) problem.Problem {
	p := problem.Problem{
		Severity: problem.Error, Reason: f.reason, Detail: f.detail, File: name, Line: f.line,
		Consequence: "nothing of the file is in force",
	}
	if f.reason == problem.Ignored {
		p.Severity = problem.Warning
	}
	if kept {
		p.Consequence = "the objects of the file's last good version stay in force"
	}
	return p
}

func duplicate(o, winner *mesh.Object) problem.Problem {
	return problem.Problem{
		Severity: problem.Error, Object: o.Ref(), Reason: problem.Duplicate, File: o.File, Line: o.Line,
		Detail:      fmt.Sprintf("another object of this name comes first, at %s:%d", winner.File, winner.Line),
		Consequence: "this one is not used",
	}
}
