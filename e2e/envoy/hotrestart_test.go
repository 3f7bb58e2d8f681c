package envoy

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/metards/metards/e2e/process"
	"github.com/metards/metards/e2e/stock"
)

// TestAHotRestartLosesNoRequest has a new Envoy take over from an old one that is still answering.
func TestAHotRestartLosesNoRequest(t *testing.T) {
	ports, err := process.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	s := begin(t, options{
		rules: ordersRouter + to("all", "v1", ""), clusters: []string{cluster("v2")}, hot: true, ports: map[string]int{ordersTable: ports[0]},
	})
	upstream, load, slow := s.upstreams.Of(cluster("v1")), s.load(ordersTable), make(chan string, 1)
	go func() {
		a, err := stock.Request(context.Background(), s.address(ordersTable), map[string]string{":path": stock.SlowPath})
		slow <- fmt.Sprint(a.Code, " ", stock.Short(a.Who()), " ", err)
	}()
	s.receive("the slow request at the upstream", upstream.Arrived())
	report.Soon(t, "before: event log", "request sent ack", s.steps(ordersTable), s)
	before := len(s.events(ordersTable))

	old := s.envoy
	s.envoy, err = old.Restart()
	s.must(err)
	t.Cleanup(old.Stop)
	report.Soon(t, "the new process: hot_restart_generation", "2", func() (string, error) { return s.envoy.Stat("server.hot_restart_generation") }, s)
	report.Is(t, "update_success, counted on from the old process", "2", s.now(ordersTable, "update_success"))
	events := s.events(ordersTable)[before:]
	report.Is(t, "the new process: event log", "request sent ack", stock.Steps(events))
	report.Is(t, "the new process: its first request holds the version", `""`, fmt.Sprintf("%q", events[0].Version))
	report.Is(t, "the new process: version_text", s.events(ordersTable)[1].Version, s.now(ordersTable, "version_text"))

	select {
	case early := <-slow:
		t.Fatalf("the slow request ended before it was released: %s", early)
	default:
	}
	upstream.Release()
	report.Is(t, "the request that was in flight in the old process", "200 v1 <nil>", s.receiveText("the answer of the slow request", slow))
	report.Soon(t, "the old process", "has ended by itself", func() (string, error) {
		select {
		case <-old.Ended():
			return "has ended by itself", nil
		default:
			return "is running", nil
		}
	}, s)
	s.edit(ordersRouter + to("all", "v2", ""))
	report.Soon(t, "the next edit", "v2", s.who(ordersTable, nil), s)
	s.undisturbed(load, "v2")
}

// receive waits for a channel.
func (s *scene) receive(what string, from <-chan struct{}) {
	s.t.Helper()
	select {
	case <-from:
	case <-time.After(stock.Patience):
		s.t.Fatalf("never: %s", what)
	}
}

func (s *scene) receiveText(what string, from <-chan string) string {
	s.t.Helper()
	select {
	case text := <-from:
		return text
	case <-time.After(stock.Patience):
		s.t.Fatalf("never: %s", what)
		return ""
	}
}
