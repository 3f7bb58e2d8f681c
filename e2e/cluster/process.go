// Package cluster starts the real components on loopback: etcd, kube-apiserver, istiod and metards. In:
// their binaries, built by make. Out: running processes, each ended by its id, also when a test fails, and
// clients for them. Not here: assertions.
package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// patience bounds the start and the end of each process.
const patience = 90 * time.Second

// Process is a running component whose output goes to a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd

	mu    sync.Mutex
	ended chan struct{}
	err   error
}

// start runs a binary with its output in dir/name.log. The kernel ends it if the test process dies.
func start(dir, name, binary string, env []string, args ...string) (*Process, error) {
	log := filepath.Join(dir, name+".log")
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p := &Process{name: name, log: log, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = out, out, dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := p.cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.ended)
	}()
	return p, nil
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop ends the process and waits for it: with SIGTERM, and SIGKILL if that does not help.
func (p *Process) Stop() {
	if p == nil {
		return
	}
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(15 * time.Second):
		p.Kill()
	}
}

// Kill ends the process at once and waits for it.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Log returns what the process has written.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// tail is the end of the log, for error messages.
func (p *Process) tail() string {
	data := []byte(p.Log())
	if n := len(data) - 4000; n > 0 {
		data = data[n:]
	}
	return string(bytes.TrimSpace(data))
}

// ready waits until a condition holds; it fails early if the process ends.
func (p *Process) ready(holds func() error) error {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %w\n%s", p.name, errors.Join(p.err, err), p.tail())
		case <-tick.C:
			if time.Now().After(deadline) {
				return fmt.Errorf("%s is not ready: %w\n%s", p.name, err, p.tail())
			}
		}
	}
}

// freePorts returns n ports that nothing listens on.
func freePorts(n int) ([]int, error) {
	var out []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all at the end, so that no port comes twice
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out, nil
}
