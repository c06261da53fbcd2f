package belief

import (
	"math"
	"net/netip"
	"time"
)

// Where no connection is bulk, what counts is how long small ones take. They end in slow start, so
// that the time depends on the size: what is compared is the time for each round trip that slow
// start needs for the bytes. Losses, and the queues and rates of larger ones, lengthen it.

const (
	// LeastSmall is the number of bytes from which a small connection counts: others have carried no
	// content.
	LeastSmall = 4 << 10
	// SmallGroup is the number of small connections that count as one bulk connection.
	SmallGroup = 16
	// initialWindow is the window that slow start begins with (RFC 6928), in bytes.
	initialWindow = 10 * 1448
	// What small connections take needs so many of them to be known, and each later one counts for
	// smallGain.
	leastSmallUsual, smallGain = 8, 1. / 32
	// mostTimes bounds what a connection can have taken, as a multiple of the usual: its client may
	// have gone for a while.
	mostTimes = 10
	// A trial that has leastClear connections ends early if they take clearlySlower times the usual.
	// Quick ones are the first to end, so the others are no quicker.
	leastClear, clearlySlower = 8, 1.5
)

// slowStartRounds is the number of round trips that slow start needs for some bytes.
func slowStartRounds(bytes uint64) float64 {
	return max(math.Log2(1+float64(bytes)/initialWindow), 1)
}

// Small is what the latest small connections of a network took in its mode, each of which was in no
// other one.
type Small struct {
	mode    Mode
	round   float64 // seconds for each round trip of slow start, mean
	n       int
	lasting time.Duration // mean
	group   smallGroup
	rate    float64 // of the bytes of the last group, per second
}

// smallGroup are connections that count as one.
type smallGroup struct {
	since        time.Time
	n            int
	round, bytes float64 // sums
}

// Add adds a connection that had data in flight for some time, and lasted longer, or an object of one
// that goes on, which carried others that are not added. One in another mode than those before makes
// them not count. It reports whether a group is complete: all that are
// reported at once are of one, or the time in which a group ends would not be known.
func (s *Small) Add(now time.Time, m Mode, bytes, carried uint64, took, lasted time.Duration) (complete bool) {
	if s.mode != m {
		*s = Small{mode: m}
	}
	round := s.bounded(bytes, took)
	s.n = min(s.n+1, int(1/smallGain)+1)
	gain := max(1/float64(s.n), smallGain)
	s.round += (round - s.round) * gain
	s.lasting += time.Duration(float64(lasted-s.lasting) * gain)
	if s.group.n++; s.group.n == 1 {
		s.group.since = now
	}
	s.group.round += round
	s.group.bytes += float64(carried)
	return s.group.n >= SmallGroup && !now.Equal(s.group.since)
}

// bounded returns the time of a connection for each round trip of slow start.
func (s *Small) bounded(bytes uint64, took time.Duration) float64 {
	round := took.Seconds() / slowStartRounds(bytes)
	if s.n < leastSmallUsual {
		return round
	}
	return min(round, mostTimes*s.round)
}

// Of reports whether it is known what small connections take in a mode.
func (s *Small) Of(m Mode) bool { return s.mode == m && s.n >= leastSmallUsual }

// Carried is what small connections are expected to carry in some time, in bytes.
func (s *Small) Carried(d time.Duration) float64 { return min(s.rate*d.Seconds(), mostBytes) }

// SmallTrial is what small connections in another mode took.
type SmallTrial struct {
	n     int
	round float64 // sum
}

// Add adds a connection.
func (t *SmallTrial) Add(usual *Small, bytes uint64, took time.Duration) {
	t.n++
	t.round += usual.bounded(bytes, took)
}

// Ends reports whether a trial ends after some time, and whether it has measured something.
func (t *SmallTrial) Ends(usual *Small, elapsed time.Duration) (ends, measured bool) {
	if t.n >= leastClear && t.Ratio(usual)*clearlySlower < 1 {
		return true, true
	}
	return TrialEnds(usual.lasting, elapsed, t.n >= leastClear), t.n > 0
}

// N is the number of connections.
func (t *SmallTrial) N() int { return t.n }

// Ratio is how much faster the connections were than the usual ones.
func (t *SmallTrial) Ratio(usual *Small) float64 {
	return usual.round / (t.round / float64(t.n))
}

// TrySmall returns the mode that a network is to be compared with in its next small connections, if
// any, after a group of them is complete, which counts as a bulk connection.
func (t *Table) TrySmall(now time.Time, prefix netip.Prefix, origin uint32, able []Mode, usual *Small) (challenger, incumbent Mode, ok bool) {
	g := usual.group
	usual.group = smallGroup{}
	if d := now.Sub(g.since); d > 0 {
		usual.rate = g.bytes / d.Seconds()
	}
	if n := t.find(prefix); n != nil && g.n > 0 {
		n.bulk = min(n.bulk+g.bytes, mostNumber)
		if i := t.armOf(n, usual.mode); i >= 0 && g.round > 0 && usual.mode == t.mode(n.mode) {
			n.usual(i, -math.Log(g.round/float64(g.n)))
		}
	}
	return t.try(now, prefix, origin, able, 0, usual.Carried(leastTrial), true)
}
