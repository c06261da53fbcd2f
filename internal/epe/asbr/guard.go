package asbr

import (
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Priorities of the policy rules for packets that arrive from egress peers: after the local table
// (0), before the rules of servers and the main table (32766).
const (
	markRule    = 899 // to the table of the peer whose SID the packet had
	transitRule = 900 // to our prefixes
	guardRule   = 901 // all others
)

// filter is an interface from which packets are forwarded to our own prefixes only, in some IP
// versions.
type filter struct {
	link     string
	versions []bgp.IP
}

// filters are the interfaces of the egress peers; at an exchange, several peers share one.
func (c *Config) filters() []filter {
	var list []filter
	for _, p := range c.Peers {
		if !filtered(list, p.Interface) {
			list = append(list, filter{p.Interface, c.versions()})
		}
	}
	return list
}

func filtered(list []filter, link string) bool {
	return slices.ContainsFunc(list, func(f filter) bool { return f.link == link })
}

// retired returns the filters of before whose interfaces have no egress peer now. They remain until
// a restart: the neighbor on such a link can still send, and nothing says that it is one of ours.
func (c *Config) retired(before []filter) []filter {
	now := c.filters()
	return slices.DeleteFunc(slices.Clone(before), func(f filter) bool { return filtered(now, f.link) })
}

// guards are the routes and rules that an ASBR has whatever its sessions are. A packet from an
// egress peer, or from the interface of a removed one, is forwarded to our own prefixes only:
// neither SRv6 packets (RFC 8402 section 8.2, RFC 8754 section 5.1) nor transit from peer to peer
// is accepted there.
func (c *Config) guards(retired []filter) []route.Object {
	unreachable := func(r route.Route) route.Route {
		r.Metric, r.Kind = worstMetric, route.Unreachable
		return r
	}
	// SIDs that are not assigned, and those of a border router that is down, end here instead of
	// following a default route to a peer.
	objects := []route.Object{unreachable(route.Route{Table: route.MainTable, Dst: c.Locator.Prefix})}
	if block := c.Locator.blockPrefix(); block != c.Locator.Prefix {
		objects = append(objects, unreachable(route.Route{Table: route.MainTable, Dst: block}))
	}
	for _, p := range c.Prefixes {
		// Unused addresses of what we advertise must not follow a default route back to a peer.
		objects = append(objects, unreachable(route.Route{Table: route.MainTable, Dst: p}))
	}
	for i := range c.Peers {
		p := &c.Peers[i]
		// A default route of the peer covers neither our own space nor our SIDs.
		objects = append(objects, unreachable(route.Route{Table: p.Table, Dst: p.family().Anywhere()}))
		if p.family() == bgp.IPv6 {
			objects = append(objects, unreachable(route.Route{Table: p.Table, Dst: c.Locator.blockPrefix()}))
		}
		for _, own := range of(p.family(), c.Prefixes) {
			objects = append(objects, unreachable(route.Route{Table: p.Table, Dst: own}))
		}
		if p.family() == bgp.IPv4 {
			// While the link to the peer is down, packets for its SID must not follow a default
			// route to another.
			objects = append(objects, unreachable(route.Route{Table: route.MainTable, Dst: p.alias()}))
		}
		if p.behavior() == EndDT4 {
			objects = append(objects, route.Rule{Priority: markRule, From: bgp.IPv4.Anywhere(), Mark: p.mark(), Table: p.Table})
		}
	}
	for _, f := range slices.Concat(c.filters(), retired) {
		for _, own := range c.Prefixes {
			objects = append(objects, route.Rule{Priority: transitRule, To: own, Iif: f.link, Table: route.MainTable})
		}
		for _, v := range f.versions {
			objects = append(objects, route.Rule{Priority: guardRule, From: v.Anywhere(), Iif: f.link, Unreachable: true}.Normal())
		}
	}
	return objects
}

// marked are the packets that the rules of end.dt4 are for.
func (c *Config) marked() condition.MarkedPackets {
	var marks []uint32
	for i := range c.Peers {
		if p := &c.Peers[i]; p.behavior() == EndDT4 {
			marks = append(marks, p.mark())
		}
	}
	return condition.WholeMarks("packets for SIDs", markRule, marks)
}

// maxAlias is the largest ID of a peer with an alias.
const maxAlias = 1<<24 - 1

// alias represents the peer in the kernel's End.DX4: an address of the reserved block 240.0.0.0/4
// (RFC 1112 section 4), which no packet has, with a route in the main table. The kernel looks the
// next hop up there. With end.dx4 the route leads to the peer, also to one with an IPv6 address
// (RFC 8950). With end.dt4 it sets the peer's mark, by which a rule selects the peer's table: the
// kernel's own End.DT4 needs a VRF.
func (p *Peer) alias() netip.Prefix {
	return host(netip.AddrFrom4([4]byte{240, byte(p.ID >> 16), byte(p.ID >> 8), byte(p.ID)}))
}

// mark is that of packets for the peer's SID with end.dt4.
func (p *Peer) mark() uint32 { return 0xe4<<24 | p.ID }
