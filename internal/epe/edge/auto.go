package edge

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/capacity"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/mptcp"
)

// Mode auto: a network is delivered in the mode that measured best there. What connections achieve
// is reported when they end. A bulk connection is the occasion to compare: for some seconds the
// network has another mode, and what its connections carry before and meanwhile is the measurement.
// A path that makes no progress is left without any measurement.

const (
	// incumbentFor and challengerFor are how long what connections carry is measured in each mode,
	// and settleFor how long the queues of the former mode drain before.
	incumbentFor, challengerFor = 1500 * time.Millisecond, 1500 * time.Millisecond
	settleFor                   = time.Second
	// sampleEvery is how often connections are read while a network is compared or suspected.
	sampleEvery = 250 * time.Millisecond
	// leastCarried is what connections carry in a measurement that counts, in bytes.
	leastCarried = 128 << 10
	// mostTrials bounds the networks whose connections are read because they are compared or
	// suspected at a time, mostAparts those compared in successive connections.
	mostTrials, mostAparts = 64, 512
	// mostSingle bounds the egress peers that are modes of a network.
	mostSingle = 8
	// autoNetworks bounds the networks that something is known of.
	autoNetworks = 100_000
)

// auto is the state of networks with mode auto.
type auto struct {
	table *belief.Table
	// rules are those of a mode in place of a rule with auto.
	rules map[autoRule]*deliveryRule
	// trials are the networks that are compared, suspects those with a connection that timed out,
	// or was requested and not established.
	trials   map[netip.Prefix]*trial
	aparts   int // trials of successive connections
	suspects map[netip.Prefix]*suspect
	// best are the links that the best paths to suspected networks lead through, where known.
	best map[netip.Prefix]capacity.Link
	// vanished are the connections that made no progress when their network last left a mode for
	// it: if they make none in the next mode either, it is the client that has gone.
	vanished map[netip.Prefix]sample
	// stalls counts the modes that were left because they made no progress.
	stalls uint64
	// compared counts comparisons that measured something.
	compared uint64
	// multipath: MPTCP clients get subflows over EPE addresses, which can rest for a network.
	multipath bool
	// reason is why nothing can be measured, "" if it can.
	reason string
}

type autoRule struct {
	base *deliveryRule
	mode belief.Mode
	// begins is the egress peer that connections begin through with multipath; "": the best path.
	begins string
}

// trial compares two modes in a network.
type trial struct {
	challenger, incumbent belief.Mode
	phase                 trialPhase
	since                 time.Time
	first                 sample
	incumbents            carried
	elapsed               time.Duration
	// cost are the bytes that the challenger is expected to carry.
	cost    float64
	learned bool
	// apart are the connections in the challenger's mode, with phase measuringApart.
	apart apartTrial
}

type trialPhase uint8

const (
	measuringIncumbent  trialPhase = iota
	settling                       // in the challenger's mode
	measuringChallenger            // likewise
	measuringApart                 // likewise, in connections that begin and end meanwhile
)

// sample are the connections of a network at a time.
type sample map[mptcp.Ends]socket

// socket is what is read of a TCP socket.
type socket struct {
	token     uint32 // of the MPTCP connection; 0: none
	acked     uint64
	delivered uint32
	inFlight  uint32
	// limited: what it sends is limited by the client's window or the application.
	limited bool
	window  time.Duration
	// requested: it is not established. retried: its SYN-ACK was sent again.
	requested, retried bool
	// datagrams: it is no socket of TCP but a flow of UDP; acked counts what is not a probe, and
	// something is in flight while its sender gets no acknowledgments.
	datagrams bool
	// sid is that of the egress peer that its packets leave through, where its network is suspected
	// and has several; not valid if it is not known.
	sid netip.Addr
}

// flow identifies a connection across its subflows.
type flow struct {
	token uint32
	ends  mptcp.Ends
}

// carried are the bytes that each connection carried.
type carried map[flow]uint64

// newAuto returns the state without networks.
func newAuto() auto {
	return auto{
		table: belief.New(belief.Options{Start: modeMultipath, Networks: autoNetworks}),
		rules: map[autoRule]*deliveryRule{}, trials: map[netip.Prefix]*trial{}, suspects: map[netip.Prefix]*suspect{}, vanished: map[netip.Prefix]sample{},
	}
}

