package staticxds

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/metards/metards/pkg/problem"
)

func newSource(t *testing.T) (*Source, *problem.Board) {
	t.Helper()
	board := problem.NewBoard(slog.New(slog.DiscardHandler))
	s, err := New(Options{
		File: t.TempDir() + "/static.yaml", Problems: board, Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, board
}

func TestADirectoryInThePlaceOfTheFileIsRefusedAtOnce(t *testing.T) {
	board := problem.NewBoard(slog.New(slog.DiscardHandler))
	_, err := New(Options{File: t.TempDir(), Problems: board, Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "is a directory; give a file") {
		t.Errorf("got %v", err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("nothing is required")
	}
}

func TestWhileTheFirstFileHasAFaultItIsSaidWhere(t *testing.T) {
	s, _ := newSource(t)
	s.take([]byte("clusters:\n- name: a\n- nam: b\n"), nil)
	if got, want := s.Waiting(), "waiting for the static resources "+s.options.File+":3: clusters[1]: unknown field"; !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s…", got, want)
	}
}

func TestTheMetricsCountWhatIsInForceAndWhatFailed(t *testing.T) {
	s, _ := newSource(t)
	m := s.options.Metrics
	s.take([]byte("clusters: [{name: a}, {name: b}]"), nil)
	s.take([]byte("clusters: ["), nil)
	s.take(nil, &problem.Problem{Severity: problem.Error, Reason: problem.Unreadable})
	if got := testutil.ToFloat64(m.resources.WithLabelValues("clusters")); got != 2 {
		t.Errorf("%v clusters", got)
	}
	if got := testutil.ToFloat64(m.failures); got != 2 {
		t.Errorf("%v failures", got)
	}
	if testutil.ToFloat64(m.loaded) == 0 {
		t.Error("it was never loaded")
	}
}

func TestAClusterWhoseEndpointsAreNowhereIsAWarning(t *testing.T) {
	s, board := newSource(t)
	const cluster = "clusters: [{name: a, type: EDS, eds_cluster_config: {eds_config: {ads: {}}}}]\n"
	s.take([]byte(cluster), nil)
	if all := board.All(); len(all) != 1 || all[0].Severity != problem.Warning || all[0].Reason != problem.NoEndpoints {
		t.Errorf("got %v", all)
	}
	s.take([]byte(cluster+"endpoints: [{cluster_name: a}]"), nil)
	if all := board.All(); len(all) != 0 {
		t.Errorf("got %v", all)
	}
}

func TestAnOldVersionMayComeBackWithItsOldContentOnly(t *testing.T) {
	s, board := newSource(t)
	for _, step := range []struct {
		text, version, content string
		fine                   bool
	}{
		{"versions: {clusters: '1'}\nclusters: [{name: a}]", "1", "a", true},
		{"versions: {clusters: '2'}\nclusters: [{name: b}]", "2", "b", true},
		{"versions: {clusters: '1'}\nclusters: [{name: c}]", "2", "b", false},
		{"versions: {clusters: '1'}\nclusters: [{name: a}]", "1", "a", true},
	} {
		s.take([]byte(step.text), nil)
		got := s.current().types[clusters]
		if got.version != step.version || got.names()[0] != step.content || (len(board.All()) == 0) != step.fine {
			t.Errorf("after %q: version %s of %v, Problems %v", step.text, got.version, got.names(), board.All())
		}
	}
}
