package filewatch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/metards/metards/pkg/mesh"
)

func TestFilesThatDidNotChangeKeepTheirVeryObjects(t *testing.T) {
	dir := directory(t, "a.yaml", router("a", "x"))
	k, now := newKeeper(time.Second, time.Minute), time.Now()
	look := func(at time.Duration) []*file {
		k.see(walk(dir), now.Add(at))
		return k.unreadFiles(now.Add(at))
	}
	if n := len(look(0)); n != 0 || k.complete(now) {
		t.Fatalf("%d files to read before they settled", n)
	}
	for _, f := range look(time.Second) {
		c, steady := readFile(filepath.Join(dir, f.path), f.seen, DefaultLimits)
		if !steady {
			t.Fatal("not steady")
		}
		k.take(f, c)
	}
	before := k.resolve(dir).objects
	if n := len(look(time.Hour)); n != 0 || len(before) != 1 || k.resolve(dir).objects[0] != before[0] {
		t.Errorf("%d files to read again; objects %v", n, before)
	}
	if at, ok := k.next(); ok {
		t.Errorf("something is due at %s", at)
	}
}

func TestTimeOutOfSightDoesNotCountTowardsTheRemoval(t *testing.T) {
	dir := directory(t, "sub/a.yaml", "")
	info, err := os.Stat(filepath.Join(dir, "sub/a.yaml"))
	must(t, err)
	k, start := newKeeper(0, time.Second), time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d * time.Second) }
	there := listing{files: []found{{path: "sub/a.yaml", info: info}}}
	hidden := listing{hidden: map[string]error{"sub": errors.New("no")}}

	k.see(there, at(0))
	k.take(k.files[0], content{objects: []*mesh.Object{{Key: mesh.Key{Name: "a"}}}})
	for i, step := range []struct {
		seen listing
		at   time.Duration
		want int
	}{{listing{}, 1, 1}, {hidden, 2, 1}, {hidden, 90, 1}, {listing{}, 90, 1}, {listing{}, 91, 0}} {
		k.see(step.seen, at(step.at))
		k.expire(at(step.at))
		if got := len(k.resolve(dir).objects); got != step.want {
			t.Errorf("step %d: %d objects, want %d", i, got, step.want)
		}
	}
}

func TestAFileThatChangesWhileItIsReadIsNotTaken(t *testing.T) {
	dir := directory(t, "a.yaml", router("a", "x"))
	name := filepath.Join(dir, "a.yaml")
	seen := walk(dir).files[0]
	write(t, name, router("a", "longer"))
	if _, steady := readFile(name, seen, DefaultLimits); steady {
		t.Error("a file that is not the one that was seen counts as read")
	}
	must(t, os.Remove(name))
	if _, steady := readFile(name, seen, DefaultLimits); steady {
		t.Error("a file that is gone counts as read")
	}
}
