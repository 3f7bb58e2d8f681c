package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
	"github.com/metards/metards/pkg/routes"
)

func TestTheAPIServerTakesTheCRDAndTheCostOfItsRules(t *testing.T) {
	for _, err := range validation.ValidateCustomResourceDefinition(context.Background(), internal(t, crd(t))) {
		t.Error(err)
	}
}

func TestTheCRDHasTheNamesOfTheOneThatClustersMayHaveInstalled(t *testing.T) {
	c := crd(t)
	want := apiextensionsv1.CustomResourceDefinitionNames{
		Kind: "MetaRouter", ListKind: "MetaRouterList", Plural: "metarouters", Singular: "metarouter",
		Categories: []string{"aeraki-io", "metaprotocol-aeraki-io"},
	}
	if !reflect.DeepEqual(c.Spec.Names, want) || c.Name != "metarouters.metaprotocol.aeraki.io" ||
		c.Spec.Group != "metaprotocol.aeraki.io" || c.Spec.Scope != apiextensionsv1.NamespaceScoped {
		t.Errorf("%s: group %s, scope %s, names %+v", c.Name, c.Spec.Group, c.Spec.Scope, c.Spec.Names)
	}
	if v := c.Spec.Versions; len(v) != 1 || v[0].Name != "v1alpha1" || !v[0].Served || !v[0].Storage || v[0].Subresources.Status == nil {
		t.Errorf("the versions are %+v", v)
	}
}

// object is a MetaRouter of a spec in YAML, as the API server reads it.
func object(tb testing.TB, spec string) map[string]any {
	tb.Helper()
	data, err := yaml.YAMLToJSON([]byte("apiVersion: metaprotocol.aeraki.io/v1alpha1\nkind: MetaRouter\nmetadata: {name: orders, namespace: shop}\nspec: " + spec))
	if err != nil {
		tb.Fatalf("%s: %v", spec, err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// faults are metards' errors about an object alone.
func faults(tb testing.TB, tree map[string]any) []problem.Problem {
	tb.Helper()
	o, err := mesh.Decode(runtime.DeepCopyJSON(tree))
	if err != nil {
		tb.Fatalf("%v: %v", tree, err)
	}
	var out []problem.Problem
	for _, p := range append(o.Faults, routes.Validate(o, routes.Limits{})...) {
		if p.Severity == problem.Error {
			out = append(out, p)
		}
	}
	return out
}

// route is a MetaRouter with one route; its text goes before a destination.
func route(fields string) string {
	return "{hosts: [a.b], routes: [{" + fields + "route: [{destination: {host: a.b}}]}]}"
}

// weighted is a MetaRouter whose route has destinations of these weights, which may be empty texts.
func weighted(weights ...string) string {
	var list []string
	for _, w := range weights {
		if w != "" {
			w = ", weight: " + w
		}
		list = append(list, "{destination: {host: a.b}"+w+"}")
	}
	return "{hosts: [a.b], routes: [{route: [" + strings.Join(list, ", ") + "]}]}"
}

func destination(text string) string {
	return "{hosts: [a.b], routes: [{route: [{destination: " + text + "}]}]}"
}

func repeat(n int, text string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(text+", ", n), ", ") + "]"
}

// attributes are n conditions.
func attributes(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("a%d: {}", i))
	}
	return route("match: {attributes: {" + strings.Join(out, ", ") + "}}, ")
}

const ctl = `"a\0"`

