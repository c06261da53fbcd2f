package simrun

import (
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// TestObjects: an object on a new connection takes two round trips more than one on a kept one, the
// shares are those of the better path, and a live rate ends in time.
func TestObjects(t *testing.T) {
	s, err := builtIn(t, "epe-unequal").Select(scenario.Selection{Cases: []string{"p6-16mb"}, Transports: []string{"mptcp*"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{Spec: s, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	get := func(traffic, transport, metric string) float64 {
		c, ok := r.Find(result.CellKey{Case: "p6-16mb", Traffic: traffic, Transport: transport}, metric)
		if !ok {
			t.Fatalf("%s over %s has no %s", traffic, transport, metric)
		}
		return c.Median
	}
	if kept, fresh := get("kept", "mptcp-a", result.ObjectTimeP50), get("new", "mptcp-a", result.ObjectTimeP50); fresh-kept < 0.02 || get("new", "mptcp-a", result.Objects) < 90 {
		t.Errorf("kept %v s, new %v s", kept, fresh)
	}
	if share := get("bi", "mptcp-epe", result.ShareOfBest); share > 0.9 || get("bi", "mptcp-epe", result.ShareOfBound) > share+0.01 {
		t.Errorf("share %v", share)
	}
	if took := get("cbr", "mptcp-b", result.Duration); took != 4 {
		t.Errorf("live rate of 85 Mbit/s over 1 Mbit/s took %v s", took)
	}
	s.Experiment.Cases[0].Events = []scenario.Event{{Set: &scenario.LinkSet{Link: "a"}, After: time.Second}}
	if err := Check(s).Err(); err == nil || !strings.Contains(err.Error(), "traffic.new.new_connections: the simulator has it only without events") {
		t.Errorf("with events: %v", err)
	}
}
