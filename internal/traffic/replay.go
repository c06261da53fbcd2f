package traffic

import (
	"iter"
	"time"
)

// Replay measures recorded arrivals as Fetch measures those of a connection: bytes by the time
// since the request, in order of time. The transfer ends with its last byte, or at limit if limit
// is not 0 and done is false. done is whether all content has arrived.
func Replay(interval, limit time.Duration, done bool, arrivals iter.Seq2[time.Duration, int]) Report {
	var r Report
	var now time.Duration
	m := meter{interval: interval, now: func() time.Duration { return now }}
	for at, n := range arrivals {
		if m.total == 0 {
			r.FirstByte = at
		}
		now = at
		m.count(n, limit)
	}
	r.Bytes, r.Duration = m.total, m.last
	if limit > 0 && !done {
		r.Duration = limit
	}
	m.finish(r.Duration)
	if r.Duration > 0 {
		r.GoodputBps = float64(r.Bytes) * 8 / r.Duration.Seconds()
	}
	r.LongestGap, r.EmptyIntervals, r.Series = m.longest, m.empty, m.series
	return r
}
