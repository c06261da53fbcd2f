package belief

import (
	"fmt"
	"math"
	"net/netip"
	"time"
)

const (
	// Bulk is the number of bytes from which a connection counts: shorter ones measure slow start.
	Bulk = 1 << 20

	// The noise of a pair of measurements in one connection: at the start, and its bounds.
	startNoise, leastNoise, mostNoise = 0.08, 0.02, 0.5
	// noiseGain is the gain of the noise's estimate.
	noiseGain = 0.1
	// outlierSDs bounds the effect of a measurement, in standard deviations of what was expected.
	// What is outside it is measured again at once; each one that is so too says that there is a
	// change, and adds outlierAddedSD. None says how much measurements scatter.
	outlierSDs, outlierAddedSD = 2.5, 0.3
	// mostLn bounds what a measurement can be: 20 times better or worse.
	mostLn = 3

	// A mode that made no progress rests for leastRest, and twice as long each time, to mostRest.
	leastRest, mostRest = 10 * time.Second, 10 * time.Minute
	// Bulk connections are slower than usual by slowFactor, slowInARow of them in a row, before the
	// mode is doubted.
	slowFactor, slowInARow = 2, 2

	// What one connection can have achieved at most: 1 PB, at 10 Tbit/s, with round trips of a
	// minute.
	mostBytes, mostGoodput = 1e15, 10e12 / 8
	mostRTT                = time.Minute
)

// Outcome is what a connection achieved.
type Outcome struct {
	Bytes uint64
	// Counted are those that counted as bytes of objects before, while it went on.
	Counted uint64
	// Goodput is in bytes/s while there was something to send; 0: not known.
	Goodput             float64
	MinRTT, RTT         time.Duration // 0: not known
	Sent, Retransmitted uint32        // segments
	Limit               Limit
}

// Pair is a measurement of two modes in the same connections, one right after the other, or in
// connections that followed each other.
type Pair struct {
	Challenger, Incumbent Mode
	// Apart is the number of connections in the challenger's mode that were compared with others in
	// that of the incumbent; 0: both were measured in the same connections.
	Apart int
	// Ratio is the goodput in the challenger's mode divided by that in the other.
	Ratio float64
	// Bytes are those that the challenger carried.
	Bytes float64
}

// Learn applies a measurement. It does not change the mode of the network: Mode does.
func (t *Table) Learn(now time.Time, prefix netip.Prefix, p Pair) error {
	n := t.find(prefix)
	switch {
	case n == nil:
		return fmt.Errorf("learn of network %q: unknown", prefix)
	case !(p.Ratio > 0) || math.IsInf(p.Ratio, 0) || !(p.Bytes >= 0 && p.Bytes <= mostBytes) || p.Apart < 0 || p.Challenger == p.Incumbent:
		return fmt.Errorf("learn of network %q: invalid measurement %+v", prefix, p)
	}
	n = t.at(now, prefix, n.origin, t.mode(n.mode))
	c, i := t.arm(n, p.Challenger), t.arm(n, p.Incumbent)
	if c < 0 || i < 0 {
		return fmt.Errorf("learn of network %q: invalid mode in %+v", prefix, p)
	}
	ln := min(max(math.Log(p.Ratio), -mostLn), mostLn)
	n.tried = min(n.tried+p.Bytes, mostNumber)
	challenger, incumbent := &n.arms[c], &n.arms[i]
	if p.Apart == 0 {
		challenger.futile = 0
	}
	estimate, least, most, of := n.noiseOf(p)
	single := *estimate * *estimate / of
	var innovation, known, bound float64
	expect := func() {
		innovation, known = ln-n.gain(c, i), n.variance(c, i)
		bound = outlierSDs * math.Sqrt(known+single)
	}
	expect()
	assumed := challenger.assumed || incumbent.assumed
	if assumed && math.Abs(innovation) > bound {
		n.disbelieve()
		expect()
	}
	challenger.assumed = challenger.assumed && incumbent.assumed
	incumbent.assumed = challenger.assumed
	surprise := math.Abs(innovation) > bound
	if surprise {
		if challenger.surprises = min(challenger.surprises+1, math.MaxUint8-1); challenger.surprises >= 2 {
			n.widen(c, outlierAddedSD)
		}
		innovation = math.Copysign(bound, innovation)
	} else {
		challenger.surprises = 0
	}
	noise := of * ((1-noiseGain)*single + noiseGain*max(innovation*innovation-known, 0))
	n.update(c, i, innovation, single)
	if !assumed && !surprise { // else it is the error of what other servers believe, or a change
		*estimate = min(max(math.Sqrt(noise), least), most)
	}
	if p.Incumbent == t.mode(n.mode) {
		if p.Apart > 0 {
			// What scatters as connections do is no loss by itself.
			if gain := n.gain(c, i); !surprise || gain < ln {
				ln = gain
			}
		}
		n.lost = min(n.lost+p.Bytes*max(math.Expm1(-ln), 0), mostNumber)
	}
	for _, a := range []*arm{challenger, incumbent} {
		a.trials++
		a.strikes = 0
		t.vote(n, a)
	}
	t.share(n, now)
	return nil
}

