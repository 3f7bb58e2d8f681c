package envoy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/metards/metards/e2e/process"
)

// repository is where the READMEs are.
const repository = "../.."

// commands returns the blocks of commands in a text: what is indented.
func commands(text string) []string {
	var out []string
	block := ""
	for line := range strings.Lines(text + "\nend") {
		switch {
		case strings.HasPrefix(line, "    "):
			block += line[4:]
		case strings.TrimSpace(line) != "" && block != "":
			out, block = append(out, block), ""
		}
	}
	return out
}

// expected is what the blocks of commands in examples/envoy/README.md are about, and what they should print. Traffic follows an edit within
// milliseconds, and Envoy needs a moment to start, so blocks with curl are tried again until they do.
var expected = []struct{ about, prints string }{
	{"make build envoy", ""}, // make e2e-envoy has run it
	{"dev-certs", `(?s)^certs/server.pem: spiffe://cluster.local/ns/istio-system/sa/metards until .*certs/proxy.pem: spiffe://cluster.local/ns/web/sa/default until .*$`},
	{"metards serve", `^$`},
	{"tier: beta", `^orders v2\n +\d+ orders v1\n +\d+ orders v2\norders v1\n$`},
	{"metards explain", `(?s)1\. no: testers.*2\. yes: canary.*\|v1\|.*weight 90\n.*\|v2\|.*weight 10\n$`},
	{"weight: 100", `^$`},
	{"for i in", `^ +100 orders v2\n$`},
	{"regex: (get", `(?s)rules/orders.yaml:\d+: error: MetaRouter shop/orders: .*the regex "\(get" is not RE2.*1 error`},
	{"method: getOrder", `^orders v2\n$`},
	{"debug/proxies", `(?s)"state": "accepted".*"type": "listeners".*version_text: "[0-9a-f]{32}"\n.*config_reload: 2\n`},
	{"kill %1", `^orders v2\n$`},
}

func TestTheReadmeOfTheEnvoyExampleDoesWhatItSays(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "examples/envoy/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := commands(string(text))
	if len(blocks) != len(expected) {
		t.Fatalf("the README has %d blocks of commands, %d are expected", len(blocks), len(expected))
	}
	sh := openShell(t)
	for i, want := range expected {
		what := "README: " + strings.SplitN(blocks[i], "\n", 2)[0]
		if !strings.Contains(blocks[i], want.about) {
			t.Fatalf("block %d is %q, and not about %q", i, blocks[i], want.about)
		}
		if want.prints == "" {
			continue
		}
		prints := regexp.MustCompile(want.prints)
		if !strings.Contains(blocks[i], "curl") || strings.Contains(blocks[i], "kill") {
			seen := sh.run(blocks[i])
			report.Holds(t, what, want.prints, fmt.Sprintf("%q", seen), prints.MatchString(seen))
			continue
		}
		report.Until(t, what, want.prints, func() (string, bool, error) {
			seen := sh.run(blocks[i])
			return fmt.Sprintf("%q", seen), prints.MatchString(seen), nil
		}, sh)
	}
}

func TestTheCommandsInTheMainReadmeAreThoseOfTheEnvoyExample(t *testing.T) {
	main, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(main), "## See it with a real Envoy\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !ok {
		t.Fatal("there is no such section")
	}
	example, err := os.ReadFile(filepath.Join(repository, "examples/envoy/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	in := strings.Join(commands(string(example)), "")
	for _, block := range commands(section) {
		for line := range strings.Lines(block) {
			if !strings.Contains(in, line) {
				t.Errorf("%q is not in examples/envoy/README.md, where it would be tested", line)
			}
		}
	}
}

// shell is a reader of the README at work: a bash in a directory that looks like the repository. The ports of the
// example are replaced by free ones.
type shell struct {
	t     *testing.T
	ports *strings.Replacer
	log   string
	in    io.Writer
	out   *bufio.Reader
}

func openShell(t *testing.T) *shell {
	t.Helper()
	dir := t.TempDir()
	s := &shell{t: t, log: filepath.Join(dir, "log")}
	free, err := process.FreePorts(6)
	s.must(err)
	var pairs []string
	for i, port := range []string{"10000", "10081", "10082", "15010", "15014", "9901"} {
		pairs = append(pairs, port, fmt.Sprint(free[i]))
	}
	s.ports = strings.NewReplacer(pairs...)
	s.must(os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(repository, "examples"))))
	for _, name := range []string{"bootstrap.yaml", "xds.yaml"} {
		file := filepath.Join(dir, "examples/envoy", name)
		data, err := os.ReadFile(file)
		s.must(err)
		s.must(os.WriteFile(file, []byte(s.ports.Replace(string(data))), 0o644))
	}
	for link, binary := range map[string]string{"bin/metards": os.Getenv("METARDS"), ".cache/bin/envoy": filepath.Join(os.Getenv("E2E_BIN"), "envoy")} {
		s.must(os.MkdirAll(filepath.Join(dir, filepath.Dir(link)), 0o755))
		s.must(os.Symlink(binary, filepath.Join(dir, link)))
	}
	log, err := os.Create(s.log)
	s.must(err)
	defer func() { _ = log.Close() }()
	bash := exec.Command("bash", "--noprofile", "--norc")
	bash.Dir, bash.Stderr = dir, log
	bash.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	bash.Env = append(os.Environ(), s.ports.Replace("METARDS_LISTEN=127.0.0.1:15010"), s.ports.Replace("METARDS_ADMIN_LISTEN=127.0.0.1:15014"), "METARDS_GRACE_PERIOD=100ms")
	in, err := bash.StdinPipe()
	s.must(err)
	out, err := bash.StdoutPipe()
	s.must(err)
	s.must(bash.Start())
	s.in, s.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		_ = in.Close() // bash ends, and with it what it left running
		_ = bash.Wait()
	})
	_, err = fmt.Fprintln(in, `trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT`)
	s.must(err)
	return s
}

func (s *shell) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// run returns what commands print.
func (s *shell) run(block string) string {
	s.t.Helper()
	const end = "==== end of the block"
	_, err := fmt.Fprintf(s.in, "%s\necho '%s'\n", strings.TrimSuffix(s.ports.Replace(block), "\n"), end)
	s.must(err)
	var printed strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("the shell ended: %v\n%s", err, s)
		}
		if line == end+"\n" {
			return printed.String()
		}
		printed.WriteString(line)
	}
}

// String is what went to standard error.
func (s *shell) String() string {
	data, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
