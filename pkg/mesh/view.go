package mesh

import (
	"slices"
	"strings"
)

// View is the part of a proxy's identity that can change what it is served.
type View struct {
	Namespace string
	Gateway   bool
}

// Settings are the mesh-wide values that tables depend on.
type Settings struct {
	RootNamespace          string
	ClusterDomain          string
	DefaultServiceExportTo []string // for ServiceEntries without exportTo; empty means everybody
	DefaultRuleExportTo    []string // likewise for DestinationRules
}

func (s Settings) equal(t Settings) bool {
	return s.RootNamespace == t.RootNamespace && s.ClusterDomain == t.ClusterDomain &&
		slices.Equal(s.DefaultServiceExportTo, t.DefaultServiceExportTo) && slices.Equal(s.DefaultRuleExportTo, t.DefaultRuleExportTo)
}

// visible reports whether an object of namespace own is exported to a client's namespace.
func visible(exportTo, byDefault []string, own, client string) bool {
	if len(exportTo) == 0 {
		exportTo = byDefault
	}
	return len(exportTo) == 0 || slices.ContainsFunc(exportTo, func(to string) bool {
		return to == "*" || to == client || to == "." && own == client
	})
}

// Fold is the form of a host under which it is compared and indexed.
func Fold(host string) string { return strings.ToLower(host) }

// Covers reports whether pattern, a folded host or a wildcard such as *.shop.example or *, covers a folded host.
func Covers(pattern, host string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, suffix)
	}
	return pattern == host
}

// Qualify completes a short host (one without a dot) with a namespace, as Kubernetes does.
func (s Settings) Qualify(host, namespace string) string {
	if strings.Contains(host, ".") || host == "*" {
		return host
	}
	return host + "." + namespace + ".svc." + s.ClusterDomain
}
