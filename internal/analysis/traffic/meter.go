package traffic

import (
	"sync"
	"time"
)

// settle is the time from which gaps count: until then, connections and subflows are being
// established.
const settle = time.Second

// Sample counts the content that arrived in one interval.
type Sample struct {
	// At is the start of the interval, relative to the request.
	At time.Duration `json:"at_ns"`
	// Bytes is the number of bytes of content that arrived in it.
	Bytes int64 `json:"bytes"`
	// Gap is the longest time without a byte that ended in the interval, counted from 1 s after
	// the request.
	Gap time.Duration `json:"gap_ns,omitempty"`
}

// meter counts bytes per interval. now is called under the lock, so that its values never decrease.
type meter struct {
	interval time.Duration
	now      func() time.Duration
	progress func(Sample)

	mu      sync.Mutex
	series  []Sample
	current Sample
	total   int64
	first   time.Duration // when the first byte came, or 0
	last    time.Duration // when the last byte came, or 0
	longest time.Duration
	empty   int
	// finished: what was measured is reported.
	finished bool
}

// count records n bytes that arrived now and returns the time. Bytes at or after the limit (0:
// none) are not counted.
func (m *meter) count(n int, limit time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.now()
	if limit > 0 && at >= limit || n == 0 {
		return at
	}
	if m.total == 0 {
		m.first = at
	}
	m.closeUntil(at)
	m.current.Bytes += int64(n)
	m.total += int64(n)
	m.gapUntil(at)
	m.last = at
	return at
}

// received returns the bytes counted so far.
func (m *meter) received() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// tick closes the intervals that have ended, so that progress is called even if nothing arrives. It
// returns the time until the end of the current interval.
func (m *meter) tick() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.finished {
		return m.interval
	}
	at := m.now()
	m.closeUntil(at)
	return m.current.At + m.interval - at
}

// exclusively calls f while progress is not called.
func (m *meter) exclusively(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// finish closes the measurement at end; the last interval may be shorter.
func (m *meter) finish(end time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropAfter(end)
	m.closeUntil(end)
	m.gapUntil(end)
	m.finished = true
	switch last := len(m.series) - 1; {
	case m.current.Bytes > 0 || end > m.current.At:
		m.emit()
	case last >= 0:
		// The gap ends at the end of the last interval.
		m.series[last].Gap = max(m.series[last].Gap, m.current.Gap)
	}
}

// dropAfter drops the empty intervals that began after the end, while more was waited for.
func (m *meter) dropAfter(end time.Duration) {
	for n := len(m.series) - 1; n >= 0 && m.series[n].At >= end && m.series[n].Bytes == 0; n-- {
		m.current, m.series = m.series[n], m.series[:n]
		if m.current.At >= settle {
			m.empty--
		}
	}
}

// report closes the measurement at end and returns it, with the first byte since the request.
func (m *meter) report(end time.Duration) Report {
	m.finish(end)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Report{
		Bytes: m.total, FirstByte: m.first, Duration: end, Series: m.series, LongestGap: m.longest, EmptyIntervals: m.empty,
	}
	if end > 0 {
		r.GoodputBps = float64(r.Bytes) * 8 / end.Seconds()
	}
	return r
}

func (m *meter) closeUntil(at time.Duration) {
	for m.current.At+m.interval <= at {
		if m.current.At >= settle && m.current.Bytes == 0 {
			m.empty++
		}
		m.emit()
		m.current = Sample{At: m.current.At + m.interval}
	}
}

func (m *meter) gapUntil(at time.Duration) {
	gap := at - max(m.last, settle)
	m.longest, m.current.Gap = max(m.longest, gap), max(m.current.Gap, gap)
}

func (m *meter) emit() {
	m.series = append(m.series, m.current)
	if m.progress != nil {
		m.progress(m.current)
	}
}
