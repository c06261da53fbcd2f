package belief

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
	"unique"
)

const (
	// A network changes to a mode that is better by leastGain, and by confidenceSDs standard
	// deviations; for the next dwellConnections bulk connections only to one that is better by
	// leastGainInDwell. Gains are differences of ln(goodput).
	leastGain, leastGainInDwell, confidenceSDs = 0.02, 0.05, 0.7
	dwellConnections                           = 20
	// A mode is tried if it never was, or may be better by leastHope at its mean plus optimismSDs
	// standard deviations. Otherwise the one that was tried longest ago is, with every tryEvery-th
	// bulk connection: what it brings may have changed. It has precedence once it was not tried for
	// that many connections for each mode, or one as good as the network's would be tried always.
	optimismSDs, leastHope = 1.5, 0.01
	tryEvery               = 10
	neverTried             = 2 * mostLn // more than any hope
	// mostLoss is the share of what was brought without trials that trials may have lost before the
	// next one.
	mostLoss = 0.01
)

// Mode returns the mode of a network among those that can be used now, which are not none. A
// network whose mode is not among them, or rests, changes at once.
func (t *Table) Mode(now time.Time, prefix netip.Prefix, origin uint32, able []Mode) Mode {
	n := t.find(prefix)
	if n == nil {
		mode, _ := t.start(origin, able)
		return mode
	}
	if n.origin != origin {
		t.move(n, origin)
		t.touch()
	}
	t.consider(now, n, able)
	return t.mode(n.mode)
}

// start returns the mode of a network that nothing is known of, and why.
func (t *Table) start(origin uint32, able []Mode) (Mode, string) {
	mode, why := able[0], "nothing is known yet"
	if slices.Contains(able, t.options.Start) {
		mode = t.options.Start
	}
	best, of := t.prior(origin, mode)
	for _, m := range able {
		b, from := t.prior(origin, m)
		if from != "" && b.mean > best.mean+leastGain {
			mode, best, of = m, b, from
		}
	}
	if of != "" {
		why = "best in " + of
	}
	return mode, why
}

// consider changes the mode of a network if it must be left, or another one is better.
func (t *Table) consider(now time.Time, n *network, able []Mode) {
	if len(n.arms) < len(able) {
		// As many as there are: there may be 100,000 networks.
		n.arms = append(make([]arm, 0, min(len(able), MaxModes)), n.arms...)
	}
	for _, m := range able {
		if t.arm(n, m) >= 0 || !m.valid() {
			continue
		}
		if i := slices.IndexFunc(n.arms, func(a arm) bool { return a.mode != n.mode && !slices.Contains(able, t.mode(a.mode)) }); i >= 0 {
			t.begin(n, i, m)
		}
	}
	usable := func(i int) bool { return slices.Contains(able, t.mode(n.arms[i].mode)) && !n.arms[i].rests(now) }
	at := t.arm(n, t.mode(n.mode))
	leave := at < 0 || !usable(at)
	if n.begins && !leave {
		n.begins = false
		t.beginAt(now, n, at, usable)
		at = t.arm(n, t.mode(n.mode))
	}
	var best *arm
	for i := range n.arms {
		a := &n.arms[i]
		if !usable(i) || i == at {
			continue
		}
		if !leave {
			gain, least := n.gain(i, at), leastGain
			if n.sinceChange < dwellConnections {
				least = leastGainInDwell
			}
			// What other networks believe decides where a network starts, not where it goes.
			if a.trials == 0 && a.mode != bestID || gain <= least || gain <= confidenceSDs*n.deviation(i, at) {
				continue
			}
		}
		if best == nil || a.mean > best.mean {
			best = a
		}
	}
	switch {
	case best == nil && leave && n.mode != bestID && slices.Contains(able, Best):
		t.change(now, n, Best, "no other mode is left")
	case best == nil:
	case leave && at >= 0 && n.arms[at].rests(now):
		t.change(now, n, t.mode(best.mode), fmt.Sprintf("%s made no progress", t.mode(n.mode)))
	case leave:
		to := t.mode(best.mode)
		if !slices.ContainsFunc(n.arms, func(a arm) bool { return a.trials > 0 }) { // as a new network
			to, _ = t.start(n.origin, slices.DeleteFunc(slices.Clone(able), func(m Mode) bool { i := t.armOf(n, m); return i >= 0 && !usable(i) }))
		}
		t.change(now, n, to, fmt.Sprintf("%s cannot be used", t.mode(n.mode)))
	default:
		t.change(now, n, t.mode(best.mode), fmt.Sprintf("measured %s against %s", percent(float64(best.mean-n.arms[at].mean)), t.mode(n.mode)))
	}
}

