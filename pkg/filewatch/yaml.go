package filewatch

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parseYAML returns the roots of the YAML documents of a text that are not empty.
func parseYAML(text []byte) (roots []*yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // the library has panics for what it did not foresee
			roots, err = nil, unparsable(0, "the YAML parser failed: %v", r)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var n yaml.Node
		err := d.Decode(&n)
		switch {
		case errors.Is(err, io.EOF):
			return roots, nil
		case err != nil:
			return nil, yamlFault(err, text)
		case n.Kind == yaml.DocumentNode && len(n.Content) > 0 && !isNull(n.Content[0]):
			roots = append(roots, n.Content[0])
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var (
	yamlMessage   = regexp.MustCompile(`(?s)^(?:yaml: )?(?:line (\d+): )?(.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// countedFromZero are the beginnings of the messages whose line the library counts from 0: those of its
// grammar, where those of its scanner count from 1.
var countedFromZero = []string{
	"did not find expected <", "did not find expected node content", "did not find expected '-' indicator",
	"did not find expected key", "did not find expected ','", "found duplicate %", "found incompatible YAML",
	"found undefined tag handle",
}

// yamlFault takes the line, from 1, out of the library's message. Where a block is not what it should be,
// or a value goes on where it should not, that is the line where it begins.
func yamlFault(err error, text []byte) error {
	m := yamlMessage.FindStringSubmatch(err.Error())
	line, detail := 1, m[2] // the library names no line where it is the first
	if n, err := strconv.Atoi(m[1]); err == nil {
		line = n
		for _, prefix := range countedFromZero {
			if strings.HasPrefix(detail, prefix) {
				line++
			}
		}
	}
	if m := unknownAnchor.FindStringSubmatch(detail); m != nil {
		before, _, _ := bytes.Cut(text, []byte("*"+m[1]))
		line = 1 + bytes.Count(before, []byte("\n"))
	}
	last := 1 + bytes.Count(bytes.TrimRight(text, "\r\n"), []byte("\n")) // its end of the text is a line further
	return unparsable(min(line, last), "%s", detail)
}
