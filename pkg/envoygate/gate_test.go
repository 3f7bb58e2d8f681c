package envoygate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/envoygate"
	"github.com/metards/metards/pkg/problem"
)

const patience = 20 * time.Second

// fakeEnvoy judges by words in the configuration, and notes its process and that of the child it waits for.
const fakeEnvoy = `#!/bin/sh
echo $$ >> "$0.runs"
config=$(cat)
[ -e "$0.broken" ] && echo out of order >&2 && exit 3
case "$config" in
*'"key":":path"'*) echo "error initializing configuration '/dev/fd/0': ':'-prefixed" >&2; exit 1 ;;
*hang*) sleep 1000 & echo $! >> "$0.runs"; wait ;;
*crash*) kill -SEGV $$ ;;
*leave*) sleep 1000 & echo $! >> "$0.runs"; exit 0 ;;
*mumble*) echo "error initializing configuration '/dev/fd/0': perhaps" >&2; kill -SEGV $$ ;;
*bad*) echo noise >&2; echo "error initializing configuration '/dev/fd/0': bad
 word " >&2; exit 1 ;;
esac
`

// scene is a Gate with a queue that a test fills.
type scene struct {
	t        *testing.T
	path     string
	gate     *envoygate.Gate
	problems *problem.Board
	registry *prometheus.Registry
	stop     func()

	mu       sync.Mutex
	waiting  chan struct{}
	queue    []*cachemgr.Table
	off      []*cachemgr.Table
	largest  int               // batch
	verdicts map[string]string // "passed", else the objection
	putOff   map[string]string
	forgets  int
}

func newScene(t *testing.T, changes ...func(*envoygate.Options)) *scene {
	t.Helper()
	s := &scene{
		t: t, path: filepath.Join(t.TempDir(), "envoy"), registry: prometheus.NewRegistry(), problems: problem.NewBoard(slog.New(slog.DiscardHandler)),
		waiting: make(chan struct{}, 1), verdicts: map[string]string{}, putOff: map[string]string{},
	}
	s.install(fakeEnvoy)
	o := envoygate.Options{
		Path: s.path, Problems: s.problems, Metrics: envoygate.NewMetrics(s.registry),
		Look: 5 * time.Millisecond, MaxPause: 20 * time.Millisecond,
	}
	for _, change := range changes {
		change(&o)
	}
	var err error
	if s.gate, err = envoygate.New(o); err != nil {
		t.Fatal(err)
	}
	return s
}

// run starts the Gate.
func (s *scene) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.gate.Run(ctx, s) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				s.t.Errorf("the gate ended with: %v", err)
			}
		case <-time.After(patience):
			s.t.Error("the gate did not stop")
		}
	})
	s.t.Cleanup(s.stop)
}

// install writes the binary anew, as a rename does.
func (s *scene) install(script string) {
	s.t.Helper()
	if err := os.WriteFile(s.path+".new", []byte(script), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path+".new", s.path); err != nil {
		s.t.Fatal(err)
	}
}

func table(word string) *cachemgr.Table {
	value, err := anypb.New(&routev3.RouteConfiguration{Name: word, VirtualHosts: []*routev3.VirtualHost{{
		Name: "dummy", Domains: []string{"*"}, RequestHeadersToAdd: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "word", Value: word}}},
	}}})
	if err != nil {
		panic(err)
	}
	return &cachemgr.Table{Name: cachemgr.Name{Type: value.GetTypeUrl(), Name: word}, Version: word, Any: value}
}

func (s *scene) put(words ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range words {
		s.queue = append(s.queue, table(w))
	}
	s.signal()
}

func (s *scene) signal() {
	select {
	case s.waiting <- struct{}{}:
	default:
	}
}

func (s *scene) Waiting() <-chan struct{} { return s.waiting }

func (s *scene) Unjudged(most, _ int) []*cachemgr.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(most, len(s.queue))
	out := slices.Clone(s.queue[:n])
	s.queue = s.queue[n:]
	s.largest = max(s.largest, n)
	return out
}

func (s *scene) Candidates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

func (s *scene) Pass(list []*cachemgr.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range list {
		s.verdicts[t.Version] = "passed"
	}
}

func (s *scene) Refuse(t *cachemgr.Table, objection string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verdicts[t.Version] = objection
}

