package gateway

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
)

// The gateway's routing tables, and the mark of its own sockets. docs/adr/0016-gateway-routing.md
// explains why there are two tables.
const (
	// peersTable has the peers' prefixes, internetTable those that are default routes.
	peersTable, internetTable = 4790, 4791
	// SocketMark is the mark of the tunnel's datagrams and of queries for names of endpoints, which
	// must not be sent into the tunnel.
	SocketMark = 4790
)

// The priorities of the policy rules: before the main table's 32766, and after what an operator
// sets in front on purpose.
const (
	peersRule = 4790 + iota
	mainRule
	boundRule
	internetRule
)

const (
	// tunnelMetric is that of routes into the tunnel.
	tunnelMetric = 16
	// guardMetric is that of routes that make the peers' prefixes unreachable while the tunnel is
	// missing, so that no packet to them leaves in clear.
	guardMetric = 17
	// viaMetric plus its number is that of the default route of a path, which only sockets bound to
	// the path's interface are to use: worse than all other routes.
	viaMetric = 1 << 30
)

// kernelObjects returns the desired objects in the kernel: the tunnel's addresses, routes to the
// peers' prefixes into the tunnel, the rules that lead to them, and the paths' default routes.
// connected are the addresses of the host.
func kernelObjects(c *Config, connected []route.Address) []route.Object {
	var list []route.Object
	for _, a := range c.Tunnel.Addresses {
		list = append(list, route.Address{Link: c.tunnelName(), Prefix: a})
	}
	for _, v := range []bgp.IP{bgp.IPv4, bgp.IPv6} {
		list = append(list, c.routing(v, connected)...)
	}
	for _, p := range c.Routed { // else the default route would send packets to missing parts back
		list = append(list, route.Route{Dst: p, Kind: route.Unreachable, Metric: viaMetric})
	}
	for i, p := range c.Paths {
		for _, via := range p.Via {
			list = append(list, route.Route{
				Dst: bgp.IPOf(via).Anywhere(), Gateway: via, Link: p.Interface, Metric: viaMetric + uint32(i),
			})
		}
	}
	return list
}

// routing returns the tables and rules of one IP version.
func (c *Config) routing(v bgp.IP, connected []route.Address) []route.Object {
	var list []route.Object
	var specific, internet bool
	source := c.source(v, connected)
	for _, dst := range c.peerPrefixes(v) {
		table := uint32(peersTable)
		if dst.Bits() == 0 {
			table, internet = internetTable, true
		} else {
			specific = true
		}
		list = append(list,
			route.Route{Table: table, Dst: dst, Link: c.tunnelName(), Metric: tunnelMetric, PrefSrc: source},
			route.Route{Table: table, Dst: dst, Kind: route.Unreachable, Metric: guardMetric})
	}
	all := v.Anywhere()
	if specific {
		for _, p := range c.exceptions(v, connected) {
			list = append(list, route.Route{Table: peersTable, Dst: p, Kind: route.Throw, Metric: tunnelMetric})
		}
		list = append(list, route.Rule{Priority: peersRule, From: all, NotMark: SocketMark, Table: peersTable}.Normal())
	}
	if !internet {
		return list
	}
	for _, p := range c.LAN.Prefixes {
		if bgp.IPOf(p.Addr()) == v { // else the peer would send packets for missing parts of it back
			list = append(list, route.Route{Table: internetTable, Dst: p, Kind: route.Unreachable, Metric: tunnelMetric})
		}
	}
	list = append(list,
		route.Rule{Priority: mainRule, From: all, NotMark: SocketMark, Table: route.MainTable, Specific: true}.Normal(),
		route.Rule{Priority: internetRule, From: all, NotMark: SocketMark, Table: internetTable}.Normal())
	for _, name := range c.interfaces() {
		list = append(list, route.Rule{Priority: boundRule, From: all, Oif: name, Table: route.MainTable}.Normal())
	}
	return list
}

