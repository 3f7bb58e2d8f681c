package kubeclient_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/kubeclient"
)

const (
	cluster    = "apiVersion: v1\nkind: Config\nclusters:\n- {name: here, cluster: {server: 'https://127.0.0.1:6443', certificate-authority: ca.crt}}\n"
	user       = "users:\n- {name: me, user: {token: secret}}\n"
	oneContext = "contexts:\n- {name: only, context: {cluster: here, user: me}}\n"
)

func TestAKubeconfigIsRead(t *testing.T) {
	for name, text := range map[string]string{
		"with a current context":    cluster + user + oneContext + "current-context: only\n",
		"with one context":          cluster + user + oneContext,
		"written as JSON in a file": `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"here","cluster":{"server":"https://127.0.0.1:6443","certificate-authority":"ca.crt"}}],"users":[{"name":"me","user":{"token":"secret"}}],"contexts":[{"name":"only","context":{"cluster":"here","user":"me"}}],"current-context":"only"}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, text)
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), "ca.crt"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := kubeclient.Config(file)
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != "https://127.0.0.1:6443" || config.BearerToken != "secret" || config.CAFile != filepath.Join(filepath.Dir(file), "ca.crt") {
				t.Errorf("host %s, token %s, CA %s", config.Host, config.BearerToken, config.CAFile)
			}
			if config.UserAgent != "metards" || config.QPS <= 0 || config.Timeout != 0 {
				t.Errorf("agent %s, QPS %v, timeout %s, which would end watches", config.UserAgent, config.QPS, config.Timeout)
			}
		})
	}
}

func TestABadKubeconfigIsNamed(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1") // must not be taken instead
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	for name, c := range map[string]struct{ text, want string }{
		"unparsable":    {"a: [", "yaml"},
		"empty":         {"", "no current-context"},
		"no context":    {cluster + user + strings.ReplaceAll(oneContext, "only", "a") + "- {name: b, context: {cluster: here, user: me}}\n", "no current-context"},
		"wrong context": {cluster + user + oneContext + "current-context: other\n", "other"},
	} {
		file := write(t, c.text)
		_, err := kubeclient.Config(file)
		if err == nil || !strings.Contains(err.Error(), "kubeconfig "+file) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := kubeclient.Config(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
}

func TestWithoutKubeconfigThereMustBeACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := kubeclient.Config(""); err == nil || !strings.Contains(err.Error(), "give a kubeconfig file, or run in a pod") {
		t.Errorf("got %v", err)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
