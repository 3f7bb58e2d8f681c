package filewatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// content is what a file says.
type content struct {
	objects []*mesh.Object // in the order of the file
	ignored map[string]int // "apiVersion Kind" of other kinds -> how many
	trees   []Tree         // of all objects, if they were asked for
	empty   bool           // there is no document in it
	fault   *fault         // if set, the rest is not known
}

// readText returns what a text says. An object of ours whose spec is faulty is still an object; but a
// document that cannot be told to be a certain object makes the whole file one that cannot be believed.
func readText(path string, data []byte, limits Limits) (c content) {
	defer func() {
		if r := recover(); r != nil {
			c = content{fault: &fault{problem.Internal, 0, fmt.Sprintf("reading the file failed: %v", r)}}
		}
	}()
	roots, err := parse(path, data)
	if err != nil {
		return content{fault: asFault(err)}
	}
	r := reader{path: path, trees: limits.trees, values: newExpander(4 * limits.FileSize)}
	for _, root := range roots {
		if err := r.document(root); err != nil {
			return content{fault: asFault(err)}
		}
	}
	r.content.empty = len(roots) == 0
	return r.content
}

func asFault(err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return &fault{problem.Internal, 0, err.Error()}
}

func undecodable(line int, format string, args ...any) error {
	return &fault{problem.Undecodable, line, fmt.Sprintf(format, args...)}
}

// reader collects the content of one file.
type reader struct {
	path    string
	trees   bool // are asked for
	values  *expander
	content content
}

// document takes in one object, or each object of a list.
func (r *reader) document(root *yaml.Node) error {
	if root.Kind != yaml.MappingNode {
		return undecodable(root.Line, "not a Kubernetes object: a mapping is expected here")
	}
	if isList(root) {
		return r.list(root)
	}
	return r.object(root, nil)
}

// isList reports whether an object is a List of any objects, or one of one kind such as a MetaRouterList.
func isList(n *yaml.Node) bool {
	kind, items := child(n, "kind"), child(n, "items")
	if kind == nil || kind.Value == "List" {
		return kind != nil
	}
	return strings.HasSuffix(kind.Value, "List") && items != nil && (items.Kind == yaml.SequenceNode || isNull(items))
}

// child returns the value of a key of a mapping, nil if there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// list takes in the items one by one, so that a long list is not in memory a second time as one tree.
func (r *reader) list(root *yaml.Node) error {
	head, items := *root, child(root, "items")
	head.Content = slices.Clone(root.Content)
	if i := slices.Index(head.Content, items); items != nil {
		head.Content[i] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: items.Line}
	}
	tree, err := r.values.value(&head, 0)
	if err != nil {
		return err
	}
	if items == nil || isNull(items) {
		return nil
	}
	if items.Kind != yaml.SequenceNode {
		return undecodable(items.Line, "items must be a list")
	}
	defaults := itemDefaults(tree.(map[string]any))
	for _, item := range items.Content {
		if err := r.object(item, defaults); err != nil {
			return err
		}
	}
	return nil
}

// itemDefaults is what the items of a list of one kind may leave out, as the Kubernetes API does.
func itemDefaults(head map[string]any) map[string]any {
	kind, _ := head["kind"].(string)
	if kind = strings.TrimSuffix(kind, "List"); kind == "" {
		return nil
	}
	return map[string]any{"kind": kind, "apiVersion": head["apiVersion"]}
}

func (r *reader) object(n *yaml.Node, defaults map[string]any) error {
	value, err := r.values.value(n, 0)
	if err != nil {
		return err
	}
	tree, ok := value.(map[string]any)
	if !ok {
		return undecodable(n.Line, "not a Kubernetes object: a mapping is expected here")
	}
	for k, v := range defaults {
		if tree[k] == nil {
			tree[k] = v
		}
	}
	if tree["kind"] == "List" {
		return undecodable(firstLine(n), "a List within a List is not supported")
	}
	name := fmt.Sprintf("%v %v", tree["apiVersion"], tree["kind"])
	if tree["apiVersion"] == nil && tree["kind"] == nil {
		name = "documents without apiVersion and kind"
	}
	o, err := mesh.Decode(tree)
	switch {
	case errors.Is(err, mesh.ErrOtherKind):
		if r.content.ignored == nil {
			r.content.ignored = map[string]int{}
		}
		r.content.ignored[name]++
		r.keep(nil, n, tree)
		return nil
	case err != nil:
		return undecodable(firstLine(n), "%v", err)
	}
	r.add(o, n)
	r.keep(o, n, tree)
	return nil
}

func (r *reader) keep(o *mesh.Object, n *yaml.Node, tree map[string]any) {
	if r.trees {
		r.content.trees = append(r.content.trees, Tree{Object: o, File: r.path, Line: firstLine(n), Value: tree})
	}
}

// add notes where an object is written. Its nodes stay in memory for as long as Locate does.
func (r *reader) add(o *mesh.Object, n *yaml.Node) {
	o.File, o.Line = r.path, firstLine(n)
	o.Locate = func(path string) int { return lineOf(n, path) }
	for i := range o.Faults {
		o.Faults[i].File, o.Faults[i].Line = o.File, o.Locate(o.Faults[i].Path)
	}
	r.content.objects = append(r.content.objects, o)
}
