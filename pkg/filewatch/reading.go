package filewatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Reading is what a directory says.
type Reading struct {
	// Objects are in path order, then in the order of their file; of those with one key only the first is here.
	Objects []*mesh.Object
	// Problems are those of files and of whole documents, and of objects that come second to one of the
	// same key, in the order of problem.Compare. Those of one object's fields are in its Faults.
	Problems []problem.Problem
	// Ignored counts the objects of other kinds, by "apiVersion Kind".
	Ignored map[string]int
}

// Tree is an object as it is written, with all that a mesh.Object leaves out.
type Tree struct {
	Object *mesh.Object // nil if the kind is one that tables are not made of
	File   string
	Line   int
	Value  map[string]any // without what Object.Faults tells about
}

// Read reads a directory once and waits for nothing. It fails only if the directory itself cannot be read.
func Read(dir string, limits Limits) (*Reading, error) {
	out, _, err := read(dir, limits)
	return out, err
}

// ReadTrees is Read for those who need objects whole, or objects of other kinds. Trees are in path order, then
// in the order of their file; those of a file that cannot be believed are not among them, those of objects that
// come second to one of the same key are.
func ReadTrees(dir string, limits Limits) (*Reading, []Tree, error) {
	limits.trees = true
	return read(dir, limits)
}

func read(dir string, limits Limits) (*Reading, []Tree, error) {
	seen, err := walkReadable(dir)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	k := newKeeper(0, 0)
	k.see(seen, now)
	files := k.unreadFiles(now)
	contents, _ := readAll(files, func(p string) string { return filepath.Join(dir, p) }, limits.orDefault())
	var trees []Tree
	for i, f := range files {
		trees = append(trees, contents[i].trees...)
		k.take(f, contents[i])
	}
	result := k.resolve(dir)
	out := &Reading{Objects: result.objects, Ignored: result.ignored}
	for _, list := range result.problems {
		out.Problems = append(out.Problems, list...)
	}
	out.Problems = problem.Sorted(out.Problems)
	return out, trees, nil
}

// walkReadable is walk for a directory that must be there.
func walkReadable(dir string) (listing, error) {
	if dir == "" {
		return listing{}, errors.New("read directory of objects: no directory is given")
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		return listing{}, fmt.Errorf("read directory of objects: %s is a file; give the directory that it is in", dir)
	}
	seen := walk(dir)
	if err := seen.hidden[""]; err != nil {
		return listing{}, fmt.Errorf("read directory of objects %s: %w", dir, err)
	}
	return seen, nil
}
