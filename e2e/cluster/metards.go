package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/metards/metards/e2e/process"
)

// Metards is a running metards.
type Metards struct {
	*process.Process
	Listen string
	Admin  string

	start func() (*process.Process, error)
}

// StartMetards starts the binary of METARDS with the given flags beside those for its addresses.
func (c *Cluster) StartMetards(name string, flags ...string) (*Metards, error) {
	binary := os.Getenv("METARDS")
	if binary == "" {
		return nil, fmt.Errorf("METARDS is not set: run make e2e")
	}
	list, err := process.FreePorts(2)
	if err != nil {
		return nil, err
	}
	m := &Metards{Listen: fmt.Sprintf("127.0.0.1:%d", list[0]), Admin: fmt.Sprintf("127.0.0.1:%d", list[1])}
	args := append([]string{"serve", "--listen", m.Listen, "--admin-listen", m.Admin, "--grace-period", "1s"}, flags...)
	m.start = func() (*process.Process, error) {
		return process.Start(c.Dir, name, binary, []string{"POD_NAME=" + name, "POD_NAMESPACE=istio-system"}, args...)
	}
	return m, m.Start()
}

// Start starts it anew after Stop, with the same flags and addresses.
func (m *Metards) Start() (err error) {
	m.Process, err = m.start()
	return err
}

// Ready waits until /readyz says so.
func (m *Metards) Ready(context.Context) error {
	return m.Process.Ready(func() error {
		code, body := m.Get("/readyz")
		if code != http.StatusOK {
			return fmt.Errorf("/readyz: %s", body)
		}
		return nil
	})
}

// Get returns a page of the admin port; the code is 0 if there is no answer.
func (m *Metards) Get(path string) (code int, body string) {
	resp, err := http.Get("http://" + m.Admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}