// able returns the modes that a network can have now.
func (e *egress) able(prefix netip.Prefix) []belief.Mode {
	modes := []belief.Mode{belief.Best}
	if e.auto.multipath {
		modes = append(modes, modeMultipath)
	}
	peers := 0
	for _, p := range e.peers {
		if bgp.IPOf(p.Address) != bgp.IPOf(prefix.Addr()) {
			continue
		}
		c := e.covering(p, prefix)
		if !c.sid.IsValid() || e.insideItself(c.sid, prefix) || c.report.State != pathmanager.RoutePresent {
			continue
		}
		if peers++; peers <= mostSingle {
			modes = append(modes, singlePrefix+belief.Mode(p.Name))
		}
	}
	if peers > 1 {
		modes = append(modes, modeSpread)
	}
	return modes
}

// chosen returns the rule for a network in place of one with auto: that of the mode which is tried,
// or measured best.
func (e *egress) chosen(prefix netip.Prefix, base *deliveryRule) *deliveryRule {
	able := e.able(prefix)
	mode := e.auto.table.Mode(e.now(), prefix, e.originOf(prefix), able)
	if t := e.auto.trials[prefix]; t != nil {
		switch {
		case mode != t.incumbent || !slices.Contains(able, t.challenger):
			e.endTrial(prefix, t) // it has another mode by now, or the challenger has gone
		case t.phase != measuringIncumbent:
			mode = t.challenger
		}
	}
	key := autoRule{base: base, mode: e.detoured(prefix, mode, able)}
	if key.mode == modeMultipath {
		key.begins = e.beginsThrough(prefix)
	}
	r := e.auto.rules[key]
	if r == nil {
		r = newDeliveryRule(base.name, e.parameters(key.mode))
		r.auto = true
		if key.begins != "" {
			r.peers = []weighted{{key.begins, 1}}
		}
		e.auto.rules[key] = r
	}
	return r
}

// parameters returns a mode of belief as in a configuration.
func (e *egress) parameters(m belief.Mode) Mode {
	if name, ok := singlePeer(m); ok {
		return Mode{Single: name}
	}
	switch m {
	case modeSpread:
		all := map[string]uint32{}
		for _, p := range e.peers {
			if e.deliveryPeer(p.Name, bgp.IPv6) == p || e.byRT[target{p.RT, bgp.IPv6}] == nil {
				all[p.Name] = 1
			}
		}
		return Mode{Spread: all}
	case modeMultipath:
		return Mode{named: modeMultipath}
	default:
		return Mode{best: true}
	}
}

// remove removes the trial of a network, if there is one.
func (a *auto) remove(prefix netip.Prefix) {
	if t := a.trials[prefix]; t != nil && t.phase == measuringApart {
		a.aparts--
	}
	delete(a.trials, prefix)
}

// endTrial ends a trial. One that measured nothing counts as one.
func (e *egress) endTrial(prefix netip.Prefix, t *trial) {
	e.auto.remove(prefix)
	if n, ok := e.delivery.networks.Get(prefix); ok && n.apart != nil && t.phase == measuringApart {
		e.endApart(e.now(), n, t)
	}
	if t.learned || t.phase == measuringApart && t.apart.bytes == 0 {
		return
	}
	cost := 0.0
	switch t.phase {
	case measuringIncumbent: // no byte was in the other mode
	case settling, measuringChallenger:
		cost = t.cost
	case measuringApart:
		cost = t.apart.bytes
	}
	e.auto.table.Abandoned(prefix, t.challenger, cost)
}

// modeOf is the mode that a network has now, by its rule.
func (n *delivered) modeOf() belief.Mode { return n.rule.believed }

// originOf returns the AS that originates the routes to a prefix, 0 if it is not known.
func (e *egress) originOf(prefix netip.Prefix) (origin uint32) {
	for _, p := range e.peers {
		origin = cmp.Or(origin, e.covering(p, prefix).originAS)
	}
	return origin
}

// rests reports whether the subflows of MPTCP clients over EPE addresses rest in a network.
func (n *delivered) rests() bool {
	return n.rule != nil && n.rule.auto && n.rule.mode.named != modeMultipath
}

