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

// Read reads a directory once and waits for nothing. It fails only if the directory itself cannot be read.
func Read(dir string, limits Limits) (*Reading, error) {
	seen, err := walkReadable(dir)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	k := newKeeper(0, 0)
	k.see(seen, now)
	files := k.unreadFiles(now)
	contents, _ := readAll(files, func(p string) string { return filepath.Join(dir, p) }, limits.orDefault())
	for i, f := range files {
		k.take(f, contents[i])
	}
	result := k.resolve(dir)
	out := &Reading{Objects: result.objects, Ignored: result.ignored}
	for _, list := range result.problems {
		out.Problems = append(out.Problems, list...)
	}
	out.Problems = problem.Sorted(out.Problems)
	return out, nil
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
