package kubewatch

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metards/metards/pkg/mesh"
)

// book is a ledger on a clock of its own, with names for keys.
type book struct {
	*ledger
	now time.Time
}

func newBook() *book {
	p := Pauses{}
	if err := p.complete(); err != nil {
		panic(err)
	}
	b := &book{ledger: newLedger(p), now: time.Unix(1000, 0)}
	b.list(names("a b"), there("1"), b.now)
	return b
}

func names(list string) []mesh.Key {
	var out []mesh.Key
	for _, n := range strings.Fields(list) {
		out = append(out, mesh.Key{Kind: mesh.KindMetaRouter, Namespace: "shop", Name: n})
	}
	return out
}

func there(uid string) crd { return crd{state: crdThere, uid: uid} }

func (b *book) pass(d time.Duration) { b.now = b.now.Add(d) }

// looks looks at the CRD now, and returns what is believed deleted.
func (b *book) looks(c crd) string {
	deleted, _ := b.checked(c, b.marks, b.now)
	var out []string
	for _, k := range deleted {
		out = append(out, k.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (b *book) dueIn(t *testing.T, want time.Duration) {
	t.Helper()
	if got := b.due.Sub(b.now); got != want || b.due.IsZero() {
		t.Errorf("due in %s, want %s", got, want)
	}
}

func TestADeletionIsBelievedWhenTheCRDIsThere(t *testing.T) {
	b := newBook()
	if !b.due.IsZero() {
		t.Error("something is due without a reason")
	}
	b.remove(names("a")[0], b.now)
	b.dueIn(t, 200*time.Millisecond)
	b.pass(100 * time.Millisecond)
	b.remove(names("b")[0], b.now)
	b.dueIn(t, 100*time.Millisecond)
	if got := b.looks(there("1")); got != "a b" || !b.due.IsZero() {
		t.Errorf("believed %q, due %s", got, b.due)
	}
}

func TestADeletionAfterTheLookBeganWaitsForTheNext(t *testing.T) {
	b := newBook()
	b.remove(names("a")[0], b.now)
	mark := b.marks
	b.remove(names("b")[0], b.now)
	deleted, _ := b.checked(there("1"), mark, b.now)
	if !slices.Equal(deleted, names("a")) {
		t.Errorf("believed %v", deleted)
	}
	b.dueIn(t, 200*time.Millisecond)
}

func TestTheHoldCountsFromTheLastObjectThatCameBack(t *testing.T) {
	b := newBook()
	b.remove(names("a")[0], b.now)
	b.remove(names("b")[0], b.now)
	if got := b.looks(crd{state: crdGoing, uid: "1"}); got != "" {
		t.Fatalf("believed %q", got)
	}
	b.missing()
	b.pass(time.Hour)
	b.list(nil, there("2"), b.now)
	b.dueIn(t, 30*time.Second)
	b.pass(20 * time.Second)
	b.put(names("a")[0], b.now)
	b.dueIn(t, 30*time.Second)
	b.pass(10 * time.Second)
	if got := b.looks(there("2")); got != "" || b.held() != 1 {
		t.Errorf("too early: believed %q, held %d", got, b.held())
	}
	b.pass(20 * time.Second)
	if got := b.looks(there("2")); got != "b" || b.phase != settled {
		t.Errorf("believed %q, phase %d", got, b.phase)
	}
}

func TestACRDThatGoesAgainDuringTheHoldTakesNothing(t *testing.T) {
	b := newBook()
	b.missing()
	b.list(names("a"), there("2"), b.now)
	b.pass(30 * time.Second)
	if got := b.looks(crd{state: crdMissing}); got != "" || b.phase != away {
		t.Errorf("believed %q, phase %d", got, b.phase)
	}
	deleted, relist := b.checked(there("3"), b.marks, b.now)
	if len(deleted) != 0 || !relist {
		t.Errorf("believed %v, new list %v", deleted, relist)
	}
	b.list(names("a b"), there("3"), b.now)
	if b.phase != settled || !b.due.IsZero() {
		t.Errorf("phase %d, due %s", b.phase, b.due)
	}
}
