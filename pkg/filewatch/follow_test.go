package filewatch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metards/metards/pkg/problem"
)

// followed runs Follow on a file without regular looks, and returns what it takes: the text, or the reason of a Problem.
func followed(t *testing.T, file string, limits Limits) <-chan string {
	t.Helper()
	taken := make(chan string, 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Follow(ctx, FollowOptions{File: file, Log: quiet(), Limits: limits, Poll: time.Hour}, func(data []byte, p *problem.Problem) {
			if p != nil {
				taken <- string(p.Reason)
				return
			}
			taken <- string(data)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return taken
}

func awaitText(t *testing.T, taken <-chan string, want string) {
	t.Helper()
	select {
	case got := <-taken:
		if got != want {
			t.Fatalf("took %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%q was never taken", want)
	}
}

func TestOneFileIsFollowedHoweverItIsReplaced(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.yaml")
	taken := followed(t, file, Limits{FileSize: 10})
	awaitText(t, taken, string(problem.Unreadable))
	write(t, file, "one")
	awaitText(t, taken, "one")
	write(t, file, "two")
	awaitText(t, taken, "two")
	write(t, filepath.Join(dir, "new"), "three")
	must(t, os.Rename(filepath.Join(dir, "new"), file))
	awaitText(t, taken, "three")
	write(t, file, strings.Repeat("x", 11))
	awaitText(t, taken, string(problem.TooLarge))
	must(t, os.Remove(file))
	awaitText(t, taken, string(problem.Unreadable))
	must(t, os.Mkdir(filepath.Join(dir, "v1"), 0o755))
	write(t, filepath.Join(dir, "v1", "x.yaml"), "four")
	must(t, os.Symlink("v1", filepath.Join(dir, "..data")))
	must(t, os.Symlink(filepath.Join("..data", "x.yaml"), file))
	awaitText(t, taken, "four")
	must(t, os.Mkdir(filepath.Join(dir, "v2"), 0o755))
	write(t, filepath.Join(dir, "v2", "x.yaml"), "five")
	must(t, os.Symlink("v2", filepath.Join(dir, "..new")))
	must(t, os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
	awaitText(t, taken, "five")
}

func TestAFileThatIsStillWrittenIsNotTaken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.yaml")
	write(t, file, "0")
	taken := followed(t, file, Limits{})
	awaitText(t, taken, "0")
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	tick := time.NewTicker(2 * time.Millisecond) // much faster than a file settles
	defer tick.Stop()
	want := "0"
	for i := 1; i <= 30; i++ {
		<-tick.C
		fmt.Fprint(f, i)
		want += fmt.Sprint(i)
	}
	deadline := time.After(10 * time.Second)
	for takes := 0; ; takes++ {
		select {
		case got := <-taken:
			if got == want {
				if takes > 5 { // a machine may stall now and then, but not at every write
					t.Errorf("half of it was taken %d times", takes)
				}
				return
			}
		case <-deadline:
			t.Fatal("the whole was never taken")
		}
	}
}

func TestATextIsOneDocumentWithLines(t *testing.T) {
	tree, line, p := Document("x.yaml", []byte("clusters:\n- name: a\n- name: b\n  type: 7\n"), Limits{})
	if p != nil {
		t.Fatal(p)
	}
	if got := fmt.Sprint(tree); got != "map[clusters:[map[name:a] map[name:b type:7]]]" {
		t.Errorf("got %s", got)
	}
	if got := line("clusters[1].type"); got != 4 {
		t.Errorf("line %d", got)
	}
	for text, want := range map[string]string{
		"":                "0 documents",
		"a: 1\n---\nb: 1": "2 documents",
		"a: 1\na: 2":      "given twice",
		"a: [":            "",
	} {
		if _, _, p := Document("x.yaml", []byte(text), Limits{}); p == nil || p.Reason != problem.Unparsable || p.File != "x.yaml" || !strings.Contains(p.Detail, want) {
			t.Errorf("%q: %v", text, p)
		}
	}
}
