package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/metards/metards/pkg/problem"
)

// walker finds all faults of a JSON tree against a message type, where the decoder stops at the first.
// It takes what is faulty out of the tree, so that the rest can be decoded and judged.
type walker struct {
	o       *Object
	unknown problem.Severity // of fields and enum values that the type does not have
}

func (w *walker) undecodable(path, detail string) {
	w.o.fault(problem.Error, problem.Undecodable, path, detail)
}

func (w *walker) message(md protoreflect.MessageDescriptor, tree map[string]any, path string) {
	taken := map[protoreflect.FullName]string{} // fields, which have two names, and oneofs
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		value, at := tree[name], path+"."+name
		fd := md.Fields().ByJSONName(name)
		if fd == nil {
			fd = md.Fields().ByTextName(name)
		}
		if fd == nil {
			w.o.fault(w.unknown, problem.UnknownField, at, fmt.Sprintf("there is no field %q here", name))
			delete(tree, name)
			continue
		}
		if value == nil {
			delete(tree, name) // null is the same as absent
			continue
		}
		full := fd.FullName()
		if one := fd.ContainingOneof(); one != nil && !one.IsSynthetic() {
			full = one.FullName()
		}
		if other, ok := taken[full]; ok {
			w.undecodable(at, fmt.Sprintf("only one of %s and %s may be set", other, name))
			delete(tree, name)
			continue
		}
		taken[full] = name
		if !w.field(fd, tree, name, at) {
			delete(tree, name)
		}
	}
}

// field checks one field and reports whether it may stay.
func (w *walker) field(fd protoreflect.FieldDescriptor, tree map[string]any, name, path string) bool {
	switch value := tree[name].(type) {
	case map[string]any:
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			w.entries(fd.MapValue().Message(), value, path)
			return true
		case fd.IsMap(), fd.IsList(), !composite(fd):
		default:
			w.message(fd.Message(), value, path)
			return true
		}
	case []any:
		if fd.IsList() && composite(fd) {
			tree[name] = w.elements(fd.Message(), value, path)
			return true
		}
	}
	return w.leaf(fd, tree[name], name, path)
}

// entries checks the values of a map of messages. Null stands for an empty message there.
func (w *walker) entries(md protoreflect.MessageDescriptor, tree map[string]any, path string) {
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		at := fmt.Sprintf("%s[%s]", path, key)
		switch value := tree[key].(type) {
		case nil:
			tree[key] = map[string]any{}
		case map[string]any:
			w.message(md, value, at)
		default:
			w.undecodable(at, "must be an object")
			delete(tree, key)
		}
	}
}

func (w *walker) elements(md protoreflect.MessageDescriptor, list []any, path string) []any {
	for i, e := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if value, ok := e.(map[string]any); ok {
			w.message(md, value, at)
			continue
		}
		w.undecodable(at, "must be an object")
		list[i] = map[string]any{} // keeps the others' places
	}
	return list
}

// leaf has the decoder judge one field alone.
func (w *walker) leaf(fd protoreflect.FieldDescriptor, value any, name, path string) bool {
	err := unmarshalTree(map[string]any{name: value}, dynamicpb.NewMessage(fd.ContainingMessage()))
	if err == nil {
		return true
	}
	if _, text := value.(string); text && fd.Kind() == protoreflect.EnumKind && !fd.IsList() {
		w.o.fault(w.unknown, problem.UnknownField, path, fmt.Sprintf("there is no value %q here", value))
		return false
	}
	w.undecodable(path, protojsonDetail(err))
	return false
}

// composite reports whether a field holds messages that are written as objects with fields; well-known
// types such as durations are not.
func composite(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().ParentFile().Package() != "google.protobuf"
}

// protojsonDetail leaves out of an error what is of no use to the object's author: the position in a text
// that the author never saw.
func protojsonDetail(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, "): "); ok && strings.HasPrefix(text, "proto:") {
		return rest
	}
	return text
}
