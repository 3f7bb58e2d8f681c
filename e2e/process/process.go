// Package process runs the components that the tests need. In: a binary, its arguments, a directory for its
// output. Out: a running process, ended by its id, also when the test fails. Not here: what the components are.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Patience bounds the start of each process.
const Patience = 90 * time.Second

// Process is a running component whose output goes to a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd

	mu    sync.Mutex
	ended chan struct{}
	err   error
}

// Start runs a binary with its output in dir/name.log. The kernel ends it if the test process dies.
func Start(dir, name, binary string, env []string, args ...string) (*Process, error) {
	return start(dir, name, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, binary, env, args)
}

// StartParent is Start for a binary that has children and ends them on SIGTERM, which is what it gets if the test
// process dies. Children that are left when it has ended are ended too: they are in its process group.
func StartParent(dir, name, binary string, env []string, args ...string) (*Process, error) {
	return start(dir, name, &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}, binary, env, args)
}

func start(dir, name string, attr *syscall.SysProcAttr, binary string, env, args []string) (*Process, error) {
	log := filepath.Join(dir, name+".log")
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p := &Process{name: name, log: log, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = out, out, dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = attr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := p.cmd.Wait()
		if attr.Setpgid {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
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

// Tail is the end of the log, for error messages.
func (p *Process) Tail() string {
	data := []byte(p.Log())
	if n := len(data) - 4000; n > 0 {
		data = data[n:]
	}
	return string(bytes.TrimSpace(data))
}

// Ready waits until a condition holds; it fails early if the process ends.
func (p *Process) Ready(holds func() error) error {
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %w\n%s", p.name, errors.Join(p.err, err), p.Tail())
		case <-tick.C:
			if time.Now().After(deadline) {
				return fmt.Errorf("%s is not ready: %w\n%s", p.name, err, p.Tail())
			}
		}
	}
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// lowest and highest bound the ports that FreePorts gives: below those that the kernel hands out to clients, so
// that no outgoing connection takes the port of a component that is being restarted.
const lowest, highest = 10000, 32000

// FreePorts returns n ports that nothing listens on.
func FreePorts(n int) ([]int, error) {
	var out []int
	for range 100 * n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest)))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }() // all at the end, so that no port comes twice
		if out = append(out, l.Addr().(*net.TCPAddr).Port); len(out) == n {
			return out, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d", n, lowest, highest)
}
