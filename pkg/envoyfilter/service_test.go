package envoyfilter_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/metards/metards/pkg/envoyfilter"
)

func decode(t *testing.T, text string) (*envoyfilter.Service, error) {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	return envoyfilter.Decode(tree, "cluster.local")
}

func TestAddressesAreThoseThatIstiodNamesListenersBy(t *testing.T) {
	const service, entry = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"n"},"spec":`, `{"kind":"ServiceEntry","metadata":{"name":"s"},"spec":`
	const status = `,"status":{"addresses":[{"value":"240.240.0.9","host":"a"},{"value":"2001:2::9","host":"b"}],"conditions":[]}}`
	for name, c := range map[string]struct{ text, want string }{
		"of the spec":                      {entry + `{"hosts":["a"],"addresses":["10.0.0.1","::1"]}}`, "[{10.0.0.1 } {::1 }] false"},
		"allocated, each for its host":     {entry + `{"hosts":["a","b"]}` + status, "[{240.240.0.9 a} {2001:2::9 b}] false"},
		"of the spec, not allocated ones":  {entry + `{"hosts":["a"],"addresses":["10.0.0.1"]}` + status, "[{10.0.0.1 }] false"},
		"cluster IPs":                      {service + `{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"]}}`, "[{10.0.0.1 } {fd00::1 }] false"},
		"one cluster IP":                   {service + `{"clusterIP":"10.0.0.1"}}`, "[{10.0.0.1 }] false"},
		"none of a headless Service":       {service + `{"clusterIP":"None","clusterIPs":["None"]}}`, "[] true"},
		"none of another name":             {service + `{"type":"ExternalName","externalName":"a.example"}}`, "[] true"},
		"none of a Service as it is first": {service + `{}}`, "[] false"},
	} {
		s, err := decode(t, c.text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := fmt.Sprint(s.Addresses, s.Headless); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestPortsAndSelectorsOfBothKinds(t *testing.T) {
	s, err := decode(t, `{"kind":"Service","metadata":{"name":"s","namespace":"n","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"selector":{"app":"s"},"ports":[
		{"name":"tcp-metaprotocol-a","port":1},{"name":"b","port":2,"targetPort":20,"appProtocol":"HTTP"},{"name":"c","port":3,"targetPort":"web","protocol":"UDP"}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	const want = "Service n/s [s.n.svc.cluster.local] map[app:s] 2026 [{{1 tcp-metaprotocol-a}  1 } {{2 b} http 20 } {{3 c} udp 0 web}]"
	if got := fmt.Sprintf("%s %v %v %d %v", s.Object, s.Hosts, s.Selector, s.Created.Year(), s.Ports); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s, err = decode(t, `{"kind":"ServiceEntry","metadata":{"name":"s"},"spec":{"hosts":["a","b"],"workload_selector":{"labels":{"app":"s"}},"new":1,
		"ports":[{"number":"1","name":"a","protocol":"TCP"},{"number":2,"name":"b","targetPort":20}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	const wantEntry = "ServiceEntry default/s [a b] map[app:s] 1 [{{1 a} tcp 1 } {{2 b}  20 }]"
	if got := fmt.Sprintf("%s %v %v %d %v", s.Object, s.Hosts, s.Selector, s.Created.Year(), s.Ports); got != wantEntry {
		t.Errorf("got  %s\nwant %s", got, wantEntry)
	}
}

func TestAnObjectOfTheWrongFormIsAnError(t *testing.T) {
	for _, text := range []string{
		`{"kind":"Service","metadata":{}}`,
		`{"kind":"Service","metadata":{"name":"s"},"spec":{"ports":"x"}}`,
		`{"kind":"Service","metadata":{"name":"s"},"spec":[]}`,
		`{"kind":"ServiceEntry","metadata":{"name":"s"},"spec":{"hosts":"x"}}`,
		`{"kind":"ServiceEntry","metadata":{"name":"s"},"status":{"addresses":"x"}}`,
	} {
		if s, err := decode(t, text); err == nil {
			t.Errorf("%s: %+v", text, s)
		}
	}
}
