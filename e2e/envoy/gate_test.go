package envoy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The files that the gate's tests read.
const (
	gateDoc     = "../../docs/envoy-gate.md"
	gateVectors = "../../pkg/routes/testdata/vectors"
)

// gateLine is a line of the document: a part of a route, and what Envoy says of the table.
type gateLine struct{ what, route, says string }

// gateLines reads the tables of the document.
func gateLines(t *testing.T) []gateLine {
	t.Helper()
	text, err := os.ReadFile(gateDoc)
	if err != nil {
		t.Fatal(err)
	}
	var out []gateLine
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || !strings.HasPrefix(cells[1], "`") {
			continue
		}
		out = append(out, gateLine{
			what: strings.TrimPrefix(cells[0], "| "), route: strings.Trim(cells[1], "`"), says: strings.Trim(strings.TrimSuffix(cells[2], " |"), "`"),
		})
	}
	if len(out) < 15 {
		t.Fatalf("%s has %d lines, was its form changed?", gateDoc, len(out))
	}
	return out
}

// gateProblem is a Problem as metards validate prints it.
type gateProblem struct {
	Object   struct{ Name string }
	Severity string
	Reason   string
	Detail   string
}

// gateValidate runs metards validate --with-envoy on a directory.
func gateValidate(t *testing.T, dir string) []gateProblem {
	t.Helper()
	metards, bin := os.Getenv("METARDS"), os.Getenv("E2E_BIN")
	if metards == "" || bin == "" {
		t.Fatal("METARDS and E2E_BIN are not set: run make e2e")
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(metards, "validate", dir, "--output", "json", "--with-envoy", filepath.Join(bin, "envoy"))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != 1 { // 1 is that there are errors
		t.Fatalf("%v: %v\n%s", cmd.Args, err, &stderr)
	}
	var out []gateProblem
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// gateObjects are a service and its MetaRouter, whose one route has a part of its own.
func gateObjects(t *testing.T, name, part string) string {
	t.Helper()
	host := name + ".shop.example"
	route := map[string]any{"name": "only", "route": []any{map[string]any{"destination": map[string]any{"host": host}}}}
	if err := json.Unmarshal([]byte(part), &route); err != nil {
		t.Fatalf("%s: %v", part, err)
	}
	object := func(apiVersion, kind string, spec map[string]any) string {
		data, err := json.Marshal(map[string]any{
			"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": "shop"}, "spec": spec,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(data) + "\n---\n"
	}
	return object("networking.istio.io/v1", "ServiceEntry", map[string]any{
		"hosts": []any{host}, "ports": []any{map[string]any{"number": 20880, "name": "tcp-metaprotocol-dubbo"}},
	}) + object("metaprotocol.aeraki.io/v1alpha1", "MetaRouter", map[string]any{"hosts": []any{host}, "routes": []any{route}})
}

func TestEnvoySaysOfEachStrangeTableWhatTheDocumentSays(t *testing.T) {
	dir, lines := t.TempDir(), gateLines(t)
	for i, l := range lines {
		name := fmt.Sprintf("line%d", i)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(gateObjects(t, name, l.route)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said := map[string]string{}
	for _, p := range gateValidate(t, dir) {
		switch {
		case p.Reason == "RefusedByEnvoy":
			_, reason, _ := strings.Cut(p.Detail, "_20880: ")
			said[p.Object.Name] = reason
		case p.Severity == "error":
			t.Errorf("metards itself finds a fault, so Envoy was not asked: %+v", p)
		}
	}
	for i, l := range lines {
		got, refused := said[fmt.Sprintf("line%d", i)]
		if !refused {
			got = "taken"
		}
		if got != l.says {
			t.Errorf("%s: Envoy says %q, the document %q", l.what, got, l.says)
		}
	}
}

func TestEnvoyTakesEveryTableOfTheVectors(t *testing.T) {
	list, err := os.ReadDir(gateVectors)
	if err != nil {
		t.Fatal(err)
	}
	vectors := 0
	for _, entry := range list {
		if !entry.IsDir() {
			continue
		}
		vectors++
		for _, p := range gateValidate(t, filepath.Join(gateVectors, entry.Name())) {
			if p.Reason == "RefusedByEnvoy" {
				t.Errorf("%s: %s", entry.Name(), p.Detail)
			}
		}
	}
	if vectors == 0 {
		t.Error("there are no vectors")
	}
}
