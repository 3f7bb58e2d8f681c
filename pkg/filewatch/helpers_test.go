package filewatch

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// router is a MetaRouter as one document. Tests tell its versions apart by the host.
func router(name, host string) string {
	return fmt.Sprintf(`apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata:
  name: %s
  namespace: shop
spec:
  hosts:
  - %s
`, name, host)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// directory writes files, given as name and text in turn, into a new directory.
func directory(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		write(t, filepath.Join(dir, files[i]), files[i+1])
	}
	return dir
}

// summary is "name=host" of each MetaRouter, and the name of other objects, sorted.
func summary(objects []*mesh.Object) string {
	var out []string
	for _, o := range objects {
		if m, ok := o.Spec.(*mesh.MetaRouter); ok {
			out = append(out, o.Name+"="+strings.Join(m.GetHosts(), "+"))
			continue
		}
		out = append(out, o.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// lines is one line for each Problem, with file names relative to dir.
func lines(dir string, problems []problem.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		fmt.Fprintf(&b, "%s: %s: %s\n", p.Where(), p.Severity, p)
	}
	return strings.ReplaceAll(b.String(), dir+"/", "")
}

// recorder is a Sink that keeps the summary of each delivery.
type recorder struct {
	mu      sync.Mutex
	got     []string
	arrived chan struct{}
}

func newRecorder() *recorder { return &recorder{arrived: make(chan struct{}, 1)} }

func (r *recorder) Apply(source mesh.Source, b mesh.Batch) {
	if source != mesh.Directory || len(b.Complete) != len(mesh.Kinds()) || len(b.Deleted) > 0 {
		panic("not a complete batch of the directory")
	}
	r.mu.Lock()
	r.got = append(r.got, summary(b.Objects))
	r.mu.Unlock()
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *recorder) latest() string {
	all := r.all()
	if len(all) == 0 {
		return "nothing delivered"
	}
	return all[len(all)-1]
}

// await waits for a delivery with this summary.
func (r *recorder) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	for r.latest() != want {
		select {
		case <-r.arrived:
		case <-deadline:
			t.Fatalf("delivered last: %q, want %q; all: %q", r.latest(), want, r.all())
		}
	}
}

// always fails if some delivery did not have a part.
func (r *recorder) always(t *testing.T, part string) {
	t.Helper()
	for _, s := range r.all() {
		if !strings.Contains(s, part) {
			t.Errorf("a delivery was without %q; all: %q", part, r.all())
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func options(dir string, sink Sink) Options {
	return Options{Dir: dir, Sink: sink, Log: quiet(), Problems: problem.NewBoard(quiet())}
}
