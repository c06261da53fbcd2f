package edge

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/outcome"
)

// Where the connections of a network end before two modes can be compared inside one, successive
// ones are compared: for some time the network has another mode, and what is measured are the
// connections that begin and end meanwhile, against the latest ones before.

const (
	// shortFor is what a connection lasts at most that ends before modes can be compared inside it,
	// and shortInARow how many of them in a row have successive ones be compared.
	shortFor    = incumbentFor + settleFor + challengerFor + 500*time.Millisecond
	shortInARow = 3
	// reportedWithin is how old the report of a connection that has ended may be.
	reportedWithin = 1100 * time.Millisecond
	// mostApart bounds the connections of a trial that are measured, mostJoined the clients of a
	// network whose connections have several subflows.
	mostApart, mostJoined = 64, 64
	// bulkFor is for how long after a bulk connection small ones do not count.
	bulkFor = 10 * time.Minute
	// joinedFor is for how long a client is one whose connections have several subflows.
	joinedFor = 10 * time.Minute
)

// apart is what the short connections of a network achieve.
type apart struct {
	usual belief.Usual
	// short counts connections in a row that were.
	short int
	// since is when the network last began or ended to be compared so, and after when it may be
	// again: connections that are too short to count, and QUIC, are in the other mode as well.
	since, after time.Time
	// small is what connections take that do not count otherwise, and bulkAt when the last one that
	// does ended.
	small  belief.Small
	bulkAt time.Time
	// objects are the bytes of connections that go on which count already, by what was reported of
	// their objects.
	objects uint64
	// joined are clients with subflows over EPE addresses, of which a report says only a part.
	joined map[netip.Addr]time.Time
}

// apartTrial is what was measured of connections in the challenger's mode.
type apartTrial struct {
	goodputs []float64
	bytes    float64 // of all connections
	// small: small connections are measured, in these.
	small  bool
	smalls belief.SmallTrial
}

// short reports whether connections are too short to compare modes inside one.
func (n *delivered) short() bool { return n.apart != nil && n.apart.short >= shortInARow }

// closedApart applies a connection that has ended, or an object of one that goes on, and begins to
// compare modes in the next ones if that is due.
func (e *egress) closedApart(now time.Time, prefix netip.Prefix, n *delivered, r outcome.Report) {
	if !n.rule.auto {
		return
	}
	if e.isEPE(r.Local.Addr()) {
		if n.apart != nil {
			n.apart.join(now, r.Remote.Addr())
		}
		return
	}
	o := outcomeOf(r)
	if o.Bytes < belief.LeastSmall || r.Kind == outcome.Object && o.Bytes >= belief.Bulk {
		return
	}
	if n.apart == nil {
		n.apart = &apart{}
	}
	a := n.apart
	if o.Bytes < belief.Bulk || r.Kind == outcome.Object {
		e.closedSmall(now, prefix, n, r)
		return
	}
	if o.Limit != belief.ByApplication { // else it carried many objects, perhaps small ones
		a.bulkAt = now
	}
	if r.Duration < shortFor {
		a.short = min(a.short+1, shortInARow)
	} else {
		a.short = 0
	}
	t := e.auto.trials[prefix]
	if t != nil && t.phase == measuringApart {
		t.apart.bytes += float64(o.Bytes)
	}
	if !e.inMode(now, n, r) || o.Goodput <= 0 || o.Limit != belief.ByPath {
		return
	}
	switch {
	case t == nil:
		a.usual.Add(n.modeOf(), o.Goodput, r.Duration)
		e.tryApart(now, prefix, n, o)
	case t.phase == measuringApart && !t.apart.small && len(t.apart.goodputs) < mostApart:
		t.apart.goodputs = append(t.apart.goodputs, o.Goodput)
	}
}

// closedSmall is closedApart for a connection that carried less than a bulk connection. What it took
// counts where none is bulk.
func (e *egress) closedSmall(now time.Time, prefix netip.Prefix, n *delivered, r outcome.Report) {
	a, t := n.apart, e.auto.trials[prefix]
	if age := now.Sub(a.bulkAt); !a.bulkAt.IsZero() && age >= 0 && age < bulkFor || r.Objects && r.Kind == outcome.Closed {
		return // what it carried has counted
	}
	if t != nil && t.phase == measuringApart {
		t.apart.bytes += float64(r.Carried)
	}
	// A jiffy may be longer than what it took.
	took := max(r.Busy, r.MinRTT)
	if took <= 0 || r.Window+r.Buffer > r.Busy/2 || !e.inMode(now, n, r) {
		return
	}
	lasted := r.Duration
	if r.Kind == outcome.Object {
		lasted = took // the rest is until the next one
	}
	switch {
	case t == nil:
		if r.Kind == outcome.Object {
			a.objects += r.Carried
		}
		if a.small.Add(now, n.modeOf(), r.Acked, r.Carried, took, lasted) {
			e.trySmall(now, prefix, n)
		}
	case t.apart.small:
		t.apart.smalls.Add(&a.small, r.Acked, took)
	}
}

// counted returns how many bytes of a connection that has ended counted while it went on.
func (a *apart) counted(r outcome.Report) (bytes uint64) {
	if a == nil || !r.Objects || r.Carried > r.Acked {
		return 0
	}
	bytes = min(a.objects, r.Acked-r.Carried)
	a.objects -= bytes
	return bytes
}

