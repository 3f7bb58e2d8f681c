package filewatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// watched runs a Watcher that notices nothing but by notifications, and awaits its first delivery.
func watched(t *testing.T, dir, first string) *recorder {
	t.Helper()
	sink := newRecorder()
	o := options(dir, sink)
	o.Poll, o.Removal = time.Hour, 50*time.Millisecond
	w, err := New(o)
	must(t, err)
	run(t, w)
	sink.await(t, first)
	return sink
}

func run(t *testing.T, w *Watcher) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWritesAndRenamesAreNotified(t *testing.T) {
	dir := directory(t, "a.yaml", router("a", "x"))
	sink := watched(t, dir, "a=x")
	write(t, filepath.Join(dir, "a.yaml"), router("a", "y"))
	sink.await(t, "a=y")
	write(t, filepath.Join(dir, ".new"), router("a", "z"))
	must(t, os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "a.yaml")))
	sink.await(t, "a=z")
	write(t, filepath.Join(dir, "new/sub/b.yaml"), router("b", "x"))
	sink.await(t, "a=z b=x")
	write(t, filepath.Join(dir, "new/sub/b.yaml"), router("b", "y"))
	sink.await(t, "a=z b=y")
	must(t, os.RemoveAll(filepath.Join(dir, "new")))
	sink.await(t, "a=z")
	sink.always(t, "a=")
}

