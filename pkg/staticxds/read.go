package staticxds

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/problem"
)

// Read returns what a text in YAML or JSON says, or all that is wrong with it: of a text with a fault nothing
// can be used. The name says which of the two it is, and stands in the Problems.
func Read(file string, data []byte) (*Set, []problem.Problem) {
	tree, line, fault := filewatch.Document(file, data, filewatch.Limits{})
	if fault != nil {
		return nil, []problem.Problem{*fault}
	}
	r := reader{file: file, line: line}
	set := r.set(tree)
	if len(r.problems) > 0 {
		return nil, problem.Sorted(r.problems)
	}
	return set, nil
}

// reader collects what is wrong with a file.
type reader struct {
	file     string
	line     func(path string) int
	problems []problem.Problem
}

// fault notes a Problem. At is the place by position, which has a line; path is what people look for.
func (r *reader) fault(at, path string, reason problem.Reason, format string, args ...any) {
	r.problems = append(r.problems, problem.Problem{
		Severity: problem.Error, Path: path, Reason: reason, Detail: fmt.Sprintf(format, args...), File: r.file, Line: r.line(at),
	})
}

const keys = "versions, clusters, endpoints, listeners and routes"

func (r *reader) set(tree any) *Set {
	top, ok := tree.(map[string]any)
	if !ok {
		r.fault("", "", problem.Undecodable, "the file must be a mapping with the keys %s", keys)
		return nil
	}
	out := &Set{}
	versions := r.versions(top["versions"])
	for k := range kinds {
		out.types[k] = newList(r.list(k, top[k.String()]), versions[k])
		delete(top, k.String())
	}
	delete(top, "versions")
	for _, key := range slices.Sorted(maps.Keys(top)) {
		r.fault(key, key, problem.UnknownField, "the file has no such key; there are %s", keys)
	}
	return out
}

// versions reads the versions that the file itself gives; a number is its digits.
func (r *reader) versions(tree any) (out [kinds]string) {
	if tree == nil {
		return out
	}
	given, ok := tree.(map[string]any)
	if !ok {
		r.fault("versions", "versions", problem.Undecodable, "the versions must be a mapping from clusters, endpoints, listeners or routes to a text")
		return out
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		path := "versions." + key
		i := slices.IndexFunc([]kind{clusters, endpoints, listeners, routes}, func(k kind) bool { return k.String() == key })
		if i < 0 {
			r.fault(path, path, problem.UnknownField, "there is no such type; there are clusters, endpoints, listeners and routes")
			continue
		}
		switch v := given[key].(type) {
		case string:
			out[i] = v
		case json.Number:
			out[i] = v.String()
		}
		if out[i] == "" || len(out[i]) > 128 {
			r.fault(path, path, problem.Undecodable, "a version must be a text of 1 to 128 bytes; without the key it is the hash of the content")
		}
	}
	return out
}

func (r *reader) list(k kind, tree any) []*Resource {
	if tree == nil {
		return nil
	}
	items, ok := tree.([]any)
	if !ok {
		r.fault(k.String(), k.String(), problem.Undecodable, "the %s must be a list", k)
		return nil
	}
	var out []*Resource
	seen := map[string]bool{}
	for i, item := range items {
		resource := r.item(k, i, item)
		if resource == nil {
			continue
		}
		if seen[resource.Name] {
			r.fault(place(k, i), pathTo(k, i, resource.Name), problem.Duplicate, "another one of the %s has this name", k)
		}
		seen[resource.Name] = true
		out = append(out, resource)
	}
	return out
}

func place(k kind, i int) string { return fmt.Sprintf("%s[%d]", k, i) }

// pathTo names an item by its name, else by its position, from 0.
func pathTo(k kind, i int, name string) string {
	if name == "" {
		return place(k, i)
	}
	return fmt.Sprintf("%s[%s]", k, name)
}

// item reads one resource. It returns nil if it is none.
func (r *reader) item(k kind, i int, tree any) *Resource {
	text, err := json.Marshal(tree)
	message := k.empty()
	if err == nil {
		err = protojson.Unmarshal(text, message)
	}
	name := nameOf(message)
	if name == "" {
		name = written(tree)
	}
	path := pathTo(k, i, name)
	if err != nil {
		reason, detail := decodingFault(err)
		r.fault(place(k, i), path, reason, "%s", detail)
		return nil
	}
	if name == "" || name == "*" || len(name) > 1<<10 {
		r.fault(place(k, i), path, problem.Invalid, "each of the %s needs a name (of endpoints cluster_name) of 1 to 1024 bytes that is not *", k)
		return nil
	}
	if faults := validate(message); len(faults) > 0 {
		for _, f := range faults {
			r.fault(place(k, i), path, problem.Invalid, "%s", f)
		}
		return nil
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		r.fault(place(k, i), path, problem.Internal, "%v", err)
		return nil
	}
	return &Resource{
		Name: name, Any: &anypb.Any{TypeUrl: k.typeURL(), Value: value}, endpoints: endpointsOf(message), address: addressOf(message),
	}
}

// addressOf is the address of a listener as something to compare, empty if it has none.
func addressOf(m named) string {
	l, ok := m.(*listenerv3.Listener)
	if !ok || l.GetAddress() == nil {
		return ""
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(l.GetAddress())
	if err != nil { // then that of the whole listener failed before
		return ""
	}
	return string(text)
}

// endpointsOf is the name under which a cluster asks on ADS for its endpoints, empty if it does not.
func endpointsOf(m named) string {
	c, ok := m.(*clusterv3.Cluster)
	if !ok || c.GetType() != clusterv3.Cluster_EDS || c.GetEdsClusterConfig().GetEdsConfig().GetAds() == nil {
		return ""
	}
	return cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())
}

// written is the name in the text of an item that cannot be decoded.
func written(tree any) string {
	fields, _ := tree.(map[string]any)
	for _, key := range []string{"name", "cluster_name", "clusterName"} {
		if name, ok := fields[key].(string); ok {
			return name
		}
	}
	return ""
}

var (
	decodingMessage = regexp.MustCompile(`(?s)^proto:[\s\x{a0}]*(?:syntax error )?(?:\(line \d+:\d+\): )?(.*)$`)
	unknownType     = regexp.MustCompile(`unable to resolve "([^"]*)"`)
)

// decodingFault says it without the position, which is one in no text that people know.
func decodingFault(err error) (problem.Reason, string) {
	detail := err.Error()
	if m := decodingMessage.FindStringSubmatch(detail); m != nil {
		detail = m[1]
	}
	if m := unknownType.FindStringSubmatch(detail); m != nil {
		return problem.UnknownField, fmt.Sprintf("the type %s is not known to metards; docs/static-resources.md lists those that are", m[1])
	}
	if strings.HasPrefix(detail, "unknown field") {
		return problem.UnknownField, detail
	}
	return problem.Undecodable, detail
}