var accepted = map[string]string{
	"hosts alone":                           "{hosts: [a.b]}",
	"several hosts":                         "{hosts: [a.b, C.D, ö, 'a b']}",
	"no routes":                             "{hosts: [a.b], routes: []}",
	"nulls instead of absent fields":        "{hosts: [a.b], gateways: null, exportTo: null, routes: null, localRateLimit: null, globalRateLimit: null}",
	"nulls in a route":                      route("name: null, match: null, mirror: null, mirrorPercentage: null, requestMutation: null, responseMutation: null, "),
	"nulls in a destination":                destination("{host: a, subset: null, port: null}, weight: null"),
	"gateways and exportTo":                 "{hosts: [a.b], gateways: [istio-system/gw, ''], exportTo: ['*', ., '', shop]}",
	"an unnamed route":                      route(""),
	"an empty name":                         route("name: '', "),
	"an empty match":                        route("match: {}, "),
	"no attributes":                         route("match: {attributes: {}}, "),
	"null attributes":                       route("match: {attributes: null}, "),
	"presence":                              route("match: {attributes: {user: {}}}, "),
	"presence as null":                      route("match: {attributes: {user: null}}, "),
	"presence as a null matcher":            route("match: {attributes: {user: {exact: null}}}, "),
	"an empty exact":                        route("match: {attributes: {user: {exact: ''}}}, "),
	"an empty prefix":                       route("match: {attributes: {user: {prefix: ''}}}, "),
	"any text in exact and prefix":          route(`match: {attributes: {user: {exact: "a\0\r\n"}, b: {prefix: "\n"}}}, `),
	"the regex *":                           route("match: {attributes: {user: {regex: '*'}}}, "),
	"a regex":                               route(`match: {attributes: {user: {regex: "(?i)a.*\n"}}}, `),
	"unusual attribute names":               route("match: {attributes: {User: {}, user: {}, 'a.b c': {}, ö: {}, ':path': {}, x-y: {}, \"\\t\": {}, self: {}, '$': {}}}, "),
	"128 attributes":                        attributes(128),
	"a single destination of weight 0":      weighted("0"),
	"a single destination without a weight": weighted(""),
	"weight 0 beside others":                weighted("0", "1", ""),
	"weights that do not sum to 100":        weighted("1", "1", "1"),
	"null beside a weight":                  weighted("null", "7"),
	"the largest sum of weights":            weighted("4294967294", "1", "0"),
	"the largest single weight":             weighted("4294967295"),
	"100 destinations":                      weighted(strings.Split(strings.Repeat("1,", 99)+"1", ",")...),
	"an empty port":                         destination("{host: a, port: {}}"),
	"port number 0":                         destination("{host: a, port: {number: 0}}"),
	"a null port number":                    destination("{host: a, port: {number: null}}"),
	"a port number above 65535":             destination("{host: a, port: {number: 4294967295}}"),
	"an empty subset":                       destination("{host: a, subset: ''}"),
	"a mirror":                              route("mirror: {host: c, subset: x, port: {number: 1}}, mirrorPercentage: {value: 0.57}, "),
	"mirror percentage 0":                   route("mirror: {host: c}, mirrorPercentage: {value: 0}, "),
	"mirror percentage 100":                 route("mirrorPercentage: {value: 100}, "),
	"an empty mirror percentage":            route("mirrorPercentage: {}, "),
	"mutations":                             route("requestMutation: [{key: a, value: ''}, {key: a}, {key: ' ', value: null}], responseMutation: [], "),
	"1000 mutations of each kind":           route("requestMutation: " + repeat(1000, "{key: a}") + ", responseMutation: " + repeat(1000, "{key: a}") + ", "),
	"a key and a value of 16384 bytes":      route("requestMutation: [{key: " + strings.Repeat("k", 16384) + ", value: " + strings.Repeat("v", 16384) + "}], "),
	"rate limits":                           "{hosts: [a], localRateLimit: {tokenBucket: {maxTokens: 1, tokensPerFill: 0, fillInterval: 0.5s}, conditions: [{match: {attributes: {a: {regex: ''}, '': {exact: a}}}, tokenBucket: {}}, {}]}, globalRateLimit: {match: {}, domain: d, requestTimeout: -1.000000001s, denyOnFail: false, rateLimitService: s, descriptors: [{property: p, descriptorKey: k}, {}]}}",
	"odd durations":                         "{hosts: [a], localRateLimit: {conditions: [{tokenBucket: {fillInterval: .5s}}, {tokenBucket: {fillInterval: +3.s}}, {tokenBucket: {fillInterval: 0s}}, {tokenBucket: {fillInterval: .s}}]}}",
	"6000 routes":                           "{hosts: [a.b], routes: " + repeat(6000, "{route: [{destination: {host: a}}]}") + "}",
	"what fills a large object: routes with every field": "{hosts: [a.b], routes: " + repeat(1500, "{name: a, match: {attributes: {a: {exact: b}, c: {regex: d}}}, route: [{destination: {host: a}, weight: 1}, {destination: {host: b}, weight: 2}], mirror: {host: c}, requestMutation: [{key: a, value: b}]}") + "}",
}

