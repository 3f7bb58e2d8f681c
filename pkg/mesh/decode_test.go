package mesh_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

func tree(t testing.TB, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

// decode decodes an object of a kind, in its usual version, with the given spec.
func decode(t testing.TB, kind mesh.Kind, spec string) *mesh.Object {
	t.Helper()
	version := "networking.istio.io/v1"
	if kind == mesh.KindMetaRouter {
		version = "metaprotocol.aeraki.io/v1alpha1"
	}
	o, err := mesh.Decode(tree(t, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"n","namespace":"ns"},"spec":%s}`, version, kind, spec)))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// faults are "severity path Reason" of what decoding found.
func faults(o *mesh.Object) []string {
	out := []string{}
	for _, p := range problem.Sorted(o.Faults) {
		out = append(out, fmt.Sprintf("%s %s %s", p.Severity, p.Path, p.Reason))
	}
	return out
}

func TestEveryServedVersionDecodes(t *testing.T) {
	for version, kinds := range map[string][]string{
		"networking.istio.io/v1": {"ServiceEntry", "DestinationRule"}, "networking.istio.io/v1beta1": {"ServiceEntry", "DestinationRule"},
		"networking.istio.io/v1alpha3": {"ServiceEntry", "DestinationRule"}, "metaprotocol.aeraki.io/v1alpha1": {"MetaRouter"},
	} {
		for _, kind := range kinds {
			o, err := mesh.Decode(tree(t, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"n"},"spec":{}}`, version, kind)))
			if err != nil || o.Spec == nil || len(o.Faults) > 0 {
				t.Errorf("%s %s: %v, %+v", version, kind, err, o)
				continue
			}
			equal(t, "reference", o.Ref().String(), kind+" default/n")
		}
	}
}

func TestAnUnknownVersionOfAKnownKindIsAFaultOfThatObject(t *testing.T) {
	for _, version := range []string{"networking.istio.io/v2", "networking.istio.io", "networking.istio.io/V1"} {
		o, err := mesh.Decode(tree(t, fmt.Sprintf(`{"apiVersion":%q,"kind":"ServiceEntry","metadata":{"name":"n"},"spec":{"hosts":["a"]}}`, version)))
		if err != nil {
			t.Fatal(err)
		}
		if o.Spec != nil || !problem.HasError(o.Faults) || !strings.Contains(o.Faults[0].Detail, "v1alpha3") {
			t.Errorf("%s: %+v", version, o)
		}
	}
}

func TestObjectsOfOtherKindsAreToldApart(t *testing.T) {
	for _, head := range []string{
		`"values":{}`, // neither apiVersion nor kind
		`"apiVersion":"v1","kind":"Service"`, `"apiVersion":"networking.istio.io/v1","kind":"VirtualService"`,
		`"apiVersion":"example.com/v1","kind":"ServiceEntry"`, `"apiVersion":"networking.istio.io/v1","kind":"MetaRouter"`,
		`"apiVersion":"metaprotocol.aeraki.io/v1alpha1","kind":"metarouter"`, `"apiVersion":"v1","kind":"MetaRouter"`,
	} {
		if _, err := mesh.Decode(tree(t, "{"+head+`,"metadata":{"name":"n"}}`)); !errors.Is(err, mesh.ErrOtherKind) {
			t.Errorf("%s: %v", head, err)
		}
	}
}

func TestWhatIsNoCertainObjectIsRefused(t *testing.T) {
	for _, text := range []string{
		`{"kind":"MetaRouter"}`, `{"apiVersion":"v1"}`, `{"apiVersion":1,"kind":"MetaRouter"}`, `{"apiVersion":"v1","kind":{}}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry"}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":null}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":"n"}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{}}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":""}}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":7}}`,
		`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"n","namespace":7}}`,
	} {
		if o, err := mesh.Decode(tree(t, text)); err == nil || errors.Is(err, mesh.ErrOtherKind) {
			t.Errorf("%s: %v, %+v", text, err, o)
		}
	}
}

