package problem

import (
	"context"
	"log/slog"
	"sync"
)

// Board holds the current Problems of everything, each under an owner: the object, file or table
// whose Problems are always known together. Its methods may be called concurrently.
type Board struct {
	log *slog.Logger

	changed chan struct{}

	mu      sync.Mutex
	byOwner map[string][]Problem
	count   map[Problem]int // of owners that have it: a fault seen from many namespaces is logged once
}

// NewBoard returns an empty Board that logs to log each Problem when it appears and when it clears.
func NewBoard(log *slog.Logger) *Board {
	return &Board{log: log, byOwner: map[string][]Problem{}, count: map[Problem]int{}, changed: make(chan struct{}, 1)}
}

// Set replaces the Problems of an owner; an empty list clears them.
func (b *Board) Set(owner string, list []Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list = Sorted(list)
	old := b.byOwner[owner]
	if len(list) == 0 && len(old) == 0 {
		return
	}
	select {
	case b.changed <- struct{}{}:
	default:
	}
	for _, p := range list {
		b.count[p]++
		if b.count[p] == 1 {
			b.log.Log(context.Background(), level(p), "problem", attrs(p)...)
		}
	}
	for _, p := range old {
		b.count[p]--
		if b.count[p] == 0 {
			delete(b.count, p)
			b.log.Info("problem cleared", attrs(p)...)
		}
	}
	if len(list) == 0 {
		delete(b.byOwner, owner)
		return
	}
	b.byOwner[owner] = list
}

// Changed is signalled when All may differ. It has one consumer.
func (b *Board) Changed() <-chan struct{} { return b.changed }

// All returns the current Problems, ordered by Compare, each once.
func (b *Board) All() []Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Problem, 0, len(b.count))
	for p := range b.count {
		out = append(out, p)
	}
	return Sorted(out)
}

// Count returns how many Problems of a severity there are.
func (b *Board) Count(s Severity) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for p := range b.count {
		if p.Severity == s {
			n++
		}
	}
	return n
}

func level(p Problem) slog.Level {
	if p.Severity == Error {
		return slog.LevelError
	}
	return slog.LevelWarn
}

func attrs(p Problem) []any {
	out := []any{"reason", string(p.Reason), "detail", p.Detail}
	for _, kv := range [][2]string{
		{"object", p.Object.String()}, {"path", p.Path}, {"route", p.Route},
		{"at", p.Where()}, {"consequence", p.Consequence},
	} {
		if kv[1] != "" {
			out = append(out, kv[0], kv[1])
		}
	}
	return out
}
