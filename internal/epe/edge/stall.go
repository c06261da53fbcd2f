package edge

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/capacity"
	"github.com/tabane/tabane/internal/epe/outcome"
)

// A path that makes no progress is left at once, long before BGP notices. A connection that timed
// out, or one that a client requested and that is not established, makes a network suspected; what
// all its connections do then decides. With auto, the network leaves the mode; with a mode that the
// configuration names, and of several egress peers, it leaves that egress peer for some time. The
// program of spray leaves a path for a connection that is established, and no other: requests are
// answered through the first egress peer, which is left here.

const (
	// suspectFor is the least time without progress of all connections over a path after a timeout
	// of one.
	suspectFor = 200 * time.Millisecond
	// mostSuspectFor bounds that of connections with long round trips, unknownRTT is one where none
	// was measured.
	mostSuspectFor, unknownRTT = 2 * time.Second, 250 * time.Millisecond
	// leastLeft is how long a network leaves an egress peer; twice as long each time that this is
	// soon again, to mostLeft.
	leastLeft, mostLeft = 10 * time.Second, 10 * time.Minute
	// mostStalled bounds the paths that networks have left.
	mostStalled = 10_000
)

// suspect is a network of which a connection timed out, or the SYN-ACK of a request.
type suspect struct {
	mode  belief.Mode
	since time.Time
	first sample
	rtt   time.Duration
	// requests: only what is established since counts, or is not.
	requests bool
}

// networkPath is an egress peer, by its SID, for a network.
type networkPath struct {
	prefix netip.Prefix
	sid    netip.Addr
}

// stalled says until when a network has left an egress peer, and for how long in all.
type stalled struct {
	until time.Time
	pause time.Duration
}

// enoughProgress is of how many connections that progress it is known over which path, for others
// that progress not to be on one on which none of them does.
const enoughProgress = mostLookups / 2

// pathProgress is what the connections over a path did since a first sample.
type pathProgress struct {
	progressed int // connections
	waiting    sample
	// established: some that wait are.
	established bool
}

// suspect has the connections of a network be read after a report, if it can be left where it is.
func (e *egress) suspect(now time.Time, prefix netip.Prefix, n *delivered, r outcome.Report) {
	sprayed := n.group != nil && n.group.sprayed != nil && len(n.group.present()) > 1
	if r.Kind == outcome.Unacknowledged && (sprayed || n.spread()) {
		return // the program of spray leaves paths by itself, and where others leave through is not known
	}
	named := n.group != nil && (!sprayed || r.Kind == outcome.Unanswered) && n.rule.name != borrowedRule && !e.delivery.rules.dry
	leaves := n.rule.auto || named
	if !leaves || e.auto.suspects[prefix] != nil || len(e.auto.suspects) >= mostTrials || e.isEPE(r.Local.Addr()) {
		return
	}
	s := &suspect{mode: n.modeOf(), rtt: r.RTT, requests: sprayed}
	if r.Kind != outcome.Timeout {
		s.rtt = e.usualRTT(now, prefix, s.mode)
	}
	e.auto.suspects[prefix] = s
}

// usualRTT is that of connections of a network in a mode.
func (e *egress) usualRTT(now time.Time, prefix netip.Prefix, mode belief.Mode) time.Duration {
	info, _ := e.auto.table.Network(now, prefix)
	i := slices.IndexFunc(info.Modes, func(m belief.ModeInfo) bool { return m.Mode == mode && m.RTT > 0 })
	if i < 0 {
		return unknownRTT
	}
	return info.Modes[i].RTT
}

// spread reports whether the flows of a network leave through several egress peers.
func (n *delivered) spread() bool {
	return n.group != nil && n.group.sprayed == nil && len(n.group.present()) > 1
}

// waits reports whether the socket waits for the other end.
func (s socket) waits() bool { return s.inFlight > 0 || s.retried }

// since compares a connection with what it was in a first sample, if it was there: it progressed, or
// it waits for the other end since then.
func (s socket) since(before socket, there bool) (progressed, waits bool) {
	if s.datagrams && !there {
		return false, false // it may have got no acknowledgment yet
	}
	if !s.requested && (!there || before.requested || s.acked != before.acked || s.delivered != before.delivered) {
		return true, false
	}
	return false, there && before.waits()
}

// progress returns what the connections over each path did: by the SID, not valid for one that is
// not known or the only one. With requests, what was established in the first sample does not count.
func (e *egress) progress(first, at sample, requests bool) map[netip.Addr]*pathProgress {
	paths := map[netip.Addr]*pathProgress{}
	for ends, c := range at {
		before, there := first[ends]
		if !there && e.isEPE(ends.Local.Addr()) || requests && there && !before.requested {
			continue
		}
		p := paths[c.sid]
		if p == nil {
			p = &pathProgress{waiting: sample{}}
			paths[c.sid] = p
		}
		switch progressed, waits := c.since(before, there); {
		case progressed:
			p.progressed++
		case waits:
			p.waiting[ends] = c
			p.established = p.established || !c.requested
		}
	}
	return paths
}