// source returns the address that this host sends to peers from, not valid without one: that of the
// tunnel, or of the LAN. The kernel would send ICMP errors about packets that came over a line, such as
// "packet too big", from the address of the line, which peers drop.
func (c *Config) source(v bgp.IP, connected []route.Address) (source netip.Addr) {
	for _, a := range connected {
		at := a.Prefix.Addr()
		if bgp.IPOf(at) != v || at.IsLinkLocalUnicast() || a.Deprecated {
			continue
		}
		if a.Link == c.tunnelName() {
			return at
		}
		if !source.IsValid() && slices.ContainsFunc(c.LAN.Prefixes, func(p netip.Prefix) bool { return p.Contains(at) }) {
			source = at
		}
	}
	return source
}

// peerPrefixes returns the peers' prefixes of one IP version.
func (c *Config) peerPrefixes(v bgp.IP) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range c.Peers {
		for _, prefix := range p.Prefixes {
			if bgp.IPOf(prefix.Addr()) == v {
				list = append(list, prefix)
			}
		}
	}
	return list
}

// interfaces are those of paths and short links.
func (c *Config) interfaces() []string { return slices.Concat(c.ShortLinks, c.pathInterfaces()) }

// pathInterfaces are those of paths, by which packets reach the Internet.
func (c *Config) pathInterfaces() []string {
	var list []string
	for _, p := range c.Paths {
		list = append(list, p.Interface)
	}
	return list
}

// exceptions returns the networks inside a peer's prefix that are reached without the tunnel: the
// LAN's, and those that are connected, but not by the interface of a path: its address may be
// assigned by a stranger, who must not get packets to a peer in clear.
func (c *Config) exceptions(v bgp.IP, connected []route.Address) []netip.Prefix {
	networks := slices.Clone(c.LAN.Prefixes)
	for _, a := range connected {
		if a.Link != c.tunnelName() && !slices.ContainsFunc(c.Paths, func(p Path) bool { return p.Interface == a.Link }) {
			networks = append(networks, a.Prefix.Masked())
		}
	}
	peers := c.peerPrefixes(v)
	var list []netip.Prefix
	for _, n := range networks {
		inside := slices.ContainsFunc(peers, func(p netip.Prefix) bool {
			return p.Bits() > 0 && p.Bits() < n.Bits() && p.Contains(n.Addr())
		})
		if inside && !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// Addresses in the Internet that no route but a default route has: 6to4's relays (RFC 7526) and
// ORCHIDv2 (RFC 7343).
var internetIPv4, internetIPv6 = netip.MustParseAddr("192.88.99.1"), netip.MustParseAddr("2001:20::1")

// maxChecked bounds the prefixes whose routes are checked for one status.
const maxChecked = 64

// conflicts returns the routes of other programs that keep packets to peers out of the tunnel.
// nexthopTo is how the kernel routes to an address.
func (c *Config) conflicts(connected []route.Address, nexthopTo func(netip.Addr) (netip.Addr, string, error)) []string {
	exceptions := slices.Concat(c.exceptions(bgp.IPv4, connected), c.exceptions(bgp.IPv6, connected))
	var list []string
	samples := 0
	for _, peer := range c.Peers {
		for _, p := range peer.Prefixes {
			a := addressIn(p)
			if samples == maxChecked || slices.ContainsFunc(exceptions, func(e netip.Prefix) bool { return e.Contains(a) }) {
				continue
			}
			samples++
			_, link, err := nexthopTo(a)
			// Without the tunnel the prefix is unreachable; "lo" has addresses of this host.
			if err == nil && link != c.tunnelName() && link != "lo" {
				list = append(list, fmt.Sprintf("packets to %v of peer %q leave by %q without the tunnel: a rule of another program precedes the gateway's (ip rule)", p, peer.Name, link))
			}
		}
	}
	return list
}

// addressIn returns an address of a prefix.
func addressIn(p netip.Prefix) netip.Addr {
	switch next := p.Addr().Next(); {
	case p.Bits() == 0 && p.Addr().Is4():
		return internetIPv4
	case p.Bits() == 0:
		return internetIPv6
	case p.Contains(next):
		return next
	}
	return p.Addr()
}