// beginAt changes the mode that a network begins with to the one that other servers say is best.
func (t *Table) beginAt(now time.Time, n *network, at int, usable func(int) bool) {
	best := at
	for i := range n.arms {
		if usable(i) && n.arms[i].mean > n.arms[best].mean {
			best = i
		}
	}
	if n.gain(best, at) > leastGain {
		t.change(now, n, t.mode(n.arms[best].mode), "best at other servers")
		n.sinceChange = dwellConnections // nothing was measured here
	}
}

// percent is a difference of logarithms in percent.
func percent(ln float64) string { return fmt.Sprintf("%+.0f %%", 100*math.Expm1(ln)) }

func (t *Table) change(now time.Time, n *network, m Mode, why string) {
	t.history.add(Change{now, t.prefix(n), t.mode(n.mode), m, why})
	t.setMode(&n.mode, m)
	n.reason, n.since = unique.Make(why), instantOf(now)
	n.sinceChange, n.low, n.level = 0, 0, 0
	t.touch()
}

// Try returns the mode that a network is to be compared with now, in the bulk connections that it
// has, if any. running are the bytes that these have had, and cost those that they are expected to
// have in the other mode.
func (t *Table) Try(now time.Time, prefix netip.Prefix, origin uint32, able []Mode, running, cost float64) (challenger, incumbent Mode, ok bool) {
	return t.try(now, prefix, origin, able, running, cost, false)
}

func (t *Table) try(now time.Time, prefix netip.Prefix, origin uint32, able []Mode, running, cost float64, apart bool) (challenger, incumbent Mode, ok bool) {
	n := t.find(prefix)
	if n == nil {
		mode, why := t.start(origin, able)
		n = t.at(now, prefix, origin, mode)
		n.reason = unique.Make(why)
	}
	t.at(now, prefix, origin, t.mode(n.mode))
	t.consider(now, n, able)
	n.sinceTrial++
	n.sinceChange++
	for i := range n.arms {
		n.widen(i, driftPerConnection)
		n.arms[i].untried++
	}
	// The first trial of a network is in advance of the bytes that it is a share of.
	bytes := n.bulk + max(running, 0)
	if t.options.Explore <= 0 || n.tried > 0 && n.tried+cost > t.options.Explore*bytes || n.lost > mostLoss*(bytes-n.tried) {
		return "", "", false
	}
	at := t.arm(n, t.mode(n.mode))
	if at < 0 {
		return "", "", false
	}
	var best, longest *arm
	most := leastHope
	for i := range n.arms {
		a := &n.arms[i]
		if i == at || !slices.Contains(able, t.mode(a.mode)) || a.rests(now) || !apart && a.futile > 0 && a.untried < tryEvery<<min(a.futile-1, 10) {
			continue
		}
		hope := n.gain(i, at) + optimismSDs*n.deviation(i, at)
		switch {
		case a.surprises > 0:
			hope = math.Inf(1) // it was chance or a change: the next connection says which
		case a.trials == 0:
			hope += neverTried
		}
		if hope > most {
			best, most = a, hope
		}
		if longest == nil || a.untried > longest.untried {
			longest = a
		}
	}
	if n.sinceTrial >= tryEvery && best == nil || longest != nil && int(longest.untried) >= tryEvery*len(n.arms) {
		best = longest
	}
	if best == nil {
		return "", "", false
	}
	best.untried = 0
	n.sinceTrial = 0
	return t.mode(best.mode), t.mode(n.mode), true
}