// disbelieve has nothing be believed of modes that is from other servers alone.
func (n *network) disbelieve() {
	for k := range n.arms {
		if n.arms[k].assumed {
			n.assume(k, prior{0, mostSD})
			n.arms[k].assumed = true
		}
	}
}

// update is a step of a Kalman filter: the difference of arms c and i was measured, and is larger
// than expected. noise is the variance of the measurement.
func (n *network) update(c, i int, innovation, noise float64) {
	s := n.variance(c, i) + noise
	cross := make([]float64, len(n.arms)) // of each arm with the difference
	for k := range cross {
		cross[k] = n.covarianceOf(k, c) - n.covarianceOf(k, i)
	}
	for k := range cross {
		n.arms[k].mean = float32(min(max(float64(n.arms[k].mean)+cross[k]/s*innovation, -mostLn), mostLn))
		for l := range k + 1 {
			*n.cell(k, l) -= float32(cross[k] * cross[l] / s)
		}
		*n.cell(k, k) = max(*n.cell(k, k), 0)
	}
}

// Abandoned records that a trial ended without a measurement, after its challenger carried so many
// bytes. The next one waits for more bulk connections each time.
func (t *Table) Abandoned(prefix netip.Prefix, challenger Mode, bytes float64) {
	n := t.find(prefix)
	if n == nil || !(bytes >= 0 && bytes <= mostBytes) {
		return
	}
	n.tried = min(n.tried+bytes, mostNumber)
	if i := t.armOf(n, challenger); i >= 0 {
		n.arms[i].futile = min(n.arms[i].futile+1, math.MaxUint8-1)
	}
	t.touch()
}

// Closed applies what a connection achieved that was in a mode when it ended. Networks are added
// with their first bulk connection; only then is the AS asked for that originates theirs.
func (t *Table) Closed(now time.Time, prefix netip.Prefix, origin func() uint32, m Mode, o Outcome) {
	bulk := o.Bytes >= Bulk
	n := t.find(prefix)
	if n == nil && (!bulk || !m.valid()) || o.Limit >= Limits || o.Bytes > mostBytes ||
		!(o.Goodput >= 0 && o.Goodput <= mostGoodput) || o.MinRTT > mostRTT || o.RTT > mostRTT {
		return
	}
	if n == nil {
		n = t.at(now, prefix, origin(), m)
	} else {
		t.see(n, now)
	}
	i := t.arm(n, m)
	if i < 0 {
		return
	}
	b := n.achieved(i)
	if b == nil {
		n.brought = append(n.brought, achieved{arm: i})
		b = n.achieved(i)
	}
	b.Connections++
	b.Bytes += o.Bytes
	b.Sent += uint64(o.Sent)
	b.Retransmitted += uint64(o.Retransmitted)
	if o.MinRTT > 0 && (b.MinRTT == 0 || o.MinRTT < b.MinRTT) {
		b.MinRTT = o.MinRTT
	}
	if o.RTT > 0 {
		b.RTT += time.Duration(float64(o.RTT-b.RTT) * meanGain(b.Connections))
	}
	if !bulk {
		return
	}
	n.bulk = min(n.bulk+float64(o.Bytes-min(o.Counted, o.Bytes)), mostNumber)
	all := b.Limited.add(o.Limit)
	if o.Goodput > 0 {
		b.Goodput += (o.Goodput - b.Goodput) * meanGain(all)
		if m == t.mode(n.mode) && o.Limit == ByPath {
			n.usual(i, math.Log(o.Goodput))
		}
	}
}

// meanGain is the gain of the mean of n values, of which the last 20 count.
func meanGain(n uint64) float64 { return 1 / float64(min(max(n, 1), 20)) }

// usual compares a bulk connection with others of the mode: those that are much slower are a reason
// to compare the mode with others soon.
func (n *network) usual(at int, ln float64) {
	if n.level == 0 {
		n.level = ln
	}
	if ln > n.level-math.Log(slowFactor) {
		n.low = 0
		n.level += (ln - n.level) * 0.1
		return
	}
	if n.low++; n.low >= slowInARow {
		n.low, n.level = 0, ln
		n.sinceTrial = tryEvery
		for i := range n.arms {
			if n.arms[at].mode == bestID || i == at {
				n.widen(i, outlierAddedSD)
			}
		}
	}
}

// Stalled records that a mode makes no progress in a network. It rests, and what was measured of it
// no longer counts, unless it was so for a client alone, which may have gone.
func (t *Table) Stalled(now time.Time, prefix netip.Prefix, origin uint32, m Mode, alone bool) {
	if !m.valid() {
		return
	}
	n := t.find(prefix)
	if n == nil {
		n = t.at(now, prefix, origin, m)
	}
	n = t.at(now, prefix, origin, t.mode(n.mode))
	i := t.arm(n, m)
	if i < 0 || n.arms[i].rests(now) {
		return
	}
	a := &n.arms[i]
	a.rest = secondsAfter(now.Add(min(leastRest<<min(a.strikes, 10), mostRest)))
	a.strikes = min(a.strikes+1, math.MaxUint8-1)
	if alone {
		return
	}
	a.trials = 0
	if a.mode != bestID {
		n.assume(i, prior{min(float64(a.mean), 0), priorSD})
		t.share(n, now)
	}
}