// offered returns a route for the path manager. Where subflows rest, or the network avoids the
// link, it is one that is about to be withdrawn; that of the peer that connections begin through is
// preferred to all others.
func (e *egress) offered(p *peer, prefix netip.Prefix, r pathmanager.Route) pathmanager.Route {
	n, ok := e.delivery.networks.Get(prefix)
	switch {
	case !ok || e.delivery.rules.dry || r.State != pathmanager.RoutePresent:
	case n.rests() || e.avoids(prefix, e.covering(p, prefix).sid):
		r.State = pathmanager.RouteDraining
	case n.beginsAt() == p:
		r.LocalPref = math.MaxUint32
	}
	return r
}

// offer reports the routes to a network again, after its subflows began or ceased to rest.
func (e *egress) offer(prefix netip.Prefix) {
	if e.routeChanged == nil {
		return
	}
	for _, p := range e.peers {
		if n, ok := p.routes.Find(prefix); ok {
			if r := e.reports.Value(p.routes.Value(n).reported); r.State == pathmanager.RoutePresent {
				e.routeChanged(p.index, prefix, e.offered(p, prefix, r))
			}
		}
	}
}

// observed applies reports of connections. It returns whether connections are to be read.
func (e *egress) observed(reports []outcome.Report) (busy bool) {
	now := e.now()
	for _, r := range reports {
		prefix, n, ok := e.delivery.networks.LookupPrefixLPM(host(r.Remote.Addr()))
		if !ok || n.rule == nil {
			continue
		}
		switch r.Kind {
		case outcome.Closed:
			origin := func() uint32 { return e.originOf(prefix) }
			o := outcomeOf(r)
			o.Counted = n.apart.counted(r)
			e.auto.table.Closed(now, prefix, origin, n.modeOf(), o)
			e.measuredPath(now, prefix, n, r)
			e.closedApart(now, prefix, n, r)
		case outcome.Bulk:
			if !n.short() {
				e.try(now, prefix, n, r)
			}
			e.measuredPath(now, prefix, n, r)
		case outcome.Object:
			e.closedApart(now, prefix, n, r)
		case outcome.Unfit:
			n.sawUnfit(now)
		case outcome.Timeout, outcome.Unanswered, outcome.Unacknowledged:
			e.suspect(now, prefix, n, r)
		}
	}
	return e.auto.busy()
}

func (a *auto) busy() bool { return len(a.trials)+len(a.suspects) > 0 }

// isEPE reports whether an address is that of an egress peer, whose path the path manager watches.
func (e *egress) isEPE(a netip.Addr) bool {
	return slices.ContainsFunc(e.peers, func(p *peer) bool { return p.Address == a })
}

// outcomeOf is a report as what a connection achieved.
func outcomeOf(r outcome.Report) belief.Outcome {
	o := belief.Outcome{Bytes: r.Acked, Goodput: r.Goodput(), MinRTT: r.MinRTT, RTT: r.RTT, Sent: r.Sent, Retransmitted: r.Retransmitted}
	switch {
	case r.Busy < r.Duration/2:
		o.Limit = belief.ByApplication
	case r.Window+r.Buffer > r.Busy/2:
		o.Limit = belief.ByWindow
	}
	return o
}

// try begins to compare modes in a network that has a bulk connection, if one is due.
func (e *egress) try(now time.Time, prefix netip.Prefix, n *delivered, r outcome.Report) {
	if !n.rule.auto || n.unfit.holds(now) || e.auto.trials[prefix] != nil || len(e.auto.trials)-e.auto.aparts >= mostTrials {
		return
	}
	cost := r.Goodput() * (settleFor + challengerFor).Seconds()
	challenger, incumbent, ok := e.auto.table.Try(now, prefix, e.originOf(prefix), e.able(prefix), float64(r.Acked), cost)
	e.deliver(prefix) // a network that becomes known may begin with another mode
	switch {
	case !ok || e.delivery.rules.dry:
	case !e.tryable(prefix, challenger):
		e.auto.table.Abandoned(prefix, challenger, 0)
	default:
		e.auto.trials[prefix] = &trial{challenger: challenger, incumbent: incumbent, cost: cost}
	}
}

