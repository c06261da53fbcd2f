package edge

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/epe/selection"
)

// Where the connections of a network begin that mode auto delivers by multipath: a short one ends
// before it could have joined another path. It is where short transfers arrive first, by what the
// subflows of longer connections measured of each path.

const (
	// beginEvery is how often it is considered at most where the connections of a network begin,
	// and beginFor for how long it stays: a change moves those that run.
	beginEvery = time.Second
	beginFor   = 10 * time.Second
)

// beginning is where the connections of a network begin.
type beginning struct {
	peer       string    // the egress peer; "": the best path
	since      time.Time // when it changed last
	considered time.Time // when it was last decided whether it changes
	// paths are those that were measured, a few.
	paths []beginPath
}

// beginPath is a path of a network that connections measured.
type beginPath struct {
	peer string // the egress peer; "": the best path
	selection.Recent
}

// path returns what was measured of the path through an egress peer, nil if nothing was.
func (b *beginning) path(peer string) *selection.Recent {
	if i := slices.IndexFunc(b.paths, func(p beginPath) bool { return p.peer == peer }); i >= 0 {
		return &b.paths[i].Recent
	}
	return nil
}

// addPath is path, but adds one that is not there.
func (b *beginning) addPath(peer string) *selection.Recent {
	if r := b.path(peer); r != nil {
		return r
	}
	b.paths = append(b.paths, beginPath{peer: peer})
	return &b.paths[len(b.paths)-1].Recent
}

// pathOf returns the egress peer of the path that a connection measured, "" for the best path,
// false if that is not certain.
func (e *egress) pathOf(now time.Time, n *delivered, r outcome.Report) (name string, ok bool) {
	if at := slices.IndexFunc(e.peers, func(p *peer) bool { return p.Address == r.Local.Addr() }); at >= 0 {
		return e.peers[at].Name, true
	}
	switch {
	case r.Duration >= e.lasts(n, now): // it has been on another path
		return "", false
	case n.group == nil || e.delivery.rules.dry:
		return "", true
	case len(n.group.members) == 1:
		return n.group.members[0].peer.Name, true
	}
	return "", false
}

// measuredPath applies what a connection of a network measured of its path, and changes where the
// next ones begin.
func (e *egress) measuredPath(now time.Time, prefix netip.Prefix, n *delivered, r outcome.Report) {
	if !n.rule.auto || !e.auto.multipath || r.MinRTT == 0 {
		return
	}
	name, ok := e.pathOf(now, n, r)
	if !ok {
		return
	}
	if n.begins == nil {
		if name == "" {
			return // there is nothing to compare it with: most networks have no client that joins other paths
		}
		n.begins = &beginning{}
	}
	b := n.begins
	rate := 0.0
	if o := outcomeOf(r); o.Bytes >= belief.Bulk && o.Limit == belief.ByPath {
		rate = o.Goodput
	}
	b.addPath(name).Add(now, now.Add(-r.Duration), r.MinRTT, r.RTT, rate)
	if since := now.Sub(b.considered); since < 0 || since >= beginEvery {
		b.considered = now
		e.considerBegin(now, prefix, b)
	}
}

// considerBegin changes where the connections of a network begin if short transfers arrive earlier
// over another path than where they do now, which must be known.
func (e *egress) considerBegin(now time.Time, prefix netip.Prefix, b *beginning) {
	names := []string{""}
	for _, m := range e.able(prefix) {
		if name, ok := singlePeer(m); ok {
			names = append(names, name)
		}
	}
	past := make([]selection.Past, len(names))
	for i, name := range names {
		past[i] = b.path(name).Past(now)
	}
	b.paths = slices.DeleteFunc(b.paths, func(p beginPath) bool { return !slices.Contains(names, p.peer) })
	at := max(slices.Index(names, b.peer), 0)
	if past[at] == (selection.Past{}) {
		return
	}
	next := names[selection.Nearest(past, at)]
	since := now.Sub(b.since)
	if next == b.peer || e.auto.trials[prefix] != nil || since >= 0 && since < beginFor {
		return
	}
	b.peer, b.since = next, now
	e.deliver(prefix)
}

// leaveBegin has the connections of a network begin on the best path because none progressed over
// the egress peer that they began through, if there is one. What was established before measures
// that no longer.
func (e *egress) leaveBegin(now time.Time, n *delivered) bool {
	p := n.beginsAt()
	if p == nil {
		return false
	}
	n.begins.addPath(p.Name).Stalled(now)
	n.begins.peer, n.begins.since = "", now
	return true
}

// beginsThrough returns the egress peer that the connections of a network begin through, "" if that
// is the best path.
func (e *egress) beginsThrough(prefix netip.Prefix) string {
	if n, ok := e.delivery.networks.Get(prefix); ok && n.begins != nil {
		return n.begins.peer
	}
	return ""
}

// beginsAt returns the egress peer that the connections of a network begin through although other
// subflows join them; nil: by the best path.
func (n *delivered) beginsAt() *peer {
	if n.rule == nil || !n.rule.auto || n.rule.mode.named != modeMultipath || n.group == nil {
		return nil
	}
	return n.group.members[0].peer
}
