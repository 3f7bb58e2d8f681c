package kubestatus_test

import (
	"testing"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
	"github.com/metards/metards/pkg/kubestatus"
)

func TestPendingFactsAreReadAgainWithoutASignal(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	r := start(t, api, "a", fast())
	r.facts.set("orders", kubestatus.Facts{Pending: true})
	r.rounds()
	r.facts.setQuietly("orders", kubestatus.Facts{Proxies: 1, UpToDate: 1})
	r.untilCondition("orders", "Programmed", "True/Programmed@1")
	before := r.facts.count()
	r.facts.setQuietly("orders", kubestatus.Facts{})
	api.Put("shop", "orders", router("orders2"))
	r.until("a new version is a reason too", func() bool { return r.facts.count() > before })
}
