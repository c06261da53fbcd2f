package edge

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/route"
)

const (
	// onLinkRule is the priority of the rules for on-link destinations, before those of all peers.
	onLinkRule = ruleBase - 1
	// ruleBase is the priority of the first peer's policy rule: after the local table (0), before
	// main (32766). Each peer has two: the lookup in its table, and unreachable right below it.
	ruleBase = 1000
	// unreachableMetric is worse than the metric of any route of a peer, including its default
	// route.
	unreachableMetric = 1<<32 - 1
	// epeMetric is the metric of an EPE Route; there is one per prefix and table.
	epeMetric = 20
	// redHeadroom is what the kernel reserves for a one-segment SRH even where encap.red sends
	// none, in bytes (RFC 8754 section 2: 8 + 16). A route MTU larger by this amount makes
	// these bytes available for payload.
	redHeadroom = 24
)

// errForeignSID means that the SID is outside the configured locators. The import policy has
// refused and counted such a route; it is checked again because it would lead packets to a foreign
// host.
var errForeignSID = errors.New("sid outside the permitted locators")

// desired is the desired state of the kernel; *route.Reconciler implements it.
type desired interface {
	Set(route.Object)
	SetRoute(route.Route)
	Delete(route.Key)
	// Hasten has the next flush apply an object before others of its kind.
	Hasten(route.Key)
	// Suspend deletes a nexthop object from the kernel at once, with all routes through it. They are
	// added again after it was Set again.
	Suspend(route.Key)
	// Settled reports whether the kernel matches the desired state of the key.
	Settled(route.Key) bool
	// Outdated reports whether the kernel has another object with the key than the desired one, if
	// any.
	Outdated(route.Key) bool
}

// egress converts VPN routes to EPE Routes: a table for each egress peer, a nexthop object for
// each SID.
type egress struct {
	config *Config
	mtu    int // of the interface, in bytes
	kernel desired
	now    func() time.Time
	start  time.Time
	hooks

	peers []*peer
	byRT  map[target]*peer
	// byIndex and rulePositions include peers that are being removed.
	byIndex       map[int]*peer
	rulePositions []int

	lists   pathLists
	byRD    map[vpn.ID]map[*peer]int // routes with a path with the RD
	reports hashtable.Interner[pathmanager.Route]
	// locators decide which SIDs are reachable; paths through others are not installed.
	locators locators
	walk     walk
	nexthops

	delivery delivery
	auto     auto
	loads    egressLoads
	// stalled are the egress peers that networks left because they made no progress there.
	stalled map[networkPath]stalled
	sprayState
}

// hooks are what an egress calls, each unless it is nil.
type hooks struct {
	// walkStarted is called when a walk begins that takes several steps.
	walkStarted func()
	// routeChanged is called when a peer's route to a prefix changes in what the path manager
	// needs of it.
	routeChanged func(peer int, prefix netip.Prefix, r pathmanager.Route)
	// flushNow flushes the desired state to the kernel at once, of unicast routes at most so many.
	flushNow func(routes int)
	// after calls a function later, and flushes what it changes.
	after func(time.Duration, func())
}

type peer struct {
	Peer
	index        int // index in the path manager
	rulePosition int // its two rules are at ruleBase plus twice this
	// routes has the paths to each prefix through this peer, reachable or not. There are several if
	// several ASBRs have a session with the peer, or one has several.
	routes hashtable.Prefixes[epeRoute]
	// states counts the prefixes in each state; leaving is set if no prefix is present and the
	// last ones were draining.
	states  [pathmanager.RoutePresent + 1]int
	leaving bool
	sids    map[uint32]int // routes by number of their SID
	burst   burst
}

// flushAtOnce flushes all but unicast routes, which follow in steps.
func (e *egress) flushAtOnce() { e.flushRoutesAtOnce(0) }

// flushRoutesAtOnce calls flushNow, if set.
func (e *egress) flushRoutesAtOnce(most int) {
	if e.flushNow != nil {
		e.flushNow(most)
	}
}

// pathKey identifies a VPN route.
type pathKey struct {
	rd     vpn.ID
	prefix netip.Prefix
}