var refused = map[string]string{
	"no spec":                                   "null",
	"an empty spec":                             "{}",
	"no hosts":                                  "{hosts: []}",
	"null hosts":                                "{hosts: null}",
	"an empty host among hosts":                 "{hosts: [a.b, '']}",
	"a null host":                               "{hosts: [null]}",
	"a host that is a number":                   "{hosts: [7]}",
	"a NUL in a host":                           "{hosts: [" + ctl + "]}",
	"a CR in a host":                            `{hosts: ["a\r"]}`,
	"an LF at the end of a host":                `{hosts: ["a\n"]}`,
	"routes that are an object":                 "{hosts: [a], routes: {}}",
	"a null route":                              "{hosts: [a], routes: [null]}",
	"a route without destinations":              "{hosts: [a], routes: [{name: x}]}",
	"a route with an empty list":                "{hosts: [a], routes: [{route: []}]}",
	"a route with null destinations":            "{hosts: [a], routes: [{route: null, mirror: {host: b}}]}",
	"a destination that is missing":             "{hosts: [a], routes: [{route: [{weight: 1}]}]}",
	"a destination that is null":                destination("null"),
	"a destination without a host":              destination("{subset: a}"),
	"a destination with an empty host":          destination("{host: ''}"),
	"a destination with a null host":            destination("{host: null}"),
	"an LF in a destination's host":             destination(`{host: "a\nb"}`),
	"a NUL in a subset":                         destination("{host: a, subset: " + ctl + "}"),
	"a port by name":                            destination("{host: a, port: {name: http}}"),
	"a port by number and name":                 destination("{host: a, port: {number: 1, name: http}}"),
	"a negative port":                           destination("{host: a, port: {number: -1}}"),
	"a port over uint32":                        destination("{host: a, port: {number: 4294967296}}"),
	"all weights 0":                             weighted("0", "0"),
	"no weight among several":                   weighted("", "", "null"),
	"weights that sum to 2^32":                  weighted("4294967295", "1"),
	"a single weight over uint32":               weighted("4294967296"),
	"a negative weight":                         weighted("-1", "5"),
	"a fractional weight":                       weighted("0.5", "5"),
	"a weight that is a word":                   weighted("half", "5"),
	"a mirror without a host":                   route("mirror: {}, "),
	"a mirror with an empty host":               route("mirror: {host: ''}, "),
	"a CR in a mirror's subset":                 route(`mirror: {host: a, subset: "\r"}, `),
	"a mirror percentage below 0":               route("mirrorPercentage: {value: -0.1}, "),
	"a mirror percentage above 100":             route("mirrorPercentage: {value: 100.001}, "),
	"a mirror percentage that is NaN":           route("mirrorPercentage: {value: NaN}, "),
	"an attribute without a name":               route("match: {attributes: {'': {exact: a}}}, "),
	"a NUL in an attribute's name":              route("match: {attributes: {" + ctl + ": {}}}, "),
	"a CR in an attribute's name":               route(`match: {attributes: {"\r": {}}}, `),
	"an LF in an attribute's name":              route(`match: {attributes: {b: {}, "a\n": {}}}, `),
	"exact and prefix":                          route("match: {attributes: {a: {exact: b, prefix: c}}}, "),
	"exact and regex":                           route("match: {attributes: {a: {exact: b, regex: c}}}, "),
	"an empty regex":                            route("match: {attributes: {a: {regex: ''}}}, "),
	"an unknown matcher":                        route("match: {attributes: {a: {suffix: b}}}, "),
	"an unknown matcher beside a known one":     route("match: {attributes: {a: {exact: b, suffix: c}}}, "),
	"a matcher that is a text":                  route("match: {attributes: {a: b}}, "),
	"an unknown field of a match":               route("match: {attribute: {a: {exact: b}}}, "),
	"an unknown field of a match beside others": route("match: {attributes: {}, headers: {}}, "),
	"attributes that are a list":                route("match: {attributes: [a]}, "),
	"a mutation without a key":                  route("requestMutation: [{value: a}], "),
	"a mutation with an empty key":              route("requestMutation: [{key: '', value: a}], "),
	"a mutation with a null key":                route("responseMutation: [{key: null}], "),
	"a NUL in a key":                            route("responseMutation: [{key: " + ctl + "}], "),
	"an LF in a value":                          route(`requestMutation: [{key: a, value: "a\nb"}], `),
	"a key of 16385 bytes":                      route("requestMutation: [{key: " + strings.Repeat("k", 16385) + "}], "),
	"a value of 16385 bytes":                    route("responseMutation: [{key: a, value: " + strings.Repeat("v", 16385) + "}], "),
	"1001 mutations":                            route("requestMutation: " + repeat(1001, "{key: a}") + ", "),
	"mutations that are an object":              route("requestMutation: {key: value}, "),
	"a rate limit with an unknown matcher":      "{hosts: [a], globalRateLimit: {match: {attributes: {a: {suffix: b}}}}}",
	"a rate limit with two matchers":            "{hosts: [a], globalRateLimit: {match: {attributes: {a: {exact: b, regex: c}}}}}",
	"a negative number of tokens":               "{hosts: [a], localRateLimit: {tokenBucket: {maxTokens: -1}}}",
	"a duration without a unit":                 `{hosts: [a], localRateLimit: {tokenBucket: {fillInterval: "5"}}}`,
	"a duration in minutes":                     "{hosts: [a], globalRateLimit: {requestTimeout: 5m}}",
	"a duration without digits":                 "{hosts: [a], globalRateLimit: {requestTimeout: -s}}",
}

