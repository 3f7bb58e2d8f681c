package filewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// scene is a Watcher in a bubble of fake time. It has no notifications, which fake time knows nothing of, and
// looks every 10 ms instead.
type scene struct {
	t     *testing.T
	dir   string
	sink  *recorder
	board *problem.Board
}

// play runs f beside a Watcher of dir, in fake time.
func play(t *testing.T, dir string, f func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, dir: dir, sink: newRecorder()}
		o := options(dir, s.sink)
		o.Poll, s.board = 10*time.Millisecond, o.Problems
		w, err := New(o)
		must(t, err)
		w.open = func() (*fsnotify.Watcher, error) { return nil, errors.New("none here") }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		s.after(defaultSettle + o.Poll)
		f(s)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// after lets fake time pass.
func (s *scene) after(d time.Duration) {
	<-time.After(d + time.Millisecond)
	synctest.Wait()
}

func (s *scene) write(name, text string) { write(s.t, filepath.Join(s.dir, name), text) }
func (s *scene) remove(name string)      { must(s.t, os.RemoveAll(filepath.Join(s.dir, name))) }
func (s *scene) rename(from, to string) {
	must(s.t, os.Rename(filepath.Join(s.dir, from), filepath.Join(s.dir, to)))
}

func (s *scene) want(objects string, problems ...string) {
	s.t.Helper()
	if got := s.sink.latest(); got != objects {
		s.t.Errorf("in force: %q, want %q; all: %q", got, objects, s.sink.all())
	}
	got := strings.TrimSuffix(lines(s.dir, s.board.All()), "\n")
	if diff := cmp.Diff(strings.Join(problems, "\n"), got); diff != "" {
		s.t.Errorf("problems (-want +got):\n%s", diff)
	}
}

const (
	soon = 60 * time.Millisecond // enough for a change to be seen and to settle
	long = 4 * time.Second       // enough for everything
)

func TestEditsAndAdditionsTakeEffectOnceTheySettle(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")), func(s *scene) {
		s.want("a=x")
		s.write("a.yaml", router("a", "y"))
		s.write("sub/b.yaml", router("b", "x"))
		s.after(soon)
		s.want("a=y b=x")
		if n := len(s.sink.all()); n > 3 {
			t.Errorf("%d deliveries", n)
		}
		s.after(long)
		if n := len(s.sink.all()); n > 3 {
			t.Errorf("%d deliveries without a change", n)
		}
	})
}

func TestAFileIsNotReadWhileItGrows(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")), func(s *scene) {
		text := router("b", "x") + "---\n" + router("c", "x")
		for i := 0; i < len(text); i += 16 {
			s.write("b.yaml", text[:i])
			s.after(10 * time.Millisecond)
		}
		s.want("a=x")
		s.write("b.yaml", text)
		s.after(soon)
		s.want("a=x b=x c=x")
		if n := len(s.sink.all()); n != 2 {
			t.Errorf("deliveries: %q", s.sink.all())
		}
	})
}

func TestTheFirstDeliveryWaitsForAllFilesButNotForever(t *testing.T) {
	dir := directory(t, "a.yaml", router("a", "x"))
	synctest.Test(t, func(t *testing.T) {
		sink := newRecorder()
		o := options(dir, sink)
		o.Poll = 10 * time.Millisecond
		w, err := New(o)
		must(t, err)
		w.open = func() (*fsnotify.Watcher, error) { return nil, errors.New("none here") }
		done := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- w.Run(ctx) }()
		for i := range 1100 {
			write(t, filepath.Join(dir, "log.yaml"), strings.Repeat("#", i))
			<-time.After(10 * time.Millisecond)
			synctest.Wait()
			if i == 900 && sink.latest() != "nothing delivered" {
				t.Errorf("delivered %q before all files settled", sink.latest())
			}
		}
		if got := sink.latest(); got != "a=x" {
			t.Errorf("delivered %q", got)
		}
		if got := lines(dir, o.Problems.All()); !strings.Contains(got, "log.yaml: error: the file changes all the time") {
			t.Errorf("problems: %q", got)
		}
		cancel()
		<-done
	})
}