func newEgress(config *Config, mtu int, kernel desired) *egress {
	e := &egress{
		config: config, mtu: mtu, kernel: kernel, byRT: map[target]*peer{}, byIndex: map[int]*peer{},
		lists: pathLists{choices: map[uint32]choice{}}, byRD: map[vpn.ID]map[*peer]int{},
		nexthops: newNexthops(), locators: newLocators(), now: time.Now, start: time.Now(),
		delivery: delivery{rules: compileDelivery(&config.Delivery), groups: map[string]*group{}, borrowed: map[netip.Prefix]*borrowed{}},
		auto:     newAuto(), loads: newLoads(config.Address), stalled: map[networkPath]stalled{},
	}
	e.auto.table.SetExplore(e.delivery.rules.explore)
	for i, p := range config.Peers {
		e.addPeer(p, i)
	}
	for _, o := range e.onLink() {
		kernel.Set(o)
	}
	for prefix := range e.delivery.rules.prefixes.All() {
		e.deliver(prefix)
	}
	return e
}

// addPeer adds a peer without routes.
func (e *egress) addPeer(conf Peer, index int) {
	p := &peer{Peer: conf, index: index, sids: map[uint32]int{}}
	for slices.Contains(e.rulePositions, p.rulePosition) {
		p.rulePosition++
	}
	e.rulePositions = append(e.rulePositions, p.rulePosition)
	e.peers = append(e.peers, p)
	clear(e.auto.rules) // which name all peers
	e.byRT[p.target()], e.byIndex[index] = p, p
	for _, o := range e.fixed(p) {
		e.kernel.Set(o)
	}
}

// removePeer removes a peer, whose routes removeRoutes removes then. Its fixed objects remain until
// it is freed, so that no packet from its address takes another path.
func (e *egress) removePeer(p *peer) {
	e.peers = slices.DeleteFunc(e.peers, func(other *peer) bool { return other == p })
	clear(e.auto.rules)
	e.endBypasses(func(to *peer) bool { return to == p })
	delete(e.byRT, p.target())
	e.walk.peers = slices.DeleteFunc(e.walk.peers, func(other *peer) bool { return other == p })
	e.walk.next = 0
}

// removeRoutes removes at most so many routes of a removed peer, and reports whether there may be
// more to do before it is freed.
func (e *egress) removeRoutes(p *peer, most int) (more bool) {
	for n, ok := p.routes.Next(0); ok; n, ok = p.routes.Next(n) {
		if most == 0 {
			return true
		}
		most--
		r := p.routes.Value(n)
		for _, h := range e.lists.paths(r.paths) {
			e.count(h.rd, p, -1)
		}
		e.lists.release(r.paths)
		r.paths = 0
		e.apply(p, n)
	}
	e.deliverDue(most) // its index may be that of another peer later
	return len(e.delivery.due) > 0
}

// free releases the index and the rule position of a removed peer.
func (e *egress) free(p *peer) {
	delete(e.byIndex, p.index)
	e.rulePositions = slices.DeleteFunc(e.rulePositions, func(i int) bool { return i == p.rulePosition })
}

// onLink returns the rules for on-link destinations: replies to hosts on the same link must not
// follow a peer's default route.
func (e *egress) onLink() []route.Object {
	var rules []route.Object
	for _, p := range e.config.onLink() {
		rules = append(rules, route.Rule{Priority: onLinkRule, To: p, Table: route.MainTable})
	}
	if e.marksPackets() {
		rules = append(rules, e.locatorRules()...)
	}
	return rules
}

// fixed returns the objects of a peer that do not depend on routes.
func (e *egress) fixed(p *peer) []route.Object {
	objects := []route.Object{
		// Traffic from an EPE address must never follow the best path: its table has an
		// unreachable default, and if another program flushes the table or deletes its
		// rule, the unreachable rule remains.
		route.Route{Table: p.Table, Dst: bgp.IPOf(p.Address).Anywhere(), Metric: unreachableMetric, Kind: route.Unreachable},
		route.Rule{Priority: ruleBase + 2*uint32(p.rulePosition), From: host(p.Address), Table: p.Table},
		unreachableRule(p.Address, p.rulePosition),
		// Deprecated, so that source address selection avoids the address (RFC 6724 section
		// 5, rule 3).
		route.Address{Link: cmp.Or(p.Interface, e.config.Interface), Prefix: host(p.Address), Deprecated: true},
	}
	if e.marksPackets() {
		objects = append(objects, p.markRules()...)
	}
	return objects
}

