package tlsboot

import (
	"crypto/tls"
	"crypto/x509"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Connected counts a client, of the state of its connection, with the root that vouches for it, until
// release is called; later calls of release do nothing. Where several roots vouch, the one that lives
// longest counts: a root without clients is one that nobody would miss.
func (t *Trust) Connected(state tls.ConnectionState) (release func()) {
	chains, err := t.now.Load().admitted(state)
	if err != nil {
		// The roots may have changed since the handshake. Whoever vouched then has a client still.
		chains = state.VerifiedChains
	}
	if len(chains) == 0 {
		return func() {}
	}
	root := chains[0][len(chains[0])-1]
	for _, c := range chains[1:] {
		if r := c[len(c)-1]; r.NotAfter.After(root.NotAfter) {
			root = r
		}
	}
	name := fingerprint(root)
	t.clients.add(name, 1)
	return sync.OnceFunc(func() { t.clients.add(name, -1) })
}

// clientCount shows clients per root: of every root in force, and of former ones while they have some.
type clientCount struct {
	gauge *prometheus.GaugeVec

	mu      sync.Mutex
	count   map[string]int
	inForce map[string]bool
}

func (c *clientCount) add(root string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[string]int{}
	}
	c.count[root] += n
	c.show(root)
}

// keep says which roots are in force now.
func (c *clientCount) keep(roots []*x509.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	former := c.inForce
	c.inForce = map[string]bool{}
	for _, name := range fingerprints(roots) {
		c.inForce[name] = true
		c.show(name)
	}
	for name := range former {
		c.show(name)
	}
}

func (c *clientCount) show(root string) {
	if c.count[root] == 0 && !c.inForce[root] {
		delete(c.count, root)
		c.gauge.DeleteLabelValues(root)
		return
	}
	c.gauge.WithLabelValues(root).Set(float64(c.count[root]))
}
