package filewatch

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/metards/metards/pkg/problem"
)

// fault is why a file cannot be believed. Line is 0 where it is not known.
type fault struct {
	reason problem.Reason
	line   int
	detail string
}

func (f *fault) Error() string { return f.detail }

func unparsable(line int, format string, args ...any) error {
	return &fault{problem.Unparsable, line, fmt.Sprintf(format, args...)}
}

// parse returns the roots of the documents of a file that are not empty.
func parse(path string, data []byte) ([]*yaml.Node, error) {
	text, err := plainText(data)
	if err != nil {
		return nil, err
	}
	if isJSON(path) {
		return parseJSON(text)
	}
	return parseYAML(text)
}

func isJSON(path string) bool { return strings.HasSuffix(path, ".json") }

// plainText returns data without a byte order mark, if it is text in UTF-8.
func plainText(data []byte) ([]byte, error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) ||
		bytes.IndexByte(data[:min(len(data), 4)], 0) >= 0 {
		return nil, unparsable(1, "the text is in UTF-16 or UTF-32; save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	line := 1
	for i := 0; i < len(data); {
		r, size := rune(data[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(data[i:])
		}
		switch {
		case r == '\n':
			line++
		case r == utf8.RuneError && size == 1:
			return nil, unparsable(line, "byte %#x is not UTF-8; save the file as UTF-8", data[i])
		case r < ' ' && r != '\t' && r != '\r', r >= 0x80 && r < 0xa0 && r != 0x85:
			return nil, unparsable(line, "control character %#x is not allowed", r)
		}
		i += size
	}
	return data, nil
}
