package istiowatch

import "google.golang.org/protobuf/encoding/protowire"

// scanner goes through the fields of a message on the wire:
//
//	for s := scan(message); s.next(); { switch s.field { … s.value … } }
type scanner struct {
	rest   []byte
	field  protowire.Number // of a text, bytes or a message; 0 at a field of another form
	value  []byte
	varint protowire.Number // of a varint; 0 at a field of another form
	number uint64
	bad    bool // the bytes are no message; next is false then
}

func scan(message []byte) *scanner { return &scanner{rest: message} }

// next goes to the next field.
func (s *scanner) next() bool {
	s.field, s.varint = 0, 0
	if len(s.rest) == 0 {
		return false
	}
	num, wire, n := protowire.ConsumeTag(s.rest)
	if n < 0 {
		s.bad = true
		return false
	}
	s.rest = s.rest[n:]
	switch wire {
	case protowire.BytesType:
		s.field = num
		s.value, n = protowire.ConsumeBytes(s.rest)
	case protowire.VarintType:
		s.varint = num
		s.number, n = protowire.ConsumeVarint(s.rest)
	default:
		n = protowire.ConsumeFieldValue(num, wire, s.rest)
	}
	if n < 0 {
		s.bad = true
		return false
	}
	s.rest = s.rest[n:]
	return true
}