// onlyMetards refuses what the CRD's header says is left to it: these become conditions.
var onlyMetards = map[string]string{
	"a regex that is not RE2":                           route("match: {attributes: {a: {regex: '(?=a)'}}}, "),
	"a regex that compiles too large":                   route("match: {attributes: {a: {regex: '((a{100}){100}){10}'}}}, "),
	"a regex over the limit that a flag sets":           route("match: {attributes: {a: {regex: " + strings.Repeat("a", 5000) + "}}}, "),
	"a value over 16384 bytes, of fewer characters":     route("requestMutation: [{key: a, value: " + strings.Repeat("ö", 10000) + "}], "),
	"too many entries of an object":                     "{hosts: [a], routes: " + repeat(600, "{route: "+repeat(100, "{destination: {host: a}, weight: 1}")+"}") + "}",
	"a duration out of protobuf's range":                "{hosts: [a], globalRateLimit: {requestTimeout: 315576000001s}}",
	"an unknown field of a route, which is pruned":      route("matches: {}, "),
	"an unknown field of the spec, which is pruned":     "{hosts: [a], route: []}",
	"an unknown field of a limit, which is pruned":      "{hosts: [a], localRateLimit: {tokenBucket: {max: 1}}}",
	"an unknown field beside a weight, which is pruned": "{hosts: [a], routes: [{route: [{destination: {host: a}, weigth: 1}]}]}",
}

// onlyCRD refuses these other spellings and sizes, which its header names.
var onlyCRD = map[string]string{
	"a weight in quotes":     weighted("'90'", "10"),
	"a percentage in quotes": route("mirrorPercentage: {value: '5'}, "),
	"null beside a matcher":  route("match: {attributes: {a: {exact: null, regex: b}}}, "),
	"101 destinations":       weighted(strings.Split(strings.Repeat("1,", 100)+"1", ",")...),
	"129 attributes":         attributes(129),
	"6001 routes":            "{hosts: [a.b], routes: " + repeat(6001, "{route: [{destination: {host: a}}]}") + "}",
}

func TestTheCRDAndMetardsJudgeAlike(t *testing.T) {
	a := newAdmission(t)
	for _, class := range []struct {
		name         string
		objects      map[string]string
		crd, metards bool // refuses
	}{
		{"both accept", accepted, false, false}, {"both refuse", refused, true, true},
		{"only metards refuses", onlyMetards, false, true}, {"only the CRD refuses", onlyCRD, true, false},
	} {
		for name, spec := range class.objects {
			t.Run(class.name+"/"+name, func(t *testing.T) {
				tree := object(t, spec)
				errs, _ := a.judge(tree)
				if (len(errs) > 0) != class.crd {
					t.Errorf("the CRD says %v", errs)
				}
				if f := faults(t, tree); (len(f) > 0) != class.metards {
					t.Errorf("metards says %v", f)
				}
			})
		}
	}
}

