package pathset

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Totals are counters since the start, summed over all paths, as in Window.
type Totals struct {
	Delivered unit.Size
	Lost      uint64
	Late      uint64
	Elastic   uint64
}

// Meter makes windows of counters. The zero value is ready.
type Meter struct {
	before         Totals
	since          time.Duration
	begun          bool
	samples, waits int
}

// windowRTTs is how many round trips a window has at least: TCP that repairs a loss is slow for
// two.
var windowRTTs time.Duration = 4

// AddSample adds the counters at the time now, whether packets wait in the queue of each path in
// use, and the shortest round-trip time of the paths, which lengthens the window. It is called
// several times in a window. At the end of one it returns that window, scaled to Length, and true.
func (m *Meter) AddSample(now time.Duration, t Totals, waiting bool, rtt time.Duration) (Window, bool) {
	if !m.begun || now < m.since {
		*m = Meter{before: t, since: now, begun: true}
		return Window{}, false
	}
	m.samples++
	if waiting {
		m.waits++
	}
	took := now - m.since
	if took < max(Length, windowRTTs*min(rtt, maxRTT)) {
		return Window{}, false
	}
	w := Window{
		Delivered: unit.Size(float64(since(uint64(t.Delivered), uint64(m.before.Delivered))) * float64(Length) / float64(took)),
		Lost:      int(since(t.Lost, m.before.Lost)), Late: int(since(t.Late, m.before.Late)),
		Elastic: int(since(t.Elastic, m.before.Elastic)),
		Busy:    2*m.waits > m.samples,
	}
	*m = Meter{before: t, since: now, begun: true}
	return w, true
}

// maxRTT bounds the round-trip time that counts.
const maxRTT = time.Second

// since returns by how much a counter grew. One that is lower than before was started again.
func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