func (s *scene) PutOff(t *cachemgr.Table, objection string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putOff[t.Version] = objection
	s.off = append(s.off, t)
}

func (s *scene) GiveBack(list []*cachemgr.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(slices.Clone(list), s.queue...)
	s.signal()
}

func (s *scene) Again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, s.off...)
	s.off = nil
	s.signal()
}

func (s *scene) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgets++
}

func (s *scene) verdict(word string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verdicts[word]
}

func (s *scene) wasPutOff(word string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putOff[word]
}

func (s *scene) eventually(what string, holds func() bool) {
	s.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !holds(); {
		select {
		case <-tick.C:
		case <-timeout:
			s.t.Fatalf("never: %s; the Problems are %v", what, s.problems.All())
		}
	}
}

func (s *scene) wantVerdict(word, want string) {
	s.t.Helper()
	s.eventually("there is a verdict on "+word, func() bool { return s.verdict(word) != "" })
	if got := s.verdict(word); got != want {
		s.t.Errorf("the verdict on %s is %q, want %q", word, got, want)
	}
}

// runs returns how many runs had a result.
func (s *scene) runs(result string) float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "metards_gate_runs_total" && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// processes are all that the binary noted: itself, and children it left.
func (s *scene) processes() []int {
	s.t.Helper()
	text, err := os.ReadFile(s.path + ".runs")
	if err != nil {
		s.t.Fatal(err)
	}
	var out []int
	for _, line := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, pid)
	}
	return out
}

// wantNoProcess checks that no process of the binary is left; one that was killed and that nobody has reaped
// yet is a zombie and counts as gone.
func (s *scene) wantNoProcess() {
	s.t.Helper()
	for _, pid := range s.processes() {
		s.eventually(fmt.Sprintf("process %d is gone", pid), func() bool {
			if syscall.Kill(pid, 0) != nil {
				return true
			}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && strings.Contains(string(stat), ") Z ")
		})
	}
}

func timeout(d time.Duration) func(*envoygate.Options) {
	return func(o *envoygate.Options) { o.Timeout = d }
}

func TestEnvoysVerdictIsPassedOn(t *testing.T) {
	s := newScene(t)
	if got := s.gate.Trouble(); !strings.HasSuffix(got, "has not been tried yet") {
		t.Errorf("before it runs its trouble is %q", got)
	}
	s.run()
	s.put("good")
	s.wantVerdict("good", "passed")
	s.put("bad")
	s.wantVerdict("bad", "bad word")
	if got := s.gate.Trouble(); got != "" || len(s.problems.All()) != 0 {
		t.Errorf("its trouble is %q, the Problems %v", got, s.problems.All())
	}
}

func TestOneBadTableOfAFullBatchHoldsNoOther(t *testing.T) {
	s := newScene(t)
	var words []string
	for i := range 50 {
		words = append(words, fmt.Sprintf("good%d", i))
	}
	words[37] = "bad"
	s.put(words...)
	s.run()
	for i, w := range words {
		if i != 37 {
			s.wantVerdict(w, "passed")
		}
	}
	s.wantVerdict("bad", "bad word")
	if got := s.runs("refused") + s.runs("passed"); s.largest != 50 || got > 2+13 {
		t.Errorf("it took %v runs with the probe, the largest batch was %d", got, s.largest)
	}
}

func TestATableOnWhichEnvoyCrashesOrHangsHoldsNoOther(t *testing.T) {
	for word, want := range map[string]string{"crash": "segmentation fault", "mumble": "segmentation fault", "hang": "it had not finished after 1s and was killed"} {
		t.Run(word, func(t *testing.T) {
			s := newScene(t, timeout(time.Second))
			s.put("good1", "good2", word, "good3", "good4")
			s.run()
			for _, w := range []string{"good1", "good2", "good3", "good4"} {
				s.wantVerdict(w, "passed")
			}
			s.eventually("it is put off", func() bool { return s.wasPutOff(word) != "" })
			if got := s.wasPutOff(word); !strings.Contains(got, want) || s.verdict(word) != "" {
				t.Errorf("it is put off for %q, with the verdict %q", got, s.verdict(word))
			}
			if got := s.problems.All(); len(got) != 0 {
				t.Errorf("the Problems of the binary are %v", got)
			}
		})
	}
}

