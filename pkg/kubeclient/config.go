package kubeclient

import (
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// qps and burst bound our requests per second. We list, watch and look at one definition; more is a fault.
	qps   = 20
	burst = 40
)

// RequestTimeout is how long a request other than a watch may take.
const RequestTimeout = 30 * time.Second

// Config returns how to reach the API server: as the kubeconfig file says if one is given, else as the pod
// that we run in. Watches have no deadline of their own; a dead connection is noticed by HTTP/2 pings, which
// client-go sends after 30 s of silence.
func Config(kubeconfig string) (*rest.Config, error) {
	var (
		config *rest.Config
		err    error
	)
	if kubeconfig != "" {
		config, err = fromFile(kubeconfig)
	} else {
		config, err = fromCluster()
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = qps, burst, "metards"
	config.WarningHandler = rest.NoWarnings{} // they are for people who apply things, and would go to klog's output
	return config, nil
}

func fromFile(name string) (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(name)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	if file.CurrentContext == "" && len(file.Contexts) != 1 {
		return nil, fmt.Errorf("kubeconfig %s: it has no current-context, so it names no API server (kubectl config use-context NAME sets one)", name)
	}
	for context := range file.Contexts {
		if file.CurrentContext == "" {
			file.CurrentContext = context
		}
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*file, "", &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	return config, nil
}

func fromCluster() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("no kubeconfig is given, and there is no cluster around us (KUBERNETES_SERVICE_HOST is not set): give a kubeconfig file, or run in a pod")
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("the pod has no service account token (automountServiceAccountToken must be true, or the token be projected there): %w", err)
	case err != nil:
		return nil, fmt.Errorf("read the pod's service account: %w", err)
	}
	return config, nil
}
