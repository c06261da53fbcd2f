package edge

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/pathmanager"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/vpn"
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
	// nexthopBase is the first nexthop object ID, above IDs that operators assign.
	nexthopBase = 1 << 30
	// redHeadroom is what the kernel reserves for a one-segment SRH even where encap.red sends
	// none, in bytes (RFC 8754 section 2: 8 + 16). A route MTU larger by this amount makes
	// these bytes available for payload.
	redHeadroom = 24
)

// errForeignSID means that the SID is outside the configured locators.
var errForeignSID = errors.New("sid outside the permitted locators")

// desired is the desired state of the kernel; *route.Reconciler implements it.
type desired interface {
	Set(route.Object)
	Delete(route.Key)
	// Settled reports whether the kernel matches the desired state of the key.
	Settled(route.Key) bool
}

// egress converts VPN routes to EPE Routes: a table for each egress peer, a nexthop object for
// each SID.
type egress struct {
	config *Config
	mtu    int // of the interface, in bytes
	kernel desired
	peers  []*peer
	byRT   map[target]*peer
	// byIndex and slots include peers that are being removed.
	byIndex map[int]*peer
	slots   []int
	paths   map[pathKey]path
	sids    map[netip.Addr]*sid
	ids     map[uint32]netip.Addr
	// locators decide which SIDs are reachable; paths through others are not installed.
	locators locators
	// routed, when set, is called when a peer's route to a prefix changes in what the path manager
	// needs of it.
	routed func(peer int, prefix netip.Prefix, r pathmanager.Route)
	// urgent, when set, flushes the desired state to the kernel at once.
	urgent func()
}

// gracefulShutdown is the community of routes that will soon be withdrawn (RFC 8326 section 3.1).
const gracefulShutdown = bgp.GracefulShutdown

type peer struct {
	Peer
	index int // index in the path manager
	slot  int // position of its rules
	// routes maps each prefix to its paths through this peer, best first (see rank). There are
	// several if several ASBRs have a session with the peer, or one has several.
	routes map[netip.Prefix][]hop
	// states counts the prefixes in each state; leaving is set if no prefix is present and the
	// last ones were draining.
	states  [pathmanager.RoutePresent + 1]int
	leaving bool
}

// hop is a path to a prefix. The route distinguisher identifies the ASBR.
type hop struct {
	rd  vpn.ID
	sid netip.Addr
	preference
}

// state returns the state of a route with these paths, best first.
func state(hops []hop) pathmanager.RouteState {
	switch {
	case len(hops) == 0:
		return pathmanager.RouteAbsent
	case hops[0].draining:
		return pathmanager.RouteDraining
	}
	return pathmanager.RoutePresent
}

// ranked returns what the path manager needs of a route with these paths, best first.
func ranked(hops []hop) pathmanager.Route {
	if len(hops) == 0 {
		return pathmanager.Route{}
	}
	return pathmanager.Route{State: state(hops), LocalPref: hops[0].localPref, PathLength: uint16(hops[0].pathLength)}
}

type pathKey struct {
	rd     vpn.ID
	prefix netip.Prefix
}

type path struct {
	sid netip.Addr
	preference
	peers []*peer
}

// sid is a nexthop object and the number of routes through it.
type sid struct {
	object route.Nexthop
	routes int
}

func newEgress(config *Config, mtu int, kernel desired) *egress {
	e := &egress{
		config: config, mtu: mtu, kernel: kernel, byRT: map[target]*peer{}, byIndex: map[int]*peer{}, paths: map[pathKey]path{},
		sids: map[netip.Addr]*sid{}, ids: map[uint32]netip.Addr{},
		locators: newLocators(),
	}
	for i, p := range config.Peers {
		e.addPeer(p, i)
	}
	for _, o := range e.onLink() {
		kernel.Set(o)
	}
	return e
}

// addPeer adds a peer without routes.
func (e *egress) addPeer(conf Peer, index int) {
	p := &peer{Peer: conf, index: index, routes: map[netip.Prefix][]hop{}}
	for slices.Contains(e.slots, p.slot) {
		p.slot++
	}
	e.slots = append(e.slots, p.slot)
	e.peers = append(e.peers, p)
	e.byRT[p.target()], e.byIndex[index] = p, p
	for _, o := range e.fixed(p) {
		e.kernel.Set(o)
	}
}

