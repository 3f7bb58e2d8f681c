package filewatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// both is the summary of the objects, and the lines of all Problems, those in objects too.
func both(t *testing.T, dir string, limits Limits) (string, string) {
	t.Helper()
	r, err := Read(dir, limits)
	must(t, err)
	problems := r.Problems
	for _, o := range r.Objects {
		problems = append(problems, o.Faults...)
	}
	return summary(r.Objects), lines(dir, problem.Sorted(problems))
}

const entry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example]
  ports: [{number: 0x50, name: tcp-metaprotocol-dubbo, protocol: TCP}]
`

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		files    []string
		limits   Limits
		objects  string
		problems string
	}{
		"several documents, some of them empty": {
			files:   []string{"a.yaml", "---\n# nothing\n---\n" + router("a", "x") + "---\n---\n" + router("b", "y") + "---\n"},
			objects: "a=x b=y",
		},
		"all three suffixes and sub-directories, other files not": {
			files: []string{
				"a.yaml", router("a", "x"), "b.yml", router("b", "x"), "sub/deep/c.yaml", router("c", "x"),
				"d.json", `{"apiVersion":"metaprotocol.aeraki.io/v1alpha1","kind":"MetaRouter","metadata":{"name":"d"},"spec":{"hosts":["x"]}}`,
				"README.md", "# not read", "e.yaml~", router("e", "x"), ".f.yaml.swp", "x", ".g.yaml", router("g", "x"), ".git/h.yaml", router("h", "x"),
			},
			objects: "a=x b=x c=x d=x",
		},
		"a byte order mark and CRLF": {
			files:   []string{"a.yaml", "\ufeff" + strings.ReplaceAll(router("a", "x")+"---\n"+router("b", "y"), "\n", "\r\n")},
			objects: "a=x b=y",
		},
		"UTF-16 is a clear Problem": {
			files:    []string{"a.yaml", "\xff\xfea\x00:\x00"},
			problems: "a.yaml:1: error: the text is in UTF-16 or UTF-32; save it as UTF-8 [Unparsable]; nothing of the file is in force\n",
		},
		"text that is not UTF-8 names the line": {
			files:    []string{"a.yaml", "a: b\nc: \xe9t\xe9\n"},
			problems: "a.yaml:2: error: byte 0xe9 is not UTF-8; save the file as UTF-8 [Unparsable]; nothing of the file is in force\n",
		},
		"a control character names the line": {
			files:    []string{"a.yaml", "a: b\nc: \x01\n"},
			problems: "a.yaml:2: error: control character 0x1 is not allowed [Unparsable]; nothing of the file is in force\n",
		},
		"the output of kubectl get -o yaml": {
			files: []string{"a.yaml", `apiVersion: v1
items:
- apiVersion: metaprotocol.aeraki.io/v1alpha1
  kind: MetaRouter
  metadata:
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: |
        {"apiVersion":"metaprotocol.aeraki.io/v1alpha1"}
    creationTimestamp: "2024-05-06T07:08:09Z"
    generation: 3
    name: a
    namespace: shop
    resourceVersion: "12345"
    uid: 0b1de0ad-0000-4000-8000-000000000001
  spec:
    hosts: [x]
  status: {}
- apiVersion: v1
  kind: Service
  metadata: {name: s}
kind: List
metadata:
  resourceVersion: ""
`},
			objects: "a=x",
		},
		"lists of one kind, whose items may leave it out": {
			files: []string{
				"a.yaml", "apiVersion: metaprotocol.aeraki.io/v1alpha1\nkind: MetaRouterList\nitems:\n- metadata: {name: a}\n  spec: {hosts: [x]}\n",
				"b.yaml", "apiVersion: networking.istio.io/v1\nkind: ServiceEntryList\nitems:\n- metadata: {name: b}\n  spec: {hosts: [x]}\n",
				"c.yaml", "apiVersion: v1\nkind: List\nitems: []\n",
			},
			objects: "a=x b",
		},
		"a list within a list is refused rather than passed over": {
			files:    []string{"a.yaml", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n"},
			problems: "a.yaml:4: error: a List within a List is not supported [Undecodable]; nothing of the file is in force\n",
		},
		"two lists without a separator between them": {
			files:    []string{"a.yaml", "apiVersion: v1\nkind: List\nitems: []\napiVersion: v1\nkind: List\nitems: []\n"},
			problems: "a.yaml:4: error: key \"apiVersion\" is given twice in one mapping [Unparsable]; nothing of the file is in force\n",
		},
		"anchors, merge keys and numbers in any notation": {
			files: []string{"a.yaml", `apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: &m {name: a, namespace: shop, creationTimestamp: 2024-05-06T07:08:09Z}
