package contain

import (
	"cmp"
	"time"
)

const (
	// firstPause is how long a session stays closed after its first panic. It doubles with each
	// one, up to maxPause: a neighbor sends the same message again as soon as it is back.
	firstPause = 10 * time.Second
	maxPause   = 10 * time.Minute
	// forgetAfter is the time without a panic after which the next one counts as the first.
	forgetAfter = time.Hour
)

// Backoff is how long a session stays closed after panics. The zero value is that of one without
// any.
type Backoff struct {
	// First is the first pause, 0 for the default.
	First time.Duration

	inRow int
	until time.Time
}

// Panicked records a panic at now.
func (b *Backoff) Panicked(now time.Time) {
	if now.Sub(b.until) >= forgetAfter {
		b.inRow = 0
	}
	b.until = now.Add(min(cmp.Or(b.First, firstPause)<<min(b.inRow, 16), maxPause))
	b.inRow++
}

// Until is when the session may return, in the past if it may now.
func (b *Backoff) Until() time.Time { return b.until }