// removePeer removes a peer with its routes. Its fixed objects remain until it is freed, so that no
// packet from its address takes another path.
func (e *egress) removePeer(p *peer) {
	e.peers = slices.DeleteFunc(e.peers, func(other *peer) bool { return other == p })
	delete(e.byRT, p.target())
	for key, path := range e.paths {
		if !slices.Contains(path.peers, p) {
			continue
		}
		e.choose(p, key.prefix, without(p.routes[key.prefix], key.rd))
		path.peers = slices.DeleteFunc(slices.Clone(path.peers), func(other *peer) bool { return other == p })
		if e.paths[key] = path; len(path.peers) == 0 {
			delete(e.paths, key)
		}
	}
}

// free releases index and slot of a removed peer.
func (e *egress) free(p *peer) {
	delete(e.byIndex, p.index)
	e.slots = slices.DeleteFunc(e.slots, func(slot int) bool { return slot == p.slot })
}

// onLink returns the rules for on-link destinations: replies to hosts on the same link must not
// follow a peer's default route.
func (e *egress) onLink() []route.Object {
	var rules []route.Object
	for _, p := range e.config.onLink() {
		rules = append(rules, route.Rule{Priority: onLinkRule, To: p, Table: route.MainTable})
	}
	return rules
}

// fixed returns the objects of a peer that do not depend on routes.
func (e *egress) fixed(p *peer) []route.Object {
	return []route.Object{
		// Traffic from an EPE address must never follow the best path: its table has an
		// unreachable default, and if another program flushes the table or deletes its
		// rule, the unreachable rule remains.
		route.Route{Table: p.Table, Dst: bgp.IPOf(p.Address).Anywhere(), Metric: unreachableMetric, Kind: route.Unreachable},
		route.Rule{Priority: ruleBase + 2*uint32(p.slot), From: host(p.Address), Table: p.Table},
		guard(p.Address, p.slot),
		// Deprecated, so that source address selection avoids the address (RFC 6724 section
		// 5, rule 3).
		route.Address{Link: cmp.Or(p.Interface, e.config.Interface), Prefix: host(p.Address), Deprecated: true},
	}
}

// guard returns the rule that drops packets from an EPE address that its table does not route.
func guard(epe netip.Addr, slot int) route.Rule {
	return route.Rule{Priority: ruleBase + 2*uint32(slot) + 1, From: host(epe), Unreachable: true}
}

// moved returns objects of a previous instance that are wrong in this configuration: the rules of
// EPE addresses whose table has changed, and the routes in the old and new tables of these rules.
// With these objects, an EPE address could be routed through the wrong peer.
func moved(config *Config, found []route.Object) (stale []route.Object) {
	current, used := map[netip.Prefix]uint32{}, map[table]bool{}
	for _, p := range config.Peers {
		current[host(p.Address)], used[p.table()] = p.Table, true
	}
	tables := map[table]bool{}
	for _, o := range found {
		r, ok := o.(route.Rule)
		if !ok || r.Unreachable || current[r.From] == r.Table {
			continue
		}
		version := bgp.IPOf(r.From.Addr())
		now, configured := current[r.From]
		if !configured && !used[table{r.Table, version}] {
			continue // belongs to a removed peer with its own table
		}
		stale = append(stale, r)
		tables[table{r.Table, version}] = true
		if configured {
			tables[table{now, version}] = true
		}
	}
	for _, o := range found {
		if r, ok := o.(route.Route); ok && tables[table{r.Table, bgp.IPOf(r.Dst.Addr())}] && r.Kind == route.Unicast {
			stale = append(stale, r)
		}
	}
	return stale
}

// fixedSettled reports whether the kernel has the fixed objects of all peers, so that their
// addresses can be announced.
func (e *egress) fixedSettled() bool {
	pending := func(o route.Object) bool { return !e.kernel.Settled(o.Key()) }
	return !slices.ContainsFunc(e.onLink(), pending) &&
		!slices.ContainsFunc(e.peers, func(p *peer) bool { return slices.ContainsFunc(e.fixed(p), pending) })
}

