package istiowatch

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// structType holds a spec as JSON, where a server does not know its message.
const structType = "google.protobuf.Struct"

// decode makes an Object of an item. typeURL is that of the list. What is wrong is in the Object's Faults.
func decode(key mesh.Key, typeURL string, g *glance) *mesh.Object {
	o := &mesh.Object{Key: key, Created: g.created()}
	name := string(g.bodyType[bytes.LastIndexByte(g.bodyType, '/')+1:])
	if name == structType {
		decodeStruct(o, typeURL, g.body)
		return o
	}
	message := newSpec(key.Kind)
	if want := message.ProtoReflect().Descriptor().FullName(); string(want) != name {
		o.Faults = []problem.Problem{undecodable(key, fmt.Sprintf("its body is of type %q in place of %s", name, want))}
		return o
	}
	if err := proto.Unmarshal(g.body, message); err != nil {
		o.Faults = []problem.Problem{undecodable(key, fmt.Sprintf("its body is no %s: %s", name, detail(err)))}
		return o
	}
	// A newer istiod may know more of its own kinds. A condition of a route that is dropped would widen it.
	if key.Kind == mesh.KindMetaRouter && hasUnknown(message.ProtoReflect()) {
		p := undecodable(key, "it has fields that are not known here")
		p.Reason = problem.UnknownField
		o.Faults = []problem.Problem{p}
		return o
	}
	o.Spec = mesh.Reduce(message)
	return o
}

// detail leaves out who says it. (The space after the colon is a different one in each build.)
func detail(err error) string {
	return strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:"))
}

func newSpec(kind mesh.Kind) proto.Message {
	switch kind {
	case mesh.KindServiceEntry:
		return &networking.ServiceEntry{}
	case mesh.KindDestinationRule:
		return &networking.DestinationRule{}
	}
	return &v1alpha1.MetaRouter{}
}

// decodeStruct has the decoder of YAML and JSON judge a spec.
func decodeStruct(o *mesh.Object, typeURL string, body []byte) {
	var spec structpb.Struct
	err := proto.Unmarshal(body, &spec)
	if err == nil {
		var decoded *mesh.Object
		decoded, err = mesh.Decode(map[string]any{
			"apiVersion": typeURL[:strings.LastIndexByte(typeURL, '/')], "kind": string(o.Kind),
			"metadata": map[string]any{"namespace": o.Namespace, "name": o.Name}, "spec": spec.AsMap(),
		})
		if err == nil {
			o.Spec, o.Faults = decoded.Spec, decoded.Faults
			return
		}
	}
	o.Faults = []problem.Problem{undecodable(o.Key, detail(err))}
}

func undecodable(key mesh.Key, detail string) problem.Problem {
	return problem.Problem{Severity: problem.Error, Object: key.Ref(), Reason: problem.Undecodable, Detail: detail}
}

// hasUnknown reports whether a message, or one within it, has fields that its type lacks.
func hasUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				found = found || hasUnknown(v.Message())
				return !found
			})
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				found = found || hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = found || hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// alike reports whether two versions of an object have the same content, so that there is nothing to tell.
func alike(a, b *mesh.Object) bool {
	return a == b || a.SameContent(b) && len(a.Faults)+len(b.Faults) == 0
}

// routed reports whether an object is a service with a port that gets a table.
func routed(o *mesh.Object) bool {
	s, ok := o.Spec.(*mesh.ServiceEntry)
	if !ok {
		return false
	}
	for _, p := range s.Ports {
		if p.Routed() {
			return true
		}
	}
	return false
}
