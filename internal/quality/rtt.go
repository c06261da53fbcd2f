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

// RTT estimates the round trip time and the retransmission timeout of a path (RFC 6298). Its zero
// value has seen nothing.
type RTT struct {
	// SRTT and RTTVAR are those of RFC 6298, MinRTT is the smallest sample. All are 0 before the
	// first one.
	SRTT, RTTVAR, MinRTT time.Duration
}

// Update takes a sample. Samples that are not positive are none: a clock has a resolution, a path
// has a length.
func (r *RTT) Update(sample time.Duration) {
	switch {
	case sample <= 0:
		return
	case r.SRTT == 0:
		r.SRTT, r.RTTVAR, r.MinRTT = sample, sample/2, sample
		return
	}
	r.MinRTT = min(r.MinRTT, sample)
	r.RTTVAR += (max(r.SRTT-sample, sample-r.SRTT) - r.RTTVAR) / 4
	r.SRTT += (sample - r.SRTT) / 8
}

// RTO returns the retransmission timeout before any backoff: SRTT + 4 RTTVAR, at least least
// (usually MinRTO) more than SRTT as in Linux, where RTTVAR does not go below it, and MaxRTO at
// most.
func (r *RTT) RTO(least time.Duration) time.Duration {
	if r.SRTT == 0 {
		return InitialRTO
	}
	return min(r.SRTT+max(4*r.RTTVAR, least), MaxRTO)
}
