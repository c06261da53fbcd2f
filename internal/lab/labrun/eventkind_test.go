package labrun

import (
	"testing"

	"github.com/tabane/tabane/internal/experiment/scenario"
)

func TestAppliersAreComplete(t *testing.T) {
	for _, kind := range scenario.EventKinds() {
		if appliers[kind] == nil {
			t.Errorf("the lab cannot apply %q", kind)
		}
	}
	if len(appliers) != len(scenario.EventKinds()) {
		t.Errorf("%d appliers for %d kinds", len(appliers), len(scenario.EventKinds()))
	}
}

func TestCheckUnknownKind(t *testing.T) {
	spec := &scenario.Spec{Experiment: &scenario.Experiment{Cases: []scenario.Case{
		{Events: []scenario.Event{{Up: &scenario.Port{}}, {Kill: &scenario.Daemon{}}}},
	}}}
	if faults := Check(spec); len(faults) > 0 {
		t.Fatalf("faults %v", faults)
	}
	known := appliers[scenario.EventKill]
	delete(appliers, scenario.EventKill)
	defer func() { appliers[scenario.EventKill] = known }()
	if faults := Check(spec); len(faults) != 1 || faults[0].Path != "experiment.cases[0].events[1].kill" {
		t.Errorf("faults %v", faults)
	}
}
