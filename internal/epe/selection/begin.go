package selection

import (
	"cmp"
	"math"
	"time"
)

// nearer is the fraction of the time that short transfers take below which connections begin on
// another path.
const nearer = 0.9

// Nearest returns on which path connections begin: the one over which short transfers arrive first,
// by what was measured. They stay on the path at unless another one is nearer by some margin.
func Nearest(paths []Past, at int) int {
	fastest := 0.0
	for _, p := range paths {
		fastest = max(fastest, p.Rate)
	}
	nearest, least := at, nearer*paths[at].takes(fastest)
	for i, p := range paths {
		if takes := p.takes(fastest); i != at && takes < least {
			nearest, least = i, takes
		}
	}
	return nearest
}

// initialWindow is the window that a connection begins with (RFC 6928), in bytes.
const initialWindow = 10 * 1448

// takes returns how long a transfer of sendBurst on a new connection takes, in seconds, in slow
// start after the handshake and the request; infinity if that is not known. A path that was never
// saturated has the rate of its bursts. If they left no queue, it is hoped to be as fast as the
// fastest, in bytes/s. A rest does not count: it is for the connections that run, and after one
// stall it lasts a second.
func (p Past) takes(fastest float64) float64 {
	if p.usual() == 0 {
		return math.Inf(1)
	}
	rtt, rate := p.usual().Seconds(), cmp.Or(p.Rate, p.Burst, fastest)
	takes, left := 2*rtt, float64(sendBurst)
	for window := float64(initialWindow); window < left && (rate == 0 || window < rate*rtt); window *= 2 {
		takes, left = takes+rtt, left-window
	}
	if rate > 0 {
		takes += left / rate
	}
	return takes
}

// Recent is what connections measured of a path lately, the last ones most. It counts for
// rememberFor. The zero value is empty, and so is nil. Times are those of the wall clock.
type Recent struct {
	minRTT   time.Duration
	beyond   time.Duration // what the smoothed round-trip time of short transfers exceeds it by
	rate     float64
	measured time.Time
	stalled  time.Time // what was established before does not count
}

// recentGain is the weight of the latest connection: a path that has become longer is so after few
// of them.
const recentGain = 0.25

// Add adds what a connection measured that was established at a time: the least round-trip time, and
// the rate in bytes/s if the path limited it, or else 0 and the smoothed round-trip time, which has
// no long queue of its own then.
func (r *Recent) Add(now, established time.Time, minRTT, rtt time.Duration, rate float64) {
	if minRTT <= 0 || established.Before(r.stalled) {
		return
	}
	if r.Past(now) == (Past{}) {
		r.minRTT, r.beyond, r.rate = minRTT, 0, 0
	}
	if r.rate == 0 {
		r.rate = rate
	}
	r.minRTT += time.Duration(recentGain * float64(minRTT-r.minRTT))
	switch {
	case rate > 0:
		r.rate += recentGain * (rate - r.rate)
	case rtt > 0:
		beyond := max(rtt-minRTT, 0)
		r.beyond = cmp.Or(r.beyond, beyond)
		r.beyond += time.Duration(recentGain * float64(beyond-r.beyond))
	}
	r.measured = now
}

// Stalled records that the path made no progress: what was measured until now no longer counts.
func (r *Recent) Stalled(now time.Time) { *r = Recent{stalled: now} }

// Past returns what was measured.
func (r *Recent) Past(now time.Time) Past {
	if r == nil || now.Before(r.measured) || now.Sub(r.measured) >= rememberFor { // or the clock was set back
		return Past{}
	}
	return Past{MinRTT: r.minRTT, RTT: r.minRTT + r.beyond, Rate: r.rate}
}
