package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestExplainSaysWhereARequestGoesAndWhyNotElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"the table in words": {nil, []string{"orders.shop.svc.cluster.local:20880, metaprotocol/dubbo", "MetaRouter shop/orders", `2. canary: method = "get"… -> 90% subset v1`}},
		"a tester":           {[]string{"-a", "tier=beta", "-a", "method=put"}, []string{"1. yes: testers", "cluster outbound|20880|v2|orders.shop.svc.cluster.local\n"}},
		"a reader": {[]string{"-a", "METHOD=getOrder"}, []string{
			`1. no: testers wants tier = "beta", but the request has no tier`, "2. yes: canary",
			"cluster outbound|20880|v1|orders.shop.svc.cluster.local, weight 90", "cluster outbound|20880|v2|orders.shop.svc.cluster.local, weight 10",
		}},
		"a writer": {[]string{"-a", "method=put"}, []string{`2. no: canary wants method = "get"…, but it is "put"`, "3. yes: everything-else"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"explain", "orders.shop.svc.cluster.local:20880", "--dir", "../../examples", "--namespace", "web"}, c.args...)
			if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d: %s", code, &stderr)
			}
			for _, part := range c.says {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("it does not say %q:\n%s", part, &stdout)
				}
			}
		})
	}
}
