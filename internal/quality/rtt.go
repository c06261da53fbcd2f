package quality

import "time"

// The bounds of RTT.RTO.
const (
	// MinRTO is Linux' least retransmission timeout; RFC 6298 (2.4) would have a second.
	MinRTO = 200 * time.Millisecond
	// MaxRTO is the most (RFC 6298, 2.5: at least 60 s; Linux has 120 s).
	MaxRTO = 120 * time.Second
	// InitialRTO is the timeout before the first sample (RFC 6298, 2.1).
	InitialRTO = time.Second
)

// RTT estimates the round trip time and the retransmission timeout of a path (RFC 6298). Its zero value has seen nothing.
type RTT struct {
	// Smoothed and Variation are SRTT and RTTVAR; Least is the smallest sample. All are 0 before the first sample.
	Smoothed, Variation, Least time.Duration
}

// Update takes a sample. Samples that are not positive are none: a clock has a resolution, a path has a length.
func (r *RTT) Update(sample time.Duration) {
	switch {
	case sample <= 0:
		return
	case r.Smoothed == 0:
		r.Smoothed, r.Variation, r.Least = sample, sample/2, sample
		return
	}
	r.Least = min(r.Least, sample)
	r.Variation += (max(r.Smoothed-sample, sample-r.Smoothed) - r.Variation) / 4
	r.Smoothed += (sample - r.Smoothed) / 8
}

// RTO returns the retransmission timeout before any backoff: SRTT + 4 RTTVAR, at least least (usually MinRTO) more than SRTT as
// in Linux, where RTTVAR does not go below it, and MaxRTO at most.
func (r *RTT) RTO(least time.Duration) time.Duration {
	if r.Smoothed == 0 {
		return InitialRTO
	}
	return min(r.Smoothed+max(4*r.Variation, least), MaxRTO)
}