func TestTheTimeOfCreationIsRead(t *testing.T) {
	for created, want := range map[string]time.Time{
		`"2026-01-31T12:00:00Z"`: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), `"2026-01-31T14:00:00+02:00"`: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
		`null`: {},
	} {
		o, err := mesh.Decode(tree(t, `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"n","creationTimestamp":`+created+`},"spec":{}}`))
		if err != nil || !o.Created.Equal(want) || len(o.Faults) > 0 {
			t.Errorf("%s is %v, %v", created, o, err)
		}
	}
}

func TestATimeOfCreationThatIsNoneIsAFaultOfThatObject(t *testing.T) {
	for _, created := range []string{`"yesterday"`, `""`, `7`, `{}`} {
		o, err := mesh.Decode(tree(t, `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"n","creationTimestamp":`+created+`},"spec":{}}`))
		if err != nil {
			t.Errorf("%s: %v", created, err)
			continue
		}
		equal(t, "faults of "+created, faults(o), []string{"error metadata.creationTimestamp Undecodable"})
		if len(newTruth(t, o).Objects()) > 0 {
			t.Errorf("%s: an object of unknown age counts", created)
		}
	}
}

func TestStatusAndOtherMetadataAreNotLookedAt(t *testing.T) {
	o, err := mesh.Decode(tree(t, `{"apiVersion":"metaprotocol.aeraki.io/v1alpha1","kind":"MetaRouter",
		"metadata":{"name":"n","managedFields":[7],"labels":{"a":1},"generation":"x","uid":null},
		"spec":{"hosts":["h"],"routes":[]},"status":{"anything":[1,{"goes":true}]}}`))
	if err != nil || o.Spec == nil || len(o.Faults) > 0 {
		t.Errorf("%v, %+v", err, o)
	}
}

func TestAMetaRouterWithoutSpecIsDecodedForTheJudge(t *testing.T) {
	for _, spec := range []string{`null`, `{}`} {
		if o := decode(t, mesh.KindMetaRouter, spec); o.Spec == nil || len(o.Faults) > 0 {
			t.Errorf("%s: %+v", spec, o)
		}
	}
	for _, spec := range []string{`7`, `[]`, `"x"`} {
		o := decode(t, mesh.KindMetaRouter, spec)
		equal(t, "faults of "+spec, faults(o), []string{"error spec Undecodable"})
	}
}

