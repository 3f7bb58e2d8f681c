package envoyfilter

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metards/metards/pkg/problem"
)

// ManagedBy is the value of the label app.kubernetes.io/managed-by, by which what is no longer printed can be pruned.
const ManagedBy = "metards"

// Document is one EnvoyFilter.
type Document struct {
	Namespace string
	Name      string

	what      string
	owners    []problem.Object
	allocated bool
	selector  map[string]string
	patches   []any
}

func newDocument(namespace, name string) *Document {
	return &Document{Namespace: namespace, Name: name}
}

func byName(a, b Document) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// note adds an object to those that the document is for.
func (d *Document) note(o problem.Object) {
	if !slices.Contains(d.owners, o) {
		d.owners = append(d.owners, o)
	}
}

// Object is the EnvoyFilter in JSON form.
func (d *Document) Object() map[string]any {
	spec := map[string]any{"configPatches": d.patches}
	if len(d.selector) > 0 {
		labels := map[string]any{}
		for k, v := range d.selector {
			labels[k] = v
		}
		spec["workloadSelector"] = map[string]any{"labels": labels}
	}
	return map[string]any{
		"apiVersion": "networking.istio.io/v1alpha3",
		"kind":       "EnvoyFilter",
		"metadata": map[string]any{
			"name": d.Name, "namespace": d.Namespace, "labels": map[string]any{"app.kubernetes.io/managed-by": ManagedBy},
		},
		"spec": spec,
	}
}

// Comment says in one line what the document is for.
func (d *Document) Comment() string {
	names := make([]string, len(d.owners))
	for i, o := range d.owners {
		names[i] = o.String()
	}
	text := d.what + ", for " + strings.Join(names, ", ")
	if d.allocated {
		text += "; istiod allocated the address"
	}
	return printable(text)
}

// printable keeps a text in one line: what is in objects that others write must not become YAML of its own.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// Write writes YAML documents, each with its comment.
func Write(w io.Writer, list []Document) error {
	for i := range list {
		var b bytes.Buffer
		if i > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "# %s\n", list[i].Comment())
		enc := yaml.NewEncoder(&b)
		enc.SetIndent(2)
		if err := enc.Encode(list[i].Object()); err != nil {
			return fmt.Errorf("write EnvoyFilter %s: %w", list[i].Name, err)
		}
		if err := enc.Close(); err != nil {
			return err
		}
		if _, err := w.Write(b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
