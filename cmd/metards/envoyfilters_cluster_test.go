package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lists is an API server that has lists, by path, and gives them in pages of one object.
type lists struct {
	items    map[string][]string
	expireAt string // the continuation that is too old
	asked    []string
}

func (l *lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.asked = append(l.asked, r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	items, served := l.items[r.URL.Path]
	from, all := 0, r.URL.Query().Get("limit") == ""
	next := r.URL.Query().Get("continue")
	_, _ = fmt.Sscan(next, &from)
	switch {
	case !served:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"the server could not find the requested resource"}`)
		return
	case next != "" && next == l.expireAt:
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		return
	}
	meta := map[string]any{"resourceVersion": "1"}
	if !all && from+1 < len(items) {
		items, meta["continue"] = items[from:from+1], fmt.Sprint(from+1)
	} else {
		items = items[min(from, len(items)):]
	}
	list := []json.RawMessage{}
	for _, text := range items {
		list = append(list, json.RawMessage(text))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": meta, "items": list})
}

func fromLists(t *testing.T, l *lists, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	server := httptest.NewServer(l)
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: a}}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"envoyfilters", "--kubeconfig", kubeconfig}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

func entryText(namespace, name, address string) string {
	return fmt.Sprintf(`{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":%q,"namespace":%q},"spec":{"hosts":[%q],
		"ports":[{"number":20880,"name":"tcp-metaprotocol-dubbo"}]},"status":{"addresses":[{"value":%q,"host":%[3]q}]}}`, name, namespace, name+".example", address)
}

func serviceText(namespace, name, address string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":%q},"spec":{"clusterIP":%q,"ports":[{"port":9090,"name":"tcp-metaprotocol-thrift"}]}}`,
		name, namespace, address)
}

const (
	entriesPath  = "/apis/networking.istio.io/v1/serviceentries"
	olderEntries = "/apis/networking.istio.io/v1beta1/serviceentries"
	servicesPath = "/api/v1/services"
)

// listeners are the listeners' names in an output, in its order.
func listeners(output string) string {
	var out []string
	for _, line := range strings.Split(output, "\n") {
		if _, name, ok := strings.Cut(line, "          name: 2"); ok {
			out = append(out, "2"+name)
		}
	}
	return strings.Join(out, " ")
}

func TestServicesOfTheAPIServerAreReadPageByPage(t *testing.T) {
	const want = "240.0.0.1_20880 240.0.0.4_9090 240.0.0.5_9090 240.0.0.2_20880 240.0.0.3_20880" // by host
	for name, l := range map[string]*lists{
		"in order":                        {},
		"and anew when a page is too old": {expireAt: "2"},
	} {
		l.items = map[string][]string{
			entriesPath:  {entryText("a", "one", "240.0.0.1"), entryText("b", "three", "240.0.0.2"), entryText("a", "two", "240.0.0.3")},
			servicesPath: {serviceText("a", "s", "240.0.0.4"), serviceText("b", "s", "240.0.0.5")},
		}
		stdout, stderr, code := fromLists(t, l)
		if got := listeners(stdout); code != 0 || stderr != "" || got != want {
			t.Errorf("%s: exit code %d: %s\n%s", name, code, got, stderr)
		}
	}
}

func TestAnOlderIstioIsAskedInItsVersion(t *testing.T) {
	l := &lists{items: map[string][]string{olderEntries: {entryText("a", "one", "240.0.0.1")}, servicesPath: nil}}
	if stdout, stderr, code := fromLists(t, l); code != 0 || listeners(stdout) != "240.0.0.1_20880" {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestOnlyTheGivenNamespacesAreAskedFor(t *testing.T) {
	l := &lists{items: map[string][]string{
		"/apis/networking.istio.io/v1/namespaces/a/serviceentries": {entryText("a", "one", "240.0.0.1")}, "/api/v1/namespaces/a/services": nil,
	}}
	if stdout, stderr, code := fromLists(t, l, "--service-namespaces", "a"); code != 0 || listeners(stdout) != "240.0.0.1_20880" || len(l.asked) != 2 {
		t.Errorf("exit code %d, asked %v: %s%s", code, l.asked, stdout, stderr)
	}
}

func TestAnAPIServerThatCannotBeReadIsNoEmptyOutput(t *testing.T) {
	l := &lists{items: map[string][]string{entriesPath: {entryText("a", "one", "240.0.0.1")}}}
	if stdout, stderr, code := fromLists(t, l); code != 2 || stdout != "" || !strings.Contains(stderr, "has no services") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestAFaultyObjectOfTheAPIServerHidesNothingElse(t *testing.T) {
	faulty := `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"bad","namespace":"a"},"spec":{"hosts":5}}`
	l := &lists{items: map[string][]string{entriesPath: {faulty, entryText("a", "one", "240.0.0.1")}, servicesPath: nil}}
	stdout, stderr, code := fromLists(t, l)
	if code != 1 || listeners(stdout) != "240.0.0.1_20880" || !strings.HasPrefix(stderr, "error: ServiceEntry a/bad: spec: ") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}