// works reports whether the kernel has the peer's route to a prefix.
func (e *egress) works(peer int, prefix netip.Prefix) bool {
	p := e.byIndex[peer]
	return p != nil && e.kernel.Settled(e.route(p, prefix, 0).Key())
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// update applies an update of a VPN best path. The error is the reason why a route is rejected; a
// rejected route also replaces the previous one with its key.
func (e *egress) update(b bgp.VPNPath) error {
	key := pathKey{b.RD, b.Prefix}
	old := e.paths[key]
	now, err := e.accept(b)
	if old.sid == now.sid && old.preference == now.preference && slices.Equal(old.peers, now.peers) {
		return err
	}
	if len(now.peers) == 0 {
		delete(e.paths, key)
	} else {
		e.paths[key] = now
	}
	for _, p := range old.peers {
		if !slices.Contains(now.peers, p) {
			e.choose(p, key.prefix, without(p.routes[key.prefix], key.rd))
		}
	}
	for _, p := range now.peers {
		e.choose(p, key.prefix, e.hops(p, key, now))
	}
	return err
}

// accept returns the peers that the route belongs to by its route targets, if any.
func (e *egress) accept(b bgp.VPNPath) (path, error) {
	if b.Withdrawn || b.Rejected != nil {
		return path{}, b.Rejected
	}
	found := path{sid: b.SID, preference: preferenceOf(b.Attributes)}
	for _, rt := range b.RTs {
		if p := e.byRT[target{rt, bgp.IPOf(b.Prefix.Addr())}]; p != nil && !slices.Contains(found.peers, p) {
			found.peers = append(found.peers, p)
		}
	}
	if len(found.peers) == 0 {
		return path{}, nil // route of another service
	}
	if !slices.ContainsFunc(e.config.Locators, func(l netip.Prefix) bool { return l.Contains(found.sid) }) {
		return path{}, fmt.Errorf("%w: %v", errForeignSID, found.sid)
	}
	return found, nil
}

func without(hops []hop, rd vpn.ID) []hop {
	return slices.DeleteFunc(slices.Clone(hops), func(h hop) bool { return h.rd == rd })
}

// choose replaces the paths to a prefix through a peer; the first is installed.
func (e *egress) choose(p *peer, prefix netip.Prefix, hops []hop) {
	old := p.routes[prefix]
	if len(hops) == 0 {
		delete(p.routes, prefix)
	} else {
		p.routes[prefix] = hops
	}
	p.count(state(old), state(hops))
	if now := ranked(hops); e.routed != nil && ranked(old) != now {
		e.routed(p.index, prefix, now)
	}
	switch {
	case len(old) > 0 && len(hops) > 0 && old[0].sid == hops[0].sid:
		return
	case len(hops) > 0:
		e.kernel.Set(e.route(p, prefix, e.use(hops[0].sid)))
	default:
		e.kernel.Delete(e.route(p, prefix, 0).Key())
	}
	if len(old) > 0 {
		e.release(old[0].sid)
	}
}

func (e *egress) route(p *peer, prefix netip.Prefix, nexthop uint32) route.Route {
	r := route.Route{Table: p.Table, Dst: prefix, Metric: epeMetric, Kind: route.Unicast, NexthopID: nexthop}
	if e.config.encap() == route.EncapRed {
		r.MTU = uint32(e.mtu) + redHeadroom
	}
	return r
}

// use adds a reference to the nexthop object of a SID and returns its ID.
func (e *egress) use(addr netip.Addr) uint32 {
	s := e.sids[addr]
	if s == nil {
		s = &sid{object: route.Nexthop{ID: e.newID(addr), Link: e.config.Interface, SID: addr, Encap: e.config.encap()}}
		e.sids[addr] = s
		e.kernel.Set(s.object)
	}
	s.routes++
	return s.object.ID
}

// release removes a reference to the nexthop object of a SID. The reconciler deletes routes before
// nexthop objects, so the object can be deleted in the same flush.
func (e *egress) release(addr netip.Addr) {
	s := e.sids[addr]
	if s.routes--; s.routes > 0 {
		return
	}
	e.kernel.Delete(s.object.Key())
	delete(e.ids, s.object.ID)
	delete(e.sids, addr)
}

// newID derives the object's ID from the SID, so that IDs are the same after a restart.
func (e *egress) newID(addr netip.Addr) uint32 {
	h := fnv.New32a()
	b := addr.As16()
	_, _ = h.Write(b[:])
	id := nexthopBase | h.Sum32()%nexthopBase
	for e.ids[id].IsValid() {
		id = nexthopBase | (id+1)%nexthopBase
	}
	e.ids[id] = addr
	return id
}

func (p *peer) status() PeerStatus {
	s := PeerStatus{Name: p.Name, RT: p.RT, Address: p.Address, Table: p.Table, Routes: len(p.routes)}
	seen := map[netip.Addr]bool{}
	for _, hops := range p.routes {
		if sid := hops[0].sid; !seen[sid] {
			seen[sid] = true
			s.SIDs = append(s.SIDs, sid)
		}
	}
	slices.SortFunc(s.SIDs, netip.Addr.Compare)
	return s
}
