package filewatch

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lineOf returns the line of the deepest node that a field path such as
// "spec.routes[1].match.attributes[method].regex" leads to. Keys are read off the nodes rather than off the
// path, since a key may hold dots and brackets itself.
func lineOf(root *yaml.Node, path string) int {
	line := firstLine(root)
	n, rest := root, path
	for depth := 0; n != nil && rest != "" && depth < maxDepth; depth++ {
		var at int
		at, n, rest = step(n, rest)
		if at > 0 {
			line = at
		}
	}
	return line
}

// firstLine is where an object begins: at its first key.
func firstLine(n *yaml.Node) int {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 {
		return n.Content[0].Line
	}
	return n.Line
}

// step follows the first part of a path. It returns the line of what it leads to, the node and the rest of the
// path, or a nil node if it leads nowhere.
func step(n *yaml.Node, path string) (line int, child *yaml.Node, rest string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.SequenceNode:
		number, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
		i, err := strconv.Atoi(number)
		if !ok || err != nil || i < 0 || i >= len(n.Content) {
			return 0, nil, ""
		}
		return firstLine(n.Content[i]), n.Content[i], rest
	case yaml.MappingNode:
		return stepMapping(n, path, maxDepth)
	}
	return 0, nil, ""
}

// stepMapping follows the longest key that a path begins with, or looks in the merged mappings.
func stepMapping(n *yaml.Node, path string, depth int) (line int, child *yaml.Node, rest string) {
	longest := -1
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if r, ok := cutKey(path, key.Value); ok && len(key.Value) > longest {
			longest, line, child, rest = len(key.Value), n.Content[i].Line, n.Content[i+1], r
		}
	}
	for i := 0; child == nil && depth > 0 && i+1 < len(n.Content); i += 2 {
		if isMerge(n.Content[i]) {
			line, child, rest = stepMerged(n.Content[i+1], path, depth-1)
		}
	}
	return line, child, rest
}

func stepMerged(n *yaml.Node, path string, depth int) (line int, child *yaml.Node, rest string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.MappingNode {
		return stepMapping(n, path, depth)
	}
	for i := 0; n.Kind == yaml.SequenceNode && child == nil && depth > 0 && i < len(n.Content); i++ {
		line, child, rest = stepMerged(n.Content[i], path, depth-1)
	}
	return line, child, rest
}

// cutKey takes a key, as ".key", "[key]" or the beginning "key", off a path. Fields may be written
// in either of the API's two spellings, so letters' case and underscores do not matter after a dot.
func cutKey(path, key string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(path, "["+key+"]"); ok {
		return rest, rest == "" || rest[0] == '.' || rest[0] == '['
	}
	path = strings.TrimPrefix(path, ".")
	if rest, ok = strings.CutPrefix(path, key); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
		return rest, true
	}
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	return path[end:], strings.EqualFold(spelling(path[:end]), spelling(key))
}

func spelling(field string) string { return strings.ReplaceAll(field, "_", "") }
