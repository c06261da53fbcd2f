package simrun

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// TestContent: each policy does better by its own measure than the scheduler over all paths.
func TestContent(t *testing.T) {
	r, err := Run(t.Context(), Options{Spec: builtIn(t, "epe-content"), Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Expect {
		if !x.Holds {
			t.Errorf("%s: got %v, want %s", x.Name, x.Got, x.Want)
		}
	}
}

// TestPolicyTerms: a transport has the policy of its port, and its paths are those of the egress
// peers.
func TestPolicyTerms(t *testing.T) {
	spec := builtIn(t, "epe-content")
	p := newPlan(spec, true)
	for transport, want := range map[string]selection.Policy{"cost": selection.Cost, "ratio": selection.Ratio, "steady": selection.Steady} {
		config, err := p.config(result.CellKey{Case: "unequal", Traffic: "bulk", Transport: transport}, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := config.Connections[0]
		a, b, other := c.Paths[0], c.Paths[1], c.Paths[2]
		if !c.Overflow || c.Policy != want || other.Listed {
			t.Errorf("%s: %v, %v, %+v", transport, c.Overflow, c.Policy, other)
		}
		switch want {
		case selection.Cost:
			if a.Rank != 1 || b.Rank != 0 || a.Commit != 0 || b.Commit != 12e6 || !a.Listed || !b.Listed {
				t.Errorf("cost: %+v, %+v", a, b)
			}
		case selection.Ratio:
			if a.Share != 80 || b.Share != 20 {
				t.Errorf("ratio: %+v, %+v", a, b)
			}
		default: // takes no parameters
		}
	}
	config, err := p.config(result.CellKey{Case: "unequal", Traffic: "bulk", Transport: "mptcp-epe"}, 1)
	if err != nil || config.Connections[0].Overflow {
		t.Errorf("without a policy: %v", err)
	}
	spec.Experiment.Transports["cost"].Port = 8080
	if err := spec.Check().Err(); err == nil || !strings.Contains(err.Error(), `experiment.transports.cost.port: must be a port of serve on node "server", got 8080`) {
		t.Errorf("another port: %v", err)
	}
	spec.Nodes["server"].Serve.Ports = []uint16{81, 81, 0, 80}
	for _, want := range []string{"ports[1]: 81 is given twice", "ports[2]: must be > 0", "ports[3]: 80 is given twice"} {
		if err := spec.Check().Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// What has a mark or a cgroup is for no socket of a scenario.
	spec.Nodes["server"].Edge.MPTCP.Policies[3].Mark = 7
	if got := spec.PolicyOf(&scenario.Transport{MPTCP: true, Port: 84}); got != nil {
		t.Errorf("a policy with a mark: %+v", got)
	}
}
