package e2e

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// condition returns a condition of a MetaRouter, for its current generation only.
func condition(t *testing.T, namespace, name, kind string) (status, reason, message string, err error) {
	t.Helper()
	o, err := mesh.Dynamic.Resource(metaRouters).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "", "", "", err
	}
	list, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return "", "", "", err
	}
	for _, c := range list {
		m, ok := c.(map[string]any)
		if ok && m["type"] == kind && m["observedGeneration"] == o.GetGeneration() {
			return fmt.Sprint(m["status"]), fmt.Sprint(m["reason"]), fmt.Sprint(m["message"]), nil
		}
	}
	return "", "", "", fmt.Errorf("no condition %s for generation %d: %v", kind, o.GetGeneration(), list)
}

// wantCondition waits until a condition is as wanted and its reason or message says what it should.
func wantCondition(t *testing.T, namespace, name, kind, status string, says ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s of %s/%s is %s", kind, namespace, name, status), func() error {
		got, reason, message, err := condition(t, namespace, name, kind)
		if err != nil {
			return err
		}
		if got != status {
			return fmt.Errorf("it is %s, %s: %s", got, reason, message)
		}
		for _, s := range says {
			if !strings.Contains(reason+" "+message, s) {
				return fmt.Errorf("it does not say %q: %s: %s", s, reason, message)
			}
		}
		return nil
	})
}

func TestTheConditionsTellHowFarAMetaRouterHasCome(t *testing.T) {
	const ns = "conditions"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	m := server(t, ns)
	wantCondition(t, ns, "orders", "Accepted", "True")
	wantCondition(t, ns, "orders", "Programmed", "Unknown", "NoProxies")

	p := subscribe(t, m, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	wantCondition(t, ns, "orders", "Programmed", "True", "1 of 1")

	apply(t, ns, canary(80, 20))
	r, err := p.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Reject(r, "I will not have it"); err != nil {
		t.Fatal(err)
	}
	wantCondition(t, ns, "orders", "Programmed", "False", "I will not have it")
	apply(t, ns, canary(70, 30))
	p.want(orders(ns), canaryRoutes(ns, 70, 30))
	wantCondition(t, ns, "orders", "Programmed", "True", "1 of 1")
}

func TestTheLoserOfTwoMetaRoutersIsToldWhoWon(t *testing.T) {
	const ns = "conflict"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	server(t, ns)
	wantCondition(t, ns, "orders", "Accepted", "True")
	apply(t, ns, strings.Replace(canary(50, 50), "name: orders", "name: zz-late", 1))
	wantCondition(t, ns, "zz-late", "Accepted", "False", "Conflicted", "conflict/orders")
	wantCondition(t, ns, "orders", "Accepted", "True")
	remove(t, ns, canary(90, 10))
	wantCondition(t, ns, "zz-late", "Accepted", "True")
}

func TestAReplicaThatIsStartedNowServesTheLastValidVersionTooAndFixingItTurnsTheCondition(t *testing.T) {
	const ns = "newcomer"
	namespaces(t, ns)
	apply(t, ns, services)
	apply(t, ns, canary(90, 10))
	first := server(t, ns+"-1")
	p := subscribe(t, first, rds(), ns, orders(ns))
	p.want(orders(ns), canaryRoutes(ns, 90, 10))
	wantCondition(t, ns, "orders", "Programmed", "True", "1 of 1")
	// The CRD cannot compile a regex, so this passes it.
	apply(t, ns, strings.Replace(canary(50, 50), "  - name: canary\n", "  - name: canary\n    match: {attributes: {method: {regex: \"(get\"}}}\n", 1))
	wantCondition(t, ns, "orders", "Accepted", "False", "canary", "RE2")
	eventually(t, "the last valid spec is kept in the status", func() error {
		o, err := mesh.Dynamic.Resource(metaRouters).Namespace(ns).Get(t.Context(), "orders", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, ok, err := unstructured.NestedMap(o.Object, "status", "lastValid"); !ok || err != nil {
			return fmt.Errorf("not yet: %v %w", ok, err)
		}
		return nil
	})
	second := server(t, ns+"-2")
	q := subscribe(t, second, rds(), ns, orders(ns))
	q.want(orders(ns), canaryRoutes(ns, 90, 10))
	apply(t, ns, canary(40, 60))
	p.want(orders(ns), canaryRoutes(ns, 40, 60))
	q.want(orders(ns), canaryRoutes(ns, 40, 60))
	wantCondition(t, ns, "orders", "Accepted", "True")
	wantCondition(t, ns, "orders", "Programmed", "True", "2 of 2") // one proxy, but a stream at each replica
}
