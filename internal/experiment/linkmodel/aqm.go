package linkmodel

import (
	"math"
	"math/rand/v2"
)

// red is the state of random early detection.
type red struct {
	average float64 // average queue length, in the unit of the thresholds
	count   int     // frames since the last drop, or -1 while the average is below Min
	random  *rand.Rand
}

// drop reports whether RED drops an arriving frame. length is the queue length on arrival. idle is
// the number of frames that could have been sent in the current idle time, 0 when the link is busy.
func (r *red) drop(p *RED, length, idle float64) bool {
	weight := p.Weight
	if weight == 0 {
		weight = DefaultWeight
	}
	if idle > 0 {
		r.average *= math.Pow(1-weight, idle)
	} else {
		r.average += weight * (length - r.average)
	}
	low, high := p.Min.amount(), p.Max.amount()
	var base float64
	switch {
	case r.average < low:
		r.count = -1
		return false
	case r.average < high:
		base = p.P * (r.average - low) / (high - low)
	case r.average < 2*high:
		base = p.P + (1-p.P)*(r.average-high)/high
	default:
		r.count = 0
		return true
	}
	r.count++
	// Space the drops evenly: the distance between drops is uniformly, not geometrically,
	// distributed.
	rest := 1 - float64(r.count)*base
	if rest > 0 && r.random.Float64() >= base/rest {
		return false
	}
	r.count = 0
	return true
}
