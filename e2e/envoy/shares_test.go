package envoy

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/metards/metards/e2e/stock"
)

// within is the range in which the count of a share of n requests lies: the mean of the binomial distribution and
// 4.5 of its standard deviations to each side, which a right proxy leaves once in 150,000 times.
func within(n int, share float64) (low, high int) {
	mean, sigma := float64(n)*share, math.Sqrt(float64(n)*share*(1-share))
	return int(math.Ceil(mean - 4.5*sigma)), int(math.Floor(mean + 4.5*sigma))
}

func checkShare(t *testing.T, what string, n, seen int, share float64) {
	t.Helper()
	low, high := within(n, share)
	report.Holds(t, what, fmt.Sprintf("%.4g%% of %d: %d…%d", share*100, n, low, high), fmt.Sprint(seen), low <= seen && seen <= high)
}

func weighted(name, conditions string, weights map[string]int, order ...string) string {
	out := fmt.Sprintf("  - name: %s\n    match: {attributes: {%s}}\n    route:\n", name, conditions)
	for _, subset := range order {
		out += fmt.Sprintf("    - {destination: {host: %s, subset: %s}, weight: %d}\n", ordersHost, subset, weights[subset])
	}
	return out
}

func TestWeightsAreSharesOfTheRequests(t *testing.T) {
	const n = 2000
	s := begin(t, options{rules: ordersRouter +
		weighted("canary", "kind: {exact: canary}", map[string]int{"v1": 90, "v2": 10}, "v1", "v2") +
		weighted("thirds", "kind: {exact: thirds}", map[string]int{"v1": 1, "v2": 1, "v3": 1}, "v1", "v2", "v3") +
		weighted("off", "kind: {exact: off}", map[string]int{"v1": 70, "v2": 0}, "v1", "v2") +
		weighted("large", "kind: {exact: large}", map[string]int{"v1": 3_000_000_000, "v2": 1_000_000_000}, "v1", "v2") +
		weighted("twice", "kind: {exact: twice}", map[string]int{"v1": 50, "v2": 25}, "v1", "v2", "v2")})
	for _, c := range []struct {
		kind   string
		shares map[string]float64
	}{
		{"canary", map[string]float64{"v1": .9, "v2": .1}},
		{"thirds", map[string]float64{"v1": 1. / 3, "v2": 1. / 3, "v3": 1. / 3}},
		{"off", map[string]float64{"v1": 1, "v2": 0}},
		{"large", map[string]float64{"v1": .75, "v2": .25}},
		{"twice", map[string]float64{"v1": .5, "v2": .5}},
	} {
		got := stock.Send(context.Background(), n, s.address(ordersTable), attributes("kind="+c.kind))
		report.Is(t, c.kind+": failed requests", 0, len(got.Failed))
		for _, subset := range []string{"v1", "v2", "v3"} {
			if share, ok := c.shares[subset]; ok {
				checkShare(t, fmt.Sprintf("%s: to %s", c.kind, subset), n, got.By[cluster(subset)], share)
			}
		}
	}
}

func mirrored(name, percentage string) string {
	return fmt.Sprintf("  - name: %s\n    match: {attributes: {mirror: {exact: %q}}}\n    route: [{destination: {host: %s, subset: v1}}]\n"+
		"    mirror: {host: %s, subset: shadow-%s}\n%s", name, name, ordersHost, ordersHost, name, percentage)
}

func TestMirrorsGetTheirShareOfCopies(t *testing.T) {
	const n = 2000
	s := begin(t, options{
		rules: ordersRouter + mirrored("absent", "") + mirrored("zero", "    mirrorPercentage: {value: 0}\n") +
			mirrored("ten", "    mirrorPercentage: {value: 10}\n") + mirrored("all", "    mirrorPercentage: {value: 100}\n"),
		clusters: []string{cluster("shadow-zero")},
	})
	for _, c := range []struct {
		name  string
		share float64
	}{{"absent", 1}, {"zero", 0}, {"ten", .1}, {"all", 1}} {
		got := stock.Send(context.Background(), n, s.address(ordersTable), attributes("mirror="+c.name))
		report.Is(t, c.name+": answered by v1", n, got.By[cluster("v1")])
		shadow := s.upstreams.Of(cluster("shadow-" + c.name))
		low, high := within(n, c.share)
		stat := "cluster." + cluster("shadow-"+c.name) + ".upstream_rq_total"
		report.Until(t, c.name+": copies", fmt.Sprintf("%g%% of %d: %d…%d, all that Envoy sent", c.share*100, n, low, high),
			func() (string, bool, error) { // copies are not waited for by the requests
				sent, err := s.envoy.Stat(stat)
				seen := shadow.Requests()
				return fmt.Sprintf("%d, Envoy sent %s", seen, sent), low <= seen && seen <= high && sent == fmt.Sprint(seen), err
			}, s)
	}
}

func TestTheHashKeyMakesRequestsSticky(t *testing.T) {
	const rule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec:
  host: orders.shop.svc.cluster.local
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: Customer}}}
  subsets: [{name: v1}, {name: plain, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}]
---
`
	const customers, times = 60, 5
	endpoints := []string{"a", "b", "c", "d"}
	s := begin(t, options{
		rules: ordersService + rule + ordersHead + to("plain", "plain", "sticky: {exact: 'no'}") + to("all", "v1", ""),
		ring:  map[string][]string{cluster("v1"): endpoints, cluster("plain"): endpoints},
	})
	moved, hit := map[string]int{}, map[string]map[string]bool{"yes": {}, "no": {}}
	for _, sticky := range []string{"yes", "no"} {
		for i := range customers {
			first := ""
			for range times {
				who := s.ask(ordersTable, attributes(fmt.Sprintf("sticky=%s customer=customer-%d", sticky, i))).Who()
				hit[sticky][who] = true
				if first == "" {
					first = who
				}
				if who != first {
					moved[sticky]++
				}
			}
		}
	}
	report.Is(t, fmt.Sprintf("%d customers, %d requests each: requests that moved to another endpoint", customers, times), 0, moved["yes"])
	report.Is(t, "endpoints that the customers are spread over", len(endpoints), len(hit["yes"]))
	report.Holds(t, "a subset without key, on the same kind of ring: requests that moved", "more than 0", fmt.Sprint(moved["no"]), moved["no"] > 0)
	again := 0
	for i := range customers { // the key is one attribute: the others do not move a customer
		customer := fmt.Sprintf("sticky=yes customer=customer-%d", i)
		if s.ask(ordersTable, attributes(customer)).Who() != s.ask(ordersTable, attributes(fmt.Sprintf("%s noise=%d", customer, i))).Who() {
			again++
		}
	}
	report.Is(t, "requests that another attribute moved", 0, again)
}
