package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/problem"
)

// ErrOtherKind is returned for objects of kinds that tables are not made of.
var ErrOtherKind = errors.New("not a kind that tables are made of")

// versions are the served API versions of each kind, by group.
var versions = map[Kind]struct {
	group    string
	versions []string
}{
	KindServiceEntry:    {"networking.istio.io", []string{"v1", "v1beta1", "v1alpha3"}},
	KindDestinationRule: {"networking.istio.io", []string{"v1", "v1beta1", "v1alpha3"}},
	KindMetaRouter:      {"metaprotocol.aeraki.io", []string{"v1alpha1"}},
}

// DefaultNamespace is the namespace of objects that name none, as in kubectl.
const DefaultNamespace = "default"

// Decode makes an Object of a Kubernetes object in JSON form (maps, slices, strings, numbers, booleans,
// nil); it may change the tree. It fails with ErrOtherKind, or if the tree cannot be told to be a certain
// object. All other faults are in the Object: unknown fields of a MetaRouter are errors, since dropping a
// condition would widen a route; those of Istio's kinds are warnings, since newer versions add some.
func Decode(tree map[string]any) (*Object, error) {
	apiVersion, _ := tree["apiVersion"].(string)
	kindName, _ := tree["kind"].(string)
	if tree["apiVersion"] == nil && tree["kind"] == nil {
		return nil, fmt.Errorf("no Kubernetes object: %w", ErrOtherKind)
	}
	if apiVersion == "" || kindName == "" {
		return nil, errors.New("not a Kubernetes object: apiVersion or kind is missing")
	}
	kind := Kind(kindName)
	group, version, _ := strings.Cut(apiVersion, "/")
	served, known := versions[kind]
	if !known || served.group != group {
		return nil, fmt.Errorf("%s %s: %w", apiVersion, kindName, ErrOtherKind)
	}
	o := &Object{Key: Key{Kind: kind, Namespace: DefaultNamespace}}
	if err := o.decodeMeta(tree["metadata"]); err != nil {
		return nil, fmt.Errorf("%s: %w", kindName, err)
	}
	if !slices.Contains(served.versions, version) {
		o.fault(problem.Error, problem.Undecodable, "", fmt.Sprintf("apiVersion %q is not known; known are %s", apiVersion, strings.Join(served.versions, ", ")))
		return o, nil
	}
	spec, ok := tree["spec"].(map[string]any)
	if !ok && tree["spec"] != nil {
		o.fault(problem.Error, problem.Undecodable, "spec", "must be an object")
		return o, nil
	}
	if kind == KindMetaRouter {
		for _, field := range slices.Sorted(maps.Keys(tree)) {
			if !slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, field) {
				o.fault(problem.Error, problem.UnknownField, field, fmt.Sprintf("a MetaRouter has no field %q", field))
			}
		}
	}
	o.decodeSpec(spec)
	return o, nil
}

func (o *Object) fault(s problem.Severity, r problem.Reason, path, detail string) {
	o.Faults = append(o.Faults, problem.Problem{Severity: s, Object: o.Ref(), Reason: r, Path: path, Detail: detail})
}

func (o *Object) decodeMeta(tree any) error {
	meta, ok := tree.(map[string]any)
	if !ok {
		return errors.New("metadata is missing")
	}
	if o.Name, _ = meta["name"].(string); o.Name == "" {
		return errors.New("metadata.name is missing")
	}
	switch namespace := meta["namespace"].(type) {
	case nil:
	case string:
		if namespace != "" {
			o.Namespace = namespace
		}
	default:
		return errors.New("metadata.namespace must be a string")
	}
	if created := meta["creationTimestamp"]; created != nil {
		text, _ := created.(string)
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			o.fault(problem.Error, problem.Undecodable, "metadata.creationTimestamp",
				fmt.Sprintf("%v is not a time as in \"2026-01-31T12:00:00Z\"", created))
		}
		o.Created = at
	}
	return nil
}

// decodeSpec sets Spec, or leaves it nil and says why in Faults.
func (o *Object) decodeSpec(tree map[string]any) {
	var message proto.Message
	unknown := problem.Warning
	switch o.Kind {
	case KindServiceEntry:
		message = &networking.ServiceEntry{}
	case KindDestinationRule:
		message = &networking.DestinationRule{}
	case KindMetaRouter:
		message, unknown = &v1alpha1.MetaRouter{}, problem.Error
	}
	if err := unmarshalTree(tree, message); err != nil {
		before := len(o.Faults)
		w := walker{o: o, unknown: unknown}
		w.message(message.ProtoReflect().Descriptor(), tree, "spec")
		proto.Reset(message)
		if err := unmarshalTree(tree, message); err != nil {
			o.fault(problem.Error, problem.Undecodable, "spec", protojsonDetail(err))
			return
		}
		if problem.HasError(o.Faults[before:]) && o.Kind != KindMetaRouter {
			return
		}
	}
	o.Spec = Reduce(message)
	o.nameRoutes()
}

// nameRoutes adds to the faults the names of the routes that they are in.
func (o *Object) nameRoutes() {
	m, ok := o.Spec.(*MetaRouter)
	if !ok {
		return
	}
	for i, f := range o.Faults {
		var route int
		if _, err := fmt.Sscanf(f.Path, "spec.routes[%d]", &route); err == nil && route < len(m.GetRoutes()) {
			o.Faults[i].Route = m.GetRoutes()[route].GetName()
		}
	}
}

func unmarshalTree(tree map[string]any, into proto.Message) error {
	if tree == nil {
		return nil
	}
	data, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(data, into)
}

// Reduce keeps of an Istio message, or of a MetaRouter, what can change a table.
func Reduce(message proto.Message) Spec {
	switch m := message.(type) {
	case *networking.ServiceEntry:
		s := &ServiceEntry{Hosts: m.GetHosts(), ExportTo: sorted(m.GetExportTo())}
		for _, p := range m.GetPorts() {
			s.Ports = append(s.Ports, Port{Number: p.GetNumber(), Name: p.GetName()})
		}
		return s
	case *networking.DestinationRule:
		d := &DestinationRule{
			Host: m.GetHost(), ExportTo: sorted(m.GetExportTo()), Policy: reducePolicy(m.GetTrafficPolicy()),
			Selected: m.GetWorkloadSelector() != nil,
		}
		for _, s := range m.GetSubsets() {
			d.Subsets = append(d.Subsets, Subset{Name: s.GetName(), Policy: reducePolicy(s.GetTrafficPolicy())})
		}
		return d
	case *v1alpha1.MetaRouter:
		return &MetaRouter{m}
	}
	return nil
}

func sorted(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return out
}

func reducePolicy(p *networking.TrafficPolicy) *Policy {
	if p == nil {
		return nil
	}
	out := &Policy{Balancer: reduceBalancer(p.GetLoadBalancer())}
	for _, s := range p.GetPortLevelSettings() {
		out.Ports = append(out.Ports, PortPolicy{Number: s.GetPort().GetNumber(), Balancer: reduceBalancer(s.GetLoadBalancer())})
	}
	return out
}

func reduceBalancer(b *networking.LoadBalancerSettings) *Balancer {
	if b == nil {
		return nil
	}
	return &Balancer{HashHeader: b.GetConsistentHash().GetHttpHeaderName()}
}
