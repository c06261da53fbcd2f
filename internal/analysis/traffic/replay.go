package traffic

import (
	"iter"
	"time"
)

// Replay measures recorded arrivals as Fetch measures those of a connection: bytes by the time
// since the request, in order of time. The transfer ends with its last byte, or at limit if limit
// is not 0 and done is false. done is whether all content has arrived.
func Replay(interval, limit time.Duration, done bool, arrivals iter.Seq2[time.Duration, int]) Report {
	var now time.Duration
	m := meter{interval: interval, now: func() time.Duration { return now }}
	for at, n := range arrivals {
		now = at
		m.count(n, limit)
	}
	end := m.last
	if limit > 0 && !done {
		end = limit
	}
	return m.report(end)
}
