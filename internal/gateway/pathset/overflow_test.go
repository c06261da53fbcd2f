package pathset

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// TestOverflow: paths that are kept for it carry packets about a second after others are full, and
// rest when the others could carry all for some seconds.
func TestOverflow(t *testing.T) {
	const step, others = 50 * time.Millisecond, 20 * unit.MbitPerSecond
	var o Overflow
	now, delivered := time.Duration(0), unit.Size(0)
	// run adds samples for a while, and returns after which time Carries was what is wanted, if it
	// was.
	run := func(length time.Duration, full func(time.Duration) bool, rate unit.Bandwidth, want bool) time.Duration {
		begin := now
		for ; now-begin < length; now += step {
			delivered += rate.SizeIn(step)
			before := o.Carries()
			if changed := o.AddSample(now, full(now-begin), delivered, others); changed != (o.Carries() != before) {
				t.Fatal("a change is not reported")
			}
			if o.Carries() == want {
				return now - begin
			}
		}
		return length
	}
	always := func(is bool) func(time.Duration) bool { return func(time.Duration) bool { return is } }
	if got := run(time.Minute, always(false), others/2, true); got < time.Minute {
		t.Errorf("carries after %v although nothing waits", got)
	}
	short := func(d time.Duration) bool { return d%(2*time.Second) < 400*time.Millisecond }
	if got := run(time.Minute, short, others/2, true); got < time.Minute {
		t.Errorf("carries after %v of short bursts", got)
	}
	sawtooth := func(d time.Duration) bool { return d%(500*time.Millisecond) >= step }
	if got := run(10*time.Second, sawtooth, others, true); got < 500*time.Millisecond || got > 2*time.Second {
		t.Errorf("carries %v after the others were full", got)
	}
	if got := run(time.Minute, always(false), others*3/2, false); got < time.Minute {
		t.Errorf("rests after %v although more is carried than the others can", got)
	}
	if got := run(time.Minute, always(false), others/2, false); got < 4*time.Second || got > 7*time.Second {
		t.Errorf("rests after %v although the others are enough", got)
	}
}
