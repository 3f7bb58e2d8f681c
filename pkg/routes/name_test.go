package routes_test

import (
	"testing"

	"github.com/metards/metards/pkg/routes"
)

func TestANameIsSplitAtItsLastUnderscore(t *testing.T) {
	for name, want := range map[string]struct {
		host string
		port uint32
	}{
		"orders.example_20880": {"orders.example", 20880}, "a_b_1": {"a_b", 1}, "a__1": {"a_", 1}, "_1_2": {"_1", 2},
		"Org.Example.Service_65535": {"Org.Example.Service", 65535}, "ö_80": {"ö", 80}, "__1": {"_", 1},
	} {
		host, port, ok := routes.ParseName(name)
		if !ok || host != want.host || port != want.port {
			t.Errorf("%s is %s and %d, %t", name, host, port, ok)
		}
		if got := routes.Name(host, port); got != name {
			t.Errorf("%s is put together as %s", name, got)
		}
	}
}

func TestWhatIsNoHostAndPortIsNoName(t *testing.T) {
	for _, name := range []string{"", "_", "_80", "a", "a_", "a_0", "a_080", "a_+80", "a_-1", "a_65536", "a_4294967376", "a_8 0", "a_0x50", "a_80_", "a_8_0x", "80", "a_٣"} {
		if host, port, ok := routes.ParseName(name); ok {
			t.Errorf("%q is %s and %d", name, host, port)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("a_80")
	f.Add("_80")
	f.Add("a_b_0080")
	f.Fuzz(func(t *testing.T, name string) {
		if host, port, ok := routes.ParseName(name); ok && (routes.Name(host, port) != name || host == "" || port == 0 || port > 65535) {
			t.Errorf("%q is %q and %d", name, host, port)
		}
	})
}
