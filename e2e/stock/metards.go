package stock

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/metards/metards/e2e/process"
	"github.com/metards/metards/pkg/tlsboot"
)

// ServerID is the SPIFFE id of metards, by which Envoy knows it.
const ServerID = "spiffe://cluster.local/ns/istio-system/sa/metards"

// Metards is a metards with an event log. It can be stopped and started again, on the same ports.
type Metards struct {
	*process.Process
	Listen   string // HOST:PORT for proxies
	Admin    string // HOST:PORT of the admin port
	EventLog string // file

	dir   string
	flags []string
}

// ServerPair issues a certificate for metards.
func ServerPair(ca *tlsboot.DevCA) (*tlsboot.Pair, error) {
	return ca.Issue(tlsboot.IssueOptions{
		Namespace: "istio-system", ServiceAccount: "metards", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

// StartMetards starts the binary of METARDS, with its files in dir, and waits until it is ready. The flags say
// where it reads from.
func StartMetards(dir string, certs *Certificates, flags ...string) (*Metards, error) {
	ports, err := process.FreePorts(2)
	if err != nil {
		return nil, err
	}
	m := &Metards{
		Listen: fmt.Sprintf("127.0.0.1:%d", ports[0]), Admin: fmt.Sprintf("127.0.0.1:%d", ports[1]),
		EventLog: filepath.Join(dir, "events.json"), dir: dir,
	}
	m.flags = append([]string{
		"serve", "--listen", m.Listen, "--admin-listen", m.Admin, "--event-log", m.EventLog, "--grace-period", "200ms",
		"--cert", certs.Cert(), "--key", certs.Key(), "--root", certs.Root(),
	}, flags...)
	return m, m.Start()
}

// Start starts it again after a Stop.
func (m *Metards) Start() error {
	binary := os.Getenv("METARDS")
	if binary == "" {
		return errors.New("METARDS is not set: run make e2e-envoy")
	}
	var err error
	if m.Process, err = process.Start(m.dir, "metards", binary, nil, m.flags...); err != nil {
		return err
	}
	return m.Ready(func() error {
		_, err := get("http://" + m.Admin + "/readyz")
		return err
	})
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	body, err := readAll(resp)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, body)
	}
	return body, err
}
