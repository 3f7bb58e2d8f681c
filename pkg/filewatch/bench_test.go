package filewatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/metards/metards/pkg/mesh"
)

const benchFiles = 10_000

// many writes files of one MetaRouter each that have long settled.
func many(b *testing.B) string {
	b.Helper()
	dir, old := b.TempDir(), time.Now().Add(-time.Hour)
	for i := range benchFiles {
		sub := filepath.Join(dir, fmt.Sprint(i%100))
		name := filepath.Join(sub, fmt.Sprintf("r%d.yaml", i))
		if err := errors.Join(os.MkdirAll(sub, 0o755), os.WriteFile(name, []byte(router(fmt.Sprintf("r%d", i), "x")), 0o644),
			os.Chtimes(name, old, old)); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

type nowhere struct{}

func (nowhere) Apply(mesh.Source, mesh.Batch) {}

func BenchmarkReadTenThousandFiles(b *testing.B) {
	dir := many(b)
	for b.Loop() {
		if r, err := Read(dir, Limits{}); err != nil || len(r.Objects) != benchFiles {
			b.Fatal(err)
		}
	}
}

// lookingAt is a Watcher of ten thousand files that it has read.
func lookingAt(b *testing.B) (*Watcher, *bell, string) {
	dir := many(b)
	w, err := New(options(dir, nowhere{}))
	if err != nil {
		b.Fatal(err)
	}
	bell, err := newBell(fsnotify.NewWatcher)
	if err != nil {
		b.Fatal(err)
	}
	go bell.listen()
	b.Cleanup(bell.close)
	w.look(bell)
	if len(w.objects) != benchFiles {
		b.Fatal(len(w.objects))
	}
	return w, bell, dir
}

func BenchmarkScanOfTenThousandUnchangedFiles(b *testing.B) {
	w, bell, _ := lookingAt(b)
	for b.Loop() {
		w.look(bell)
	}
}

func BenchmarkOneEditOfTenThousandFiles(b *testing.B) {
	w, bell, dir := lookingAt(b)
	name := filepath.Join(dir, "7", "r7.yaml")
	at := time.Now().Add(-30 * time.Minute)
	n := 0
	for b.Loop() {
		n++
		at = at.Add(time.Millisecond)
		err := errors.Join(os.WriteFile(name, []byte(router("r7", fmt.Sprintf("y%d", n))), 0o644), os.Chtimes(name, at, at))
		if err != nil {
			b.Fatal(err)
		}
		before := w.keeper.byPath["7/r7.yaml"].objects[0]
		w.look(bell)
		if w.keeper.byPath["7/r7.yaml"].objects[0] == before {
			b.Fatal("the edit was not read")
		}
	}
}