func TestAHangingBinaryIsKilledCountedAndLetsNothingOut(t *testing.T) {
	s := newScene(t, timeout(50*time.Millisecond))
	s.install(strings.Replace(fakeEnvoy, `case "$config" in`, `case "hang" in`, 1))
	s.put("good")
	s.run()
	s.eventually("it was killed some times", func() bool { return s.runs("failed") >= 3 })
	if got := s.problems.All(); len(got) != 1 || !strings.Contains(got[0].String(), "it had not finished after 50ms and was killed [Unjudged]; new tables wait until it can, what was served stays") {
		t.Errorf("the Problems are %v", got)
	}
	if s.verdict("good") != "" || !strings.Contains(s.gate.Trouble(), "had not finished") {
		t.Errorf("the verdict is %q, the trouble %q", s.verdict("good"), s.gate.Trouble())
	}
	s.install(fakeEnvoy)
	s.wantVerdict("good", "passed")
	s.stop()
	s.wantNoProcess()
}

func TestABinaryThatIsMissingForATimeIsAProblemUntilItIsBack(t *testing.T) {
	s := newScene(t)
	s.run()
	s.put("before")
	s.wantVerdict("before", "passed")
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is a Problem", func() bool { return len(s.problems.All()) == 1 })
	s.put("waits", "bad")
	if got := s.problems.All()[0]; !strings.Contains(got.Detail, s.path+" cannot judge tables: ") || !strings.Contains(got.Detail, "no such file or directory") {
		t.Errorf("the Problem is %s", got)
	}
	if got := s.gate.Trouble(); got != "" {
		t.Errorf("what is served goes on being served, and it is unready for %q", got)
	}
	s.install("not even a script")
	s.eventually("another fault is told", func() bool {
		p := s.problems.All()
		return len(p) == 1 && !strings.Contains(p[0].Detail, "no such file")
	})
	if s.verdict("waits") != "" {
		t.Errorf("unjudged: %q", s.verdict("waits"))
	}
	s.install(fakeEnvoy)
	s.wantVerdict("waits", "passed")
	s.wantVerdict("bad", "bad word")
	s.eventually("the Problem is gone", func() bool { return len(s.problems.All()) == 0 })
}

func TestABinaryThatBreaksUnseenIsAProblemOfItsOwnAndOfNoTable(t *testing.T) {
	s := newScene(t)
	s.run()
	s.put("before")
	s.wantVerdict("before", "passed")
	if err := os.WriteFile(s.path+".broken", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.put("good", "bad")
	s.eventually("it is a Problem", func() bool { return len(s.problems.All()) == 1 })
	if got := s.problems.All()[0].Detail; !strings.HasSuffix(got, "exit status 3: out of order") || s.wasPutOff("good") != "" || s.verdict("bad") != "" {
		t.Errorf("the Problem is %q; of the tables it says %q, %q", got, s.wasPutOff("good"), s.verdict("bad"))
	}
	if err := os.Remove(s.path + ".broken"); err != nil {
		t.Fatal(err)
	}
	s.wantVerdict("good", "passed")
	s.wantVerdict("bad", "bad word")
	s.eventually("the Problem is gone", func() bool { return len(s.problems.All()) == 0 })
}

func TestABinaryThatRefusesNothingOrEverythingJudgesNothing(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/sh\nexit 0\n": "it takes a table that every Envoy refuses, so it is none",
		"#!/bin/sh\necho \"error initializing configuration '/dev/fd/0': too old\" >&2; exit 1\n": "it refuses a table that every Envoy takes: too old",
		"#!/bin/sh\necho unknown argument >&2; exit 1\n":                                          "exit status 1: unknown argument",
		// as of an Envoy in an image without the C library: the kernel names the binary and means its loader
		"#!/no/loader\n": "the file is there, but not the loader (of the C library) or interpreter that it names",
	} {
		s := newScene(t)
		s.install(script)
		s.put("good")
		s.run()
		s.eventually("it is a Problem", func() bool { return len(s.problems.All()) == 1 })
		if got := s.problems.All()[0].Detail; !strings.HasSuffix(got, want) {
			t.Errorf("the Problem is %q, want %q", got, want)
		}
		s.stop()
		if s.verdict("good") != "" {
			t.Errorf("the verdict is %q", s.verdict("good"))
		}
	}
}

