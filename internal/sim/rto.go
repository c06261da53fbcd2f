package sim

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/quality"
)

// retransTimer is the retransmission timer of a subflow, with the round-trip times that it is
// computed from (RFC 6298).
type retransTimer struct {
	rtt quality.RTT
	rto time.Duration // without backoff
	// backoff is how often the timeout was doubled, timeouts the number of consecutive
	// expirations.
	backoff  uint
	timeouts int
	// deadline is when the timer expires, 0 when it is not running. Its event is scheduled at
	// that time or earlier, so that restarting the timer for each acknowledgement does not move
	// the event.
	deadline time.Duration

	// variation is the part of the timeout that exceeds SRTT, most the largest of this round trip,
	// which ends when segment round is acknowledged; see Connection.RACK.
	variation, most time.Duration
	round           uint32

	sum   time.Duration // of all samples
	count int64
}

// sample adds a round-trip time, and that of the segment that was sent last of those acknowledged.
// The latter may be shorter: its acknowledgement was not delayed. minRTO is the minimum of the part
// of the timeout that exceeds SRTT.
func (t *retransTimer) sample(rtt, latest, minRTO time.Duration) {
	t.rtt.Update(rtt)
	t.rtt.MinRTT = min(t.rtt.MinRTT, latest)
	t.rto = t.rtt.RTO(minRTO)
	t.sum += rtt
	t.count++
}

// vary sets the timeout after a sample as Linux does (tcp_rtt_estimator): many samples in a round
// trip do not make the variation of the one before forgotten.
func (t *retransTimer) vary(una, next uint32, minRTO time.Duration) {
	t.most = max(t.most, 4*t.rtt.RTTVAR)
	t.variation = max(t.variation, t.most)
	if una > t.round {
		t.variation -= max(0, t.variation-t.most) / 4
		t.round, t.most = next, minRTO
	}
	t.rto = min(t.rtt.SRTT+max(t.variation, minRTO), quality.MaxRTO)
}

// mean returns the mean of all samples, 0 without any.
func (t *retransTimer) mean() time.Duration {
	if t.count == 0 {
		return 0
	}
	return t.sum / time.Duration(t.count)
}

// interval returns the timeout with its backoff.
func (t *retransTimer) interval() time.Duration { return min(t.rto<<t.backoff, quality.MaxRTO) }

// backOff doubles the timeout, up to its maximum (RFC 6298, 5.5).
func (t *retransTimer) backOff() {
	if t.interval() < quality.MaxRTO {
		t.backoff++
	}
}

// progress ends the backoff after an acknowledgement of new data.
func (t *retransTimer) progress() { t.backoff, t.timeouts = 0, 0 }
