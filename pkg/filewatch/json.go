package filewatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"
)

// parseJSON returns the JSON values of a text that are not null, as the nodes that YAML would give. JSON has
// its own parser because some of it is no YAML: characters written as two escapes, a colon on a line of its own.
func parseJSON(text []byte) ([]*yaml.Node, error) {
	p := jsonParser{text: text, line: 1, tokens: json.NewDecoder(bytes.NewReader(text))}
	p.tokens.UseNumber()
	var roots []*yaml.Node
	for {
		n, err := p.value(0)
		switch {
		case errors.Is(err, io.EOF):
			return roots, nil
		case err != nil:
			return nil, err
		case !isNull(n):
			roots = append(roots, n)
		}
	}
}

type jsonParser struct {
	tokens *json.Decoder
	text   []byte
	offset int // of the end of the last token
	line   int // at offset
}

// next returns the next token. It fails with a fault, or with io.EOF after the last token.
func (p *jsonParser) next() (json.Token, error) {
	t, err := p.tokens.Token()
	end := int(p.tokens.InputOffset())
	p.line += bytes.Count(p.text[p.offset:end], []byte("\n"))
	p.offset = end
	if err == nil || errors.Is(err, io.EOF) {
		return t, err
	}
	rest := p.text[end:]
	gap := len(rest) - len(bytes.TrimLeft(rest, " \t\r\n,:"))
	return nil, unparsable(p.line+bytes.Count(rest[:gap], []byte("\n")), "not JSON: %v", err)
}

func (p *jsonParser) value(depth int) (*yaml.Node, error) {
	t, err := p.next()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Line: p.line, Kind: yaml.ScalarNode}
	switch t := t.(type) {
	case json.Delim:
		return n, p.children(n, t, depth)
	case string:
		n.Tag, n.Value = "!!str", t
	case json.Number:
		n.Tag, n.Value = "!!float", t.String()
	case bool:
		n.Tag, n.Value = "!!bool", map[bool]string{false: "false", true: "true"}[t]
	default:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, nil
}

// children reads what is in an object or array, up to its end.
func (p *jsonParser) children(n *yaml.Node, open json.Delim, depth int) error {
	if depth == maxDepth {
		return unparsable(p.line, "nested more than %d deep", maxDepth)
	}
	n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	}
	for p.tokens.More() {
		child, err := p.value(depth + 1)
		if err != nil {
			return notEnded(p, err)
		}
		n.Content = append(n.Content, child)
	}
	_, err := p.next() // the closing delimiter: the decoder accepts no other here
	return notEnded(p, err)
}

func notEnded(p *jsonParser, err error) error {
	if errors.Is(err, io.EOF) {
		return unparsable(p.line, "not JSON: it ends in the middle of a value")
	}
	return err
}
