package filewatch

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxDirectories is how deep directories may nest below the root.
const maxDirectories = 32

// listing is what one walk over the directory saw.
type listing struct {
	files []found // in path order
	// hidden are the paths that could not be listed: what is beneath is neither there nor gone.
	// The root is the empty path.
	hidden map[string]error
	// directories are the real paths of all directories whose entries matter, to watch them.
	directories map[string]os.FileInfo
}

// found is one file, or why it could not be looked at.
type found struct {
	path string // below the root, with slashes
	info os.FileInfo
	err  error
}

// walk lists the files of a directory. Symbolic links are followed; a directory that several paths lead to
// is listed once, which also ends every cycle of links.
func walk(root string) listing {
	w := walker{
		listing: listing{hidden: map[string]error{}, directories: map[string]os.FileInfo{}},
		visited: map[string]struct{}{},
	}
	actual, err := filepath.EvalSymlinks(root)
	if err == nil {
		actual, err = filepath.Abs(actual)
	}
	if err != nil {
		w.hidden[""] = err
	} else {
		w.directory("", actual, 0)
	}
	// Bytewise by path: of two objects with one name the first counts, on every machine the same.
	slices.SortFunc(w.files, func(a, b found) int { return cmp.Compare(a.path, b.path) })
	return w.listing
}

// hides reports whether a path is, or is beneath, one that could not be listed.
func (l listing) hides(p string) bool {
	if len(l.hidden) == 0 {
		return false
	}
	for ; p != "."; p = path.Dir(p) {
		if _, ok := l.hidden[p]; ok {
			return true
		}
	}
	_, ok := l.hidden[""]
	return ok
}

type walker struct {
	listing
	visited map[string]struct{} // real paths
}

// directory lists what is at the path rel below the root, and actually at a path without links.
func (w *walker) directory(rel, actual string, depth int) {
	if _, ok := w.visited[actual]; ok {
		return
	}
	w.visited[actual] = struct{}{}
	if depth > maxDirectories {
		w.hidden[rel] = errors.New("directories nest too deep")
		return
	}
	info, err := os.Stat(actual)
	if err == nil {
		w.directories[actual] = info
		var entries []os.DirEntry
		entries, err = os.ReadDir(actual)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				w.entry(path.Join(rel, e.Name()), filepath.Join(actual, e.Name()), e.Type(), depth)
			}
		}
	}
	if err != nil {
		w.hidden[rel] = err
	}
}

// entry takes in one entry of a directory, of the given type.
func (w *walker) entry(rel, actual string, kind fs.FileMode, depth int) {
	if kind.IsDir() {
		w.directory(rel, actual, depth+1)
		return
	}
	link := kind&fs.ModeSymlink != 0
	if !link && !isObjects(rel) {
		return
	}
	info, err := os.Stat(actual)
	switch {
	case err != nil && !link && errors.Is(err, fs.ErrNotExist): // gone since it was listed
	case err != nil && !isObjects(rel): // a link to nothing may have been one to a directory
		w.hidden[rel] = err
	case err == nil && info.IsDir():
		w.linked(rel, actual, depth)
	case isObjects(rel):
		w.files = append(w.files, found{rel, info, err})
		if link {
			w.watchTarget(actual)
		}
	}
}

func isObjects(name string) bool {
	ext := path.Ext(name)
	return ext == ".yaml" || ext == ".yml" || ext == ".json"
}

func (w *walker) linked(rel, link string, depth int) {
	actual, err := filepath.EvalSymlinks(link)
	if err != nil {
		w.hidden[rel] = err
		return
	}
	w.directory(rel, actual, depth+1)
}

// watchTarget notes the directory that a linked file is in, so that writing to the file is noticed. Where
// that fails, looking from time to time is enough.
func (w *walker) watchTarget(link string) {
	actual, err := filepath.EvalSymlinks(link)
	if err != nil {
		return
	}
	dir := filepath.Dir(actual)
	if _, ok := w.directories[dir]; ok {
		return
	}
	if info, err := os.Stat(dir); err == nil {
		w.directories[dir] = info
	}
}
