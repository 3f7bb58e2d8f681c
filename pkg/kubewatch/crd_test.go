package kubewatch_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/metards/metards/pkg/kubeclient/kubefake"
)

func TestAMissingCRDIsAnEmptyListUntilItIsInstalled(t *testing.T) {
	for name, deny := range map[string]bool{"the CRD may be read": false, "the CRD may not be read": true} {
		t.Run(name, func(t *testing.T) {
			api := kubefake.New(t)
			api.RemoveCRD()
			if deny {
				api.Deny("get", "customresourcedefinitions", http.StatusForbidden)
			}
			s := play(t, api, fast())
			s.until("the empty list", s.synced)
			s.untilProblem("is not installed")
			api.InstallCRD()
			api.Put("shop", "orders", router("orders"))
			s.untilNames("shop/orders")
			s.untilFine()
		})
	}
}

func TestADeletedCRDTakesNothingAway(t *testing.T) {
	for name, deny := range map[string]bool{"the CRD may be read": false, "the CRD may not be read": true} {
		t.Run(name, func(t *testing.T) {
			api := kubefake.New(t)
			if deny {
				api.Deny("get", "customresourcedefinitions", http.StatusForbidden)
			}
			api.Put("shop", "carts", router("carts"))
			api.Put("shop", "orders", router("orders"))
			s := play(t, api, fast())
			s.untilNames("shop/carts shop/orders")
			api.TerminateCRD()
			s.untilProblem("is gone from the API server, or about to go")
			s.looks()
			api.RemoveCRD()
			before := api.Requests("list", "metarouters")
			s.until("lists in vain", func() bool { return api.Requests("list", "metarouters") > before+2 })
			if s.names() != "shop/carts shop/orders" {
				t.Fatalf("in force: %q", s.names())
			}
			api.InstallCRD()
			s.untilProblem("is back, but not all of its MetaRouters are")
			if s.names() != "shop/carts shop/orders" {
				t.Fatalf("in force: %q", s.names())
			}
			api.Put("shop", "carts", router("carts2"))
			api.Put("shop", "orders", router("orders"))
			s.untilFine()
			if s.hosts("shop", "carts") != "carts2" {
				t.Error("the edit is missing")
			}
			api.Delete("shop", "orders")
			s.untilNames("shop/carts")
		})
	}
}

func TestObjectsThatDoNotComeBackWithTheirCRDAreDroppedInTheEnd(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "carts", router("carts"))
	api.Put("shop", "orders", router("orders"))
	pauses := fast()
	pauses.Hold = 200 * time.Millisecond
	s := play(t, api, pauses)
	s.untilNames("shop/carts shop/orders")
	api.TerminateCRD()
	api.RemoveCRD()
	s.untilProblem("is gone")
	api.InstallCRD()
	back := time.Now()
	api.Put("shop", "carts", router("carts"))
	s.untilNames("shop/carts")
	if passed := time.Since(back); passed < pauses.Hold {
		t.Errorf("dropped after %s", passed)
	}
	s.untilFine()
}

func TestACRDThatWasExchangedBehindOurBackTakesNothingAway(t *testing.T) {
	for name, exchange := range map[string]func(*kubefake.Server){
		"while the API server was out of reach": func(api *kubefake.Server) {
			api.Stop()
			api.TerminateCRD()
			api.RemoveCRD()
			api.InstallCRD()
			api.Start()
		},
		"in the middle of a watch that stays": func(api *kubefake.Server) {
			api.TerminateCRD()
			api.InstallCRD()
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := kubefake.New(t)
			api.Put("shop", "orders", router("orders"))
			s := play(t, api, fast())
			s.untilNames("shop/orders")
			exchange(api)
			s.untilProblem("is back, but not all of its MetaRouters are")
			if s.names() != "shop/orders" {
				t.Fatalf("in force: %q", s.names())
			}
			api.Put("shop", "orders", router("orders2"))
			s.untilFine()
			if s.hosts("shop", "orders") != "orders2" {
				t.Error("the edit is missing")
			}
		})
	}
}

func TestDeletionsAreBelievedByTheListOfResourcesWhereTheCRDMayNotBeRead(t *testing.T) {
	api := kubefake.New(t)
	api.Deny("get", "customresourcedefinitions", http.StatusForbidden)
	api.Put("shop", "carts", router("carts"))
	api.Put("shop", "orders", router("orders"))
	s := play(t, api, fast())
	s.untilNames("shop/carts shop/orders")
	api.Delete("shop", "orders")
	s.untilNames("shop/carts")
	s.untilFine()
}

func TestDeletionsWaitUntilTheCRDCanBeSeen(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	s := play(t, api, fast())
	s.untilNames("shop/orders")
	api.Deny("get", "customresourcedefinitions", http.StatusForbidden)
	api.Deny("get", "discovery", http.StatusForbidden)
	api.Delete("shop", "orders")
	s.untilProblem("the API server does not let us get customresourcedefinitions.apiextensions.k8s.io")
	s.looks()
	if s.names() != "shop/orders" {
		t.Errorf("in force: %q", s.names())
	}
	api.Deny("get", "customresourcedefinitions", 0)
	s.untilNames("")
	s.untilFine()
}

func TestOneLookAtTheCRDCoversManyDeletions(t *testing.T) {
	api := kubefake.New(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		api.Put("shop", name, router(name))
	}
	pauses := fast()
	pauses.Batch = 200 * time.Millisecond
	s := play(t, api, pauses)
	s.untilNames("shop/a shop/b shop/c shop/d shop/e")
	before := api.Requests("get", "customresourcedefinitions")
	for _, name := range []string{"a", "b", "c", "d"} {
		api.Delete("shop", name)
	}
	s.untilNames("shop/e")
	if n := api.Requests("get", "customresourcedefinitions") - before; n != 1 {
		t.Errorf("%d looks", n)
	}
}

func TestAnObjectThatIsReplacedIsNeverAbsent(t *testing.T) {
	api := kubefake.New(t)
	api.Put("shop", "orders", router("orders"))
	s := play(t, api, fast())
	s.untilNames("shop/orders")
	s.store.TakeChanges()
	api.Delete("shop", "orders")
	api.Put("shop", "orders", router("orders"))
	api.Put("shop", "marker", router("marker"))
	s.untilNames("shop/marker shop/orders")
	for _, host := range s.store.TakeChanges() {
		if host == "orders" {
			t.Error("its host changed")
		}
	}
}
