package kubewatch_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
)

func broken(t *testing.T, api *kubefake.Server) {
	t.Helper()
	api.Put("shop", "orders", router("refused"))
	patch(t, api, "shop", "orders", `{"status":{"lastValid":{"hosts":["good"],"routes":[{"route":[{"destination":{"host":"good"}}]}]}}}`)
}

func patch(t *testing.T, api *kubefake.Server, namespace, name, body string) {
	t.Helper()
	url := api.Config().Host + "/apis/metaprotocol.aeraki.io/v1alpha1/namespaces/" + namespace + "/metarouters/" + name + "/status"
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/merge-patch+json")
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	must(t, answer.Body.Close())
}

func TestANewReplicaServesTheLastValidVersionOfARefusedObject(t *testing.T) {
	api := kubefake.New(t)
	broken(t, api)
	s := play(t, api, fast())
	s.untilNames("shop/orders")
	if s.hosts("shop", "orders") != "good" {
		t.Errorf("in force: %s", s.hosts("shop", "orders"))
	}
	s.untilProblem("hosts[0]: refused")
	s.untilProblem("the last valid version stays in force")
}

func TestALastValidVersionThatComesLaterIsTakenToo(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("refused"))
	s := play(t, api, fast())
	s.untilProblem("no valid version is known")
	broken(t, api)
	s.untilNames("shop/orders")
}

func TestAnOutdatedLastValidVersionReplacesNothing(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("newer"))
	s := play(t, api, fast())
	s.untilNames("shop/orders")
	broken(t, api)
	s.untilProblem("refused")
	api.Put("shop", "marker", router("m"))
	s.untilNames("shop/marker shop/orders")
	if s.hosts("shop", "orders") != "newer" {
		t.Errorf("in force: %s", s.hosts("shop", "orders"))
	}
}

func TestALastValidVersionThatIsNoneIsIgnored(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("refused"))
	patch(t, api, "shop", "orders", `{"status":{"lastValid":{"hosts":["good"],"nonsense":1}}}`)
	api.Put("shop", "marker", router("m"))
	s := play(t, api, fast())
	s.untilNames("shop/marker")
}
