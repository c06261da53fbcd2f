package quality

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

// TestTrainRate: a line with a token bucket that a third of the train fits, whose packets arrive at
// a receiver that is late for some of them, shows its rate.
func TestTrainRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size, count = 1350, 64
		rate := unit.Bandwidth(rapid.IntRange(1, 150).Draw(t, "Mbit/s")) * unit.MbitPerSecond
		bucket := rapid.IntRange(0, count/3).Draw(t, "bucket")
		late := rapid.IntRange(0, count-1).Draw(t, "late")
		wait := rate.TimeFor(size) * time.Duration(rapid.IntRange(0, 6).Draw(t, "wait"))
		var arrived []time.Duration
		for i := range count {
			at := rate.TimeFor(unit.Size(size * max(0, i-bucket)))
			if i >= late {
				at = max(at, rate.TimeFor(unit.Size(size*max(0, late-bucket)))+wait)
			}
			arrived = append(arrived, at)
		}
		if got := TrainRate(arrived, size); got < rate*2/3 || got > rate*11/10 {
			t.Fatalf("%v, want %v", got, rate)
		}
	})
}

// TestTrainRateUnknown: what arrives at once, or is too little, shows nothing.
func TestTrainRateUnknown(t *testing.T) {
	for _, arrived := range [][]time.Duration{nil, {0, 1, 2}, make([]time.Duration, 64)} {
		if got := TrainRate(arrived, 1350); got != 0 {
			t.Errorf("%d packets show %v", len(arrived), got)
		}
	}
}