spec:
  hosts: [&h x.example]
  gateways: [*h]
  routes:
  - name: "1"
    route:
    - &d {destination: {host: x.example, port: {number: 0x1F90}}, weight: 0o12}
    - {<<: *d, weight: 0b1}
    - {weight: 1_0, <<: [{weight: 3, destination: {host: y.example}}, *d]}
---
apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: {<<: &n {namespace: shop}, name: b}
spec: {hosts: [y]}
`},
			objects: "a=x.example b=y",
		},
		"the second of two objects with one name is a Problem": {
			files:   []string{"b.yaml", router("a", "second") + "---\n" + router("b", "x") + "---\n" + router("b", "y"), "a.yaml", router("a", "first")},
			objects: "a=first b=x",
			problems: "b.yaml:1: error: MetaRouter shop/a: another object of this name comes first, at a.yaml:1 [Duplicate]; this one is not used\n" +
				"b.yaml:19: error: MetaRouter shop/b: another object of this name comes first, at b.yaml:10 [Duplicate]; this one is not used\n",
		},
		"files are in the order of their whole paths": {
			files:   []string{"a/x.yaml", router("a", "slash"), "a-b.yaml", router("a", "dash"), "a.yaml", router("a", "dot")},
			objects: "a=dash",
			problems: "a.yaml:1: error: MetaRouter shop/a: another object of this name comes first, at a-b.yaml:1 [Duplicate]; this one is not used\n" +
				"a/x.yaml:1: error: MetaRouter shop/a: another object of this name comes first, at a-b.yaml:1 [Duplicate]; this one is not used\n",
		},
		"an unknown field in a MetaRouter names file and line": {
			files: []string{"a.yaml", "# a comment\n---\n" + router("a", "x") +
				"  routes:\n  - name: one\n    match:\n      attributes:\n        method:\n          exact: get\n          regexp: 'a.*'\n"},
			objects:  "a=x",
			problems: "a.yaml:17: error: MetaRouter shop/a: routes[0].match.attributes[method].regexp (route \"one\"): there is no field \"regexp\" here [UnknownField]\n",
		},
		"a syntax error takes the whole file and names the line": {
			files:    []string{"a.yaml", router("a", "x") + "---\n" + router("b", "y") + "\tc: d\n"},
			problems: "a.yaml:17: error: found a tab character that violates indentation [Unparsable]; nothing of the file is in force\n",
		},
		"a syntax error in a block names the line where the block begins": {
			files:    []string{"a.yaml", "a: b\nc:\n  d: e\n  - f\n"},
			problems: "a.yaml:3: error: did not find expected key [Unparsable]; nothing of the file is in force\n",
		},
		"an alias of nothing names the line": {
			files:    []string{"a.yaml", "a: b\nc: *nobody\n"},
			problems: "a.yaml:2: error: unknown anchor 'nobody' referenced [Unparsable]; nothing of the file is in force\n",
		},
		"a key given twice": {
			files:    []string{"a.yaml", "a: 1\n\"1\": x\nb: {c: 1, d: 2,\n  c: 3}\n1: y\n"},
			problems: "a.yaml:4: error: key \"c\" is given twice in one mapping [Unparsable]; nothing of the file is in force\n",
		},
		"a key that is a mapping": {
			files:    []string{"a.yaml", "? {a: b}\n: c\n"},
			problems: "a.yaml:1: error: a key must be a single value [Unparsable]; nothing of the file is in force\n",
		},
		"tags that JSON has nothing for": {
			files:    []string{"a.yaml", "a: !!binary aGk=\n", "b.yaml", "a: .inf\n", "c.yaml", "\na: !secret b\n"},
			problems: "a.yaml:1: error: tag !!binary is not supported [Unparsable]; nothing of the file is in force\n" + "b.yaml:1: error: .inf is not a number that JSON has [Unparsable]; nothing of the file is in force\n" + "c.yaml:2: error: tag !secret is not supported [Unparsable]; nothing of the file is in force\n",
		},
		"a document that is no object takes the whole file": {
			files: []string{"a.yaml", router("a", "x") + "---\n- just\n- a list\n", "b.yaml", router("b", "x") + "---\nkind: MetaRouter\n",
				"c.yaml", "apiVersion: metaprotocol.aeraki.io/v1alpha1\nkind: MetaRouter\nmetadata: {}\n"},
			problems: "a.yaml:10: error: not a Kubernetes object: a mapping is expected here [Undecodable]; nothing of the file is in force\n" +
				"b.yaml:10: error: not a Kubernetes object: apiVersion or kind is missing [Undecodable]; nothing of the file is in force\n" +
				"c.yaml:1: error: MetaRouter: metadata.name is missing [Undecodable]; nothing of the file is in force\n",
		},
		"a file beyond the limit is not read": {
			files:    []string{"a.yaml", router("a", "x") + strings.Repeat("#", 1000), "b.yaml", router("b", "x")},
			limits:   Limits{FileSize: 1000},
			objects:  "b=x",
			problems: "a.yaml: error: the file has 1120 bytes; at most 1000 are read [TooLarge]; nothing of the file is in force\n",
		},
		"JSON that is no YAML": {
			files: []string{"a.json", "\ufeff{\"apiVersion\"\n:\"metaprotocol.aeraki.io/v1alpha1\",\t\"kind\":\"MetaRouter\",\"metadata\":{\"name\":\"\\ud83d\\ude00\"}} {\"apiVersion\":\"v1\",\"kind\":\"Pod\"} null",
				"b.json", "{\"a\": 1,\n\"b\":\n'x'}", "c.json", "{\n\"a\": [1, 2\n", "d.json", "{\"a\": 1,\n\"a\": 2}", "e.json", "{}\n}"},
			objects: "😀=",
			problems: "b.json:3: error: not JSON: invalid character '\\'' looking for beginning of value [Unparsable]; nothing of the file is in force\n" +
				"c.json:2: error: not JSON: it ends in the middle of a value [Unparsable]; nothing of the file is in force\n" +
				"d.json:2: error: key \"a\" is given twice in one mapping [Unparsable]; nothing of the file is in force\n" +
				"e.json:2: error: not JSON: invalid character '}' looking for beginning of value [Unparsable]; nothing of the file is in force\n",
		},
		"an empty file is no Problem at first": {files: []string{"a.yaml", "", "b.yaml", "# later\n", "c.json", " \n"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, problems := both(t, directory(t, c.files...), c.limits)
			if objects != c.objects {
				t.Errorf("objects: %q, want %q", objects, c.objects)
			}
			if diff := cmp.Diff(c.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadReducesNumbersAndTimesAsTheyAreWritten(t *testing.T) {
	r, err := Read(directory(t, "a.yaml", entry, "b.yaml", strings.Replace(router("b", "x"),
		"namespace: shop", "creationTimestamp: 2024-05-06T07:08:09Z", 1)), Limits{})
	must(t, err)
	if got := r.Objects[0].Spec.(*mesh.ServiceEntry).Ports[0].Number; got != 80 {
		t.Errorf("port %d, want 80", got)
	}
	if got, want := r.Objects[1].Created, time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC); !got.Equal(want) {
		t.Errorf("created %s, want %s", got, want)
	}
	if got := r.Objects[1].Namespace; got != mesh.DefaultNamespace {
		t.Errorf("namespace %q", got)
	}
}

func TestReadCountsOtherKinds(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n"
	r, err := Read(directory(t, "a.yaml", pod+pod, "b.yaml", pod+"apiVersion: apps/v1\nkind: Deployment\n"), Limits{})
	must(t, err)
	if diff := cmp.Diff(map[string]int{"v1 Pod": 3, "apps/v1 Deployment": 1}, r.Ignored); diff != "" {
		t.Error(diff)
	}
	if len(r.Problems) > 0 {
		t.Error(r.Problems)
	}
}

func TestObjectsOfAllKindsAreReadWholeIfTheyAreAskedFor(t *testing.T) {
	entry := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a}\nspec: {hosts: [a], addresses: [10.0.0.1]}\n"
	dir := directory(t, "a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.2}\n---\n"+entry, "b.yaml", entry, "c.yaml", entry+"---\n: [")
	r, trees, err := ReadTrees(dir, Limits{})
	must(t, err)
	var got []string
	for _, tree := range trees {
		got = append(got, fmt.Sprintf("%s:%d %v %v", tree.File, tree.Line, tree.Value["spec"], tree.Object != nil && tree.Object == r.Objects[0]))
	}
	want := []string{
		"a.yaml:1 map[clusterIP:10.0.0.2] false",
		"a.yaml:6 map[addresses:[10.0.0.1] hosts:[a]] true",
		"b.yaml:1 map[addresses:[10.0.0.1] hosts:[a]] false", // comes second, as r.Problems tells
	}
	for i := range got {
		got[i] = strings.TrimPrefix(got[i], dir+"/")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadFailsOnlyIfTheDirectoryItselfCannotBeRead(t *testing.T) {
	dir := directory(t, "a.yaml", "")
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):   "no such file or directory",
		filepath.Join(dir, "a.yaml"): "is a file; give the directory that it is in",
		"":                           "no directory is given",
	} {
		if _, err := Read(path, Limits{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
}

func TestAliasesThatExpandWithoutEndAreAProblem(t *testing.T) {
	t.Parallel()
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x]\n")
	for i := 1; i < 60; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	for name, text := range map[string]string{
		"many levels":               laughs.String(),
		"a long text, often":        "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 1000) + "]\n",
		"a long key, often":         "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("{? *a : 1},", 1000) + "]\n",
		"itself":                    "a: &a [*a]\n",
		"itself, in a merge key":    "a: &a\n  <<: *a\n",
		"itself, by two":            "a: &a {b: &b {c: *a}}\nd: *b\n",
		"merged without end":        mergeBomb(),
		"the items of a list":       "apiVersion: v1\nkind: List\nitems: [&a {apiVersion: v1, kind: Pod, x: " + strings.Repeat("x", 1<<20) + "}" + strings.Repeat(",*a", 1000) + "]\n",
		"a mapping of many aliases": "a: &a {x: 1, y: 2}\nb: [" + strings.Repeat("*a,", 1<<16) + "]\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := readText("a.yaml", []byte(text), Limits{FileSize: 2 << 20})
			if c.fault == nil || c.fault.reason != problem.Unparsable || !strings.Contains(c.fault.detail, "expand beyond") {
				t.Errorf("fault: %v", c.fault)
			}
		})
	}
}

func mergeBomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 {x: y}\n")
	for i := 1; i < 60; i++ {
		fmt.Fprintf(&b, "a%d: &a%d {<<: [*a%d, *a%d]}\n", i, i, i-1, i-1)
	}
	return b.String()
}

func TestDeepNestingIsAProblem(t *testing.T) {
	for name, text := range map[string]string{
		"a.yaml": strings.Repeat("[", 100_000), "b.yaml": strings.Repeat("- ", 100_000), "c.yaml": strings.Repeat("{a: ", 100_000),
		"d.yaml": strings.Repeat("[", 600) + strings.Repeat("]", 600), "e.json": strings.Repeat("[", 100_000),
		"f.json": strings.Repeat(`{"a":`, 100_000), "g.yaml": strings.Repeat("? ", 100_000), "h.yaml": "a: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
	} {
		if c := readText(name, []byte(text), Limits{}.orDefault()); c.fault == nil {
			t.Errorf("%s: no fault", name)
		}
	}
}

func TestFiveMegabytesOfYAMLAreRead(t *testing.T) {
	t.Parallel()
	hosts := strings.Repeat("  - "+strings.Repeat("h", 120)+"\n", 1000)
	var b strings.Builder
	n := 0
	for ; b.Len() < 5<<20; n++ {
		b.WriteString(router(fmt.Sprintf("r%d", n), "x") + hosts + "---\n")
	}
	c := readText("a.yaml", []byte(b.String()), Limits{}.orDefault())
	if c.fault != nil || len(c.objects) != n {
		t.Errorf("%d objects, want %d; %v", len(c.objects), n, c.fault)
	}
}

func TestAMillionEntryListIsRead(t *testing.T) {
	t.Parallel()
	text := `{"apiVersion":"v1","kind":"Pod","spec":[` + strings.Repeat("{},", 999_999) + "{}]}"
	c := readText("a.json", []byte(text), Limits{}.orDefault())
	if c.fault != nil || c.ignored["v1 Pod"] != 1 {
		t.Errorf("%v; %v", c.ignored, c.fault)
	}
}

func TestLinksAreFollowedAndCyclesEnd(t *testing.T) {
	elsewhere := directory(t, "deep/b.yaml", router("b", "x"), "c.yaml", router("c", "x"))
	dir := directory(t, "a.yaml", router("a", "x"))
	for link, target := range map[string]string{
		"up": "..", "self": ".", "elsewhere": elsewhere, "again": elsewhere, "file.yaml": filepath.Join(elsewhere, "c.yaml"),
	} {
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	must(t, os.Symlink(dir, filepath.Join(elsewhere, "back")))
	objects, problems := both(t, dir, Limits{})
	if objects != "a=x b=x c=x" {
		t.Errorf("objects: %q", objects)
	}
	// The directory that two links lead to counts once; the linked file counts beside it.
	if want := "file.yaml:1: error: MetaRouter shop/c: another object of this name comes first, at again/c.yaml:1 [Duplicate]; this one is not used\n"; problems != want {
		t.Errorf("problems: %s", problems)
	}
}

func TestWhatCannotBeReadIsAProblem(t *testing.T) {
	dir := directory(t, "a.yaml", router("a", "x"))
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644))
	must(t, os.Symlink("nothing", filepath.Join(dir, "link.yaml")))
	must(t, os.Symlink("nothing", filepath.Join(dir, "sub")))
	must(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDirectories+1)), 0o755))
	objects, problems := both(t, dir, Limits{})
	if objects != "a=x" {
		t.Errorf("objects: %q", objects)
	}
	want := strings.Repeat("d/", maxDirectories) + "d: error: directories nest too deep [Unreadable]; nothing of the file is in force\n" +
		"link.yaml: error: stat link.yaml: no such file or directory [Unreadable]; nothing of the file is in force\n" +
		"pipe.yaml: error: not a regular file [Unreadable]; nothing of the file is in force\n" +
		"sub: error: stat sub: no such file or directory [Unreadable]; nothing of the file is in force\n"
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Error(diff)
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{
		router("a", "x"), entry, "---\n", "a: &a [*a]\n", "{\"a\": [1, 2.5e3, null, true]}", "<<: {a: b}\n", "? [a]\n: b\n", "a: !!float x\n",
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: X}]\n", "\ufeff%YAML 1.1\n---\n!!str 1: 2\n", "a: 0x1\nb: .nan\nc: 2001-01-01\n",
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, asJSON bool) {
		name := "a.yaml"
		if asJSON {
			name = "a.json"
		}
		limits := Limits{FileSize: 1 << 16}
		if int64(len(text)) > limits.FileSize {
			return
		}
		c := readText(name, text, limits)
		if c.fault != nil && c.fault.reason == problem.Internal {
			t.Fatal(c.fault)
		}
		count := strings.Count(string(text), "\n") + 1
		for _, o := range c.objects {
			if o.Line < 1 || o.Line > count {
				t.Errorf("line %d of %d", o.Line, count)
			}
			if at := o.Locate("spec.routes[0].match.attributes[a].exact"); at < 1 || at > count {
				t.Errorf("located on line %d of %d", at, count)
			}
		}
	})
}