func TestAKubernetesSymlinkSwapIsNotified(t *testing.T) {
	dir := directory(t, "..2026_1/a.yaml", router("a", "x"), "..2026_1/b.yaml", router("b", "x"))
	must(t, os.Symlink("..2026_1", filepath.Join(dir, "..data")))
	for _, name := range []string{"a.yaml", "b.yaml"} {
		must(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	sink := watched(t, dir, "a=x b=x")
	write(t, filepath.Join(dir, "..2026_2/a.yaml"), router("a", "y"))
	write(t, filepath.Join(dir, "..2026_2/b.yaml"), router("b", "y"))
	must(t, os.Symlink("..2026_2", filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_1")))
	sink.await(t, "a=y b=y")
	sink.always(t, "a=")
	sink.always(t, "b=")
}

// swap lets a link lead somewhere else, in one step.
func swap(t *testing.T, link, target string) {
	t.Helper()
	must(t, os.Symlink(target, link+".new"))
	must(t, os.Rename(link+".new", link))
}

func TestAGitSyncRootSwapIsNotified(t *testing.T) {
	for name, sub := range map[string]string{"the link itself": "", "a directory behind the link": "mesh"} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			one, two := filepath.Join(top, ".worktrees/1", sub), filepath.Join(top, ".worktrees/2", sub)
			write(t, filepath.Join(one, "a.yaml"), router("a", "x"))
			write(t, filepath.Join(two, "a.yaml"), router("a", "y"))
			write(t, filepath.Join(two, "b.yaml"), router("b", "y"))
			must(t, os.Symlink(".worktrees/1", filepath.Join(top, "current")))
			sink := watched(t, filepath.Join(top, "current", sub), "a=x")
			swap(t, filepath.Join(top, "current"), ".worktrees/2")
			sink.await(t, "a=y b=y")
			write(t, filepath.Join(two, "b.yaml"), router("b", "z"))
			sink.await(t, "a=y b=z")
			swap(t, filepath.Join(top, "current"), ".worktrees/1")
			sink.await(t, "a=x")
			sink.always(t, "a=")
		})
	}
}

func TestADirectoryThatIsMadeAnewIsNotified(t *testing.T) {
	top := directory(t, "mesh/a.yaml", router("a", "x"))
	dir := filepath.Join(top, "mesh")
	sink := watched(t, dir, "a=x")
	for _, host := range []string{"y", "z"} {
		must(t, os.RemoveAll(dir))
		write(t, filepath.Join(dir, "a.yaml"), router("a", host))
		sink.await(t, "a="+host)
	}
	must(t, os.Rename(dir, dir+".old"))
	write(t, filepath.Join(dir, "a.yaml"), router("a", "other"))
	sink.await(t, "a=other")
	sink.always(t, "a=")
}

func TestALinkedFileIsNotifiedWhereItIs(t *testing.T) {
	elsewhere := directory(t, "mine.txt", router("a", "x"))
	dir := t.TempDir()
	must(t, os.Symlink(filepath.Join(elsewhere, "mine.txt"), filepath.Join(dir, "a.yaml")))
	sink := watched(t, dir, "a=x")
	must(t, os.Rename(filepath.Join(elsewhere, "mine.txt"), filepath.Join(elsewhere, "old")))
	write(t, filepath.Join(elsewhere, "mine.txt"), router("a", "y"))
	sink.await(t, "a=y")
}

func TestAnErrorOfNotificationsLeadsToAnotherLook(t *testing.T) {
	b := &bell{rang: make(chan struct{}, 1), watched: map[string]os.FileInfo{"/x": nil}}
	b.fs = &fsnotify.Watcher{Events: make(chan fsnotify.Event), Errors: make(chan error)}
	done := make(chan struct{})
	go func() {
		b.listen()
		close(done)
	}()
	b.fs.Errors <- fsnotify.ErrEventOverflow
	<-b.rang
	close(b.fs.Events)
	<-done
	if len(b.watched) > 0 {
		t.Error("watches that may be lost still count")
	}
}

func TestWithoutNotificationsChangesAreFoundAnyway(t *testing.T) {
	dir := directory(t, "a.yaml", router("a", "x"))
	sink := newRecorder()
	o := options(dir, sink)
	o.Poll = 10 * time.Millisecond
	w, err := New(o)
	must(t, err)
	w.open = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	run(t, w)
	sink.await(t, "a=x")
	write(t, filepath.Join(dir, "a.yaml"), router("a", "y"))
	sink.await(t, "a=y")
}

func TestOnlyWhatMattersRings(t *testing.T) {
	set := func(names ...string) map[string]struct{} {
		out := map[string]struct{}{}
		for _, n := range names {
			out[n] = struct{}{}
		}
		return out
	}
	b := &bell{places: places{
		directories: map[string]os.FileInfo{"/git/1/mesh": nil},
		hinges:      map[string]map[string]struct{}{"/git": set("current"), "/git/1": set("mesh")},
	}}
	for _, c := range []struct {
		path string
		op   fsnotify.Op
		want bool
	}{
		{"/git/1/mesh/a.yaml", fsnotify.Write, true},
		{"/git/1/mesh/.a.yaml.swp", fsnotify.Write, false},
		{"/git/1/mesh/sub", fsnotify.Create, true},
		{"/git/1/mesh/..data", fsnotify.Create, true},
		{"/git/1/mesh/a.yaml", fsnotify.Chmod, true},
		{"/git/1/mesh", fsnotify.Remove, true},
		{"/git/1/other", fsnotify.Create, false},
		{"/git/current", fsnotify.Create, true},
		{"/git/lock", fsnotify.Create, false},
	} {
		if got := b.concerned(fsnotify.Event{Name: c.path, Op: c.op}); got != c.want {
			t.Errorf("%s %s: %v", c.op, c.path, got)
		}
	}
}

func TestHingesAreTheNamesThatDecideWhereAPathLeads(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(top, "trees/1/mesh"), 0o755))
	must(t, os.Symlink("trees/../now", filepath.Join(top, "current")))
	must(t, os.Symlink(filepath.Join(top, "trees/1"), filepath.Join(top, "now")))
	must(t, os.Symlink("loop", filepath.Join(top, "loop")))
	for path, want := range map[string]map[string]map[string]struct{}{
		"current/mesh":         {"": {"current": {}, "now": {}}, "trees/1": {"mesh": {}}},
		"current/none/beneath": {"": {"current": {}, "now": {}}, "trees/1": {"none": {}}},
		"loop/mesh":            {"": {"loop": {}}},
		"trees":                {"": {"trees": {}}},
	} {
		got := map[string]map[string]struct{}{}
		for dir, names := range hinges(filepath.Join(top, path)) {
			rel, err := filepath.Rel(top, dir)
			must(t, errors.Join(err))
			if rel == "." {
				rel = ""
			}
			got[rel] = names
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}
