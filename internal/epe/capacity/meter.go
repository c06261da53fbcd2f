package capacity

import (
	"math"
	"time"
)

const (
	// SampleEvery is how often a border router reads what its links have sent, and the least time
	// between two reports of a link.
	SampleEvery = time.Second
	// smoothFor is the time constant of what a link is said to carry: longer than the bursts of a
	// few connections, and shorter than Every.
	smoothFor = 2 * time.Second

	// A change is reported if it is a share of the capacity: a small one of a link that networks
	// may soon leave or return to.
	smallStep, largeStep = 0.01, 0.05
)

// Meter measures what a link carries from how many bytes it has sent. The zero Meter is ready.
type Meter struct {
	bytes uint64
	at    time.Time
	used  float64
	known bool
}

// Add applies a reading, and returns what the link carries; false until that is known.
func (m *Meter) Add(now time.Time, bytes uint64) (used float64, known bool) {
	passed := now.Sub(m.at).Seconds()
	if m.at.IsZero() || passed <= 0 || bytes < m.bytes { // another interface of the same name
		*m = Meter{bytes: bytes, at: now}
		return 0, false
	}
	rate := float64(bytes-m.bytes) / passed
	if m.known {
		rate = m.used + (1-math.Exp(-passed/smoothFor.Seconds()))*(rate-m.used)
	}
	*m = Meter{bytes, now, rate, true}
	return rate, true
}

// Worth reports whether a load is worth a report, some time after the one that was reported last.
func Worth(last, now Load, since time.Duration) bool {
	if since < SampleEvery {
		return false
	}
	step := largeStep
	if max(last.Used, now.Used) > (Low-largeStep)*now.Capacity {
		step = smallStep
	}
	return since >= Repeat || last.Capacity != now.Capacity || math.Abs(now.Used-last.Used) >= step*now.Capacity ||
		(now.Share() >= Full) != (last.Share() >= Full)
}
