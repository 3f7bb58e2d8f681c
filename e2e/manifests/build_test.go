package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const root = "../../manifests"

// cluster is what an API server would get, by kind and name, strictly decoded.
type cluster map[string]any

// kinds are the types that objects must decode into without an unknown field.
var kinds = map[string]func() any{
	"ConfigMap": func() any { return &corev1.ConfigMap{} }, "Service": func() any { return &corev1.Service{} },
	"ServiceAccount": func() any { return &corev1.ServiceAccount{} }, "Deployment": func() any { return &appsv1.Deployment{} },
	"StatefulSet": func() any { return &appsv1.StatefulSet{} }, "Role": func() any { return &rbacv1.Role{} },
	"ClusterRole": func() any { return &rbacv1.ClusterRole{} }, "RoleBinding": func() any { return &rbacv1.RoleBinding{} },
	"ClusterRoleBinding": func() any { return &rbacv1.ClusterRoleBinding{} }, "NetworkPolicy": func() any { return &networkingv1.NetworkPolicy{} },
	"PodDisruptionBudget":      func() any { return &policyv1.PodDisruptionBudget{} },
	"CustomResourceDefinition": func() any { return &apiextensionsv1.CustomResourceDefinition{} },
	"ServiceMonitor":           func() any { return &map[string]any{} }, // its types are not a dependency worth having
}

// build runs kustomize on a directory.
func build(t *testing.T, dir string) cluster {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	out := cluster{}
	for _, r := range resources.Resources() {
		if r.GetKind() != "CustomResourceDefinition" && !strings.HasPrefix(r.GetKind(), "ClusterRole") && r.GetNamespace() == "" {
			t.Errorf("%s: %s %s has no namespace", dir, r.GetKind(), r.GetName())
		}
		into, known := kinds[r.GetKind()]
		if !known {
			t.Fatalf("%s: %s %s is of a kind that this test does not know", dir, r.GetKind(), r.GetName())
		}
		object := into()
		if err := yaml.UnmarshalStrict([]byte(r.MustYaml()), object); err != nil {
			t.Errorf("%s: %s %s: %v", dir, r.GetKind(), r.GetName(), err)
		}
		out[r.GetKind()+" "+r.GetName()] = object
	}
	return out
}

// get is an object of a cluster.
func get[T any](t *testing.T, c cluster, name string) T {
	t.Helper()
	object, ok := c[name].(T)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	return object
}

// overlay builds a kustomization as a user would write it: of paths below manifests.
func overlay(t *testing.T, namespace string, resources []string, components ...string) cluster {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(dir, manifests)
	if err != nil {
		t.Fatal(err)
	}
	k := types.Kustomization{Namespace: namespace}
	for _, r := range resources {
		k.Resources = append(k.Resources, filepath.Join(up, r))
	}
	for _, c := range components {
		k.Components = append(k.Components, filepath.Join(up, "components", c))
	}
	data, err := yaml.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return build(t, dir)
}

var everything = []string{""}

func TestEveryKustomizationBuilds(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "kustomization.yaml" {
			return err
		}
		name, _ := filepath.Rel(root, filepath.Dir(path))
		t.Run(name, func(t *testing.T) {
			if component, ok := strings.CutPrefix(name, "components/"); ok {
				if component == "sidecar-bootstrap" { // for the namespaces of workloads
					overlay(t, "shop", nil, component)
				} else {
					overlay(t, "", everything, component)
				}
				return
			}
			build(t, filepath.Dir(path))
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("all components together", func(t *testing.T) {
		overlay(t, "", everything, "state-volume", "service-monitor", "aeraki-cutover")
	})
}

func TestEveryFileIsPartOfAKustomizationOrNamedByAReadme(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) == "kustomization.yaml" || filepath.Ext(path) == ".md" {
			return err
		}
		for _, beside := range []string{"kustomization.yaml", "README.md"} {
			text, err := os.ReadFile(filepath.Join(filepath.Dir(path), beside))
			if err == nil && strings.Contains(string(text), filepath.Base(path)) {
				return nil
			}
		}
		t.Errorf("%s is used by nothing beside it", path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