// activeNetwork is a network that connections are to be read of.
type activeNetwork struct {
	prefix netip.Prefix
	// suspected: those that are only requested are to be read, too.
	suspected bool
	// spread: its connections leave through several egress peers.
	spread bool
	// since is the first sample of a suspected network whose connections leave through several
	// egress peers, which are to be read; own are the addresses whose connections do not count.
	since sample
	own   []netip.Addr
}

// active returns the networks that connections are to be read of.
func (e *egress) active() (all []activeNetwork) {
	for p, t := range e.auto.trials {
		if e.auto.suspects[p] == nil && t.phase != measuringApart {
			all = append(all, activeNetwork{prefix: p})
		}
	}
	var own []netip.Addr
	for _, p := range e.peers {
		own = append(own, p.Address)
	}
	for p, s := range e.auto.suspects {
		n, ok := e.delivery.networks.Get(p)
		a := activeNetwork{prefix: p, suspected: true}
		if ok && n.spread() {
			a.spread, a.since, a.own = true, s.first, own
		}
		all = append(all, a)
	}
	return all
}

// sampled applies the connections of active networks. It returns whether more are to be read.
func (e *egress) sampled(samples map[netip.Prefix]sample) (busy bool) {
	now := e.now()
	for prefix, s := range e.auto.suspects {
		if at, read := samples[prefix]; read { // else it is suspected since, or they cannot be read now
			e.suspected(now, prefix, s, at)
		}
	}
	for prefix, t := range e.auto.trials {
		if t.phase == measuringApart {
			e.compareApart(now, prefix, t)
			continue
		}
		at, read := samples[prefix]
		if !read && t.first == nil {
			continue
		}
		if !read || e.compare(now, prefix, t, at) {
			e.endTrial(prefix, t)
			e.deliver(prefix)
		}
	}
	return e.auto.busy()
}

// compare continues a trial. It reports whether that has ended.
func (e *egress) compare(now time.Time, prefix netip.Prefix, t *trial, at sample) (ended bool) {
	if t.first == nil {
		t.first, t.since = at, now
		return false
	}
	elapsed := now.Sub(t.since)
	if elapsed < 0 {
		return true // the clock was set back
	}
	switch t.phase {
	case measuringIncumbent:
		if elapsed < incumbentFor {
			return false
		}
		if t.incumbents, t.elapsed = carriedSince(t.first, at, elapsed), elapsed; t.incumbents.sum(nil) < leastCarried {
			return true
		}
		t.phase, t.since = settling, now
		e.deliver(prefix)
	case settling:
		if elapsed >= settleFor {
			t.phase, t.first, t.since = measuringChallenger, at, now
		}
	case measuringChallenger:
		if elapsed < challengerFor {
			return false
		}
		challengers := carriedSince(t.first, at, elapsed)
		before, after := t.incumbents.sum(challengers), challengers.sum(t.incumbents)
		if before >= leastCarried && after > 0 {
			ratio := float64(after) / elapsed.Seconds() / (float64(before) / t.elapsed.Seconds())
			bytes := float64(challengers.sum(nil)) * (settleFor + elapsed).Seconds() / elapsed.Seconds()
			// It refuses only what was not measured.
			t.learned = e.auto.table.Learn(now, prefix, belief.Pair{Challenger: t.challenger, Incumbent: t.incumbent, Ratio: ratio, Bytes: bytes}) == nil
			if t.learned {
				e.auto.compared++
			}
		}
		return true
	case measuringApart: // see compareApart
	}
	return false
}

// carriedSince returns what the connections that are in both samples carried, without those that
// something else than the path limits.
func carriedSince(before, after sample, elapsed time.Duration) carried {
	c := carried{}
	for ends, now := range after {
		was, there := before[ends]
		if !there || now.limited || now.window-was.window > elapsed/2 || now.acked < was.acked {
			continue
		}
		f := flow{token: now.token}
		if now.token == 0 {
			f.ends = ends
		}
		c[f] += now.acked - was.acked
	}
	return c
}

// sum returns the bytes of the connections that are also in others, of all if that is nil.
func (c carried) sum(others carried) (bytes uint64) {
	for f, n := range c {
		if _, there := others[f]; there || others == nil {
			bytes += n
		}
	}
	return bytes
}
