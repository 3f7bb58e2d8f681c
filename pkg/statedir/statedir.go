// Package statedir keeps the mesh's last valid state in a directory, for a restart during an outage of its
// sources. In: the store, and at the start the file that an earlier process wrote. Out: that file, written
// atomically when the state changed, and the saved state, which stands in for sources that stay silent.
// Not here: what the state means (package mesh). The directory is a cache: losing it loses nothing else.
package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Store is what is saved. *mesh.Store is one.
type Store interface {
	Generation() uint64
	Save() (mesh.Saved, error)
	Remember(mesh.Saved) error
	Missing() []mesh.Feed
	StandIn() []mesh.Feed
}

// Options configure a Keeper. All but the durations are required.
type Options struct {
	Dir      string
	Store    Store
	Problems *problem.Board
	Log      *slog.Logger
	Metrics  *Metrics
	// Interval is the shortest time between two writes; default 5 s.
	Interval time.Duration
	// Grace is how long after the start the saved state waits for the sources; default 10 s.
	Grace time.Duration
}

// Keeper writes the state and brings it back.
type Keeper struct {
	options Options
	written uint64 // generation of the state in the file
	saved   time.Time
}

const (
	fileName = "mesh.json"
	// format is the version of the file's form; files of another one are ignored.
	format = 1
)

// file is the form of the file.
type file struct {
	Format int        `json:"format"`
	Mesh   mesh.Saved `json:"mesh"`
}

// New makes the directory if need be and has the store remember what is in it. A file that cannot be used is
// a Problem and otherwise ignored; the next write replaces it.
func New(o Options) (*Keeper, error) {
	if o.Dir == "" || o.Store == nil || o.Problems == nil || o.Log == nil || o.Metrics == nil {
		return nil, errors.New("statedir: an option is missing")
	}
	if o.Interval == 0 {
		o.Interval = 5 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	probe, err := os.CreateTemp(o.Dir, fileName+".*")
	if err != nil {
		return nil, fmt.Errorf("the state directory cannot be written: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, fmt.Errorf("the state directory cannot be written: %w", err)
	}
	k := &Keeper{options: o, written: o.Store.Generation()}
	k.load()
	return k, nil
}

func (k *Keeper) path() string { return filepath.Join(k.options.Dir, fileName) }

func (k *Keeper) load() {
	data, err := os.ReadFile(k.path())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var f file
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err == nil && f.Format != format {
		err = fmt.Errorf("it has format %d, this version writes %d", f.Format, format)
	}
	if err == nil {
		err = k.options.Store.Remember(f.Mesh)
	}
	if err != nil {
		k.problem(problem.Unreadable, fmt.Sprintf("the saved state cannot be used: %v", err), "a restart now waits for all sources")
		return
	}
	k.saved = f.Mesh.At
	k.options.Log.Info("saved state read", "file", k.path(), "saved", f.Mesh.At, "objects", len(f.Mesh.Objects))
}

func (k *Keeper) problem(reason problem.Reason, detail, consequence string) {
	var list []problem.Problem
	if detail != "" {
		list = []problem.Problem{{Severity: problem.Error, Reason: reason, Detail: detail, Consequence: consequence, File: k.path()}}
	}
	k.options.Problems.Set("statedir", list)
}

// Run lets the saved state stand in for the sources that are silent after the grace period, and writes the
// state whenever it changed, until the context ends; then once more.
func (k *Keeper) Run(ctx context.Context) error {
	grace := time.NewTimer(k.options.Grace)
	defer grace.Stop()
	tick := time.NewTicker(k.options.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			k.write()
			return nil
		case <-grace.C:
			k.standIn()
		case <-tick.C:
			k.write()
		}
	}
}

func (k *Keeper) standIn() {
	for _, f := range k.options.Store.StandIn() {
		k.options.Log.Warn("a source is silent; the saved state stands in for it", "missing", f.String(), "saved", k.saved)
		k.options.Metrics.stoodIn.Inc()
	}
}

// write writes the state if it changed, once there is truth: before, it is not complete.
func (k *Keeper) write() {
	generation := k.options.Store.Generation()
	if generation == k.written || len(k.options.Store.Missing()) > 0 {
		return
	}
	if err := k.replace(); err != nil {
		k.problem(problem.Unreadable, fmt.Sprintf("the state cannot be saved: %v", err), "a restart during an outage serves an older state")
		k.options.Metrics.failures.Inc()
		return
	}
	k.problem("", "", "")
	k.written = generation
	k.options.Metrics.written.SetToCurrentTime()
}

// replace writes a new file in the place of the old one: a crash leaves one of the two.
func (k *Keeper) replace() error {
	saved, err := k.options.Store.Save()
	if err != nil {
		return err
	}
	data, err := json.Marshal(file{format, saved})
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(k.options.Dir, fileName+".*")
	if err != nil {
		return err
	}
	_, err = next.Write(data)
	err = errors.Join(err, next.Sync(), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), k.path())
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// Metrics of the state directory.
type Metrics struct {
	written  prometheus.Gauge
	failures prometheus.Counter
	stoodIn  prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		written: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metards_state_written_timestamp_seconds", Help: "When the state was last written, in seconds since 1970; 0 is never.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "metards_state_write_failures_total", Help: "Failed writes of the state.",
		}),
		stoodIn: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "metards_state_stood_in_total", Help: "Lists of a silent source that the saved state stood in for.",
		}),
	}
	r.MustRegister(m.written, m.failures, m.stoodIn)
	return m
}
