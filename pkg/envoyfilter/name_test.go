package envoyfilter

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestEveryHostHasANameOfItsOwnThatKubernetesTakes(t *testing.T) {
	long := strings.Repeat("a-very-long-label.", 14)
	seen := map[string]string{}
	for _, host := range []string{
		"orders.shop.svc.cluster.local", "*.shop.example", "shop.example", "*", "-.shop.example", "shop_example", "shop-example", "2001:db8::1",
		"a..b", "a.b.", long + "x", long + "y", strings.Repeat("x", 300), "ünlaut.example", "", "---",
	} {
		for _, port := range []uint32{1, 65535} {
			name := outboundName(hostPort{host, port})
			if why := validation.IsDNS1123Subdomain(name); len(why) > 0 {
				t.Errorf("%q: %s: %v", host, name, why)
			}
			if other, taken := seen[name]; taken {
				t.Errorf("%q and %q are both %s", host, other, name)
			}
			seen[name] = host
		}
	}
}

func TestAHostThatLooksLikeAnothersHashedNameHasAnotherName(t *testing.T) {
	hashed := outboundName(hostPort{"*.shop.example", 80})
	rest := strings.TrimSuffix(strings.TrimPrefix(hashed, "metards-outbound."), "-80")
	for _, host := range []string{rest, "." + rest} {
		if name := outboundName(hostPort{host, 80}); name == hashed {
			t.Errorf("%q is %s too", host, name)
		}
	}
}
