package stock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/metards/metards/e2e/process"
)

// Envoy is a running stock Envoy.
type Envoy struct {
	*process.Process
	Bootstrap Bootstrap
	Admin     string // HOST:PORT of the admin port

	dir    string
	epoch  int
	baseID string // of an Envoy that can be restarted hot, else empty

	mu        sync.Mutex
	addresses map[string]string // of listeners, by name
}

// Binary is the path of the Envoy that make envoy fetched.
func Binary() (string, error) {
	dir := os.Getenv("E2E_BIN")
	if dir == "" {
		return "", errors.New("E2E_BIN is not set: run make e2e-envoy")
	}
	binary := filepath.Join(dir, "envoy")
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("there is no Envoy (run make envoy): %w", err)
	}
	return binary, nil
}

// StartEnvoy starts an Envoy with its files in dir and waits until it is live: every listener has asked for its
// table, and has it or has given up to wait.
func StartEnvoy(dir string, b Bootstrap) (*Envoy, error) {

	return start(dir, b, "--disable-hot-restart")
}

// StartHot starts an Envoy that Restart can hand over from. Its listeners must have ports.
func StartHot(dir string, b Bootstrap) (*Envoy, error) {
	file := filepath.Join(dir, "base-id")
	e, err := start(dir, b, "--use-dynamic-base-id", "--base-id-path", file)
	if err != nil {
		return e, err
	}
	id, err := os.ReadFile(file)
	e.baseID = strings.TrimSpace(string(id))
	return e, err
}

// draining are the times in which what is replaced, a listener or in a hot restart the whole process, answers what
// it has begun. The defaults are minutes.
var draining = []string{"--drain-time-s", "1", "--parent-shutdown-time-s", "3"}

func start(dir string, b Bootstrap, args ...string) (*Envoy, error) {
	files, err := writeSDS(dir, b.Certs)
	if err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(dir, "bootstrap.json"), b.content(files)); err != nil {
		return nil, err
	}
	e := &Envoy{Bootstrap: b, dir: dir}
	return e, e.run(args...)
}

// Restart starts a new process that takes over from this one, which ends by itself.
func (e *Envoy) Restart() (*Envoy, error) {
	next := &Envoy{Bootstrap: e.Bootstrap, dir: e.dir, epoch: e.epoch + 1, baseID: e.baseID}
	return next, next.run("--base-id", e.baseID, "--restart-epoch", strconv.Itoa(next.epoch))
}

func (e *Envoy) run(args ...string) error {
	binary, err := Binary()
	if err != nil {
		return err
	}
	file := filepath.Join(e.dir, fmt.Sprintf("admin-address-%d", e.epoch))
	args = append([]string{
		"-c", filepath.Join(e.dir, "bootstrap.json"), "--admin-address-path", file, "--concurrency", "1",
		"--component-log-level", "misc:error", // no line for each deprecated field of each update
	}, append(draining, args...)...)
	if e.Process, err = process.Start(e.dir, fmt.Sprintf("envoy-%d", e.epoch), binary, nil, args...); err != nil {
		return err
	}
	return e.Ready(func() error {
		admin, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		e.Admin = strings.TrimSpace(string(admin))
		_, err = e.Get("/ready")
		return err
	})
}

// Get returns a page of the admin port.
func (e *Envoy) Get(path string) (string, error) { return get("http://" + e.Admin + path) }

// Stat returns a counter, a gauge or a text of the statistics, empty if there is none of that name.
func (e *Envoy) Stat(name string) (string, error) {
	page, err := e.Get("/stats?filter=" + regexpQuery(name))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(page) {
		if n, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && n == name {
			return strings.Trim(value, `"`), nil
		}
	}
	return "", nil
}

// Table returns a figure of the subscription to a table, such as version_text.
func (e *Envoy) Table(name, figure string) (string, error) {
	if e.Bootstrap.Form.ADS && strings.HasPrefix(figure, "control_plane.") {
		return e.Stat(figure) // one stream for all
	}
	return e.Stat("http." + StatPrefix + ".rds." + name + "." + figure)
}

// Address is where the listener of a name listens.
func (e *Envoy) Address(listener string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.addresses[listener]; a != "" {
		return a, nil
	}
	page, err := e.Get("/listeners?format=json")
	if err != nil {
		return "", err
	}
	var all struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(page), &all); err != nil {
		return "", err
	}
	e.addresses = map[string]string{}
	for _, l := range all.Statuses {
		e.addresses[l.Name] = net.JoinHostPort(l.Local.Socket.Address, strconv.Itoa(l.Local.Socket.Port))
	}
	if e.addresses[listener] == "" {
		return "", fmt.Errorf("Envoy has no listener %s", listener)
	}
	return e.addresses[listener], nil
}

// Tail is the end of the log and what the statistics say of the server, for error messages.
func (e *Envoy) Tail() string {
	page, err := e.Get("/stats?usedonly&filter=" + regexpQuery("update_rejected|version_text|control_plane|cluster.metards.(ssl|upstream_cx_[tc])"))
	if err != nil {
		page = err.Error()
	}
	const most = 2000 // bytes; many tables say the same
	return page[:min(len(page), most)] + "\n" + e.Process.Tail()
}
