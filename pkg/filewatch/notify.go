package filewatch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// bell rings when something may have changed in the directories that it watches.
type bell struct {
	fs   *fsnotify.Watcher // nil where the system offers none
	rang chan struct{}     // of capacity one: that something changed carries no data

	mu      sync.Mutex
	places  places
	watched map[string]os.FileInfo // by path; which directory it was tells one from its successor
}

// places is where something may change.
type places struct {
	directories map[string]os.FileInfo         // with all that is in them
	hinges      map[string]map[string]struct{} // single names in other directories
}

func newBell(open func() (*fsnotify.Watcher, error)) (*bell, error) {
	b := &bell{rang: make(chan struct{}, 1), watched: map[string]os.FileInfo{}}
	w, err := open()
	if err != nil {
		return b, fmt.Errorf("open file notifications: %w", err)
	}
	b.fs = w
	return b, nil
}

// listen passes on notifications until the bell is closed.
func (b *bell) listen() {
	if b.fs == nil {
		return
	}
	for {
		select {
		case e, ok := <-b.fs.Events:
			if !ok {
				return
			}
			if b.concerned(e) {
				b.ring()
			}
		case _, ok := <-b.fs.Errors:
			if !ok {
				return
			}
			b.mu.Lock()
			clear(b.watched) // notifications are lost, and among them may be some that end a watch
			b.mu.Unlock()
			b.ring()
		}
	}
}

func (b *bell) ring() {
	select {
	case b.rang <- struct{}{}:
	default:
	}
}

func (b *bell) close() {
	if b.fs != nil {
		_ = b.fs.Close() // the end of the process, or of the test: there is nothing to do about it
	}
}

func (b *bell) concerned(e fsnotify.Event) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Op != fsnotify.Write && e.Op != fsnotify.Chmod {
		delete(b.watched, e.Name) // what has this name now is not what was watched
	}
	dir, name := filepath.Dir(e.Name), filepath.Base(e.Name)
	if _, ok := b.places.directories[e.Name]; ok {
		return true
	}
	if _, ok := b.places.hinges[dir][name]; ok {
		return true
	}
	if _, ok := b.places.directories[dir]; ok {
		return e.Op != fsnotify.Write || isObjects(name)
	}
	_, ok := b.places.hinges[e.Name]
	return ok
}

// watch changes what is watched to these places. It rings if some are new, since what happened in them
// before went unnoticed. It fails if some cannot be watched.
func (b *bell) watch(p places) error {
	if b.fs == nil {
		return nil
	}
	want := map[string]os.FileInfo{}
	for dir := range p.hinges {
		if info, err := os.Stat(dir); err == nil {
			want[dir] = info
		}
	}
	for dir, info := range p.directories {
		want[dir] = info
	}
	add := b.replace(p, want)
	var failed error
	for _, dir := range add {
		err := b.fs.Add(dir)
		if err != nil {
			b.forget(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // which is gone since it was listed
			failed = fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	if len(add) > 0 && failed == nil {
		b.ring()
	}
	return failed
}

// replace ends the watches that are not wanted any more and returns the directories that need one. They
// count as watched from here on: an event that says otherwise may come as soon as the watch is there.
func (b *bell) replace(p places, want map[string]os.FileInfo) (add []string) {
	b.mu.Lock()
	var remove []string
	b.places = p
	for dir, info := range b.watched {
		if now, ok := want[dir]; !ok || !os.SameFile(now, info) {
			remove = append(remove, dir)
			delete(b.watched, dir)
		}
	}
	for dir, info := range want {
		if _, ok := b.watched[dir]; !ok {
			add = append(add, dir)
			b.watched[dir] = info
		}
	}
	b.mu.Unlock()
	for _, dir := range remove {
		_ = b.fs.Remove(dir) // fails where the directory is gone, and the watch with it
	}
	return add
}

func (b *bell) forget(dir string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watched, dir)
}
