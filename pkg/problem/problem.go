// Package problem holds the faults of input objects as data, so that the log, the command line, the
// debug pages and the objects' status all say the same. In: what a source, the judge or the compiler
// found. Out: sorted lists, and one log line when a Problem appears and one when it clears.
package problem

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity tells whether something written has no effect.
type Severity string

const (
	// Error means that something written has no effect: it was refused, or it never wins.
	Error Severity = "error"
	// Warning means that something written takes effect and may surprise.
	Warning Severity = "warning"
)

// Reason is one of a closed list, for scripts and for metrics.
type Reason string

// The reasons.
const (
	Unreadable      Reason = "Unreadable"      // a file or directory could not be read
	Unparsable      Reason = "Unparsable"      // a file is not YAML or JSON, or too large
	Undecodable     Reason = "Undecodable"     // a value has the wrong type or range for its field
	UnknownField    Reason = "UnknownField"    // the API has no such field
	Empty           Reason = "Empty"           // a directory without any object
	Ignored         Reason = "Ignored"         // an object or a part of it is not looked at
	Invalid         Reason = "Invalid"         // a MetaRouter that no proxy could use
	TooLarge        Reason = "TooLarge"        // beyond a limit of ours
	Duplicate       Reason = "Duplicate"       // the same object from two places
	Conflicted      Reason = "Conflicted"      // another MetaRouter has all of the hosts
	UnknownHost     Reason = "UnknownHost"     // no service declares the host
	NotMetaProtocol Reason = "NotMetaProtocol" // the service has no MetaProtocol port
	UnknownSubset   Reason = "UnknownSubset"   // no visible DestinationRule declares the subset
	UnknownPort     Reason = "UnknownPort"     // the service has no such port
	SeveralHashKeys Reason = "SeveralHashKeys" // the destinations of a route hash by different keys
	NeverMatches    Reason = "NeverMatches"    // a condition that can hardly hold
	SeveralServices Reason = "SeveralServices" // a host declared in several namespaces
	NoEndpoints     Reason = "NoEndpoints"     // a static cluster asks for endpoints that are not there
	Contradiction   Reason = "Contradiction"   // two settings that cannot both hold
	NoAddress       Reason = "NoAddress"       // a service that no listener is named by
	UnknownCodec    Reason = "UnknownCodec"    // no codec for a port's application protocol
	RefusedByEnvoy  Reason = "RefusedByEnvoy"  // a stock Envoy does not take the table
	Unjudged        Reason = "Unjudged"        // Envoy, which is to judge tables, could not
	Internal        Reason = "Internal"        // a fault of metards itself
)

// Object names the object that a Problem is about; a zero Object stands for a file or directory.
type Object struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String is "Kind namespace/name", or empty for the zero Object.
func (o Object) String() string {
	if o == (Object{}) {
		return ""
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Problem is one fault of one object.
type Problem struct {
	Severity Severity `json:"severity"`
	Object   Object   `json:"object"`
	// Path is where in the object, as in "spec.routes[1].route[0].weight"; empty for the whole object.
	Path string `json:"path,omitempty"`
	// Route is the name of the route that Path leads into, if it has one.
	Route  string `json:"route,omitempty"`
	Reason Reason `json:"reason"`
	// Detail is a sentence for people, without the parts above.
	Detail string `json:"detail"`
	// Consequence says what is in force instead, where that is known.
	Consequence string `json:"consequence,omitempty"`
	// File and Line (from 1) say where it was written, where it was a file.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

// Where is "file:line", "file", or empty.
func (p Problem) Where() string {
	if p.File == "" || p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// String is one line with everything but the place.
func (p Problem) String() string {
	var b strings.Builder
	if p.Object != (Object{}) {
		fmt.Fprintf(&b, "%s: ", p.Object)
	}
	if at := strings.TrimPrefix(p.Path, "spec."); at != "" {
		if p.Route != "" {
			fmt.Fprintf(&b, "%s (route %q): ", at, p.Route)
		} else {
			fmt.Fprintf(&b, "%s: ", at)
		}
	}
	b.WriteString(p.Detail)
	fmt.Fprintf(&b, " [%s]", p.Reason)
	if p.Consequence != "" {
		fmt.Fprintf(&b, "; %s", p.Consequence)
	}
	return b.String()
}

// Compare orders by file, line, object, path, reason, detail and the rest.
func Compare(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Namespace, b.Object.Namespace),
		cmp.Compare(a.Object.Name, b.Object.Name), cmp.Compare(a.Path, b.Path),
		cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Detail, b.Detail), cmp.Compare(a.Severity, b.Severity),
		cmp.Compare(a.Route, b.Route), cmp.Compare(a.Consequence, b.Consequence),
	)
}

// Sorted returns the list ordered by Compare, each Problem once.
func Sorted(list []Problem) []Problem {
	out := slices.Clone(list)
	slices.SortFunc(out, Compare)
	return slices.Compact(out)
}

// HasError reports whether one of the list is an Error.
func HasError(list []Problem) bool {
	return slices.ContainsFunc(list, func(p Problem) bool { return p.Severity == Error })
}
