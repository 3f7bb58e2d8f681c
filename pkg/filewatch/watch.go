package filewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

const (
	defaultSettle  = 20 * time.Millisecond
	defaultRemoval = time.Second
	defaultPoll    = 5 * time.Second
	// blindPoll is how often to look where there are no notifications.
	blindPoll = time.Second
	// maxRest bounds how long notifications wait after an expensive look.
	maxRest = time.Second
)

// Sink takes what is delivered. Apply must not keep the objects' Locate.
type Sink interface {
	Apply(mesh.Source, mesh.Batch)
}

// Options configure a Watcher.
type Options struct {
	// Dir is the directory to read, with what is beneath it. Required.
	Dir string
	// Sink receives all objects whenever one differs. Required.
	Sink Sink
	// Problems receives the Problems of each file under "file/<name>". Required.
	Problems *problem.Board
	// Log is required.
	Log    *slog.Logger
	Limits Limits
	// Settle is how long size and modification time of a file must rest before it is read; default 20 ms.
	Settle time.Duration
	// Removal is how long a file, or its absence, must rest before objects that are not in it any more are
	// believed gone; default 1 s.
	Removal time.Duration
	// Poll is how often to look for what notifications missed; default 5 s.
	Poll time.Duration
}

func (o *Options) validate() error {
	if o.Sink == nil || o.Problems == nil || o.Log == nil {
		return errors.New("filewatch: Sink, Problems and Log are required")
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"Settle", &o.Settle, defaultSettle}, {"Removal", &o.Removal, defaultRemoval}, {"Poll", &o.Poll, defaultPoll}} {
		if *d.value < 0 {
			return fmt.Errorf("filewatch: %s is %s and must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	o.Limits = o.Limits.orDefault()
	return nil
}

// Watcher keeps a Sink up to date with a directory.
type Watcher struct {
	options Options
	log     *slog.Logger
	open    func() (*fsnotify.Watcher, error)
	keeper  *keeper

	blind     bool // some place cannot be watched
	delivered bool
	objects   []*mesh.Object  // as delivered last
	owners    map[string]bool // on the board
	ignored   string
}

// New returns a Watcher. It fails if options are missing or if the directory cannot be read now.
func New(o Options) (*Watcher, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if _, err := walkReadable(o.Dir); err != nil {
		return nil, err
	}
	return &Watcher{
		options: o, log: o.Log, open: fsnotify.NewWatcher, keeper: newKeeper(o.Settle, o.Removal), owners: map[string]bool{},
	}, nil
}

// Run delivers until ctx ends, and then returns nil. The first delivery happens once all files have settled.
// It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	b, err := newBell(w.open)
	w.setBlind(err)
	var g errgroup.Group
	g.Go(func() error {
		b.listen()
		return nil
	})
	loop(ctx, b, w.look)
	b.close()
	return g.Wait()
}

// loop looks and waits until there is reason to look again. Four things can happen: the end of ctx; a
// notification, which counts only after a rest, so that a storm of them does not keep a processor busy; the
// time at which a file has settled or something is believed gone; the time of the next look at all.
func loop(ctx context.Context, b *bell, look func(*bell) (rest, pause time.Duration)) {
	for {
		rest, pause := look(b)
		rested, due := time.NewTimer(rest), time.NewTimer(pause)
		var rang <-chan struct{}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-rested.C:
				rang = b.rang
			case <-rang:
				waiting = false
			case <-due.C:
				waiting = false
			}
		}
		rested.Stop()
		due.Stop()
	}
}

// look takes in the state of the directory and delivers what differs. It returns for how long notifications
// should not lead to the next look, and when that happens without one.
func (w *Watcher) look(b *bell) (rest, pause time.Duration) {
	started := time.Now()
	seen := walk(w.options.Dir)
	now := time.Now()
	if b.fs != nil {
		w.setBlind(b.watch(places{directories: seen.directories, hinges: hinges(w.options.Dir)}))
	}
	w.keeper.see(seen, now)
	files := w.keeper.unreadFiles(now)
	contents, steady := readAll(files, func(p string) string { return filepath.Join(w.options.Dir, p) }, w.options.Limits)
	for i, f := range files {
		if steady[i] {
			w.keeper.take(f, contents[i])
		}
	}
	w.keeper.expire(now)
	w.deliver(now)
	rest = min(max(w.options.Settle, 4*now.Sub(started)), maxRest)
	return rest, w.pause(time.Now())
}

func (w *Watcher) pause(now time.Time) time.Duration {
	pause := w.options.Poll
	if w.blind {
		pause = min(pause, blindPoll)
	}
	if at, ok := w.keeper.next(); ok {
		pause = min(pause, max(at.Sub(now), w.options.Settle))
	}
	return pause
}

func (w *Watcher) setBlind(err error) {
	if err != nil && !w.blind {
		w.log.Warn("changes of files are not notified; looking for them regularly instead", "error", err)
	}
	w.blind = err != nil
}

func (w *Watcher) deliver(now time.Time) {
	complete := w.keeper.complete(now)
	if !w.keeper.changed && (w.delivered || !complete) {
		return
	}
	w.keeper.changed = false
	result := w.keeper.resolve(w.options.Dir)
	w.report(result)
	if !complete && !w.delivered || w.delivered && slices.Equal(result.objects, w.objects) {
		return
	}
	w.objects, w.delivered = result.objects, true
	w.options.Sink.Apply(mesh.Directory, mesh.Batch{Complete: mesh.Kinds(), Objects: slices.Clone(result.objects)})
	for _, o := range result.objects {
		if o.Locate != nil { // it keeps what the file was parsed to in memory; the store did not take this one in
			o.Locate = nil
		}
	}
}

// report brings the board, and the note on other kinds, up to date.
func (w *Watcher) report(r resolution) {
	for owner := range w.owners {
		if _, ok := r.problems[owner]; !ok {
			w.options.Problems.Set("file/"+owner, nil)
			delete(w.owners, owner)
		}
	}
	for owner, list := range r.problems {
		w.options.Problems.Set("file/"+owner, list)
		w.owners[owner] = true
	}
	kinds := strings.Join(slices.Sorted(maps.Keys(r.ignored)), ", ")
	if kinds == w.ignored {
		return
	}
	w.ignored = kinds
	if kinds != "" {
		w.log.Info("objects of other kinds are not looked at", "kinds", kinds)
	}
}
