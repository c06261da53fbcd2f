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
	// A trial lasts for apartTimes the usual connection, or the quick ones of those that run at a
	// time would be most of what it measures; then until one has ended, but no more than apartWait.
	apartTimes               = 10
	leastApart, mostApartFor = 5 * time.Second, 30 * time.Second
	apartWait                = 30 * time.Second
	// reportedWithin is how old the report of a connection that has ended may be.
	reportedWithin = 1100 * time.Millisecond
	// mostApart bounds the connections of a trial that are measured, mostJoined the clients of a
	// network whose connections have several subflows.
	mostApart, mostJoined = 64, 64
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
	// joined are clients with subflows over EPE addresses, of which a report says only a part.
	joined map[netip.Addr]time.Time
}

// apartTrial is what was measured of connections in the challenger's mode.
type apartTrial struct {
	goodputs []float64
	bytes    float64 // of all connections
}

// short reports whether connections are too short to compare modes inside one.
func (n *delivered) short() bool { return n.apart != nil && n.apart.short >= shortInARow }

// closedApart applies a connection that has ended, and begins to compare modes in the next ones if
// that is due.
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
	if o.Bytes < belief.Bulk {
		return
	}
	if n.apart == nil {
		n.apart = &apart{}
	}
	a := n.apart
	if r.Duration < shortFor {
		a.short = min(a.short+1, shortInARow)
	} else {
		a.short = 0
	}
	t := e.auto.trials[prefix]
	if t != nil && t.phase == measuringApart {
		t.apart.bytes += float64(o.Bytes)
	}
	// It was in the mode from its start to its end.
	in := r.Duration+reportedWithin < min(e.lasts(n, now), e.sinceApart(now, a))
	if !in || o.Goodput <= 0 || o.Limit != belief.ByPath || a.hasJoined(now, r.Remote.Addr()) {
		return
	}
	switch {
	case t == nil:
		a.usual.Add(n.modeOf(), o.Goodput, r.Duration)
		e.tryApart(now, prefix, n, o)
	case t.phase == measuringApart && len(t.apart.goodputs) < mostApart:
		t.apart.goodputs = append(t.apart.goodputs, o.Goodput)
	}
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
	a := n.apart
	if !n.short() || !a.usual.Of(n.modeOf()) || now.Before(a.after) && a.after.Sub(now) < mostPause || e.auto.aparts >= mostAparts || e.auto.suspects[prefix] != nil {
		return
	}
	challenger, incumbent, ok := e.auto.table.TryApart(now, prefix, e.originOf(prefix), e.able(prefix), float64(o.Bytes))
	e.deliver(prefix)
	if !ok || e.delivery.rules.dry || incumbent != n.modeOf() || !e.tryable(prefix, challenger) {
		return
	}
	e.auto.trials[prefix] = &trial{challenger: challenger, incumbent: incumbent, phase: measuringApart, since: now}
	e.auto.aparts++
	a.since = now
	e.deliver(prefix)
}

// compareApart ends a trial of successive connections when it is time.
func (e *egress) compareApart(now time.Time, prefix netip.Prefix, t *trial) {
	n, ok := e.delivery.networks.Get(prefix)
	elapsed := now.Sub(t.since)
	if ok && n.apart != nil && elapsed >= 0 {
		a := n.apart
		least := min(max(leastApart, apartTimes*a.usual.Lasting()), mostApartFor)
		if elapsed < least || elapsed < least+apartWait && len(t.apart.goodputs) == 0 {
			return
		}
		if len(t.apart.goodputs) > 0 && a.usual.Of(t.incumbent) {
			t.learned = e.auto.table.Learn(now, prefix, belief.Pair{
				Challenger: t.challenger, Incumbent: t.incumbent, Apart: len(t.apart.goodputs), Ratio: a.usual.Ratio(t.apart.goodputs), Bytes: t.apart.bytes,
			}) == nil
			if t.learned {
				e.auto.compared++
			}
		}
	}
	e.endTrial(prefix, t)
	e.deliver(prefix)
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
