package pathset

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Bounds of Overflow.
const (
	// fillTime is the time over which it is judged whether paths are full, fillShare the share of
	// it in which packets have to wait in front of all of them: queues of TCP are empty at times.
	fillTime, fillShare = 500 * time.Millisecond, 0.8
	// Over calmWindows windows of calmLength, less than calmPercent of the rate of the other paths
	// is carried: they alone are enough.
	calmLength, calmWindows, calmPercent = time.Second, 5, 90
)

// Overflow decides when paths that are kept for the time when others are full carry packets. The
// zero value is ready: they do not.
type Overflow struct {
	on   bool
	at   time.Duration // of the last sample
	fill float64       // share of recent time in which the others were full
	// A window began at since, when so much was delivered; calm counts those with little.
	since     time.Duration
	delivered unit.Size
	calm      int
}

// Carries reports whether these paths carry packets.
func (o *Overflow) Carries() bool { return o.on }

// AddSample takes whether packets wait now in front of each of the other paths, what all paths have
// delivered so far, and the rate of the others. It reports whether Carries has changed.
func (o *Overflow) AddSample(now time.Duration, full bool, delivered unit.Size, others unit.Bandwidth) bool {
	passed := max(now-o.at, 0)
	o.at = now
	if !o.on {
		target := 0.0
		if full {
			target = 1
		}
		// A long time without a sample shows no more than a short one.
		passed = min(passed, fillTime/2)
		o.fill += (target - o.fill) * float64(passed) / float64(passed+fillTime)
		if o.fill < fillShare {
			return false
		}
		*o = Overflow{on: true, at: now, since: now, delivered: delivered}
		return true
	}
	took := now - o.since
	if took < calmLength {
		return false
	}
	if (delivered - o.delivered).Over(took) < others/100*calmPercent {
		o.calm++
	} else {
		o.calm = 0
	}
	o.since, o.delivered = now, delivered
	if o.calm < calmWindows {
		return false
	}
	*o = Overflow{at: now}
	return true
}
