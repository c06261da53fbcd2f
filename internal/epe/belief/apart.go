package belief

import (
	"math"
	"net/netip"
	"time"
)

// Where connections end before two modes can be compared inside one, successive ones are compared:
// those of a trial with the latest ones before it. Connections scatter by much more than
// measurements inside one, so this takes more of them.

const (
	// The noise of a connection that is compared with others: at the start, and its bounds.
	startApartNoise, leastApartNoise, mostApartNoise = 0.3, 0.05, 1
	// mostApart bounds the connections of a trial that count as independent of each other.
	mostApart = 8
	// Usual needs so many connections, and each later one counts for usualGain.
	leastUsual, usualGain = 3, 0.2
	// A trial lasts for trialTimes the usual connection, or the quick ones of those that run at a
	// time would be most of what it measures; then until enough have ended, but no more than
	// trialWait.
	trialTimes               = 10
	leastTrial, mostTrialFor = 5 * time.Second, 30 * time.Second
	trialWait                = 30 * time.Second
)

// TrialEnds reports whether a trial of successive connections ends after some time. Connections last
// for lasting in the mean, and enough is whether it has measured enough of them.
func TrialEnds(lasting, elapsed time.Duration, enough bool) bool {
	least := min(max(leastTrial, trialTimes*lasting), mostTrialFor)
	return elapsed >= least+trialWait || elapsed >= least && enough
}

// Usual is what the latest connections of a network achieved in its mode, each of which was in no
// other one.
type Usual struct {
	mode    Mode
	ln      float64 // mean of the logarithms of goodput
	n       int
	lasting time.Duration // mean
}

// Add adds a connection. One in another mode than those before makes them not count.
func (u *Usual) Add(m Mode, goodput float64, lasted time.Duration) {
	if u.mode != m {
		*u = Usual{mode: m}
	}
	u.n = min(u.n+1, leastUsual+1)
	gain := max(1/float64(u.n), usualGain)
	u.ln += (math.Log(goodput) - u.ln) * gain
	u.lasting += time.Duration(float64(lasted-u.lasting) * gain)
}

// Of reports whether it is known what connections achieve in a mode.
func (u *Usual) Of(m Mode) bool { return u.mode == m && u.n >= leastUsual }

// Lasting is how long the connections last, in the mean.
func (u *Usual) Lasting() time.Duration { return u.lasting }

// Ratio is what connections in another mode achieved divided by the usual, as a geometric mean.
func (u *Usual) Ratio(goodputs []float64) float64 {
	ln := 0.0
	for _, g := range goodputs {
		ln += math.Log(g) / float64(len(goodputs))
	}
	return math.Exp(ln - u.ln)
}

// TryApart returns the mode that a network is to be compared with in its next connections, if any,
// after one that was too short to compare modes inside it. cost are the bytes that these are
// expected to have.
func (t *Table) TryApart(now time.Time, prefix netip.Prefix, origin uint32, able []Mode, cost float64) (challenger, incumbent Mode, ok bool) {
	return t.try(now, prefix, origin, able, 0, cost, true)
}

// noiseOf returns the estimate of the noise of a measurement, its bounds, and the number of
// connections that it is the mean of.
func (n *network) noiseOf(p Pair) (noise *float64, least, most, of float64) {
	if p.Apart > 0 {
		return &n.apartNoise, leastApartNoise, mostApartNoise, float64(min(p.Apart, mostApart))
	}
	return &n.noise, leastNoise, mostNoise, 1
}
