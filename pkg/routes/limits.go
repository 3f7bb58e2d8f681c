package routes

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits bound what one MetaRouter may ask of a proxy. A zero field means its default.
type Limits struct {
	RegexLength  int // bytes of a regex; default 4096
	RegexProgram int // instructions of a compiled regex, as Go counts them; default 10000; 100 times that for all of an object
	Entries      int // hosts, routes, destinations, attributes and mutations together; default 50000
}

func (l Limits) withDefaults() Limits {
	if l.RegexLength == 0 {
		l.RegexLength = 4096
	}
	if l.RegexProgram == 0 {
		l.RegexProgram = 10_000
	}
	if l.Entries == 0 {
		l.Entries = 50_000
	}
	return l
}

// maxBytes bounds the instructions of a regex as a proxy counts them: RE2 matches bytes, so a class such as
// \p{L}, one instruction to Go, is a thousand to it. RE2 gives up somewhere above 400,000.
const maxBytes = 100_000

// manyRegexes is how many times RegexProgram all regexes of an object may compile to.
const manyRegexes = 100

// checkRegex returns the size of a regex in instructions, or why a proxy would not take it.
func (l Limits) checkRegex(expr string) (size int, err error) {
	if len(expr) > l.RegexLength {
		return 0, fmt.Errorf("the regex has %d bytes, at most %d are allowed", len(expr), l.RegexLength)
	}
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return 0, fmt.Errorf("the regex %q is not RE2: %w", expr, err)
	}
	if part := onlyGo(expr, parsed); part != "" {
		return 0, fmt.Errorf("the regex %q is not RE2 as every proxy knows it: %s", expr, part)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, fmt.Errorf("the regex %q does not compile: %w", expr, err)
	}
	size = len(program.Inst)
	if size > l.RegexProgram {
		return size, fmt.Errorf("the regex compiles to %d instructions, at most %d are allowed", size, l.RegexProgram)
	}
	if byteInstructions(program) > maxBytes {
		return size, fmt.Errorf("the regex has too many or too large character classes: as bytes they are more than %d instructions", maxBytes)
	}
	return size, nil
}

// onlyGo returns the part of a parsed expression that Go takes and a proxy's RE2 may not, empty if none:
// names of Unicode classes that RE2 does not have, and groups written (?<name>), which it learned in 2023.
func onlyGo(expr string, parsed *syntax.Regexp) string {
	for _, name := range parsed.CapNames() {
		if name != "" && !strings.Contains(expr, "(?P<"+name+">") {
			return "(?<" + name + ">; write (?P<" + name + ">"
		}
	}
	for {
		i := strings.IndexByte(expr, '\\')
		if i < 0 || i+1 == len(expr) {
			return ""
		}
		escape, rest := expr[i+1], expr[i+2:]
		switch escape {
		case 'Q':
			_, rest, _ = strings.Cut(rest, `\E`)
		case 'p', 'P':
			name := rest[:1]
			if name == "{" {
				name, _, _ = strings.Cut(rest[1:], "}")
			}
			if !knownClass(strings.TrimPrefix(name, "^")) {
				return `\` + string(escape) + "{" + name + "}"
			}
		}
		expr = rest
	}
}

// knownClass reports whether RE2 has a Unicode class of a name: Any, a category of one or two letters, or
// a script. Go has more categories, longer names for them, and ignores letter case.
func knownClass(name string) bool {
	if name == "Any" {
		return true
	}
	if _, script := unicode.Scripts[name]; script {
		return true
	}
	_, category := unicode.Categories[name]
	return category && len(name) <= 2 && name != "Cn" && name != "LC"
}

// byteInstructions estimates, from above, how many instructions a program has that matches bytes of UTF-8.
func byteInstructions(p *syntax.Prog) int {
	n := 0
	for _, inst := range p.Inst {
		n++
		switch runes := inst.Rune; {
		case inst.Op == syntax.InstRuneAny || inst.Op == syntax.InstRuneAnyNotNL:
			n += 20
		case len(runes) == 1:
			n += 4
		default:
			for i := 0; i+1 < len(runes); i += 2 {
				n += rangeInstructions(runes[i], runes[i+1])
			}
		}
		if n > maxBytes {
			break
		}
	}
	return n
}

// rangeInstructions is what a range of characters costs: one byte, a few bytes, or a range for each length
// of characters.
func rangeInstructions(low, high rune) int {
	switch {
	case high < utf8.RuneSelf:
		return 1
	case high-low < 64:
		return 4
	default:
		return 20
	}
}
