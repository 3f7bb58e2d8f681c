package tlsboot

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long the directories must be silent before the files are read: whoever writes them
	// is likely done.
	quiet = 100 * time.Millisecond
	// maxDelay bounds the wait for silence in a directory that has none.
	maxDelay = time.Second
)

// follower looks at files whenever they may have changed.
type follower struct {
	files []string
	poll  time.Duration
	log   *slog.Logger
	// look reads the files; it returns true for a failure that must be confirmed by another look.
	look func(now time.Time) (undecided bool)
}

// run returns when ctx ends, with its error.
func (f *follower) run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.log.Warn("no file notifications, TLS files are polled only", "every", f.poll, "error", err)
		return f.follow(ctx, nil)
	}
	changed := make(chan struct{}, 1)
	var forwarding sync.WaitGroup
	forwarding.Go(func() { forward(w, changed) })
	defer forwarding.Wait()
	defer func() { _ = w.Close() }()

	for _, d := range f.dirs() {
		if err := w.Add(d); err != nil {
			f.log.Warn("directory of TLS files is polled only", "directory", d, "every", f.poll, "error", err)
		}
	}
	signal(changed) // whatever changed between the first look and now
	return f.follow(ctx, changed)
}

// dirs are the directories of the files, each once. Directories are watched, not files: a rename and
// Kubernetes' swap of the ..data symlink replace files, and a watch would stay with the old ones.
func (f *follower) dirs() []string {
	dirs := make([]string, len(f.files))
	for i, file := range f.files {
		dirs[i] = filepath.Dir(file)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// follow looks when something changed and calm has returned, at every poll, and when a failure must be
// confirmed.
func (f *follower) follow(ctx context.Context, changed <-chan struct{}) error {
	poll := time.NewTicker(f.poll)
	defer poll.Stop()
	var confirm <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			settle(ctx, changed)
		case <-poll.C:
		case <-confirm:
		}
		confirm = nil
		if f.look(time.Now()) {
			confirm = time.After(patience)
		}
	}
}

// settle returns when changed has been silent for quiet, after maxDelay, or when ctx ends.
func settle(ctx context.Context, changed <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, maxDelay)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(quiet):
			return
		case <-changed:
		}
	}
}

// forward turns notifications, and errors such as an overflow of their queue, into one signal.
// It returns when w is closed.
func forward(w *fsnotify.Watcher, changed chan<- struct{}) {
	for {
		select {
		case _, ok := <-w.Events:
			if !ok {
				return
			}
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
		}
		signal(changed)
	}
}

func signal(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