func TestTheCRDTakesEveryVectorThatMetardsTakes(t *testing.T) {
	a := newAdmission(t)
	files, err := filepath.Glob("../../pkg/routes/testdata/vectors/*/input.yaml")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d vectors, %v", len(files), err)
	}
	routers, refusals := 0, 0
	for _, file := range append(files, "../../examples/dubbo-canary/orders.yaml", "../../examples/thrift-canary/inventory.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split("\n"+string(data), "\n---") {
			tree := map[string]any{}
			text, err := yaml.YAMLToJSON([]byte(document))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if err := json.Unmarshal(text, &tree); err != nil || tree["kind"] != "MetaRouter" {
				continue
			}
			routers++
			errs, pruned := a.judge(tree)
			f := faults(t, tree)
			if len(errs) > 0 {
				refusals++
			}
			if (len(errs) > 0) != (len(f) > 0) && !strings.Contains(fmt.Sprint(f), "RE2") {
				t.Errorf("%s: the CRD says %v, metards %v", file, errs, f)
			}
			if len(f) == 0 && len(pruned) > 0 {
				t.Errorf("%s: the API server would drop %v", file, pruned)
			}
		}
	}
	if routers < 40 || refusals < 5 {
		t.Errorf("%d MetaRouters, of which %d are refused: the files are not what they were", routers, refusals)
	}
}

func TestARefusalSaysWhereAndWhy(t *testing.T) {
	a := newAdmission(t)
	for spec, want := range map[string]string{
		weighted("0", "0"):                       "spec.routes[0].route: Invalid value: the weights sum to 0: at least one must be above 0",
		weighted("4294967295", "1"):              "spec.routes[0].route: Invalid value: the weights sum to more than 4294967295",
		route("match: {attributes: {'': {}}}, "): "spec.routes[0].match.attributes: Invalid value: an attribute's name is empty",
	} {
		errs, _ := a.judge(object(t, spec))
		if len(errs) != 1 {
			t.Errorf("%s: %v", spec, errs)
			continue
		}
		if got := fmt.Sprintf("%s: %s: %s", errs[0].Field, errs[0].Type, errs[0].Detail); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestKubectlGetShowsHostsConditionsAndProxies(t *testing.T) {
	table, err := tableconvertor.New(crd(t).Spec.Versions[0].AdditionalPrinterColumns)
	if err != nil {
		t.Fatal(err)
	}
	tree := object(t, "{hosts: [a.b, c.d]}")
	tree["status"] = map[string]any{"conditions": []any{
		map[string]any{"type": "Accepted", "status": "True", "message": "valid"},
		map[string]any{"type": "Programmed", "status": "False", "message": "11 of 12 proxies"},
	}}
	out, err := table.ConvertToTable(context.Background(), &unstructured.Unstructured{Object: tree}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%q", out.Rows[0].Cells[:5])
	if want := `["orders" "[\"a.b\",\"c.d\"]" "True" "False" "11 of 12 proxies"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheStatusThatMetardsWritesIsKept(t *testing.T) {
	tree := object(t, "{hosts: [a.b]}")
	status := `{observedGeneration: 3, lastValid: {generation: 2, spec: {hosts: [a.b], routes: [{anything: 1}]}},
		conditions: [{type: Accepted, status: "False", observedGeneration: 3, lastTransitionTime: "2026-01-31T12:00:00Z", reason: Invalid, message: "a\nb"}],
		replicas: {metards-7d9c-x: {generation: 3, proxies: 12, upToDate: 11, rejected: 1, firstError: "bad regex", at: "2026-01-31T12:00:00Z"}}}`
	var value map[string]any
	text, err := yaml.YAMLToJSON([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	tree["status"] = value
	if errs, pruned := newAdmission(t).judge(tree); len(errs) > 0 || len(pruned) > 0 {
		t.Errorf("refused %v, dropped %v", errs, pruned)
	}
}
