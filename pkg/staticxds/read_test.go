package staticxds

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/problem"
)

// said reads a text that has no fault.
func said(t *testing.T, file, text string) *Set {
	t.Helper()
	set, problems := Read(file, []byte(text))
	if len(problems) > 0 {
		t.Fatalf("%s: %v", text, problems)
	}
	return set
}

func TestTheExampleOfTheDocumentationHasOneOfEachAndLacksNothing(t *testing.T) {
	doc, err := os.ReadFile("../../docs/static-resources.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```\n")
	set := said(t, "example.yaml", example)
	for k := range kinds {
		if len(set.types[k].sorted) != 1 {
			t.Errorf("%s: %v", k, set.types[k].names())
		}
	}
	if set.types[listeners].version != "3" || len(set.withoutEndpoints()) > 0 {
		t.Errorf("version %s, without endpoints %v", set.types[listeners].version, set.withoutEndpoints())
	}
}

func TestTheDocumentationListsTheExtensions(t *testing.T) {
	code, err := os.ReadFile("extensions.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/static-resources.md")
	if err != nil {
		t.Fatal(err)
	}
	var linked, listed []string
	for _, m := range regexp.MustCompile(`envoy/extensions/([a-z0-9_/]+)/v3"`).FindAllStringSubmatch(string(code), -1) {
		linked = append(linked, strings.ReplaceAll(m[1], "/", "."))
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)\\.` \\| (.*) \\|$").FindAllStringSubmatch(string(doc), -1) {
		for _, name := range strings.Split(row[2], ", ") {
			listed = append(listed, row[1]+"."+strings.Trim(name, "`"))
		}
	}
	slices.Sort(linked)
	slices.Sort(listed)
	if !slices.Equal(linked, listed) {
		t.Errorf("linked are %v\nlisted are %v", linked, listed)
	}
}

func TestYAMLAndJSONAndBothSpellingsOfFieldsAreTheSameContent(t *testing.T) {
	a := said(t, "a.yaml", "clusters:\n- name: x\n  connect_timeout: 1s\n- {name: b, type: EDS}\n")
	b := said(t, "b.json", `{"clusters": [{"name": "b", "type": "EDS"}, {"connectTimeout": "1s", "name": "x"}]}`)
	for k := range kinds {
		if !a.types[k].same(&b.types[k]) {
			t.Errorf("%s differ", k)
		}
	}
}

func TestTheVersionOfATypeIsItsOwn(t *testing.T) {
	a := said(t, "a.yaml", "clusters: [{name: x}]\nlisteners: [{name: l, address: {pipe: {path: /a}}}]\n")
	b := said(t, "a.yaml", "clusters: [{name: x}]\nlisteners: [{name: l, address: {pipe: {path: /b}}}]\n")
	c := said(t, "a.yaml", "versions: {clusters: 7}\nclusters: [{name: x}]\n")
	if a.types[clusters].version != b.types[clusters].version || a.types[listeners].version == b.types[listeners].version {
		t.Error("the versions do not follow the content")
	}
	if x := c.types[clusters]; x.version != "7" || x.byName["x"].Version != "7" || x.hash != a.types[clusters].hash {
		t.Errorf("the file's version is %s, its resource's %s", x.version, x.byName["x"].Version)
	}
}

func TestEveryFaultNamesItemAndReasonAndNothingOfTheFileIsTaken(t *testing.T) {
	const good = "clusters: [{name: good}]\n"
	for text, want := range map[string]string{
		"[]":                              "1 must be a mapping Undecodable",
		"":                                "0 documents Unparsable",
		good + "cluster: []":              "2 cluster: the file has no such key; there are versions UnknownField",
		good + "versions: {cluster: a}":   "2 versions.cluster: there is no such type UnknownField",
		good + "versions: {clusters: ''}": "2 versions.clusters: a version must be Undecodable",
		good + "versions: [a]":            "2 versions: must be a mapping Undecodable",
		"clusters: {name: a}":             "1 clusters: must be a list Undecodable",
		"clusters:\n- name: a\n- name: a": "3 clusters[a]: has this name Duplicate",
		"clusters:\n- type: EDS":          "2 clusters[0]: needs a name Invalid",
		"clusters:\n- name: '*'":          "2 clusters[*]: needs a name Invalid",
		"clusters:\n- just a text":        "2 clusters[0]: unexpected token Undecodable",
		"clusters:\n- name: a\n  conect_timeout: 1s":                                                                   `2 clusters[a]: unknown field "conect_timeout" UnknownField`,
		"clusters:\n- name: a\n  connect_timeout: 1":                                                                   "2 clusters[a]: 1 Undecodable",
		"clusters:\n- name: a\n  connect_timeout: -1s":                                                                 "2 clusters[a]: ConnectTimeout Invalid",
		"endpoints:\n- clusterName: a\n  endpoints: [{priority: 200}]":                                                 "2 endpoints[a]: Priority Invalid",
		"listeners:\n- name: l\n  access_log: [{name: x, typed_config: {'@type': type.googleapis.com/envoy.Nothing}}]": "2 listeners[l]: the type type.googleapis.com/envoy.Nothing is not known to metards UnknownField",
		"listeners:\n- name: l\n  filter_chains: [{filters: [{name: tcp, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, cluster: a}}]}]": "2 listeners[l]: TcpProxy: invalid TcpProxy.StatPrefix Invalid",
	} {
		set, problems := Read("f.yaml", []byte(text))
		if set != nil || len(problems) == 0 {
			t.Errorf("%q: it is taken", text)
			continue
		}
		p := problems[0]
		got := fmt.Sprintf("%d %s: %s %s", p.Line, p.Path, p.Detail, p.Reason)
		for _, word := range strings.Fields(want) {
			if !strings.Contains(got, word) || p.File != "f.yaml" {
				t.Errorf("%q:\ngot  %s\nwant %s", text, got, want)
				break
			}
		}
	}
}

func TestAllFaultsAreToldAtOnce(t *testing.T) {
	_, problems := Read("f.yaml", []byte("clusters: [{name: a, nothing: 1}, {name: b, connect_timeout: -1s}]\nlisteners: 3\nother: 4\n"))
	if len(problems) != 4 {
		t.Errorf("got %v", problems)
	}
	if !problem.HasError(problems) {
		t.Error("they are no errors")
	}
}

func TestTheCaseOfBytesThatAreNoText(t *testing.T) {
	if _, problems := Read("f.yaml", []byte("clusters: [\xff]")); len(problems) != 1 || problems[0].Reason != problem.Unparsable {
		t.Errorf("got %v", problems)
	}
}
