package simrun

import (
	"testing"

	"github.com/tabane/tabane/internal/experiment/scenario"
)

func TestTheSimulatorKnowsEveryKindOfEvent(t *testing.T) {
	for _, kind := range scenario.EventKinds() {
		effect, known := effects[kind]
		if !known || effect.refuse == nil {
			t.Errorf("the simulator has no entry for %q", kind)
			continue
		}
		// An event that is never refused must be applied.
		if (effect.touched == nil) != (effect.changes == nil) {
			t.Errorf("%q touches links without changing them, or the reverse", kind)
		}
	}
	if len(effects) != len(scenario.EventKinds()) {
		t.Errorf("%d entries for %d kinds", len(effects), len(scenario.EventKinds()))
	}
}