func TestEveryFaultOfAMetaRouterIsToldWithItsPath(t *testing.T) {
	route := func(inner string) string { return `{"hosts":["h"],"routes":[{"route":[` + inner + `]}]}` }
	match := func(attributes string) string {
		return `{"hosts":["h"],"routes":[{"match":{"attributes":{` + attributes + `}}}]}`
	}
	const weight = "spec.routes[0].route[0].weight Undecodable"
	for spec, want := range map[string][]string{
		`{"hosts":["h"],"localRateLimit":{"tokenBucket":{"maxTokens":3,"tokensPerFill":2,"fillInterval":"1s"}},"globalRateLimit":{"denyOnFail":true},"gateways":["g"],"exportTo":["."]}`: {},
		`{"hosts":["h"],"export_to":["*"],"routes":[{"mirror_percentage":{"value":1}}]}`:                                                                                                 {}, // the names of the protobuf fields

		route(`{"weight":-1}`):                 {"error " + weight},
		route(`{"weight":1.5}`):                {"error " + weight},
		route(`{"weight":8589934592}`):         {"error " + weight},
		route(`{"weight":"many"}`):             {"error " + weight},
		route(`{"weight":true}`):               {"error " + weight},
		route(`{"weight":[1]}`):                {"error " + weight},
		route(`{"weight":{}}`):                 {"error " + weight},
		route(`{"weight":"80"}`):               {},
		route(`{"weight":80.0}`):               {},
		route(`{"weight":4294967295}`):         {},
		route(`{"weight":null}`):               {},
		route(`{"destination":null}`):          {}, // for the judge
		route(`{"destination":"h"}`):           {"error spec.routes[0].route[0].destination Undecodable"},
		route(`{"destination":{"port":8080}}`): {"error spec.routes[0].route[0].destination.port Undecodable"},
		route(`{"destination":{"port":{"name":"x","number":-7}}}`): {
			"error spec.routes[0].route[0].destination.port.name UnknownField", "error spec.routes[0].route[0].destination.port.number Undecodable"},
		route(`null,{},7`): {"error spec.routes[0].route[0] Undecodable", "error spec.routes[0].route[2] Undecodable"},

		`{"hosts":["h"],"routes":[null]}`:      {"error spec.routes[0] Undecodable"},
		`{"hosts":["h"],"routes":[{},null,1]}`: {"error spec.routes[1] Undecodable", "error spec.routes[2] Undecodable"},
		`{"hosts":["h"],"routes":{}}`:          {"error spec.routes Undecodable"},
		`{"hosts":["h"],"routes":"x"}`:         {"error spec.routes Undecodable"},
		`{"hosts":"h","routes":[]}`:            {"error spec.hosts Undecodable"},
		`{"hosts":["h",null]}`:                 {"error spec.hosts Undecodable"},
		`{"hosts":[7]}`:                        {"error spec.hosts Undecodable"},

		match(`"a":null`):                                        {},
		match(`"a":{}`):                                          {},
		match(`"a":{"exact":null}`):                              {},
		match(`"a":{"exact":null,"prefix":"p"}`):                 {},
		match(`"a":"v"`):                                         {"error spec.routes[0].match.attributes[a] Undecodable"},
		match(`"a":["v"]`):                                       {"error spec.routes[0].match.attributes[a] Undecodable"},
		match(`"a":{"exact":7},"b":{"prefix":[]}`):               {"error spec.routes[0].match.attributes[a].exact Undecodable", "error spec.routes[0].match.attributes[b].prefix Undecodable"},
		match(`"a":{"exact":"v","prefix":"p"}`):                  {"error spec.routes[0].match.attributes[a].prefix Undecodable"},
		match(`"a":{"suffix":"v"}`):                              {"error spec.routes[0].match.attributes[a].suffix UnknownField"},
		match(`"a":{"suffix":null}`):                             {"error spec.routes[0].match.attributes[a].suffix UnknownField"},
		match(`"a":{"Exact":"v"}`):                               {"error spec.routes[0].match.attributes[a].Exact UnknownField"},
		`{"hosts":["h"],"routes":[{"match":[]}]}`:                {"error spec.routes[0].match Undecodable"},
		`{"hosts":["h"],"routes":[{"match":{"attributes":[]}}]}`: {"error spec.routes[0].match.attributes Undecodable"},
		`{"hosts":["h"],"routes":[{"mirrorPercentage":50}]}`:     {"error spec.routes[0].mirrorPercentage Undecodable"},
		`{"hosts":["h"],"exportTo":["a"],"export_to":["b"]}`:     {"error spec.export_to Undecodable"},

		`{"host":["h"],"hosts":["h"],"routes":[{"nam":"x","route":[{"wieght":1,"weight":-1},{"destination":{"subset":7,"prot":{}}}]}],"rules":[]}`: {
			"error spec.host UnknownField", "error spec.routes[0].nam UnknownField", "error spec.routes[0].route[0].weight Undecodable",
			"error spec.routes[0].route[0].wieght UnknownField", "error spec.routes[0].route[1].destination.prot UnknownField",
			"error spec.routes[0].route[1].destination.subset Undecodable", "error spec.rules UnknownField"},
		`{"hosts":["h"],"localRateLimit":{"tokenBucket":{"fillInterval":"soon"}}}`: {"error spec.localRateLimit.tokenBucket.fillInterval Undecodable"},
	} {
		o := decode(t, mesh.KindMetaRouter, spec)
		equal(t, "faults of "+spec, faults(o), want)
		if o.Spec == nil {
			t.Errorf("%s is not decoded, so it cannot be judged", spec)
		}
		for _, p := range o.Faults {
			if p.Detail == "" || strings.Contains(p.Detail, "(line") {
				t.Errorf("%s: the detail is %q", spec, p.Detail)
			}
		}
	}
}

func TestAnUnknownFieldBesideTheSpecIsAFaultOfAMetaRouterOnly(t *testing.T) {
	for kind, want := range map[string]int{`"metaprotocol.aeraki.io/v1alpha1","kind":"MetaRouter"`: 1, `"networking.istio.io/v1","kind":"ServiceEntry"`: 0} {
		o, err := mesh.Decode(tree(t, `{"apiVersion":`+kind+`,"metadata":{"name":"n"},"spec":{"hosts":["h"]},"routes":[]}`))
		if err != nil || len(o.Faults) != want {
			t.Errorf("%s: %v, %+v", kind, err, o)
		}
	}
}