func TestAnEditorThatTruncatesAndWritesInPlaceNeverLooksLikeADeletion(t *testing.T) {
	const empty = "a.yaml: warning: the file is empty, perhaps about to be written; delete it to remove its objects [Ignored]; " +
		"the objects of the file's last good version stay in force"
	play(t, directory(t, "a.yaml", router("a", "x")+"---\n"+router("b", "x")), func(s *scene) {
		for _, text := range []string{"", "\n", "# soon\n"} {
			s.write("a.yaml", text)
			s.after(long)
			s.want("a=x b=x", empty)
		}
		s.write("a.yaml", router("a", "y"))
		s.after(soon)
		s.want("a=y b=x")
		s.after(defaultRemoval / 2)
		s.write("a.yaml", router("a", "y")+"---\n"+router("b", "y"))
		s.after(long)
		s.want("a=y b=y")
		s.sink.always(t, "a=")
		s.sink.always(t, "b=")
	})
}

func TestAVimStyleSaveByRenameNeverLooksLikeADeletion(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")), func(s *scene) {
		s.rename("a.yaml", "a.yaml~")
		s.after(defaultRemoval / 2)
		s.want("a=x")
		s.write("a.yaml", router("a", "y"))
		s.remove("a.yaml~")
		s.after(soon)
		s.want("a=y")
		s.after(long)
		s.want("a=y")
		s.sink.always(t, "a=")
	})
}

func TestWhatDisappearsIsGoneAfterTheRemovalTime(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")+"---\n"+router("b", "x"), "c.yaml", router("c", "x")), func(s *scene) {
		s.write("a.yaml", router("a", "x"))
		s.remove("c.yaml")
		s.after(defaultRemoval - 20*time.Millisecond)
		s.want("a=x b=x c=x")
		s.after(soon)
		s.want("a=x")
		s.remove("a.yaml")
		s.after(defaultRemoval + soon)
		s.want("")
	})
}

func TestAFileThatKeepsChangingLosesNothingUntilItRests(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")+"---\n"+router("b", "x")), func(s *scene) {
		for i := range 10 {
			s.write("a.yaml", router("a", fmt.Sprintf("x%d", i)))
			s.after(defaultRemoval / 2)
			s.want(fmt.Sprintf("a=x%d b=x", i))
		}
		s.after(defaultRemoval)
		s.want("a=x9")
	})
}

func TestAMovedObjectCountsAtOnceAndIsNoDuplicate(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")+"---\n"+router("b", "x"), "c.yaml", router("c", "x")), func(s *scene) {
		s.write("a.yaml", router("b", "x"))
		s.write("d.yaml", router("a", "moved"))
		s.rename("c.yaml", "z.yaml")
		s.after(soon)
		s.want("a=moved b=x c=x")
		s.after(long)
		s.want("a=moved b=x c=x")
		s.sink.always(t, "c=x")
	})
}

func TestTheFirstInPathOrderCountsAndTheNextFollowsIt(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x"), "b.yaml", router("a", "y")), func(s *scene) {
		const second = "b.yaml:1: error: MetaRouter shop/a: another object of this name comes first, at a.yaml:1 [Duplicate]; this one is not used"
		s.want("a=x", second)
		s.write("a.yaml", "a: [")
		s.after(soon)
		s.want("a=x", "a.yaml:1: error: did not find expected node content [Unparsable]; the objects of the file's last good version stay in force", second)
		s.remove("a.yaml")
		s.after(2 * defaultRemoval)
		s.want("a=y")
	})
}

func TestABrokenFileKeepsThePreviousObjectsNoneOnAFreshStart(t *testing.T) {
	broken := router("a", "y") + "  routes: [\n"
	const at = "a.yaml:9: error: did not find expected node content [Unparsable]; "
	dir := directory(t, "a.yaml", router("a", "x")+"---\n"+router("b", "x"))
	play(t, dir, func(s *scene) {
		s.write("a.yaml", broken)
		s.after(long)
		s.want("a=x b=x", at+"the objects of the file's last good version stay in force")
	})
	play(t, dir, func(s *scene) {
		s.want("", at+"nothing of the file is in force")
		s.write("a.yaml", router("a", "y"))
		s.after(soon)
		s.want("a=y")
	})
}

func TestAnUnreadableFileKeepsItsObjectsAndIsTriedAgain(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x")), func(s *scene) {
		s.rename("a.yaml", "kept")
		must(t, os.Symlink("elsewhere", filepath.Join(s.dir, "a.yaml")))
		s.after(long)
		s.want("a=x", "a.yaml: error: stat a.yaml: no such file or directory [Unreadable]; the objects of the file's last good version stay in force")
		s.rename("kept", "elsewhere")
		s.after(soon)
		s.want("a=x")
		s.write("elsewhere", router("a", "y"))
		s.after(soon)
		s.want("a=y")
	})
}

