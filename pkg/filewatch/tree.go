package filewatch

import (
	"encoding/json"
	"math"

	"go.yaml.in/yaml/v3"
)

const (
	// maxDepth is how deep values may nest; no kind of object comes near it.
	maxDepth = 500
	// nodeCost is what a node counts beside its text when an alias repeats it, in bytes: roughly its memory.
	nodeCost = 64
)

// expander makes trees in JSON form (maps, slices, strings, numbers, booleans, nil) of YAML nodes. What
// aliases repeat is counted over the whole file, or a few lines could stand for more than fits in memory.
type expander struct {
	left    int64               // bytes that aliases may still expand to
	aliases map[*yaml.Node]bool // being expanded
}

func newExpander(budget int64) *expander {
	return &expander{left: budget, aliases: map[*yaml.Node]bool{}}
}

func (e *expander) value(n *yaml.Node, depth int) (any, error) {
	if depth > maxDepth {
		return nil, unparsable(n.Line, "nested more than %d deep", maxDepth)
	}
	if n.Kind == yaml.AliasNode {
		return e.alias(n, depth)
	}
	if err := e.charge(n); err != nil {
		return nil, err
	}
	switch n.Kind {
	case yaml.MappingNode:
		return e.mapping(n, depth)
	case yaml.SequenceNode:
		return e.sequence(n, depth)
	}
	return scalar(n)
}

// charge takes the cost of a node off the budget, if an alias led to it.
func (e *expander) charge(n *yaml.Node) error {
	if len(e.aliases) == 0 {
		return nil
	}
	e.left -= nodeCost + int64(len(n.Value))
	if e.left < 0 {
		return unparsable(n.Line, "aliases expand beyond what is allowed for a file")
	}
	return nil
}

func (e *expander) alias(n *yaml.Node, depth int) (any, error) {
	if e.aliases[n.Alias] {
		return nil, unparsable(n.Line, "alias *%s is part of what it stands for, and would expand beyond all limits", n.Value)
	}
	e.aliases[n.Alias] = true
	defer delete(e.aliases, n.Alias)
	return e.value(n.Alias, depth+1)
}

func (e *expander) sequence(n *yaml.Node, depth int) (any, error) {
	if n.ShortTag() != "!!seq" {
		return nil, unparsable(n.Line, "tag %s is not supported", n.ShortTag())
	}
	out := make([]any, 0, len(n.Content))
	for _, c := range n.Content {
		v, err := e.value(c, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (e *expander) mapping(n *yaml.Node, depth int) (any, error) {
	if n.ShortTag() != "!!map" {
		return nil, unparsable(n.Line, "tag %s is not supported", n.ShortTag())
	}
	out := make(map[string]any, len(n.Content)/2)
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if isMerge(key) {
			merged = append(merged, value)
			continue
		}
		name, err := e.key(key)
		if err != nil {
			return nil, err
		}
		if _, ok := out[name]; ok {
			return nil, unparsable(key.Line, "key %q is given twice in one mapping", name)
		}
		if out[name], err = e.value(value, depth+1); err != nil {
			return nil, err
		}
	}
	for _, m := range merged {
		if err := e.merge(out, m, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func isMerge(key *yaml.Node) bool { return key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" }

// key returns the text of a key as it is written: 1 and true are "1" and "true".
func (e *expander) key(n *yaml.Node) (string, error) {
	if n.Kind == yaml.AliasNode {
		e.left -= nodeCost + int64(len(n.Alias.Value))
		if e.left < 0 {
			return "", unparsable(n.Line, "aliases expand beyond what is allowed for a file")
		}
		n = n.Alias
	} else if err := e.charge(n); err != nil {
		return "", err
	}
	if n.Kind != yaml.ScalarNode {
		return "", unparsable(n.Line, "a key must be a single value")
	}
	return n.Value, nil
}

// merge adds the keys of a merge key's value that are not there yet: the mapping's own keys come before
// merged ones, and of several mappings the earlier comes first.
func (e *expander) merge(into map[string]any, n *yaml.Node, depth int) error {
	v, err := e.value(n, depth)
	if err != nil {
		return err
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, item := range list {
		m, ok := item.(map[string]any)
		if !ok {
			return unparsable(n.Line, "a merge key (<<) takes a mapping or a list of mappings")
		}
		for k, v := range m {
			if _, ok := into[k]; !ok {
				into[k] = v
			}
		}
	}
	return nil
}

func scalar(n *yaml.Node) (any, error) {
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge", "!":
		return n.Value, nil
	case "!!null":
		return nil, nil
	case "!!bool", "!!int", "!!float":
		if tag != "!!bool" && json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), nil
		}
		return resolved(n)
	default:
		return nil, unparsable(n.Line, "tag %s is not supported", tag)
	}
}

// resolved returns a boolean, or a number in a notation that JSON does not have.
func resolved(n *yaml.Node) (any, error) {
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, unparsable(n.Line, "%q is not a value of type %s", n.Value, n.ShortTag())
	}
	if f, ok := v.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
		return nil, unparsable(n.Line, "%s is not a number that JSON has", n.Value)
	}
	return v, nil
}