func TestANumberThatIsNoneIsAFault(t *testing.T) {
	o, err := mesh.Decode(map[string]any{"apiVersion": "metaprotocol.aeraki.io/v1alpha1", "kind": "MetaRouter", "metadata": map[string]any{"name": "n"},
		"spec": map[string]any{"hosts": []any{"h"}, "routes": []any{map[string]any{"mirrorPercentage": map[string]any{"value": math.NaN()}}}}})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "faults", faults(o), []string{"error spec.routes[0].mirrorPercentage.value Undecodable"})
}

func TestUnknownFieldsOfIstiosKindsAreWarningsAndTheRestCounts(t *testing.T) {
	o := decode(t, mesh.KindServiceEntry, `{"hosts":["h"],"novel":{"a":1},"resolution":"PSYCHIC","ports":[{"number":80,"name":"tcp-metaprotocol","shade":"red"}],"exportTo":["b","a"]}`)
	equal(t, "faults", faults(o), []string{"warning spec.novel UnknownField", "warning spec.ports[0].shade UnknownField", "warning spec.resolution UnknownField"})
	equal(t, "spec", o.Spec, mesh.Spec(&mesh.ServiceEntry{Hosts: []string{"h"}, Ports: []mesh.Port{{Number: 80, Name: "tcp-metaprotocol"}}, ExportTo: []string{"a", "b"}}))

	o = decode(t, mesh.KindDestinationRule, `{"host":"h","subsets":[{"name":"v1","colour":1}],"trafficPolicy":{"loadBalancer":{"simple":"NOVEL"},"extra":[]}}`)
	equal(t, "faults", faults(o), []string{"warning spec.subsets[0].colour UnknownField", "warning spec.trafficPolicy.extra UnknownField", "warning spec.trafficPolicy.loadBalancer.simple UnknownField"})
	equal(t, "spec", o.Spec, mesh.Spec(&mesh.DestinationRule{Host: "h", Subsets: []mesh.Subset{{Name: "v1"}}, Policy: &mesh.Policy{Balancer: &mesh.Balancer{}}}))
}

func TestWrongTypesInIstiosKindsMakeTheObjectUndecodable(t *testing.T) {
	for spec, want := range map[string][]string{
		`{"hosts":["h"],"ports":[{"number":"x"}],"endpoints":7,"novel":1}`: {"error spec.endpoints Undecodable", "warning spec.novel UnknownField", "error spec.ports[0].number Undecodable"},
		`{"hosts":{}}`:     {"error spec.hosts Undecodable"},
		`{"ports":[null]}`: {"error spec.ports[0] Undecodable"},
	} {
		o := decode(t, mesh.KindServiceEntry, spec)
		equal(t, "faults of "+spec, faults(o), want)
		if o.Spec != nil {
			t.Errorf("%s counts", spec)
		}
	}
}

func TestADestinationRuleKeepsWhatDecidesTheHashKey(t *testing.T) {
	hash := func(header string) string {
		return `{"loadBalancer":{"consistentHash":{"httpHeaderName":"` + header + `"}}`
	}
	o := decode(t, mesh.KindDestinationRule, `{"host":"h","workloadSelector":{"matchLabels":{"a":"b"}},"trafficPolicy":`+hash("Rule")+`,
		"portLevelSettings":[{"port":{"number":80},"connectionPool":{}},`+strings.Replace(hash("port"), "{", `{"port":{"number":81},`, 1)+`}]},
		"subsets":[{"name":"v1"},{"name":"v2","trafficPolicy":{}},{"name":"v3","trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}},
		{"name":"v4","trafficPolicy":{"loadBalancer":{"consistentHash":{"useSourceIp":true}}}}]}`)
	equal(t, "faults", faults(o), []string{})
	equal(t, "spec", o.Spec, mesh.Spec(&mesh.DestinationRule{Host: "h", Selected: true,
		Policy:  &mesh.Policy{Balancer: &mesh.Balancer{HashHeader: "Rule"}, Ports: []mesh.PortPolicy{{Number: 80}, {Number: 81, Balancer: &mesh.Balancer{HashHeader: "port"}}}},
		Subsets: []mesh.Subset{{Name: "v1"}, {Name: "v2", Policy: &mesh.Policy{}}, {Name: "v3", Policy: &mesh.Policy{Balancer: &mesh.Balancer{}}}, {Name: "v4", Policy: &mesh.Policy{Balancer: &mesh.Balancer{}}}}}))
}

