package rdsserver

import (
	"crypto/sha256"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a proxy says is kept: its names, its node id, its error texts. A message may have four megabytes, so
// each of these words has a limit.
const (
	maxWord = 1 << 10 // bytes of a name, a type URL or a node id; a host has at most 253
	maxText = 4 << 10 // bytes that are kept of a text for people
)

// checkWords refuses type URLs or names that are too long to be some.
func checkWords(lists ...[]string) error {
	for _, list := range lists {
		for _, word := range list {
			if len(word) > maxWord {
				return status.Errorf(codes.InvalidArgument, "a type URL or name of %d bytes, at most %d are allowed: %.40q...", len(word), maxWord, word)
			}
		}
	}
	return nil
}

// clip shortens a text for people.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}

// once remembers what was logged: a refused proxy comes back every few seconds. It forgets everything
// when it is full, so that strangers cannot make it grow.
type once struct {
	mu   sync.Mutex
	seen map[[sha256.Size]byte]struct{}
}

const maxRemembered = 10_000

func (o *once) first(key string) bool {
	sum := sha256.Sum256([]byte(key))
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[sum]; ok {
		return false
	}
	if o.seen == nil || len(o.seen) >= maxRemembered {
		o.seen = map[[sha256.Size]byte]struct{}{}
	}
	o.seen[sum] = struct{}{}
	return true
}
