package belief

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Servers of a site share what each of them measured itself. To the others it is what votes of an
// AS are: it decides where a network begins, and that a mode is compared again soon, never which
// mode is used after a measurement, or rests. So no record of another server pins a network to a
// path, and one has an effect on its own network alone.

const (
	// SharedVersion is that of shared records.
	SharedVersion = 1
	// MaxShared bounds a shared record in bytes.
	MaxShared = 8 << 10
	// siteSD is the least standard deviation of what other servers of the site believe.
	siteSD = 0.08
	// mostSiteLn bounds what other servers are believed: what is wrong by that is corrected by one
	// measurement.
	mostSiteLn = 1
	// askAgain is how often what other servers measured in a network is asked for.
	askAgain = 10 * time.Minute
)

// Shared is what a server measured in a network.
type Shared struct {
	Version int          `json:"v"`
	Prefix  netip.Prefix `json:"prefix"`
	// Measured is when, in Unix seconds.
	Measured int64        `json:"at"`
	Modes    []SharedMode `json:"modes"`
}

// SharedMode is what a server measured of a mode: the logarithm of its goodput divided by that of
// Best.
type SharedMode struct {
	Mode   Mode    `json:"m"`
	Mean   float32 `json:"ln"`
	SD     float32 `json:"sd"`
	Trials int32   `json:"n"`
}

// Exchange is what is due to be exchanged with other servers.
type Exchange struct {
	// Measured are networks whose records are to be replaced; those without modes are to be
	// removed.
	Measured []Shared
	// Asked are networks whose records of other servers are wanted.
	Asked []netip.Prefix
}

// exchanges are the networks that are due to be exchanged. Those in fresh are asked for before
// others.
type exchanges struct {
	on                     bool
	measured, fresh, asked map[netip.Prefix]bool
}

// Share sets whether networks are exchanged with other servers. What was measured since the start
// is due at first.
func (t *Table) Share(on bool) {
	t.exchanges = exchanges{on: on, measured: map[netip.Prefix]bool{}, fresh: map[netip.Prefix]bool{}, asked: map[netip.Prefix]bool{}}
	for r := range t.networks.All() {
		n := t.networks.Value(r)
		if n.asked = 0; on && n.measured > 0 {
			t.exchanges.measured[t.prefix(n)] = true
		}
	}
}

// ask has what others measured asked for, unless it was a short time ago.
func (t *Table) ask(n *network, now time.Time) {
	x := &t.exchanges
	if !x.on || n.asked != 0 && !now.Before(n.asked.time()) && now.Before(n.asked.time().Add(askAgain)) {
		return
	}
	of := x.asked
	if n.asked == 0 {
		of = x.fresh
	}
	n.asked = seconds(now.Unix())
	of[t.prefix(n)] = true
}

// share has what was measured sent to others.
func (t *Table) share(n *network, now time.Time) {
	if n.measured = seconds(now.Unix()); t.exchanges.on {
		t.exchanges.measured[t.prefix(n)] = true
	}
}

// forget has nothing of a network be exchanged.
func (x *exchanges) forget(network netip.Prefix) {
	for _, due := range []map[netip.Prefix]bool{x.measured, x.fresh, x.asked} {
		delete(due, network)
	}
}

// Take returns what is due to be exchanged, at most so many networks of each kind, which are not
// due any more.
func (t *Table) Take(most int) (x Exchange) {
	take := func(from map[netip.Prefix]bool, room int) (all []netip.Prefix) {
		for p := range from {
			if len(all) >= room {
				break
			}
			delete(from, p)
			all = append(all, p)
		}
		return all
	}
	for _, p := range take(t.exchanges.measured, most) {
		if n := t.find(p); n != nil {
			x.Measured = append(x.Measured, t.shared(n))
		}
	}
	x.Asked = take(t.exchanges.fresh, most)
	x.Asked = append(x.Asked, take(t.exchanges.asked, most-len(x.Asked))...)
	return x
}

// Return has what could not be exchanged be due again.
func (t *Table) Return(x Exchange) {
	if !t.exchanges.on {
		return
	}
	for _, s := range x.Measured {
		t.exchanges.measured[s.Prefix] = true
	}
	for _, p := range x.Asked {
		t.exchanges.fresh[p] = true
	}
}