func TestWhatFollowsFromAFaultOfDecodingIsNotReportedAgain(t *testing.T) {
	w := newTruth(t, decode(t, mesh.KindMetaRouter, `{"hosts":["h"],"routes":[{"name":"bad","route":[{"weight":-1}]},{"name":"bad","rute":[]}]}`))
	// The judge finds the first bad route only, at spec.routes[0].route, which is around the fault.
	equal(t, "Problems", w.reasons(router("ns/n", "", "")), []string{"error Undecodable", "error UnknownField"})
	w = newTruth(t, decode(t, mesh.KindMetaRouter, `{"hosts":["h"],"routes":[{"name":"bad"},{"name":"good","route":[{"weight":-1}]}]}`))
	equal(t, "Problems of another route", w.reasons(router("ns/n", "", "")), []string{"error Invalid", "error Undecodable"})
}

func TestAFieldWhoseNameBeginsLikeAFaultyOneIsJudged(t *testing.T) {
	w := newTruth(t, decode(t, mesh.KindMetaRouter, `{"hosts":["h"],"routes":[{"name":"bad","r":1,"rou":2}]}`))
	equal(t, "Problems", w.reasons(router("ns/n", "", "")), []string{"error UnknownField", "error UnknownField", "error Invalid"})
}

func TestAnUndecodableMetaRouterNeverComesIntoForce(t *testing.T) {
	w := newTruth(t, entry("svc/s", "h"), decode(t, mesh.KindMetaRouter, `{"hosts":["h"],"routes":[{"name":"x","match":{"attributes":{"a":{"suffix":"v"}}}}]}`))
	equal(t, "the MetaRouter", w.router("any", "h"), "")
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `{"hosts":["h"],"routes":[{"name":"r","route":[{"destination":{"host":"h"},"weight":1}]}]}`,
		`{"hosts":null,"routes":[null,{"match":{"attributes":{"":null,"a":{"exact":"x","regex":"["}}}}]}`,
		`{"hosts":["h"],"ports":[{"number":1e9,"name":"\u0000"}],"exportTo":["~"],"@type":"x","[a.b]":1}`,
		`{"host":"*","trafficPolicy":{"loadBalancer":{"consistentHash":{"httpHeaderName":"x","httpCookie":{"ttl":"1s"}}},"portLevelSettings":[{"port":{}}]},"subsets":[{}]}`,
		`{"localRateLimit":{"tokenBucket":{"fillInterval":1,"tokensPerFill":{}}},"globalRateLimit":[],"export_to":[1]}`,
		`{"endpoints":[{"labels":{"a":1},"network":2}],"workloadSelector":{"labels":null},"resolution":7}`,
	} {
		f.Add(seed)
	}
	versions := map[mesh.Kind]string{mesh.KindServiceEntry: "networking.istio.io/v1", mesh.KindDestinationRule: "networking.istio.io/v1", mesh.KindMetaRouter: "metaprotocol.aeraki.io/v1alpha1"}
	f.Fuzz(func(t *testing.T, text string) {
		for kind, version := range versions {
			var spec any
			if json.Unmarshal([]byte(text), &spec) != nil {
				return
			}
			o, err := mesh.Decode(map[string]any{"apiVersion": version, "kind": string(kind), "metadata": map[string]any{"name": "n"}, "spec": spec})
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if o.Spec == nil && !problem.HasError(o.Faults) {
				t.Errorf("%s without spec has no fault that says why", kind)
			}
			for _, p := range o.Faults {
				if p.Path == "spec" && spec != nil && strings.HasPrefix(strings.TrimSpace(text), "{") {
					t.Errorf("%s: the fault %v has no path", kind, p)
				}
			}
			newTruth(t, o) // whatever it is, the store takes it in
		}
	})
}
