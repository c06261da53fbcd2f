package edge

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/pathmanager"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/vpn"
)

const (
	// ruleBase is the priority of the first peer's policy rule: after the local table (0), before main (32766).
	ruleBase = 1000
	// unreachableMetric is worse than any route a peer may announce, its default route included.
	unreachableMetric = 1<<32 - 1
	// epeMetric is the metric of an EPE Route; there is one per prefix and table.
	epeMetric = 20
	// nexthopBase keeps our nexthop object IDs away from small hand-made ones.
	nexthopBase = 1 << 30
	// redHeadroom is what the kernel reserves for a one-segment SRH even where encap.red sends none, in bytes
	// (RFC 8754 section 2: 8 + 16). A route's MTU that is larger by as much gives these bytes back to the payload.
	redHeadroom = 24
)

// errForeignSID is why a route with an SID from somewhere else is refused.
var errForeignSID = errors.New("sid outside the permitted locators")

// desired is where decisions about kernel objects go.
type desired interface {
	Set(route.Object)
	Delete(route.Key)
	// Settled tells whether the kernel has it so.
	Settled(route.Key) bool
}

// egress turns VPNv6 routes into EPE Routes: one table per egress peer, one nexthop object per SID.
type egress struct {
	config *Config
	mtu    int // of the interface, in bytes
	kernel desired
	peers  []*peer
	byRT   map[vpn.ID]*peer
	paths  map[pathKey]path
	sids   map[netip.Addr]*sid
	ids    map[uint32]netip.Addr
	// locators say which SIDs are out of reach: no route leads through these, although it is among the paths.
	locators locators
	// routed, when set, hears what a peer offers for a prefix whenever that changes.
	routed func(peer int, prefix netip.Prefix, state pathmanager.RouteState)
	// urgent, when set, brings what is wanted so far to the kernel.
	urgent func()
}

// gracefulShutdown is the community of routes that are about to go (RFC 8326 section 3.1).
const gracefulShutdown = bgp.GracefulShutdown

type peer struct {
	Peer
	index int
	// routes maps each prefix to the paths that lead there through this peer, best first: those that stay before those
	// that are about to go. More than one exists when several ASBRs have a session with the peer.
	routes map[netip.Prefix][]hop
	// states counts the prefixes in each state; leaving: none is present, and the last ones were draining.
	states  [pathmanager.RoutePresent + 1]int
	leaving bool
}

// hop is one way to a prefix: the route distinguisher tells the ASBR, the SID what it does.
type hop struct {
	rd       vpn.ID
	sid      netip.Addr
	draining bool
}

func (a hop) compare(b hop) int {
	if a.draining != b.draining {
		if b.draining {
			return -1
		}
		return 1
	}
	return strings.Compare(a.rd.String(), b.rd.String())
}

// state is what the ways to a prefix, best first, offer.
func state(hops []hop) pathmanager.RouteState {
	switch {
	case len(hops) == 0:
		return pathmanager.RouteAbsent
	case hops[0].draining:
		return pathmanager.RouteDraining
	}
	return pathmanager.RoutePresent
}

type pathKey struct {
	rd     vpn.ID
	prefix netip.Prefix
}

type path struct {
	sid      netip.Addr
	draining bool
	peers    []*peer
}

// sid is a nexthop object and the number of routes through it.
type sid struct {
	object route.Nexthop
	routes int
}

func newEgress(config *Config, mtu int, kernel desired) *egress {
	e := &egress{
		config: config, mtu: mtu, kernel: kernel, byRT: map[vpn.ID]*peer{}, paths: map[pathKey]path{},
		sids: map[netip.Addr]*sid{}, ids: map[uint32]netip.Addr{},
		locators: newLocators(),
	}
	for i, p := range config.Peers {
		peer := &peer{Peer: p, index: i, routes: map[netip.Prefix][]hop{}}
		e.peers = append(e.peers, peer)
		e.byRT[p.RT] = peer
		for _, o := range e.frame(peer) {
			kernel.Set(o)
		}
	}
	return e
}

// frame is what a peer has in the kernel whatever routes there are.
func (e *egress) frame(p *peer) []route.Object {
	return []route.Object{
		// An EPE address never falls through to the best path: its table ends in unreachable.
		route.Route{Table: p.Table, Dst: anywhere, Metric: unreachableMetric, Kind: route.Unreachable},
		route.Rule{Priority: ruleBase + uint32(p.index), From: host(p.Address), Table: p.Table},
		// Deprecated, so that nothing else picks the address as a source (RFC 6724 section 5, rule 3).
		route.Address{Link: e.config.Interface, Prefix: host(p.Address), Deprecated: true},
	}
}

// framed tells whether the kernel has the frames of all peers, so that their addresses can be given to clients.
func (e *egress) framed() bool {
	return !slices.ContainsFunc(e.peers, func(p *peer) bool {
		return slices.ContainsFunc(e.frame(p), func(o route.Object) bool { return !e.kernel.Settled(o.Key()) })
	})
}

// works tells whether the kernel has the peer's route to a prefix.
func (e *egress) works(peer int, prefix netip.Prefix) bool {
	return e.kernel.Settled(e.route(e.peers[peer], prefix, 0).Key())
}

var anywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// update takes one change of a VPNv6 best path. The error is the reason why the route is refused; what was known under
// its key before is gone either way.
func (e *egress) update(b bgp.VPNPath) error {
	key := pathKey{b.RD, b.Prefix}
	old := e.paths[key]
	now, err := e.accept(b)
	if old.sid == now.sid && old.draining == now.draining && slices.Equal(old.peers, now.peers) {
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

// accept says which of our peers the route belongs to, if any.
func (e *egress) accept(b bgp.VPNPath) (path, error) {
	if b.Withdrawn || b.Rejected != nil {
		return path{}, b.Rejected
	}
	found := path{sid: b.SID, draining: slices.Contains(b.Communities, gracefulShutdown)}
	for _, rt := range b.RTs {
		if p := e.byRT[rt]; p != nil && !slices.Contains(found.peers, p) {
			found.peers = append(found.peers, p)
		}
	}
	if len(found.peers) == 0 {
		return path{}, nil // some other service's route
	}
	if !slices.ContainsFunc(e.config.Locators, func(l netip.Prefix) bool { return l.Contains(found.sid) }) {
		return path{}, fmt.Errorf("%w: %v", errForeignSID, found.sid)
	}
	return found, nil
}

func without(hops []hop, rd vpn.ID) []hop {
	return slices.DeleteFunc(slices.Clone(hops), func(h hop) bool { return h.rd == rd })
}

// choose replaces the ways to a prefix through a peer; the first of them is what the kernel gets.
func (e *egress) choose(p *peer, prefix netip.Prefix, hops []hop) {
	old := p.routes[prefix]
	if len(hops) == 0 {
		delete(p.routes, prefix)
	} else {
		p.routes[prefix] = hops
	}
	p.count(state(old), state(hops))
	if e.routed != nil && state(old) != state(hops) {
		e.routed(p.index, prefix, state(hops))
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

// use counts one more route through a SID and returns the ID of its nexthop object.
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

// release counts one route less. The reconciler deletes routes before nexthop objects, so the last route's object can go
// in the same flush.
func (e *egress) release(addr netip.Addr) {
	s := e.sids[addr]
	if s.routes--; s.routes > 0 {
		return
	}
	e.kernel.Delete(s.object.Key())
	delete(e.ids, s.object.ID)
	delete(e.sids, addr)
}

// newID derives the object's ID from the SID, so that a restarted daemon finds its objects under the same IDs.
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
