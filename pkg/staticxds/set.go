package staticxds

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"google.golang.org/protobuf/types/known/anypb"
)

// Resource is one resource of the file, marshalled once. It is read-only and shared by all streams.
type Resource struct {
	Name string
	// Version is that of the type where the file gives one, else the hash of the bytes: with a version of the
	// file's, a new one sends everything of the type anew.
	Version string
	Any     *anypb.Any // nil if all that is known is what a proxy says that it holds

	endpoints string // of a cluster: the name of its endpoints on ADS, if it has such
	address   string // of a listener: its address, marshalled
}

// Set is what a file says, and what is served. It is read-only.
type Set struct {
	types [kinds]list
}

// list is all of one kind.
type list struct {
	version string
	hash    string // of the content, whatever the version is
	sorted  []*Resource
	byName  map[string]*Resource
}

// newList makes a list of resources without a version, in any order. An empty version stands for the hash.
func newList(resources []*Resource, version string) list {
	l := list{sorted: slices.SortedFunc(slices.Values(resources), func(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) }), byName: map[string]*Resource{}}
	sum := sha256.New()
	for _, r := range l.sorted {
		own := sha256.Sum256(r.Any.GetValue())
		sum.Write(own[:]) // the name is part of the bytes; writing to a hash never fails
		r.Version = version
		if version == "" {
			r.Version = hex.EncodeToString(own[:16])
		}
		l.byName[r.Name] = r
	}
	l.hash = hex.EncodeToString(sum.Sum(nil)[:16])
	l.version = version
	if version == "" {
		l.version = l.hash
	}
	return l
}

// explicit reports whether the version is the file's own.
func (l *list) explicit() bool { return l.version != l.hash }

// same reports whether nothing differs that a proxy could be sent.
func (l *list) same(other *list) bool { return l.version == other.version && l.hash == other.hash }

// has reports whether there is a resource of a name.
func (s *Set) has(k kind, name string) bool { return s != nil && s.types[k].byName[name] != nil }

// versionOf returns the version of a resource, empty if there is none.
func (s *Set) versionOf(k kind, name string) string {
	if !s.has(k, name) {
		return ""
	}
	return s.types[k].byName[name].Version
}

// displaces reports whether a listener is at the address of one that the set does not have, as when it is renamed.
func (s *Set) displaces(gone *Resource) bool {
	return gone.address != "" && slices.ContainsFunc(s.types[listeners].sorted, func(l *Resource) bool { return l.address == gone.address })
}

// withoutEndpoints returns the clusters that ask on ADS for endpoints which are not there.
func (s *Set) withoutEndpoints() []*Resource {
	if s == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.types[clusters].sorted), func(c *Resource) bool {
		return c.endpoints == "" || s.has(endpoints, c.endpoints)
	})
}

func (l *list) names() []string {
	out := make([]string, len(l.sorted))
	for i, r := range l.sorted {
		out[i] = r.Name
	}
	return out
}
