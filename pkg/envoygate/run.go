package envoygate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// maxOutput bounds what is kept of a run's output, in bytes, from its end.
	maxOutput = 64 << 10
	// maxObjection bounds the text of an objection, in bytes.
	maxObjection = 2 << 10
	// linger is how long a killed run's pipes are waited for.
	linger = time.Second
)

// stdin is the file that the binary reads: a pipe, so that nothing is left on any disk. Envoy reads none of
// /dev but this.
const stdin = "/dev/fd/0"

// objectionMark comes before Envoy's reason.
const objectionMark = "error initializing configuration '" + stdin + "': "

// validate runs the binary once on a configuration. It returns Envoy's objection, empty if there is none, or an
// error if that is not known. The process and its children are gone when it returns.
func (g *Gate) validate(ctx context.Context, configuration []byte) (objection string, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.path, "--mode", "validate", "--config-path", stdin,
		"--log-level", "critical", "--log-format", "%v", "--disable-hot-restart", "--concurrency", "1")
	output := &tail{}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(configuration), output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return nil
	}
	cmd.Cancel = kill
	cmd.WaitDelay = linger
	began := time.Now()
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // a child of it still holds its output
		_ = kill()
	}
	result := resultPassed
	defer func() { g.metrics.observe(result, time.Since(began)) }()
	if err == nil {
		return "", nil
	}
	var exit *exec.ExitError
	if _, reason, said := strings.Cut(output.String(), objectionMark); said && ctx.Err() == nil && errors.As(err, &exit) && exit.Exited() {
		result = resultRefused
		return bounded(strings.Join(strings.Fields(reason), " ")), nil
	}
	result = resultFailed
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Errorf("it had not finished after %s and was killed", g.timeout)
	case output.String() != "":
		return "", fmt.Errorf("%w: %s", err, bounded(lastLine(output.String())))
	case errors.Is(err, fs.ErrNotExist) && isThere(g.path): // the kernel's words are those of a missing binary
		return "", fmt.Errorf("%w: the file is there, but not the loader (of the C library) or interpreter that it names", err)
	}
	return "", err
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lastLine returns the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func bounded(text string) string {
	if len(text) > maxObjection {
		text = text[:maxObjection] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// tail is a writer that keeps the last maxOutput bytes, or a few more.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*maxOutput {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-maxOutput:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.kept) }