func TestAVanishedDirectoryKeepsEverything(t *testing.T) {
	top := directory(t, "mesh/a.yaml", router("a", "x"), "mesh/sub/b.yaml", router("b", "x"))
	play(t, filepath.Join(top, "mesh"), func(s *scene) {
		must(t, os.Rename(s.dir, s.dir+".away"))
		s.after(long)
		if got := s.sink.latest(); got != "a=x b=x" {
			t.Errorf("in force: %q", got)
		}
		if all := s.board.All(); len(all) != 1 || all[0].Reason != problem.Unreadable || all[0].File != s.dir {
			t.Errorf("problems: %v", all)
		}
		must(t, os.Rename(s.dir+".away", s.dir))
		s.write("a.yaml", router("a", "y"))
		s.after(soon)
		s.want("a=y b=x")
		if n := len(s.sink.all()); n != 2 {
			t.Errorf("deliveries: %q", s.sink.all())
		}
		s.remove("sub")
		s.after(defaultRemoval + soon)
		s.want("a=y")
	})
}

func TestASubDirectoryOutOfSightKeepsWhatIsBeneath(t *testing.T) {
	play(t, directory(t, "a.yaml", router("a", "x"), "sub/b.yaml", router("b", "x"), "submarine.yaml", router("c", "x")), func(s *scene) {
		s.rename("sub", ".away")
		must(t, os.Symlink(".nowhere", filepath.Join(s.dir, "sub")))
		s.remove("submarine.yaml")
		s.after(long)
		s.want("a=x b=x", "sub: error: stat sub: no such file or directory [Unreadable]; the objects of the file's last good version stay in force")
		s.rename(".away", ".nowhere")
		s.after(soon)
		s.want("a=x b=x")
		s.remove("sub")
		s.after(2 * defaultRemoval)
		s.want("a=x")
	})
}

func TestOtherKindsAreNotedOncePerChange(t *testing.T) {
	dir := directory(t, "a.yaml", "apiVersion: v1\nkind: Pod\n")
	var log strings.Builder
	synctest.Test(t, func(t *testing.T) {
		o := options(dir, newRecorder())
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		w, err := New(o)
		must(t, err)
		w.open = func() (*fsnotify.Watcher, error) { return nil, errors.New("none here") }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		<-time.After(long)
		write(t, filepath.Join(dir, "b.yaml"), "apiVersion: v1\nkind: Secret\n")
		<-time.After(long)
		cancel()
		<-done
	})
	if n := strings.Count(log.String(), "not looked at"); n != 2 || !strings.Contains(log.String(), `kinds="v1 Pod, v1 Secret"`) {
		t.Error(log.String())
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "none here") {
		t.Error(log.String())
	}
}

func TestTheStoreReportsFaultsOfObjectsWithTheirLine(t *testing.T) {
	board := problem.NewBoard(quiet())
	judge := func(*mesh.Object) []problem.Problem {
		return []problem.Problem{{Severity: problem.Error, Reason: problem.Invalid, Path: "spec.hosts[0]", Detail: "no"}}
	}
	var expect []mesh.Feed
	for _, k := range mesh.Kinds() {
		expect = append(expect, mesh.Feed{Source: mesh.Directory, Kind: k})
	}
	store, err := mesh.NewStore(mesh.Options{Judge: judge, Problems: board, Expect: expect})
	must(t, err)
	dir := directory(t, "a.yaml", "# one\n"+router("a", "x"))
	o := options(dir, store)
	o.Problems = board
	w, err := New(o)
	must(t, err)
	b, err := newBell(func() (*fsnotify.Watcher, error) { return nil, errors.New("none here") })
	if err == nil {
		t.Error("no error")
	}
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(filepath.Join(dir, "a.yaml"), old, old))
	w.look(b)
	if len(store.Missing()) > 0 {
		t.Error("old files do not count as settled at once")
	}
	want := "a.yaml:9: error: MetaRouter shop/a: hosts[0]: no [Invalid]; no valid version is known: nothing of it is in force\n"
	if diff := cmp.Diff(want, lines(dir, board.All())); diff != "" {
		t.Error(diff)
	}
	if w.objects[0].Locate != nil {
		t.Error("the text of the file stays in memory")
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	good := options(t.TempDir(), newRecorder())
	for want, change := range map[string]func(*Options){
		"are required":              func(o *Options) { o.Sink = nil },
		"no directory is given":     func(o *Options) { o.Dir = "" },
		"no such file or directory": func(o *Options) { o.Dir += "/none" },
		"must not be negative":      func(o *Options) { o.Settle = -1 },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
