package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/metards/metards/pkg/problem"
)

// FollowOptions configure Follow.
type FollowOptions struct {
	// File and Log are required.
	File   string
	Log    *slog.Logger
	Limits Limits
	// Settle and Poll are as in Options.
	Settle, Poll time.Duration
}

// Follow reads one file, and again whenever it was replaced or rewritten and has settled, until ctx ends.
// take gets its bytes, or the Problem that they cannot be read; while that stays as it is, nothing is called.
func Follow(ctx context.Context, o FollowOptions, take func([]byte, *problem.Problem)) error {
	w := Watcher{options: Options{Settle: o.Settle, Poll: o.Poll}, log: o.Log}
	if w.options.Settle == 0 {
		w.options.Settle = defaultSettle
	}
	if w.options.Poll == 0 {
		w.options.Poll = defaultPoll
	}
	b, err := newBell(fsnotify.NewWatcher)
	w.setBlind(err)
	var g errgroup.Group
	g.Go(func() error {
		b.listen()
		return nil
	})
	f := follower{options: o, watcher: &w, take: take}
	f.options.Limits = o.Limits.orDefault()
	loop(ctx, b, f.look)
	b.close()
	return g.Wait()
}

// follower is what Follow knows of its file.
type follower struct {
	options FollowOptions
	watcher *Watcher
	take    func([]byte, *problem.Problem)

	seen  found
	since time.Time
	read  bool // what was seen last
}

func (f *follower) look(b *bell) (rest, pause time.Duration) {
	settle := f.watcher.options.Settle
	if b.fs != nil {
		f.watcher.setBlind(b.watch(places{hinges: hinges(f.options.File)}))
	}
	info, err := os.Stat(f.options.File)
	now, x := time.Now(), found{info: info, err: err}
	if !f.seen.same(x) {
		f.seen, f.since, f.read = x, now, false
	}
	if !f.read && now.Sub(f.since) >= settle {
		f.readNow(now)
	}
	pause = f.watcher.options.Poll
	if f.watcher.blind {
		pause = min(pause, blindPoll)
	}
	if !f.read {
		pause = min(pause, max(f.since.Add(settle).Sub(now), settle/4))
	}
	return settle, pause
}

// readNow reads the file as it was seen. If it changes meanwhile, it has to settle anew.
func (f *follower) readNow(now time.Time) {
	fail := func(c *fault) {
		f.read = true
		p := c.problem(f.options.File, false)
		f.take(nil, &p)
	}
	if f.seen.err != nil {
		fail(unreadable(f.seen.err).fault)
		return
	}
	if !f.seen.info.Mode().IsRegular() {
		fail(unreadable(errors.New("not a regular file")).fault)
		return
	}
	data, steady, err := readSteady(f.options.File, f.seen.info, f.options.Limits)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !steady:
		f.since = now
	case err != nil:
		fail(unreadable(err).fault)
	case int64(len(data)) > f.options.Limits.FileSize:
		fail(tooLarge(f.seen.info.Size(), f.options.Limits))
	default:
		f.read = true
		f.take(data, nil)
	}
}

// Document returns the one document of a text in JSON form (maps, slices, strings, json.Numbers, booleans, nil),
// and in which line a path such as "clusters[2].name" is written, or the Problem that makes the text unusable.
func Document(file string, data []byte, limits Limits) (tree any, line func(path string) int, fault *problem.Problem) {
	roots, err := parse(file, data)
	if err == nil && len(roots) != 1 {
		err = unparsable(0, "the file has %d documents; it must have one", len(roots))
	}
	if err == nil {
		tree, err = newExpander(4*limits.orDefault().FileSize).value(roots[0], 0)
	}
	if err != nil {
		p := asFault(err).problem(file, false)
		return nil, nil, &p
	}
	return tree, func(path string) int { return lineOf(roots[0], path) }, nil
}
