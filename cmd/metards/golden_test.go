package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each directory in testdata/golden is a case: a sentence for a name, the input in in/, and what validate
// and render (as namespace web) say in out.txt.
func TestValidateAndRenderSayWhatTheGoldensSay(t *testing.T) {
	cases, err := filepath.Glob("testdata/golden/*")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, dir := range cases {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			in := filepath.Join(dir, "in")
			var got bytes.Buffer
			for _, args := range [][]string{{"validate", in}, {"render", in, "--namespace", "web"}} {
				var stdout, stderr bytes.Buffer
				code := run(t.Context(), args, &stdout, &stderr)
				got.WriteString("$ metards " + args[0] + "\n" + strings.ReplaceAll(stdout.String(), in+"/", ""))
				if args[0] == "validate" && stderr.Len() > 0 {
					t.Errorf("validate wrote to standard error: %s", &stderr)
				}
				got.WriteString("exit code " + string(rune('0'+code)) + "\n\n")
			}
			golden := filepath.Join(dir, "out.txt")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", &got, want)
			}
		})
	}
}

func TestWithStrictWarningsFail(t *testing.T) {
	var stdout, stderr bytes.Buffer
	in := filepath.Join("testdata", "golden", "the commonest typo is a host that no service has", "in")
	if code := run(t.Context(), []string{"validate", in, "--strict"}, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

func TestRenderPutsProblemsOnStandardErrorAndTheWholeOutputOnStandardOutput(t *testing.T) {
	for _, output := range []string{"summary", "yaml", "json"} {
		var stdout, stderr bytes.Buffer
		in := filepath.Join("testdata", "golden", "all faults of a MetaRouter are told at once", "in")
		if code := run(t.Context(), []string{"render", in, "-n", "web", "-o", output}, &stdout, &stderr); code != 1 {
			t.Errorf("%s: exit code %d, want 1", output, code)
		}
		if !strings.Contains(stdout.String(), "orders.shop.example") {
			t.Errorf("%s: the output is not complete: %s", output, &stdout)
		}
		if !strings.Contains(stderr.String(), "in/rules.yaml:") {
			t.Errorf("%s: standard error names no place: %s", output, &stderr)
		}
	}
}

// full is an output that takes nothing, as a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAnOutputThatCannotBeWrittenIsNoSuccess(t *testing.T) {
	for _, args := range [][]string{
		{"validate", "../../examples"}, {"validate", "../../examples", "--output", "json"}, {"render", "../../examples", "-n", "web"},
		{"explain", "orders.shop.svc.cluster.local", "--dir", "../../examples", "-n", "web"}, {"envoyfilters", "../../examples"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, full{}, &stderr); code == 0 || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
}
