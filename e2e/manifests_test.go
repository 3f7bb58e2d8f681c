package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// rendered is what `kubectl kustomize` gives for a directory.
func rendered(t *testing.T, dir string) string {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheManifestsAreAcceptedByTheAPIServerAndTheirAccountIsEnough(t *testing.T) {
	const ns = "least-privilege"
	namespaces(t, ns)
	if err := mesh.Apply(t.Context(), rendered(t, "../manifests")); err != nil {
		t.Fatal(err)
	}
	d, err := mesh.Kube.AppsV1().Deployments("istio-system").Get(t.Context(), "metards", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var container corev1.Container
	for _, c := range d.Spec.Template.Spec.Containers {
		container = c
	}
	if !strings.Contains(strings.Join(container.Args, " "), "--istiod") {
		t.Errorf("the Deployment's arguments are %q", container.Args)
	}

	// metards with nothing but the rights of the manifests' service account.
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	token, err := mesh.Token(t.Context(), "istio-system", "metards", "https://kubernetes.default.svc", hour)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := t.TempDir() + "/kubeconfig"
	if err := mesh.WriteKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	m := server(t, ns, "--kubeconfig", kubeconfig)
	p := subscribe(t, m, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	wantCondition(t, ns, "orders", "Programmed", "True", "1 of 1")
	if log := m.Log(); strings.Contains(log, "forbidden") || strings.Contains(log, "may not") {
		t.Errorf("the account lacks a right:\n%s", log)
	}
}

func TestTheCRDRefusesAtAdmissionWhatNoProxyCouldUse(t *testing.T) {
	const ns = "admission"
	namespaces(t, ns)
	const head = `
apiVersion: metaprotocol.aeraki.io/v1alpha1
kind: MetaRouter
metadata: {name: bad, namespace: NS}
spec:
`
	for name, spec := range map[string]string{
		"no host":                  "  hosts: []\n",
		"an empty host":            "  hosts: [\"\"]\n",
		"weights that sum to zero": "  hosts: [a.b]\n  routes: [{route: [{destination: {host: a.b}}, {destination: {host: a.b}}]}]\n",
		"no destination":           "  hosts: [a.b]\n  routes: [{route: []}]\n",
		"a negative weight":        "  hosts: [a.b]\n  routes: [{route: [{destination: {host: a.b}, weight: -1}]}]\n",
		"a mirror of 101":          "  hosts: [a.b]\n  routes: [{route: [{destination: {host: a.b}}], mirror: {host: a.b}, mirrorPercentage: {value: 101}}]\n",
		"an empty key":             "  hosts: [a.b]\n  routes: [{route: [{destination: {host: a.b}}], requestMutation: [{key: \"\", value: b}]}]\n",
		"exact and prefix":         "  hosts: [a.b]\n  routes: [{match: {attributes: {m: {exact: a, prefix: b}}}, route: [{destination: {host: a.b}}]}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			if err := mesh.Apply(t.Context(), strings.ReplaceAll(head+spec, "NS", ns)); err == nil {
				t.Error("it is admitted")
			} else if !strings.Contains(err.Error(), "spec") {
				t.Errorf("the refusal names no field: %v", err)
			}
		})
	}
}
