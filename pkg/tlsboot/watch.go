package tlsboot

import (
	"context"
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

// Run follows the files until ctx ends, and returns its error. Call it once. It reads nothing but the
// files, so it cannot fail otherwise: without notifications, polling sees the same changes later.
func (f *Files) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.opts.Log.Warn("no file notifications, TLS files are polled only", "every", f.opts.Poll, "error", err)
		return f.follow(ctx, nil)
	}
	changed := make(chan struct{}, 1)
	var forwarding sync.WaitGroup
	forwarding.Go(func() { forward(w, changed) })
	defer forwarding.Wait()
	defer func() { _ = w.Close() }()

	for _, d := range f.dirs() {
		if err := w.Add(d); err != nil {
			f.opts.Log.Warn("directory of TLS files is polled only", "directory", d, "every", f.opts.Poll, "error", err)
		}
	}
	signal(changed) // whatever changed between NewFiles and now
	return f.follow(ctx, changed)
}

// dirs are the directories of the files, each once. Directories are watched, not files: a rename and
// Kubernetes' swap of the ..data symlink replace files, and a watch would stay with the old ones.
func (f *Files) dirs() []string {
	dirs := []string{filepath.Dir(f.opts.Cert), filepath.Dir(f.opts.Key), filepath.Dir(f.opts.Root)}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// follow looks at the files when something changed and calm has returned, at every poll, and when a
// failure must be confirmed.
func (f *Files) follow(ctx context.Context, changed <-chan struct{}) error {
	poll := time.NewTicker(f.opts.Poll)
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
