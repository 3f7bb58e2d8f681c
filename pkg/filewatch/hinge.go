package filewatch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// hinges returns, by real directory, the names that decide where a path leads: its last element, each
// symbolic link on the way, and where it leads nowhere, the first name that is missing. Whoever swaps a whole
// checkout, as git-sync does, changes one of these and nothing in the directory itself.
func hinges(path string) map[string]map[string]struct{} {
	out := map[string]map[string]struct{}{}
	path, err := filepath.Abs(path)
	if err != nil {
		return out
	}
	separator := string(filepath.Separator)
	top := filepath.VolumeName(path) + separator
	dir, rest := top, elements(path[len(top):])
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." { // of a link's target; dir is free of links
			dir = filepath.Dir(dir)
			continue
		}
		here := filepath.Join(dir, name)
		info, err := os.Lstat(here)
		link := err == nil && info.Mode()&fs.ModeSymlink != 0
		if err != nil || link || len(rest) == 0 {
			note(out, dir, name)
		}
		if err != nil {
			return out
		}
		if !link {
			dir = here
			continue
		}
		links++
		target, err := os.Readlink(here)
		if err != nil {
			return out
		}
		if filepath.IsAbs(target) {
			dir = top
		}
		rest = append(elements(target), rest...)
	}
	return out
}

func elements(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

func note(out map[string]map[string]struct{}, dir, name string) {
	if out[dir] == nil {
		out[dir] = map[string]struct{}{}
	}
	out[dir][name] = struct{}{}
}
