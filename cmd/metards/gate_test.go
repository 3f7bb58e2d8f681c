package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/metards/metards/examples"
	"github.com/metards/metards/internal/sampleproxy"
)

// fakeEnvoy refuses what the gate's probe wants refused, and weights of 13.
const fakeEnvoy = `#!/bin/sh
config=$(cat)
case "$config" in
*'":path"'*|*'"weight":13}'*) echo "error initializing configuration '/dev/fd/0': no such weight" >&2; exit 1 ;;
esac
`

func writeScript(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestWhatEnvoyRefusesIsNotServedAndTheNextGoodEditIs(t *testing.T) {
	for _, form := range []sampleproxy.Form{sampleproxy.Forms()[0], sampleproxy.Forms()[3]} {
		t.Run(form.Name, func(t *testing.T) {
			envoy := filepath.Join(t.TempDir(), "envoy")
			writeScript(t, envoy, fakeEnvoy)
			r := start(t, func(o *serveFlags) { o.gate.envoy = envoy })
			r.eventually("it is ready", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
			s := r.proxy(form, "web", ordersTable)
			if w := firstWeight(t, r.accept(s)); w != 90 {
				t.Fatalf("the canary starts with %d", w)
			}
			r.replace("dubbo-canary/orders.yaml", "weight: 90", "weight: 13", "weight: 10", "weight: 87")
			r.eventually("it is a Problem of the MetaRouter", func() bool {
				return strings.Contains(r.log.String(), `reason=RefusedByEnvoy detail="Envoy refuses the table `+ordersTable+`: no such weight" object="MetaRouter shop/orders`)
			})
			if _, body := r.get("/debug/proxies"); !strings.Contains(body, `"objection": "no such weight"`) {
				t.Errorf("the page does not say why: %s", body)
			}
			if _, body := r.get("/metrics"); !strings.Contains(body, `metards_gate_runs_total{result="refused"}`) {
				t.Error("the runs are not counted")
			}
			r.replace("dubbo-canary/orders.yaml", "weight: 13", "weight: 30", "weight: 87", "weight: 70")
			if w := firstWeight(t, r.accept(s)); w != 30 {
				t.Errorf("after the good edit the weight is %d", w)
			}
		})
	}
}

func TestAServerWhoseEnvoyHasNeverWorkedIsNotReadyAndOneWhoseEnvoyBreaksStaysReady(t *testing.T) {
	envoy := filepath.Join(t.TempDir(), "envoy")
	writeScript(t, envoy, "#!/bin/sh\nexit 0\n")
	r := start(t, func(o *serveFlags) { o.gate.envoy = envoy })
	r.eventually("readiness says why it is not", func() bool {
		code, body := r.get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "Envoy at "+envoy+" cannot judge tables: it takes a table that every Envoy refuses")
	})
	s := r.proxy(sampleproxy.Forms()[0], "web", ordersTable)
	writeScript(t, envoy, fakeEnvoy)
	r.accept(s)
	if code, body := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("once it works /readyz says %d %s", code, body)
	}
	if err := os.Remove(envoy); err != nil {
		t.Fatal(err)
	}
	r.eventually("it is a Problem", func() bool { return strings.Contains(r.log.String(), "no such file or directory") })
	if code, body := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("once it is gone /readyz says %d %s", code, body)
	}
}

func TestAnEnvoyThatIsNotThereIsAFaultOfTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, examples.Files); err != nil {
		t.Fatal(err)
	}
	var o serveFlags
	o.register(&cobra.Command{})
	certificates(t, &o)
	o.sources.dir, o.listen, o.adminListen = dir, "127.0.0.1:0", "127.0.0.1:0"
	o.gate.envoy = filepath.Join(dir, "none")
	if _, err := newServer(o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--validate-with-envoy") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without the file the start says: %v", err)
	}
	o.gate.timeout = 0
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "--validate-timeout") {
		t.Errorf("a timeout of 0 is: %v", err)
	}
}

func TestValidateWithAnEnvoyPrintsItsRefusalsWithTheirPlace(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, examples.Files); err != nil {
		t.Fatal(err)
	}
	envoy := filepath.Join(t.TempDir(), "envoy")
	validate := func(script string) (code int, stdout, stderr string) {
		writeScript(t, envoy, script)
		var out, errors bytes.Buffer
		code = run(t.Context(), []string{"validate", dir, "--with-envoy", envoy}, &out, &errors)
		return code, out.String(), errors.String()
	}
	if code, out, _ := validate(fakeEnvoy); code != 0 {
		t.Errorf("of good tables it says %d %s", code, out)
	}
	code, out, _ := validate(strings.Replace(fakeEnvoy, `"weight":13`, `"weight":90`, 1))
	if want := "error: MetaRouter shop/orders: Envoy refuses the table " + ordersTable + ": no such weight [RefusedByEnvoy]"; code != 1 || !strings.Contains(out, want) || !strings.HasPrefix(out, dir+"/dubbo-canary/orders.yaml:") {
		t.Errorf("of a bad table it says %d %s", code, out)
	}
	var stdout, stderr bytes.Buffer // as of --with-envoy "$ENVOY" where nobody has set it
	if code := run(t.Context(), []string{"validate", dir, "--with-envoy", ""}, &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), "--with-envoy is empty") {
		t.Errorf("with an empty path it says %d %s%s", code, &stdout, &stderr)
	}
	if code, _, err := validate("#!/bin/sh\nexit 0\n"); code != 2 || !strings.Contains(err, "cannot judge tables") {
		t.Errorf("by what is no Envoy it says %d %s", code, err)
	}
}