// inMode reports whether a connection that has ended was in the mode of its network from its start
// to its end, and is not a part of another one.
func (e *egress) inMode(now time.Time, n *delivered, r outcome.Report) bool {
	return r.Duration+reportedWithin < min(e.lasts(n, now), e.sinceApart(now, n.apart)) && !n.apart.hasJoined(now, r.Remote.Addr())
}

// sinceApart is the time since a network last began or ended to be compared in successive
// connections.
func (e *egress) sinceApart(now time.Time, a *apart) time.Duration {
	if a.since.IsZero() {
		return e.uptime(now)
	}
	return now.Sub(a.since)
}

// join records a client whose connections have several subflows.
func (a *apart) join(now time.Time, client netip.Addr) {
	if a.joined == nil || len(a.joined) >= mostJoined {
		a.joined = map[netip.Addr]time.Time{}
	}
	a.joined[client] = now
}

func (a *apart) hasJoined(now time.Time, client netip.Addr) bool {
	at, ok := a.joined[client]
	return ok && now.Sub(at) < joinedFor
}

// tryApart begins to compare modes in the next connections of a network.
func (e *egress) tryApart(now time.Time, prefix netip.Prefix, n *delivered, o belief.Outcome) {
	if !n.short() || !n.apart.usual.Of(n.modeOf()) || !e.mayTryApart(now, prefix, n) {
		return
	}
	challenger, incumbent, ok := e.auto.table.TryApart(now, prefix, e.originOf(prefix), e.able(prefix), float64(o.Bytes))
	e.beginApart(now, prefix, n, &trial{challenger: challenger, incumbent: incumbent}, ok)
}

// trySmall is tryApart for small connections.
func (e *egress) trySmall(now time.Time, prefix netip.Prefix, n *delivered) {
	if !n.apart.small.Of(n.modeOf()) || !e.mayTryApart(now, prefix, n) {
		return
	}
	challenger, incumbent, ok := e.auto.table.TrySmall(now, prefix, e.originOf(prefix), e.able(prefix), &n.apart.small)
	e.beginApart(now, prefix, n, &trial{challenger: challenger, incumbent: incumbent, apart: apartTrial{small: true}}, ok)
}

// mayTryApart reports whether modes may be compared now in the next connections of a network.
func (e *egress) mayTryApart(now time.Time, prefix netip.Prefix, n *delivered) bool {
	a := n.apart
	return !n.unfit.holds(now) && (!now.Before(a.after) || a.after.Sub(now) >= mostPause) && e.auto.aparts < mostAparts && e.auto.suspects[prefix] == nil
}

// beginApart begins a trial of successive connections if it can be.
func (e *egress) beginApart(now time.Time, prefix netip.Prefix, n *delivered, t *trial, ok bool) {
	e.deliver(prefix)
	if !ok || e.delivery.rules.dry || t.incumbent != n.modeOf() || !e.tryable(prefix, t.challenger) {
		return
	}
	t.phase, t.since = measuringApart, now
	e.auto.trials[prefix] = t
	e.auto.aparts++
	n.apart.since = now
	e.deliver(prefix)
}

// compareApart ends a trial of successive connections when it is time.
func (e *egress) compareApart(now time.Time, prefix netip.Prefix, t *trial) {
	n, ok := e.delivery.networks.Get(prefix)
	elapsed := now.Sub(t.since)
	switch {
	case !ok || n.apart == nil || elapsed < 0:
	case t.apart.small:
		usual := &n.apart.small
		ends, measured := t.apart.smalls.Ends(usual, elapsed)
		if !ends {
			return
		}
		// Those that take long are not reported yet.
		t.apart.bytes = max(t.apart.bytes, usual.Carried(elapsed))
		if measured && usual.Of(t.incumbent) {
			e.learnApart(now, prefix, t, t.apart.smalls.N(), t.apart.smalls.Ratio(usual))
		}
	default:
		a := n.apart
		if !belief.TrialEnds(a.usual.Lasting(), elapsed, len(t.apart.goodputs) > 0) {
			return
		}
		if len(t.apart.goodputs) > 0 && a.usual.Of(t.incumbent) {
			e.learnApart(now, prefix, t, len(t.apart.goodputs), a.usual.Ratio(t.apart.goodputs))
		}
	}
	e.endTrial(prefix, t)
	e.deliver(prefix)
}

// learnApart applies what a trial measured in so many connections.
func (e *egress) learnApart(now time.Time, prefix netip.Prefix, t *trial, connections int, ratio float64) {
	t.learned = e.auto.table.Learn(now, prefix, belief.Pair{
		Challenger: t.challenger, Incumbent: t.incumbent, Apart: connections, Ratio: ratio, Bytes: t.apart.bytes,
	}) == nil
	if t.learned {
		e.auto.compared++
	}
}

// mostPause bounds the time between two trials of successive connections.
const mostPause = time.Hour

// endApart records that a trial of successive connections has ended. What is not counted in bytes
// was in the challenger's mode for as long: the next trial waits for its share of the time.
func (e *egress) endApart(now time.Time, n *delivered, t *trial) {
	n.apart.since = now
	if share := e.auto.table.Explore(); share > 0 {
		pause := float64(now.Sub(t.since)) * (1/share - 1)
		n.apart.after = now.Add(time.Duration(min(max(pause, 0), float64(mostPause))))
	}
}
