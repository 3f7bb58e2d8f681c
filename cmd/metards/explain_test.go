package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/tlsboot"
)

func TestExplainSaysWhereARequestGoesAndWhyNotElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"the table in words": {nil, []string{"orders.shop.svc.cluster.local:20880, metaprotocol/dubbo", "MetaRouter shop/orders", `2. canary: method = "get"… -> 90% subset v1`}},
		"a tester":           {[]string{"-a", "tier=beta", "-a", "method=put"}, []string{"1. yes: testers", "cluster outbound|20880|v2|orders.shop.svc.cluster.local\n"}},
		"a reader": {[]string{"-a", "METHOD=getOrder"}, []string{
			`1. no: testers wants tier = "beta", but the request has no tier`, "2. yes: canary",
			"cluster outbound|20880|v1|orders.shop.svc.cluster.local, weight 90", "cluster outbound|20880|v2|orders.shop.svc.cluster.local, weight 10",
		}},
		"a writer": {[]string{"-a", "method=put"}, []string{`2. no: canary wants method = "get"…, but it is "put"`, "3. yes: everything-else"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"explain", "orders.shop.svc.cluster.local:20880", "--dir", "../../examples", "--namespace", "web"}, c.args...)
			if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d: %s", code, &stderr)
			}
			for _, part := range c.says {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("it does not say %q:\n%s", part, &stdout)
				}
			}
		})
	}
}

func explained(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), append([]string{"explain"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestARunningServerExplainsAsItsDirectoryDoes(t *testing.T) {
	r := start(t)
	r.eventually("the server is ready", func() bool { status, _ := r.get("/readyz"); return status == http.StatusOK })
	for name, args := range map[string][]string{
		"the table in words":   {"orders.shop.svc.cluster.local"},
		"a reader":             {"orders.shop.svc.cluster.local:20880", "-a", "METHOD=getOrder"},
		"an = in the value":    {"orders.shop.svc.cluster.local", "-a", "tier=a=b&c d"},
		"a port without table": {"orders.shop.svc.cluster.local:1", "-a", "method=put"},
		"a stranger's host":    {"nobody.knows"},
		"of a gateway":         {"orders.shop.svc.cluster.local", "--gateway"},
	} {
		args = append(args, "--namespace", "web")
		fromDir, saidOfDir, _ := explained(t, append(args, "--dir", r.dir)...)
		fromServer, saidByServer, stderr := explained(t, append(args, "--server", r.adminListener.Addr().String())...)
		if fromDir != fromServer || saidOfDir != saidByServer {
			t.Errorf("%s: the server says (exit code %d)\n%s%s\nits directory (exit code %d)\n%s", name, fromServer, saidByServer, stderr, fromDir, saidOfDir)
		}
	}
}

func TestExplainSaysWhatIsWrongWithTheQuestion(t *testing.T) {
	r := start(t)
	r.eventually("the server is ready", func() bool { status, _ := r.get("/readyz"); return status == http.StatusOK })
	admin := r.adminListener.Addr().String()
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"neither directory nor server":   {[]string{"a.b", "-n", "web"}, 2, "one of --dir and --server"},
		"both":                           {[]string{"a.b", "-n", "web", "--dir", r.dir, "--server", admin}, 2, "one of --dir and --server"},
		"no namespace":                   {[]string{"a.b", "--server", admin}, 2, "--namespace"},
		"a port that is no number":       {[]string{"a.b:x", "-n", "web", "--dir", r.dir}, 2, `"a.b:x" is not HOST:PORT`},
		"an attribute without a value":   {[]string{"a.b", "-n", "web", "--dir", r.dir, "-a", "method"}, 2, `--attribute: the attribute "method" is not NAME=VALUE`},
		"an attribute twice":             {[]string{"a.b", "-n", "web", "--dir", r.dir, "-a", "m=1", "-a", "M=2"}, 2, `"M" is given twice`},
		"nobody listens":                 {[]string{"a.b", "-n", "web", "--server", "127.0.0.1:1"}, 2, "it is the admin port that is asked"},
		"a port alone":                   {[]string{"a.b", "-n", "web", "--server", "15014"}, 2, `--server "15014" is neither HOST:PORT nor a URL`},
		"a blank":                        {[]string{"a.b", "-n", "web", "--server", "a b:1"}, 2, `--server "a b:1" is neither`},
		"another scheme":                 {[]string{"a.b", "-n", "web", "--server", "ftp://127.0.0.1"}, 2, "unsupported protocol scheme"},
		"another page":                   {[]string{"a.b", "-n", "web", "--server", "http://" + admin + "/elsewhere"}, 2, "404 Not Found"},
		"a host that nobody sees":        {[]string{"a.b", "-n", "web", "--server", admin}, 1, `see no MetaProtocol port of "a.b"`},
		"a port that is not of the mesh": {[]string{"orders.shop.svc.cluster.local:1", "-n", "web", "--server", admin}, 1, "is no MetaProtocol port; it has 20880"},
	} {
		code, _, stderr := explained(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit code %d, want %d, and it does not say %q: %s", name, code, c.code, c.says, stderr)
		}
	}
}

func TestAServerWithTLSOnItsAdminPortIsAskedWithTheMeshsRoot(t *testing.T) {
	r := start(t, func(o *serveFlags) { o.adminTLS = true })
	at := "https://" + r.adminListener.Addr().String()
	root := r.flags.identity.root
	var code int
	var stdout, stderr string
	r.eventually("it answers", func() bool {
		code, stdout, stderr = explained(t, "orders.shop.svc.cluster.local", "-n", "web", "--server", at, "--server-root", root)
		return code == 0
	})
	if !strings.Contains(stdout, "2. canary") {
		t.Errorf("it says %s%s", stdout, stderr)
	}
	other, err := tlsboot.NewDevCA("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(file, other.RootPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--server-root", file}, {}, {"--server-root", file + ".missing"}} {
		code, stdout, _ = explained(t, append([]string{"orders.shop.svc.cluster.local", "-n", "web", "--server", at}, args...)...)
		if code != 2 || stdout != "" {
			t.Errorf("with %q: exit code %d, %s", args, code, stdout)
		}
	}
}