func TestAReplacedBinaryJudgesAnew(t *testing.T) {
	s := newScene(t)
	s.run()
	s.put("bad")
	s.wantVerdict("bad", "bad word")
	s.install(strings.Replace(fakeEnvoy, "*bad*)", "*worse*)", 1))
	forgets := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.forgets }
	s.eventually("the verdicts are forgotten", func() bool { return forgets() == 1 })
	s.put("bad2")
	s.wantVerdict("bad2", "passed")
	if err := os.Rename(s.path, s.path+".away"); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is a Problem", func() bool { return len(s.problems.All()) == 1 })
	if err := os.Rename(s.path+".away", s.path); err != nil {
		t.Fatal(err)
	}
	s.eventually("it works again", func() bool { return len(s.problems.All()) == 0 })
	if got := forgets(); got != 1 {
		t.Errorf("the same binary is back, and verdicts were forgotten %d times", got)
	}
}

func TestAVerdictOfABinaryThatWasNotProbedDoesNotCount(t *testing.T) {
	s := newScene(t, func(o *envoygate.Options) { o.Look, o.MaxPause = time.Hour, time.Hour }) // it does not look by itself
	s.run()
	s.put("good")
	s.wantVerdict("good", "passed")
	s.install("#!/bin/sh\nexit 0\n")
	s.put("bad")
	s.eventually("there is a Problem", func() bool { return len(s.problems.All()) > 0 })
	if got := s.verdict("bad"); got != "" {
		t.Errorf("a binary that takes everything has judged: %s", got)
	}
}

func TestWhatWasPutOffIsTriedAgain(t *testing.T) {
	s := newScene(t)
	s.put("crash")
	s.run()
	s.eventually("it is put off", func() bool { return s.wasPutOff("crash") != "" })
	s.install(strings.Replace(fakeEnvoy, "*crash*)", "*smash*)", 1))
	s.wantVerdict("crash", "passed")
}

func TestNoProcessIsLeftAfterTheStop(t *testing.T) {
	s := newScene(t)
	s.run()
	s.put("good")
	s.wantVerdict("good", "passed")
	s.put("hang")
	before := len(s.processes())
	s.eventually("it hangs", func() bool { return len(s.processes()) == before+2 })
	s.stop()
	s.wantNoProcess()
	if s.verdict("hang") != "" || s.Candidates() != 1 || len(s.problems.All()) != 0 {
		t.Errorf("the verdict is %q, %d wait, with %v", s.verdict("hang"), s.Candidates(), s.problems.All())
	}
}

func TestAnInterruptedJudgementIsNoFaultOfTheEnvoy(t *testing.T) {
	for name, c := range map[string]struct {
		script    string
		processes int
	}{
		"while the binary is probed": {"#!/bin/sh\necho $$ >> \"$0.runs\"\nsleep 1000\n", 1},
		"while a table is judged":    {fakeEnvoy, 4}, // two of the probe, one that hangs and its child
	} {
		s := newScene(t)
		s.install(c.script)
		if err := os.WriteFile(s.path+".runs", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.gate.Objections(ctx, []*cachemgr.Table{table("hang")})
			ended <- err
		}()
		s.eventually("it hangs", func() bool { return len(s.processes()) == c.processes })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "interrupted") {
			t.Errorf("%s: %v", name, err)
		}
		s.wantNoProcess()
	}
}

func TestAChildThatOutlivesARunIsKilled(t *testing.T) {
	s := newScene(t, func(o *envoygate.Options) { o.MaxPause = time.Hour })
	s.put("leave")
	s.run()
	s.eventually("it is put off", func() bool { return s.wasPutOff("leave") != "" })
	s.wantNoProcess()
}

func TestAPathThatCannotBeRunIsAFaultOfTheStart(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "is a directory", plain: "permission denied", filepath.Join(dir, "none"): "no such file"} {
		_, err := envoygate.New(envoygate.Options{
			Path: path, Problems: problem.NewBoard(slog.New(slog.DiscardHandler)), Metrics: envoygate.NewMetrics(prometheus.NewRegistry()),
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