// shared returns what was measured here.
func (t *Table) shared(n *network) Shared {
	s := Shared{Version: SharedVersion, Prefix: t.prefix(n), Measured: int64(n.measured)}
	for i, a := range n.arms {
		if a.trials > 0 && a.mode != bestID {
			s.Modes = append(s.Modes, SharedMode{t.mode(a.mode), a.mean, float32(math.Sqrt(n.covarianceOf(i, i))), a.trials})
		}
	}
	return s
}

// Encode returns the record as DecodeShared reads it.
func (s *Shared) Encode() ([]byte, error) { return json.Marshal(s) }

// ErrForgotten means that a record is so old that it no longer counts.
var ErrForgotten = errors.New("it is older than a week")

// DecodeShared reads a record that another server has for a network.
func DecodeShared(now time.Time, prefix netip.Prefix, text []byte) (s Shared, err error) {
	if len(text) > MaxShared {
		return s, fmt.Errorf("record of %d bytes", len(text))
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, err
	}
	return s, s.check(now, prefix)
}

// check returns why a record is invalid, nil if it is valid.
func (s *Shared) check(now time.Time, prefix netip.Prefix) error {
	switch age := now.Sub(time.Unix(s.Measured, 0)); {
	case s.Version != SharedVersion:
		return fmt.Errorf("version %d, want %d", s.Version, SharedVersion)
	case s.Prefix != prefix:
		return fmt.Errorf("it is for network %q", s.Prefix)
	case s.Measured < 0 || age < -time.Minute:
		return errors.New("measured in the future")
	case age > forgetAge:
		return ErrForgotten
	case len(s.Modes) > MaxModes:
		return fmt.Errorf("%d modes", len(s.Modes))
	}
	for i, m := range s.Modes {
		switch {
		case !m.Mode.valid() || m.Mode == Best || slices.ContainsFunc(s.Modes[:i], func(o SharedMode) bool { return o.Mode == m.Mode }):
			return fmt.Errorf("invalid mode %.40q", string(m.Mode))
		case !(m.Mean >= -mostLn && m.Mean <= mostLn) || !(m.SD >= 0 && m.SD <= 2*mostSD) || m.Trials < 1:
			return fmt.Errorf("invalid numbers of mode %.40q", string(m.Mode))
		}
	}
	return nil
}

// Apply applies what other servers measured in a network, each record once, that DecodeShared
// accepted. A mode that was not measured here, and made progress, is believed to be their median;
// one that was measured here and that a quorum of them contradicts is doubted, and so compared
// again. It reports whether the mode of the network may change.
func (t *Table) Apply(now time.Time, prefix netip.Prefix, able []Mode, of []Shared) bool {
	n := t.find(prefix)
	if n == nil {
		return false
	}
	fresh := !slices.ContainsFunc(n.arms, func(a arm) bool { return a.trials > 0 })
	changed := false
	for _, m := range able {
		b, votes := siteBelief(now, m, of)
		i := -1
		if votes > 0 {
			i = t.arm(n, m)
		}
		if i < 0 || n.arms[i].strikes > 0 {
			continue
		}
		a := &n.arms[i]
		switch known := n.covarianceOf(i, i); {
		case a.trials == 0:
			n.assume(i, b)
			a.assumed, changed = true, true
		case votes >= minVotes && math.Abs(b.mean-float64(a.mean)) > outlierSDs*math.Sqrt(known+b.sd*b.sd):
			n.widen(i, outlierAddedSD)
			n.sinceTrial = tryEvery
		}
	}
	n.begins = n.begins || fresh && changed
	return changed
}

// siteBelief is what other servers believe of a mode, and how many.
func siteBelief(now time.Time, m Mode, of []Shared) (prior, int) {
	var means, deviations []float64
	for _, s := range of {
		i := slices.IndexFunc(s.Modes, func(o SharedMode) bool { return o.Mode == m })
		if i < 0 || m == Best {
			continue
		}
		days := max(now.Sub(time.Unix(s.Measured, 0)).Hours()/24, 0)
		means = append(means, float64(s.Modes[i].Mean))
		deviations = append(deviations, math.Hypot(float64(s.Modes[i].SD), driftPerDay*math.Sqrt(days)))
	}
	if len(means) == 0 {
		return prior{}, 0
	}
	mean, spread := medianOf(means)
	sd, _ := medianOf(deviations)
	return prior{min(max(mean, -mostSiteLn), mostSiteLn), min(max(spread, sd, siteSD), mostSD)}, len(means)
}
