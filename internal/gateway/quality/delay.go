package quality

import "time"

// Jitter estimates how much the delay of a path varies (RFC 3550, section 6.4.1 and appendix A.8;
// paper D, equations 5 and 6). The zero value has no samples.
type Jitter struct {
	// Value is J: the exponential average, with weight 1/16, of the difference between the
	// delays of two successive packets. For delays uniform in +-a it is 2a/3.
	Value time.Duration

	transit time.Duration
	seen    bool
}

// Update adds a sample: the times at which a packet was sent and received, each on the clock of its
// own side. Only differences are used, so the clocks need not be synchronized.
func (j *Jitter) Update(sent, received time.Duration) {
	transit := received - sent
	if j.seen {
		g := j.transit - transit
		j.Value += (max(g, -g) - j.Value) / 16
	}
	j.transit, j.seen = transit, true
}

// delayKept is the weight of the previous estimate at each sample (a in docs/papers.md, paper D,
// section 4.1).
const delayKept = 0.8

// OneWayDelay estimates the delay of one direction of a path (paper D, equations 7 and 8) as half
// of a probe's round-trip time, so it is exact if both directions have the same delay. The zero
// value has no samples.
type OneWayDelay struct {
	// Value is d, 0 before the first sample.
	Value time.Duration

	seen bool
}

// Update adds a sample: the time from sending a probe to receiving its answer, and the processing
// time of the other side. A round trip shorter than the processing time is ignored: a clock jumped.
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