// suspected leaves the mode of a network, or an egress peer, at once if none of the connections
// there progressed since one of them timed out.
func (e *egress) suspected(now time.Time, prefix netip.Prefix, s *suspect, at sample) {
	if s.first == nil {
		s.first, s.since = sample{}, now
		for ends, c := range at {
			if !e.isEPE(ends.Local.Addr()) {
				s.first[ends] = c
			}
		}
		return
	}
	paths := e.progress(s.first, at, s.requests)
	dead, waiting, clients, established := []netip.Addr{}, sample{}, map[netip.Addr]bool{}, false
	known, unknown := 0, 0
	for sid, p := range paths {
		if sid.IsValid() {
			known += p.progressed
		} else {
			unknown = p.progressed
		}
		if p.progressed > 0 || len(p.waiting) == 0 {
			continue
		}
		dead, established = append(dead, sid), established || p.established
		for ends, c := range p.waiting {
			waiting[ends], clients[ends.Remote.Addr()] = c, true
		}
	}
	// What progresses somewhere may progress anywhere, unless it is known of many where they do.
	if len(dead) == 0 || unknown > 0 && known < enoughProgress {
		delete(e.auto.suspects, prefix) // it only lost some segments
		return
	}
	if now.Sub(s.since) < min(max(suspectFor, 2*s.rtt), mostSuspectFor) && now.Sub(s.since) >= 0 {
		return
	}
	delete(e.auto.suspects, prefix)
	n, ok := e.delivery.networks.Get(prefix)
	if !ok || n.modeOf() != s.mode {
		return
	}
	// Anyone can request connections in the name of clients: that is no reason to forget what was
	// measured.
	alone := len(clients) == 1 || !established
	if alone && e.auto.vanished[prefix].has(waiting) {
		return
	}
	if len(e.auto.vanished) >= mostTrials {
		clear(e.auto.vanished)
	}
	e.auto.vanished[prefix] = waiting
	e.leave(now, prefix, n, s.mode, dead, alone)
}

// leave has a network leave its mode, or those of its egress peers that are dead.
func (e *egress) leave(now time.Time, prefix netip.Prefix, n *delivered, mode belief.Mode, dead []netip.Addr, alone bool) {
	if t := e.auto.trials[prefix]; t != nil {
		e.endTrial(prefix, t)
	}
	known := slices.DeleteFunc(dead, func(sid netip.Addr) bool { return !sid.IsValid() })
	switch {
	case n.spread() && len(known) > 0:
		for _, sid := range known {
			e.leavePath(now, networkPath{prefix, sid})
		}
	case e.leaveBegin(now, n):
	case n.rule.auto:
		for _, m := range e.samePath(prefix, mode) {
			e.auto.table.Stalled(now, prefix, e.originOf(prefix), m, alone)
		}
	case n.group != nil && len(n.group.members) == 1:
		e.leavePath(now, networkPath{prefix, n.group.members[0].sid})
	case n.group != nil && n.group.sprayed != nil && len(n.group.present()) > 0:
		e.leavePath(now, networkPath{prefix, n.group.present()[0].sid})
	default:
		return
	}
	e.auto.stalls++
	e.deliver(prefix)
	e.flushAtOnce()
}

// samePath returns a mode and those that lead over the same path, by which a network would only seem
// to leave it: the best path, multipath where connections begin on that, and the egress peer that the
// best path leads through, as far as that is known.
func (e *egress) samePath(prefix netip.Prefix, mode belief.Mode) []belief.Mode {
	same := []belief.Mode{belief.Best}
	if e.beginsThrough(prefix) == "" {
		same = append(same, modeMultipath)
	}
	if best := e.auto.best[prefix]; best != (capacity.Link{}) {
		for _, p := range e.peers {
			if bgp.IPOf(p.Address) == bgp.IPOf(prefix.Addr()) && e.linkOf(p, prefix) == best {
				same = append(same, singlePrefix+belief.Mode(p.Name))
			}
		}
	}
	if !slices.Contains(same, mode) {
		return []belief.Mode{mode}
	}
	able := e.able(prefix)
	return slices.DeleteFunc(same, func(m belief.Mode) bool { return m != mode && !slices.Contains(able, m) })
}

// leavePath has a network leave an egress peer until it is tried again.
func (e *egress) leavePath(now time.Time, p networkPath) {
	was, again := e.stalled[p]
	if !again && len(e.stalled) >= mostStalled {
		for other, s := range e.stalled {
			if now.Sub(s.until) > 0 {
				delete(e.stalled, other)
			}
		}
		if len(e.stalled) >= mostStalled {
			return
		}
	}
	pause := leastLeft
	if again && now.Sub(was.until) < 8*was.pause {
		pause = min(2*was.pause, mostLeft)
	}
	e.stalled[p] = stalled{now.Add(pause), pause}
	if e.after != nil {
		e.after(pause, func() { e.deliver(p.prefix) })
	}
}

// left reports whether a network has left the egress peer with a SID.
func (e *egress) left(prefix netip.Prefix, sid netip.Addr) bool {
	s, ok := e.stalled[networkPath{prefix, sid}]
	remains := s.until.Sub(e.now())
	return ok && remains > 0 && remains <= s.pause // else the clock was set back
}

// leftPeers names the egress peers of the rule of a network that it has left.
func (e *egress) leftPeers(prefix netip.Prefix, rule *deliveryRule) string {
	var names []string
	for _, w := range rule.peers {
		if p := e.deliveryPeer(w.peer, bgp.IPOf(prefix.Addr())); p != nil && e.left(prefix, e.covering(p, prefix).sid) {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, ", ")
}

// has reports whether a sample has all connections of another one, which made no progress in
// between.
func (s sample) has(later sample) bool {
	for ends, c := range later {
		if was, there := s[ends]; !there || was.acked != c.acked || was.delivered != c.delivered {
			return false
		}
	}
	return true
}
