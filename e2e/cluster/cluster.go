package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/metards/metards/e2e/process"
)

// Cluster is a control plane on loopback: etcd, kube-apiserver and istiod.
type Cluster struct {
	Dir        string
	Kubeconfig string // of an administrator
	Config     *rest.Config
	Kube       kubernetes.Interface
	Dynamic    dynamic.Interface
	Istiod     string // HOST:PORT of the port with TLS
	RootFile   string // the mesh's root

	bin       string
	ports     ports
	etcd      *process.Process
	apiserver *process.Process
	istiod    *process.Process
}

type ports struct{ etcd, peer, api, grpc, secure, http, https, monitoring int }

const adminToken = "e2e-admin"

// Binaries is the directory with the components' binaries, which make e2e builds.
func Binaries() (string, error) {
	dir := os.Getenv("E2E_BIN")
	if dir == "" {
		return "", errors.New("E2E_BIN is not set: run make e2e")
	}
	return dir, nil
}

// Start starts everything. Stop must be called, also after an error.
func Start(ctx context.Context, dir string) (*Cluster, error) {
	c := &Cluster{Dir: dir, RootFile: filepath.Join(dir, "root-cert.pem"), Kubeconfig: filepath.Join(dir, "kubeconfig")}
	var err error
	if c.bin, err = Binaries(); err != nil {
		return c, err
	}
	list, err := process.FreePorts(8)
	if err != nil {
		return c, err
	}
	c.ports = ports{list[0], list[1], list[2], list[3], list[4], list[5], list[6], list[7]}
	c.Istiod = fmt.Sprintf("127.0.0.1:%d", c.ports.secure)
	for _, step := range []func(context.Context) error{
		c.startEtcd, c.writeKeys, c.StartAPIServer, c.connect, c.namespaces, c.installIstioCRDs, c.StartIstiod, c.fetchRoot,
	} {
		if err := step(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Stop ends everything.
func (c *Cluster) Stop() {
	c.istiod.Stop()
	c.apiserver.Stop()
	c.etcd.Stop()
}

func (c *Cluster) startEtcd(context.Context) error {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd), fmt.Sprintf("http://127.0.0.1:%d", c.ports.peer)
	var err error
	c.etcd, err = process.Start(c.Dir, "etcd", filepath.Join(c.bin, "etcd"), nil,
		"--data-dir", filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync", "--name=e2e", "--initial-cluster=e2e="+peer,
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer)
	if err != nil {
		return err
	}
	return c.etcd.Ready(func() error { return get(http.DefaultClient, client+"/health") })
}

func get(client *http.Client, url string) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// writeKeys writes the key that signs service account tokens, and the administrator's token.
func (c *Cluster) writeKeys(context.Context) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return errors.Join(
		os.WriteFile(filepath.Join(c.Dir, "sa.key"), pem.EncodeToMemory(block), 0o600),
		os.WriteFile(filepath.Join(c.Dir, "tokens.csv"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600),
	)
}

// StartAPIServer starts the API server, on the same port and data each time.
func (c *Cluster) StartAPIServer(context.Context) error {
	key := filepath.Join(c.Dir, "sa.key")
	var err error
	c.apiserver, err = process.Start(c.Dir, "apiserver", filepath.Join(c.bin, "kube-apiserver"), nil,
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.ports.etcd), fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--bind-address=127.0.0.1", "--endpoint-reconciler-type=none", "--cert-dir="+filepath.Join(c.Dir, "apiserver"),
		"--authorization-mode=RBAC", "--token-auth-file="+filepath.Join(c.Dir, "tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--api-audiences=https://kubernetes.default.svc,istio-ca",
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true")
	if err != nil {
		return err
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // self-signed, loopback
	return c.apiserver.Ready(func() error { return get(insecure, c.server()+"/readyz") })
}

// StopAPIServer ends the API server at once.
func (c *Cluster) StopAPIServer() { c.apiserver.Kill() }

func (c *Cluster) server() string { return fmt.Sprintf("https://127.0.0.1:%d", c.ports.api) }

func (c *Cluster) connect(context.Context) error {
	if err := c.WriteKubeconfig(c.Kubeconfig, adminToken); err != nil {
		return err
	}
	var err error
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS, c.Config.Burst = 1000, 1000
	if c.Kube, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	c.Dynamic, err = dynamic.NewForConfig(c.Config)
	return err
}

// WriteKubeconfig writes a kubeconfig for a bearer token.
func (c *Cluster) WriteKubeconfig(file, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["e2e"] = &clientcmdapi.Cluster{Server: c.server(), CertificateAuthority: filepath.Join(c.Dir, "apiserver", "apiserver.crt")}
	config.AuthInfos["e2e"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	config.CurrentContext = "e2e"
	return clientcmd.WriteToFile(*config, file)
}

func (c *Cluster) discovery() (discovery.DiscoveryInterface, error) {
	return discovery.NewDiscoveryClientForConfig(c.Config)
}

const meshConfig = `defaultConfig:
  discoveryAddress: istiod.istio-system.svc:15012
trustDomain: cluster.local
rootNamespace: istio-system
`

// StartIstiod starts istiod, on the same ports each time.
func (c *Cluster) StartIstiod(context.Context) error {
	config := filepath.Join(c.Dir, "mesh.yaml")
	if err := os.WriteFile(config, []byte(meshConfig), 0o644); err != nil {
		return err
	}
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	var err error
	c.istiod, err = process.Start(c.Dir, "istiod", filepath.Join(c.bin, "pilot-discovery"), []string{
		"POD_NAMESPACE=istio-system", "POD_NAME=istiod-e2e", "INJECT_ENABLED=false", "VALIDATION_ENABLED=false",
		"PILOT_CERT_PROVIDER=istiod", "CLUSTER_ID=Kubernetes", "ISTIOD_CUSTOM_HOST=localhost", "PILOT_ENABLE_METADATA_EXCHANGE=false",
	}, "discovery", "--kubeconfig", c.Kubeconfig, "--meshConfig", config, "--grpcAddr", at(c.ports.grpc),
		"--secureGRPCAddr", at(c.ports.secure), "--httpAddr", at(c.ports.http), "--httpsAddr", at(c.ports.https),
		"--monitoringAddr", at(c.ports.monitoring), "--ctrlz_port=0")
	if err != nil {
		return err
	}
	return c.istiod.Ready(func() error { return get(http.DefaultClient, "http://"+at(c.ports.http)+"/ready") })
}

// StopIstiod ends istiod at once.
func (c *Cluster) StopIstiod() { c.istiod.Kill() }

// PlainIstiod is HOST:PORT of istiod's port without TLS.
func (c *Cluster) PlainIstiod() string { return fmt.Sprintf("127.0.0.1:%d", c.ports.grpc) }
