package istiowatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/metards/metards/pkg/mesh"
)

// resourceType is the message that items of all kinds but MeshConfig are wrapped in.
const resourceType = "istio.mcp.v1alpha1.Resource"

// glance is what can be told of an item without decoding it. Lists come in full on every push, also when
// only an endpoint moved, so a glance is all that an unchanged item costs. It refers to the bytes of the
// response.
type glance struct {
	name     []byte // NAMESPACE/NAME
	revision []byte // the value of label istio.io/rev; empty if absent
	seconds  int64  // since 1970, when the object was created; with nanos 0 if that is not known
	nanos    int32
	bodyType []byte // type URL
	body     []byte
}

// seed is this process's: hashes are compared with each other only.
var seed = maphash.MakeSeed()

// hash is of all that can change an Object. The version is not part of it: it changes without content, and
// does not change with some content.
func (g *glance) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	var created [12]byte
	binary.LittleEndian.PutUint64(created[:], uint64(g.seconds))
	binary.LittleEndian.PutUint32(created[8:], uint32(g.nanos))
	for _, part := range [][]byte{created[:], g.bodyType, {0}, g.body} {
		_, _ = h.Write(part) // cannot fail
	}
	return h.Sum64()
}

// created is zero if it is not known, or beyond what a time can be.
func (g *glance) created() time.Time {
	at := timestamppb.Timestamp{Seconds: g.seconds, Nanos: g.nanos}
	if !at.IsValid() || g.seconds == 0 && g.nanos == 0 {
		return time.Time{}
	}
	return at.AsTime()
}

// firstHost is the first host in the body: field 1 of each of the kinds.
func (g *glance) firstHost() []byte {
	for s := scan(g.body); s.next(); {
		if s.field == 1 {
			return s.value
		}
	}
	return nil
}

// look reads an item's envelope. It fails if there is none, or no name.
func look(item *anypb.Any) (glance, error) {
	var g glance
	if item.GetTypeUrl()[strings.LastIndexByte(item.GetTypeUrl(), '/')+1:] != resourceType {
		return g, fmt.Errorf("an item is of type %q in place of %s", item.GetTypeUrl(), resourceType)
	}
	s := scan(item.GetValue())
	for s.next() && !s.bad {
		switch s.field {
		case 1:
			s.bad = !g.readMetadata(s.value)
		case 2:
			s.bad = !g.readBody(s.value)
		}
	}
	if s.bad {
		return g, errors.New("an item is no message at all")
	}
	namespace, name, _ := bytes.Cut(g.name, []byte("/"))
	if len(namespace) == 0 || len(name) == 0 || !utf8.Valid(g.name) {
		return g, fmt.Errorf("an item is named %q in place of NAMESPACE/NAME", g.name)
	}
	return g, nil
}

// readMetadata takes in an istio.mcp.v1alpha1.Metadata. It reports whether it is one.
func (g *glance) readMetadata(message []byte) bool {
	s := scan(message)
	for s.next() && !s.bad {
		switch s.field {
		case 1:
			g.name = s.value
		case 2:
			s.bad = !g.readTime(s.value)
		case 4:
			s.bad = !g.readLabel(s.value)
		}
	}
	return !s.bad
}

func (g *glance) readTime(message []byte) bool {
	s := scan(message)
	for s.next() {
		switch s.varint {
		case 1:
			g.seconds = int64(s.number)
		case 2:
			g.nanos = int32(s.number)
		}
	}
	return !s.bad
}

func (g *glance) readLabel(message []byte) bool {
	var key, value []byte
	s := scan(message)
	for s.next() {
		switch s.field {
		case 1:
			key = s.value
		case 2:
			value = s.value
		}
	}
	if string(key) == mesh.RevisionLabel {
		g.revision = value
	}
	return !s.bad
}

// readBody takes in the google.protobuf.Any that holds the body.
func (g *glance) readBody(message []byte) bool {
	s := scan(message)
	for s.next() {
		switch s.field {
		case 1:
			g.bodyType = s.value
		case 2:
			g.body = s.value
		}
	}
	return !s.bad
}