// unreachableRule returns the rule that drops packets from an EPE address that its table does not
// route.
func unreachableRule(epe netip.Addr, position int) route.Rule {
	return route.Rule{Priority: ruleBase + 2*uint32(position) + 1, From: host(epe), Unreachable: true}
}

// staleRules returns the rules of a previous instance that are wrong in this configuration, because
// the table of an EPE address has changed, and the old and new tables of these rules. With these
// rules, or the unicast routes in these tables, an EPE address could be routed through the wrong
// peer.
func staleRules(config *Config, found []route.Object) (stale []route.Rule, tables map[fib]bool) {
	current, used := map[netip.Prefix]uint32{}, map[fib]bool{}
	for _, p := range config.Peers {
		current[host(p.Address)], used[p.fib()] = p.Table, true
	}
	tables = map[fib]bool{}
	for _, o := range found {
		r, ok := o.(route.Rule)
		if !ok || r.Unreachable || r.Mark != 0 || current[r.From] == r.Table {
			continue
		}
		version := bgp.IPOf(r.From.Addr())
		now, configured := current[r.From]
		if !configured && !used[fib{r.Table, version}] {
			continue // belongs to a removed peer with its own table
		}
		stale = append(stale, r)
		tables[fib{r.Table, version}] = true
		if configured {
			tables[fib{now, version}] = true
		}
	}
	return stale, tables
}

// fixedSettled reports whether the kernel has the fixed objects of all peers, so that their
// addresses can be announced.
func (e *egress) fixedSettled() bool {
	pending := func(o route.Object) bool { return !e.kernel.Settled(o.Key()) }
	return !slices.ContainsFunc(e.onLink(), pending) &&
		!slices.ContainsFunc(e.peers, func(p *peer) bool { return slices.ContainsFunc(e.fixed(p), pending) })
}

// installed reports whether the kernel has the peer's route to a prefix.
func (e *egress) installed(peer int, prefix netip.Prefix) bool {
	p := e.byIndex[peer]
	return p != nil && e.kernel.Settled(e.route(p, prefix, 0).Key())
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// update applies an update of a VPN best path. The error is the reason why a route is rejected; a
// rejected route also replaces the previous one with its key.
func (e *egress) update(b bgp.VPNPath) error {
	path, peers, err := e.accept(b)
	for p := range e.byRD[b.RD] {
		if !slices.Contains(peers, p) {
			e.set(p, b.Prefix, b.RD, nil)
		}
	}
	for _, p := range peers {
		e.set(p, b.Prefix, b.RD, &path)
	}
	return err
}

// accept returns the peers that the route belongs to by its route targets, if any.
func (e *egress) accept(b bgp.VPNPath) (path egressPath, peers []*peer, err error) {
	if b.Withdrawn || b.Rejected != nil {
		return egressPath{}, nil, b.Rejected
	}
	for _, rt := range b.RTs {
		if p := e.byRT[target{rt, bgp.IPOf(b.Prefix.Addr())}]; p != nil && !slices.Contains(peers, p) {
			peers = append(peers, p)
		}
	}
	if len(peers) == 0 {
		return egressPath{}, nil, nil // route of another service
	}
	if !bgp.Inside(e.config.Locators, host(b.SID)) {
		return egressPath{}, nil, fmt.Errorf("%w: %v", errForeignSID, b.SID)
	}
	path = egressPath{rd: b.RD, sid: b.SID, preference: preferenceOf(b.Attributes)}
	if origin := b.ASPath.Origin(); e.delivery.rules.asns[origin] != nil || e.delivery.rules.learns {
		path.originAS = origin
	}
	return path, peers, nil
}

func (e *egress) route(p *peer, prefix netip.Prefix, nexthop uint32) route.Route {
	r := route.Route{Table: p.Table, Dst: prefix, Metric: epeMetric, Kind: route.Unicast, NexthopID: nexthop}
	if e.config.encap() == route.EncapRed {
		r.MTU = uint32(e.mtu) + redHeadroom
	}
	return r
}

func (e *egress) status(p *peer) PeerStatus {
	s := PeerStatus{Name: p.Name, RT: p.RT, Address: p.Address, Table: p.Table, Routes: p.reachable(), Unreachable: p.unreachable()}
	for n := range uint32(e.sids.Len()) {
		if p.sids[n] > 0 {
			s.SIDs = append(s.SIDs, e.sids.Value(n))
		}
	}
	slices.SortFunc(s.SIDs, netip.Addr.Compare)
	return s
}
