package staticxds

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// validate runs the generated validators on a message and on what its Anys hold, which they do not look into.
func validate(m proto.Message) []string {
	var out []string
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			out = flatten(err)
		}
	}
	eachAny(m.ProtoReflect(), func(a *anypb.Any) {
		inner, err := a.UnmarshalNew()
		if err != nil {
			out = append(out, fmt.Sprintf("an Any of %s: %v", a.GetTypeUrl(), err))
			return
		}
		for _, f := range validate(inner) {
			out = append(out, fmt.Sprintf("%s: %s", inner.ProtoReflect().Descriptor().Name(), f))
		}
	})
	return out
}

// flatten lists what a ValidateAll found, each once.
func flatten(err error) []string {
	several, ok := err.(interface{ AllErrors() []error })
	if !ok {
		return []string{strings.ReplaceAll(err.Error(), " | caused by: ", ": ")}
	}
	var out []string
	for _, e := range several.AllErrors() {
		out = append(out, flatten(e)...)
	}
	return out
}

// eachAny calls f with every Any in a message, but not with those within an Any.
func eachAny(m protoreflect.Message, f func(*anypb.Any)) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		f(a)
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
				eachAny(item.Message(), f)
				return true
			})
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				eachAny(v.List().Get(i).Message(), f)
			}
		case !field.IsMap() && !field.IsList() && field.Message() != nil:
			eachAny(v.Message(), f)
		}
		return true
	})
}
