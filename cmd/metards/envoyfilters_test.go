package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each directory is a case: a sentence for a name, the input in in/, further flags in flags, and what the command
// prints, first to standard output, then to standard error, in out.txt.
func TestEnvoyFiltersPrintsWhatTheGoldensSay(t *testing.T) {
	cases, err := filepath.Glob("testdata/envoyfilters/*")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, dir := range cases {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			in := filepath.Join(dir, "in")
			flags, err := os.ReadFile(filepath.Join(dir, "flags"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"envoyfilters", in}, strings.Fields(string(flags))...), &stdout, &stderr)
			got := stdout.String() + "\n$ standard error\n" + strings.ReplaceAll(stderr.String(), in+"/", "") + "exit code " + string(rune('0'+code)) + "\n"
			golden := filepath.Join(dir, "out.txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestTheExampleInTheDocumentIsWhatTheProgramPrints(t *testing.T) {
	const open, end = "```yaml\n# Outbound", "```\n"
	file := filepath.Join("..", "..", "docs", "envoyfilters.md")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), open)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("docs/envoyfilters.md has no example")
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"envoyfilters", filepath.Join("..", "..", "examples", "thrift-canary")}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	want := before + "```yaml\n" + stdout.String() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		data = []byte(want)
	}
	if string(data) != want {
		t.Errorf("docs/envoyfilters.md does not have what the program prints: go test ./cmd/metards -run TheExampleInTheDocument -update")
	}
}

func TestEnvoyFiltersOfAWrongUseOrOfNothing(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	empty := t.TempDir()
	warned := "testdata/envoyfilters/services that cannot have one are warnings, faulty objects errors/in"
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no directory and no cluster": {nil, 2, "no directory is given, so services are read from the API server: no kubeconfig is given"},
		"two directories":             {[]string{"a", "b"}, 2, "want one directory, or none"},
		"no such directory":           {[]string{empty + "/none"}, 2, "no such file"},
		"an unknown filter":           {[]string{empty, "--filter", "tcp"}, 2, `--filter "tcp" is not known`},
		"a codec without a name":      {[]string{empty, "--codec", "x"}, 2, `--codec "x" is not NAME=CODEC`},
		"a name that no port can say": {[]string{empty, "--codec", "a-b=c"}, 2, "has no hyphen"},
		"no cluster":                  {[]string{empty, "--cluster", ""}, 2, "--cluster must not be empty"},
		"an empty directory":          {[]string{empty}, 1, "nothing to print: no ServiceEntry or Service was found"},
		"a namespace without any":     {[]string{warned, "--service-namespaces", "other"}, 1, "nothing to print: no ServiceEntry or Service was found in the namespaces [other]"},
		"warnings with --strict":      {[]string{"testdata/golden/the commonest typo is a host that no service has/in", "--strict"}, 1, "no address"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"envoyfilters"}, c.args...), &stdout, &stderr)
		if code != c.code || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d: %s%s", name, code, &stdout, &stderr)
		}
	}
}

func TestACodecOfOnesOwnIsGivenByName(t *testing.T) {
	in := "testdata/envoyfilters/services that cannot have one are warnings, faulty objects errors/in"
	var stdout, stderr bytes.Buffer
	run(t.Context(), []string{"envoyfilters", in, "--codec", "mine=codec.of.mine"}, &stdout, &stderr)
	if !strings.Contains(stdout.String(), "name: codec.of.mine\n") || strings.Contains(stderr.String(), "--codec") {
		t.Errorf("got:\n%s%s", &stdout, &stderr)
	}
}
