package quality

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// minTrainTime is the shortest time that shows a rate: a receiver that is woken for packets notes
// when they have arrived not more exactly.
const minTrainTime = time.Millisecond

// TrainRate returns the rate of a path by when packets of one size, with all headers, arrived that
// were sent at once, or 0 if that does not show it. Only the last third counts: the tokens that a
// line has saved while it was idle let the first packets pass faster than others, and of a slow
// line's packets many are lost. A receiver that is late notes many packets at once, none of them too
// early, so their lower convex hull counts.
func TrainRate(arrived []time.Duration, size int) unit.Bandwidth {
	at := slices.Sorted(slices.Values(arrived))
	var hull []int
	for i := range at {
		for len(hull) > 1 && onLine(at, hull[len(hull)-2], i, hull[len(hull)-1]) <= at[hull[len(hull)-1]] {
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, i)
	}
	from, last := len(at)-len(at)/3-1, len(at)-1
	if len(hull) < 2 {
		return 0
	}
	n := 0
	for n+2 < len(hull) && hull[n+1] <= from {
		n++
	}
	took := at[last] - onLine(at, hull[n], hull[n+1], from)
	if took < minTrainTime {
		return 0
	}
	return rateOf(unit.Size((last-from)*size), took)
}

// onLine returns the time at packet i on the line from the arrival of packet a to that of packet b.
func onLine(at []time.Duration, a, b, i int) time.Duration {
	return at[a] + (at[b]-at[a])*time.Duration(i-a)/time.Duration(b-a)
}
