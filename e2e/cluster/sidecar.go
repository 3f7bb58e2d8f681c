package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/metards/metards/e2e/process"
	"github.com/metards/metards/e2e/stock"
)

// SidecarOptions say what a pod and its annotations say.
type SidecarOptions struct {
	Name      string // of the pod
	Namespace string // of the pod; its service account is app
	Override  string // what sidecar.istio.io/bootstrapOverride leads to; empty is no such annotation
	Pair      *Pair  // a certificate mounted into the pod; nil is one that the agent gets from istiod by CSR
}

// StartSidecar starts a pilot-agent, which starts Envoy, as the injector would have it in a pod. Two things differ:
// Envoy is a stock one, and nothing redirects connections (interception mode NONE), so a service's listener is bound
// to the service's own address. The process is the agent's; the end of the agent is the end of its Envoy.
func (c *Cluster) StartSidecar(ctx context.Context, o SidecarOptions) (*stock.Envoy, error) {
	ports, err := process.FreePorts(4)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(c.Dir, "pod-"+o.Namespace+"-"+o.Name+"-")
	if err != nil {
		return nil, err
	}
	if err := c.mountPod(ctx, dir, o); err != nil {
		return nil, fmt.Errorf("the files of pod %s/%s: %w", o.Namespace, o.Name, err)
	}
	istiod := fmt.Sprintf("localhost:%d", c.ports.secure)
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": istiod, "binaryPath": filepath.Join(c.bin, "envoy"), "configPath": "./etc/istio/proxy",
		"proxyAdminPort": ports[0], "statusPort": ports[1], "concurrency": 1, "terminationDrainDuration": "0.1s",
		// Istio hides most statistics. The first is what the bootstrap component's README says to set.
		"proxyStatsMatcher": map[string]any{"inclusionRegexps": []string{".*[.]rds[.].*", "cluster[.]metards[.].*", "control_plane[.].*"}},
	})
	if err != nil {
		return nil, err
	}
	env := []string{
		"POD_NAME=" + o.Name, "POD_NAMESPACE=" + o.Namespace, "SERVICE_ACCOUNT=app", "INSTANCE_IP=127.0.0.2", "KUBECONFIG=",
		"ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_CLUSTER_ID=Kubernetes", "PILOT_CERT_PROVIDER=istiod", "CA_ADDR=" + istiod,
		"XDS_ROOT_CA=./var/run/secrets/istio/root-cert.pem", // a mounted certificate would change the default
		fmt.Sprintf("ENVOY_STATUS_PORT=%d", ports[2]), fmt.Sprintf("ENVOY_PROMETHEUS_PORT=%d", ports[3]), "PROXY_CONFIG=" + string(config),
	}
	if o.Override != "" {
		env = append(env, "ISTIO_BOOTSTRAP_OVERRIDE=./etc/istio/custom-bootstrap/custom_bootstrap.json")
	}
	agent, err := process.StartParent(dir, o.Name, filepath.Join(c.bin, "pilot-agent"), env, "proxy", "sidecar",
		"--domain", o.Namespace+".svc.cluster.local", "--templateFile", istioFile("tools/packaging/common/envoy_bootstrap.json"))
	if err != nil {
		return nil, err
	}
	return &stock.Envoy{Process: agent, Admin: fmt.Sprintf("127.0.0.1:%d", ports[0])}, nil
}

// mountPod writes what Kubernetes would mount into the pod.
func (c *Cluster) mountPod(ctx context.Context, dir string, o SidecarOptions) error {
	token, err := c.Token(ctx, o.Namespace, "app", "istio-ca", time.Hour)
	if err != nil {
		return err
	}
	root, err := os.ReadFile(c.RootFile)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"var/run/secrets/tokens/istio-token":  []byte(token),
		"var/run/secrets/istio/root-cert.pem": root,
	}
	if o.Override != "" {
		files["etc/istio/custom-bootstrap/custom_bootstrap.json"] = []byte(o.Override)
	}
	if o.Pair != nil {
		const mounted = "var/run/secrets/workload-spiffe-credentials/"
		chain, err1 := os.ReadFile(o.Pair.CertFile)
		key, err2 := os.ReadFile(o.Pair.KeyFile)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		files[mounted+"cert-chain.pem"], files[mounted+"key.pem"], files[mounted+"root-cert.pem"] = chain, key, root
	}
	for name, data := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// istioFile is a file of the Istio module that the components were built from.
func istioFile(path string) string {
	root, _, _ := strings.Cut(os.Getenv("E2E_ISTIO_CRDS"), "/manifests/")
	return filepath.Join(root, path)
}
