package staticxds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/metards/metards/pkg/filewatch"
	"github.com/metards/metards/pkg/problem"
)

// Options configure a Source. All fields are required but the durations, which are those of filewatch.
type Options struct {
	File     string
	Problems *problem.Board
	Metrics  *Metrics
	Log      *slog.Logger
	Settle   time.Duration
	Poll     time.Duration
}

// Source holds what is served of a file. Its methods may be called concurrently.
type Source struct {
	options Options

	mu       sync.Mutex
	set      *Set // nil until the file was read for the first time
	loaded   time.Time
	faults   []problem.Problem // of the file as it is now
	used     [kinds][]use
	hidden   map[string]struct{} // names of tables that routes of the file hide
	sessions map[*Session]struct{}
}

// use is a version of the file's own and the content that it stood for.
type use struct{ version, hash string }

// maxUses is how many versions of a type are remembered.
const maxUses = 1000

// owner is whose Problems they are on the board.
const owner = "static-resources"

// New returns a Source that has read nothing yet. The file need not be there now; a directory cannot be one.
func New(o Options) (*Source, error) {
	if o.File == "" || o.Problems == nil || o.Metrics == nil || o.Log == nil {
		return nil, errors.New("staticxds: an option is missing")
	}
	if info, err := os.Stat(o.File); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory; give a file", o.File)
	}
	return &Source{options: o, hidden: map[string]struct{}{}, sessions: map[*Session]struct{}{}}, nil
}

// Run follows the file until the context ends.
func (s *Source) Run(ctx context.Context) error {
	return filewatch.Follow(ctx, filewatch.FollowOptions{
		File: s.options.File, Log: s.options.Log, Settle: s.options.Settle, Poll: s.options.Poll,
	}, s.take)
}

// Waiting says what is waited for, and why it does not come. It is empty once the file was read.
func (s *Source) Waiting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.set != nil:
		return ""
	case len(s.faults) == 0:
		return "waiting for the static resources " + s.options.File
	default:
		return fmt.Sprintf("waiting for the static resources %s: %s", cmp.Or(s.faults[0].Where(), s.options.File), s.faults[0])
	}
}

// take takes in what the file says now, or why it cannot be read.
func (s *Source) take(data []byte, unreadable *problem.Problem) {
	var set *Set
	var faults []problem.Problem
	if unreadable != nil {
		faults = []problem.Problem{*unreadable}
	} else {
		set, faults = Read(s.options.File, data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range faults {
		faults[i].Consequence = "what the file said before stays in force"
		if s.set == nil {
			faults[i].Consequence = "clusters, endpoints, listeners, and on ADS also routes wait for a file without faults"
		}
	}
	s.faults = faults
	if set != nil {
		s.publish(set) // which may find more of them
	}
	if len(s.faults) > 0 {
		s.options.Metrics.failures.Inc()
	} else {
		s.loaded = time.Now()
		s.options.Metrics.loaded.Set(float64(s.loaded.UnixMilli()) / 1000)
	}
	s.report()
}

// publish makes a set the one that is served, but for types whose version was used before with other content.
func (s *Source) publish(set *Set) {
	var changed []any
	for k := range kinds {
		now := &set.types[k]
		if now.explicit() && !s.use(k, now) {
			s.faults = append(s.faults, problem.Problem{
				Severity: problem.Error, Reason: problem.Contradiction, Path: "versions." + k.String(), File: s.options.File,
				Detail:      fmt.Sprintf("version %s of %s was already used with other content", now.version, k),
				Consequence: fmt.Sprintf("the %s that were served before stay until the version changes", k),
			})
			set.types[k] = s.set.types[k]
			continue
		}
		if s.set == nil || !s.set.types[k].same(now) {
			changed = append(changed, k.String(), now.version)
		}
	}
	if len(changed) == 0 {
		return
	}
	s.set = set
	for k := range kinds {
		s.options.Metrics.resources.WithLabelValues(k.String()).Set(float64(len(set.types[k].sorted)))
	}
	for name := range s.hidden {
		if _, ok := set.types[routes].byName[name]; !ok {
			delete(s.hidden, name)
		}
	}
	s.options.Log.Info("static resources changed", append([]any{"file", s.options.File}, changed...)...)
	for x := range s.sessions {
		x.wake()
	}
}

// use notes that a version stands for a content. It reports false if it stood for another one.
func (s *Source) use(k kind, l *list) bool {
	u := use{l.version, l.hash}
	i := slices.IndexFunc(s.used[k], func(x use) bool { return x.version == u.version })
	if i >= 0 {
		return s.used[k][i] == u
	}
	s.used[k] = append(s.used[k], u)
	if len(s.used[k]) > maxUses {
		s.used[k] = slices.Delete(s.used[k], 0, 1)
	}
	return true
}

// hide notes that a route of the file hides a table.
func (s *Source) hide(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.hidden[name]; ok || s.set == nil || s.set.types[routes].byName[name] == nil {
		return
	}
	s.hidden[name] = struct{}{}
	s.report()
}

// report brings the board up to date. mu is held.
func (s *Source) report() {
	list := slices.Clone(s.faults)
	for name := range s.hidden {
		list = append(list, problem.Problem{
			Severity: problem.Warning, Reason: problem.Duplicate, Path: pathTo(routes, 0, name), File: s.options.File,
			Detail: "a table of a service has the same name", Consequence: "on ADS the file's is served in its place; on RDS the table is",
		})
	}
	for _, c := range s.set.withoutEndpoints() {
		list = append(list, problem.Problem{
			Severity: problem.Warning, Reason: problem.NoEndpoints, Path: pathTo(clusters, 0, c.Name), File: s.options.File,
			Detail:      fmt.Sprintf("it asks on ADS for the endpoints %s, which the file does not have", c.endpoints),
			Consequence: "Envoy takes the cluster, and what is sent after it, into use late or without endpoints",
		})
	}
	s.options.Problems.Set(owner, list)
}

// current is what is served, nil if nothing is yet.
func (s *Source) current() *Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}
