package quality

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// minTrainStep is the shortest time that shows a rate: a receiver that is woken for packets notes
// when they have arrived not more exactly.
const minTrainStep = 500 * time.Microsecond

// TrainRate returns the rate of a path by when packets of one size, with all headers, arrived that
// were sent at once, or 0 if that does not show it. Only the last third counts: the tokens that a
// line has saved while it was idle let the first packets pass faster than others, and of a slow
// line's packets many are lost. Of the rates over each half of that third, it is the median: a
// receiver that is late notes many packets at once.
func TrainRate(arrived []time.Duration, size int) unit.Bandwidth {
	later := slices.Sorted(slices.Values(arrived[len(arrived)-len(arrived)/3:]))
	step := len(later) / 2
	if step == 0 {
		return 0
	}
	var took []time.Duration
	for i := step; i < len(later); i++ {
		took = append(took, later[i]-later[i-step])
	}
	slices.Sort(took)
	median := took[len(took)/2]
	if median < minTrainStep {
		return 0
	}
	return rateOf(unit.Size(step*size), median)
}
