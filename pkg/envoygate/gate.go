package envoygate

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/problem"
)

// Queue is where the Tables wait. *cachemgr.Manager is one.
type Queue interface {
	Waiting() <-chan struct{}
	Unjudged(most, bytes int) []*cachemgr.Table
	Candidates() int
	Again()
	Forget()
	Verdicts
}

// Verdicts takes the verdict on each table that was handed out, or the table back.
type Verdicts interface {
	Pass([]*cachemgr.Table)
	Refuse(t *cachemgr.Table, objection string)
	PutOff(t *cachemgr.Table, objection string)
	GiveBack([]*cachemgr.Table)
}

// Options configure a Gate. Zero numbers and durations stand for their defaults.
type Options struct {
	// Path is the Envoy, a file or a name that is looked up in PATH. Required.
	Path string
	// Timeout is after how long a run is killed; default 10 s.
	Timeout time.Duration
	// Runs is how many there may be at once; default 2.
	Runs int
	// Batch is how many tables one run judges at most; default 64.
	Batch int
	// Look is how often to look whether the binary was replaced; default 1 s. A binary that does not work is
	// tried again after that time, and then after twice as long each time, up to MaxPause; default 30 s. A table
	// that alone cannot be judged is tried again after MaxPause.
	Look, MaxPause time.Duration
	// Problems receives what keeps the binary from judging. Required.
	Problems *problem.Board
	// Metrics are required.
	Metrics *Metrics
}

// Gate judges tables with an Envoy.
type Gate struct {
	path           string
	timeout        time.Duration
	runs, batch    int
	look, maxPause time.Duration
	problems       *problem.Board
	metrics        *Metrics

	mu      sync.Mutex
	trouble string // until it has worked once
}

// maxBatchBytes bounds the tables of one run together, if they are more than one.
const maxBatchBytes = 4 << 20

// owner of the Problem of the binary.
const owner = "gate"

// New returns a Gate. It fails if the path names nothing that can be run: that is a mistake of whoever wrote it.
func New(o Options) (*Gate, error) {
	if o.Path == "" || o.Problems == nil || o.Metrics == nil {
		return nil, errors.New("envoygate: Path, Problems and Metrics are required")
	}
	if o.Timeout < 0 || o.Runs < 0 || o.Batch < 0 || o.Look < 0 || o.MaxPause < 0 {
		return nil, errors.New("envoygate: numbers and durations must not be negative")
	}
	path, err := exec.LookPath(o.Path)
	if err != nil {
		return nil, fmt.Errorf("find an Envoy to run: %w", err)
	}
	g := &Gate{
		path: path, timeout: cmp.Or(o.Timeout, 10*time.Second), runs: cmp.Or(o.Runs, 2), batch: cmp.Or(o.Batch, 64),
		look: cmp.Or(o.Look, time.Second), maxPause: cmp.Or(o.MaxPause, 30*time.Second), problems: o.Problems, metrics: o.Metrics,
	}
	g.trouble = "Envoy at " + path + " has not been tried yet"
	return g, nil
}

// Trouble says why the Gate has never been able to judge, empty once it was: from then on what was judged is
// served, whatever happens to the binary.
func (g *Gate) Trouble() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trouble
}

func (g *Gate) setTrouble(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trouble = text
}
