package quality

import "time"

// Jitter estimates how much the delay of a path varies (RFC 3550, section 6.4.1 and appendix A.8;
// paper D, equations 5 and 6). Its zero value has seen nothing.
type Jitter struct {
	// Value is J: the mean of how much the delays of two successive packets differ, of which
	// the last counts for a sixteenth. Delays that are uniform in +-a differ by 2a/3 in the
	// mean.
	Value time.Duration

	transit time.Duration
	seen    bool
}

// Update takes the times at which a packet was sent and received, each on the clock of its own
// side: only differences are used.
func (j *Jitter) Update(sent, received time.Duration) {
	transit := received - sent
	if j.seen {
		g := j.transit - transit
		j.Value += (max(g, -g) - j.Value) / 16
	}
	j.transit, j.seen = transit, true
}

// delayKept is what remains of the estimate at each sample (docs/papers.md, paper D, section 4.1:
// a).
const delayKept = 0.8

// OneWayDelay estimates the delay of one direction of a path (paper D, equations 7 and 8) as half
// of what a probe takes, so it is right where both directions take as long. Its zero value has seen
// nothing.
type OneWayDelay struct {
	// Value is d, 0 before the first sample.
	Value time.Duration

	seen bool
}

// Update takes the time from sending a probe to receiving its answer, and how long the other side
// took to answer. A probe that took less than that was measured by a clock that jumped, and is no
// sample.
func (d *OneWayDelay) Update(roundTrip, processing time.Duration) {
	if processing < 0 || roundTrip < processing {
		return
	}
	sample := (roundTrip - processing) / 2
	if !d.seen {
		d.Value, d.seen = sample, true
		return
	}
	d.Value = time.Duration(delayKept*float64(d.Value) + (1-delayKept)*float64(sample) + 0.5)
}
