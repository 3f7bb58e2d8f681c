package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOutsideTheRootNamespaceItSaysWhatToChange(t *testing.T) {
	const ns = "elsewhere"
	namespaces(t, ns)
	m := startServer(t, "outside", "--token", tokenFile(t, ns, "metards"), "--pod-namespace", ns)
	eventually(t, "readiness says what to change", func() error {
		code, body := m.Get("/readyz")
		if code == 503 && strings.Contains(body, "root namespace") {
			return nil
		}
		return fmt.Errorf("/readyz says %d %s", code, body)
	})
	<-time.After(3 * time.Second) // in which a hot loop would show
	if n := strings.Count(m.Log(), "root namespace"); n == 0 || n > 3 {
		t.Errorf("the log names the cause %d times, want once or so", n)
	}
}

func TestBadSettingsAreToldInOneLine(t *testing.T) {
	expired := t.TempDir() + "/token"
	if err := os.WriteFile(expired, []byte("not-a-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrongAudience := t.TempDir() + "/token"
	token, err := mesh.Token(t.Context(), "istio-system", "metards", "https://kubernetes.default.svc", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wrongAudience, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		flags []string
		says  string
	}{
		"garbage-token":  {[]string{"--token", expired}, "token"},
		"wrong-audience": {[]string{"--token", wrongAudience}, "token"},
		"missing-token":  {[]string{"--token", "/nonexistent/token"}, "/nonexistent/token"},
		"wrong-name":     {[]string{"--istiod-server-name", "istiod.wrong.svc"}, "istiod.wrong.svc"},
		"unreachable":    {[]string{"--istiod", "127.0.0.1:1"}, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startServer(t, "bad-"+name, c.flags...)
			eventually(t, "readiness names it", func() error {
				code, body := m.Get("/readyz")
				if code == 503 && strings.Contains(body, c.says) {
					return nil
				}
				return fmt.Errorf("/readyz says %d %s", code, body)
			})
			_, body := m.Get("/readyz")
			t.Logf("/readyz: %s", strings.TrimSpace(body))
		})
	}
}

func TestRBACTakenAwayAndGivenBackIsSurvived(t *testing.T) {
	const ns = "rbac"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	token, err := mesh.Token(t.Context(), ns, "limited", "https://kubernetes.default.svc", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := t.TempDir() + "/kubeconfig"
	if err := mesh.WriteKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	m := startServer(t, ns, "--kubeconfig", kubeconfig)
	eventually(t, "readiness says what is forbidden", func() error {
		code, body := m.Get("/readyz")
		if code == 503 && strings.Contains(body, "list") && strings.Contains(body, "metarouters") {
			return nil
		}
		return fmt.Errorf("/readyz says %d %s", code, body)
	})
	bindings := mesh.Kube.RbacV1().ClusterRoleBindings()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-limited"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "limited", Namespace: ns}},
	}
	if _, err := bindings.Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := subscribe(t, m, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	if err := bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	late := subscribe(t, m, rds(), ns, orders(ns))
	late.want(orders(ns), canaryRoutes(ns, 90, 10))
}

func TestTheCRDDeletedAndAppliedAgainTakesNothingAway(t *testing.T) {
	const ns = "crd-gone"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	m := server(t, ns)
	p := subscribe(t, m, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	crds := mesh.Dynamic.Resource(crdResource)
	if err := crds.Delete(t.Context(), "metarouters.metaprotocol.aeraki.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the CRD is gone", func() error {
		_, err := crds.Get(t.Context(), "metarouters.metaprotocol.aeraki.io", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is still there")
	})
	late := subscribe(t, m, rds(), ns, orders(ns))
	late.want(orders(ns), canaryRoutes(ns, 90, 10))
	if err := installMetaRouterCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "MetaRouters can be applied again", func() error {
		return mesh.Apply(t.Context(), strings.ReplaceAll(canary(30, 70), "NS", ns))
	})
	p.want(orders(ns), canaryRoutes(ns, 30, 70))
	late.want(orders(ns), canaryRoutes(ns, 30, 70))
}
