package scenario

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/gateway"
)

// Family is the IP version of a scenario's content.
type Family string

// The families. An empty one means FamilyIPv6.
const (
	FamilyIPv6 Family = "ipv6"
	FamilyIPv4 Family = "ipv4"
	FamilyDual Family = "dual"
)

// Families are all families.
var Families = []Family{FamilyIPv6, FamilyIPv4, FamilyDual}

// AddressOf returns the address that a node's name resolves to: the one it configures, or the first
// address of its interface on the first link of the file.
func (s *Spec) AddressOf(name string) netip.Addr {
	if n := s.Nodes[name]; n != nil && n.Address.IsValid() {
		return n.Address
	}
	for _, l := range s.LinkNames() {
		if s.Links[l] == nil {
			continue
		}
		for _, e := range s.Links[l].Ends {
			if e.Node == name && len(e.Addresses) > 0 {
				return e.Addresses[0].Addr()
			}
		}
	}
	return netip.Addr{}
}

// Overhead returns that of the segments of a transport.
func (s *Spec) Overhead(t *Transport) traffic.Overhead {
	o := traffic.Overhead{MPTCP: t.Multipath(), IPv4: s.AddressOf(s.Experiment.Server).Is4()}
	if t.Gateway != nil {
		o.Tunnel = t.Gateway.overhead(o.IPv4)
	}
	return o
}

// Headers returns what links count of a segment of a transport beside its payload, in bytes.
func (s *Spec) Headers(t *Transport) int {
	if t.Model != nil && t.Model.Header > 0 {
		return t.Model.Header
	}
	return s.Overhead(t).Headers()
}

// documentation is the prefix of the addresses that have an IPv4 counterpart (RFC 3849).
var documentation = netip.MustParsePrefix("2001:db8::/32")

// counterpart returns the IPv4 address 10.X.Y.Z of an IPv6 address 2001:db8:X:Y::Z, where Y is one
// byte, the higher or the lower. ok is false if there is none.
func counterpart(a netip.Addr) (v4 netip.Addr, ok bool) {
	b := a.As16()
	if !documentation.Contains(a) || b[4] != 0 || b[6] != 0 && b[7] != 0 {
		return netip.Addr{}, false
	}
	for _, zero := range b[8:15] {
		if zero != 0 {
			return netip.Addr{}, false
		}
	}
	return netip.AddrFrom4([4]byte{10, b[5], b[6] | b[7], b[15]}), true
}

// counterpartOf returns the IPv4 prefix of an IPv6 prefix: 10.0.0.0/8 of 2001:db8::/32, a /16 of a
// /48, a /24 of a /64 and a /32 of a /128.
func counterpartOf(p netip.Prefix) (v4 netip.Prefix, ok bool) {
	a, ok := counterpart(p.Addr())
	switch bits := p.Bits(); {
	case p == bgp.IPv6.Anywhere():
		return bgp.IPv4.Anywhere(), true
	case !ok || bits < 32:
		return netip.Prefix{}, false
	case bits == 32:
		return netip.PrefixFrom(a, 8), true
	case bits >= 48 && bits <= 56:
		return netip.PrefixFrom(a, bits-32), true
	case bits == 64:
		return netip.PrefixFrom(a, 24), true
	case bits >= 120:
		return netip.PrefixFrom(a, bits-96), true
	}
	return netip.Prefix{}, false
}

// Translate converts a scenario in IPv6 to its family: content, EPE addresses and sessions with
// egress peers become IPv4, or exist in both versions. Sessions with reflectors, locators and SIDs
// stay IPv6. Each address 2001:db8:X:Y::Z becomes 10.X.Y.Z.
func (s *Spec) Translate() fault.List {
	t := translator{spec: s, dual: s.Family == FamilyDual}
	switch {
	case s.Family == "" || s.Family == FamilyIPv6:
		return nil
	case !slices.Contains(Families, s.Family):
		t.Add("family", "must be one of %v, got %q", Families, s.Family)
		return t.List
	case s.Experiment != nil && s.Experiment.Kind == KindRoutes:
		t.Add("family", "must be %s with an experiment of kind %s, got %q", FamilyIPv6, KindRoutes, s.Family)
		return t.List
	}
	names := map[string]netip.Addr{}
	for name := range s.Nodes {
		names[name] = s.AddressOf(name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		if s.Links[name] != nil {
			t.link(at("links", name), s.Links[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if n := s.Nodes[name]; n != nil {
			if a, ok := counterpart(names[name]); ok && !t.dual {
				n.Address = a
			}
			t.node(at("nodes", name), n)
		}
	}
	if s.Experiment != nil {
		for _, c := range s.Experiment.Cases {
			for _, e := range c.Events {
				if e.Advertise != nil {
					t.optional(&e.Advertise.Prefixes)
				}
			}
		}
	}
	return t.List
}

type translator struct {
	fault.List
	spec *Spec
	dual bool
}

// none adds a fault for a value without a counterpart.
func (t *translator) none(path string, v any) {
	t.Add(path, "%v has no IPv4 counterpart: it is not of the form 2001:db8:X:Y::Z with X, Z <= ff and one byte in Y", v)
}

// core reports whether a node is a part of the provider's network, of which SIDs and sessions with
// reflectors use the links.
func (t *translator) core(name string) bool {
	n := t.spec.Nodes[name]
	return n != nil && (n.ASBR != nil || n.Edge != nil || n.Reflector != nil)
}

// translate replaces a list by the counterparts of its items, or adds them with dual or keep. An
// item without a counterpart is a fault.
func translate[V any](t *translator, path string, list *[]V, keep bool, f func(V) (V, bool)) {
	var all []V
	if t.dual || keep {
		all = slices.Clone(*list)
	}
	for i, v := range *list {
		v4, ok := f(v)
		if !ok {
			t.none(index(path, i), v)
			continue
		}
		all = append(all, v4)
	}
	*list = all
}

// optional is like translate for prefixes, but leaves those as they are that have no counterpart.
func (t *translator) optional(list *[]netip.Prefix) {
	var all []netip.Prefix
	for _, p := range *list {
		v4, ok := counterpartOf(p)
		if !ok || t.dual {
			all = append(all, p)
		}
		if ok {
			all = append(all, v4)
		}
	}
	*list = all
}

func (t *translator) prefixes(path string, list *[]netip.Prefix) {
	translate(t, path, list, false, counterpartOf)
}

// address replaces an address by its counterpart.
func (t *translator) address(path string, a *netip.Addr) {
	v4, ok := counterpart(*a)
	if !ok {
		t.none(path, *a)
		return
	}
	*a = v4
}

func (t *translator) link(path string, l *Link) {
	n := 0
	for _, e := range l.Ends {
		if t.core(e.Node) {
			n++
		}
	}
	core := n > 1 // also where another implementation is the reflector
	for i := range l.Ends {
		translate(t, index(fault.Join(path, "ends"), i)+".addresses", &l.Ends[i].Addresses, core, func(p netip.Prefix) (netip.Prefix, bool) {
			a, ok := counterpart(p.Addr())
			v4, fits := counterpartOf(p.Masked())
			return netip.PrefixFrom(a, v4.Bits()), ok && fits
		})
	}
}

func (t *translator) node(path string, n *Node) {
	translate(t, fault.Join(path, "routes"), &n.Routes, false, func(r StaticRoute) (StaticRoute, bool) {
		var dst, via bool
		r.Dst, dst = counterpartOf(r.Dst)
		r.Via, via = counterpart(r.Via)
		return r, dst && via
	})
	if n.MPTCP != nil {
		translate(t, fault.Join(path, "mptcp.announce"), &n.MPTCP.Announce, false, counterpart)
		translate(t, fault.Join(path, "mptcp.from"), &n.MPTCP.From, false, counterpart)
	}
	if n.Edge != nil {
		t.edge(fault.Join(path, "edge"), n.Edge)
	}
	if n.ASBR != nil {
		t.asbr(fault.Join(path, "asbr"), n.ASBR)
	}
	if n.Router != nil {
		t.router(fault.Join(path, "router"), n.Router)
	}
	if n.Gateway != nil {
		t.gateway(fault.Join(path, "gateway"), n.Gateway)
	}
}

func (t *translator) gateway(path string, c *gateway.Config) {
	t.prefixes(fault.Join(path, "lan.prefixes"), &c.LAN.Prefixes)
	translate(t, fault.Join(path, "tunnel.addresses"), &c.Tunnel.Addresses, false, func(p netip.Prefix) (netip.Prefix, bool) {
		a, ok := counterpart(p.Addr())
		v4, fits := counterpartOf(p.Masked())
		return netip.PrefixFrom(a, v4.Bits()), ok && fits
	})
	for i := range c.Paths {
		at := index(fault.Join(path, "paths"), i)
		translate(t, at+".via", &c.Paths[i].Via, false, counterpart)
		translate(t, at+".member.endpoints", &c.Paths[i].Member.Endpoints, false, endpointCounterpart)
	}
	for i := range c.Leaders {
		translate(t, index(fault.Join(path, "leaders"), i)+".home_agents", &c.Leaders[i].HomeAgents, false, endpointCounterpart)
	}
	for i := range c.Peers {
		p := &c.Peers[i]
		at := index(fault.Join(path, "peers"), i)
		t.prefixes(at+".prefixes", &p.Prefixes)
		translate(t, at+".endpoints", &p.Endpoints, false, endpointCounterpart)
	}
	for i := range c.Policy {
		if m := &c.Policy[i].Match; m.Prefix.IsValid() && !t.dual {
			t.prefix(index(fault.Join(path, "policy"), i)+".match.prefix", &m.Prefix)
		}
	}
}

// endpointCounterpart is counterpart of an endpoint. A name has its own addresses.
func endpointCounterpart(e gateway.Endpoint) (gateway.Endpoint, bool) {
	a, err := netip.ParseAddrPort(string(e))
	if err != nil {
		return e, true
	}
	v4, ok := counterpart(a.Addr())
	return gateway.Endpoint(netip.AddrPortFrom(v4, a.Port()).String()), ok
}

func (t *translator) edge(path string, c *edge.Config) {
	a, ok := counterpart(c.Address)
	p, fits := counterpartOf(c.Prefix)
	if !ok || !fits {
		t.none(fault.Join(path, "address"), c.Address)
		return
	}
	c.Addresses = append(c.Addresses, edge.Address{Address: netip.PrefixFrom(a, p.Bits())})
	for i := range len(c.Peers) {
		if t.dual {
			c.Peers = append(c.Peers, c.Peers[i])
			i = len(c.Peers) - 1
			c.Peers[i].Name += ipv4Suffix
		}
		at := index(fault.Join(path, "peers"), i)
		t.address(at+".address", &c.Peers[i].Address)
		if c.Peers[i].Prefix.IsValid() {
			t.prefix(at+".prefix", &c.Peers[i].Prefix)
		}
	}
}

// ipv4Suffix is added to the names of peers and neighbors that are doubled.
const ipv4Suffix = "-ipv4"

// ipv4IDs is added to the IDs of egress peers that are doubled.
const ipv4IDs = 0x100

func (t *translator) prefix(path string, p *netip.Prefix) {
	v4, ok := counterpartOf(*p)
	if !ok {
		t.none(path, *p)
		return
	}
	*p = v4
}

func (t *translator) asbr(path string, c *asbr.Config) {
	t.prefixes(fault.Join(path, "prefixes"), &c.Prefixes)
	t.optional(&c.Import.Deny)
	for i := range len(c.Peers) {
		if t.dual {
			c.Peers = append(c.Peers, c.Peers[i])
			i = len(c.Peers) - 1
			p := &c.Peers[i]
			p.Name, p.ID, p.Prefixes = p.Name+ipv4Suffix, p.ID+ipv4IDs, slices.Clone(p.Prefixes)
		}
		p, at := &c.Peers[i], index(fault.Join(path, "peers"), i)
		t.address(at+".address", &p.Address)
		all := p.Prefixes
		p.Prefixes = nil
		for j, prefix := range all {
			t.prefix(index(at+".prefixes", j), &prefix)
			p.Prefixes = append(p.Prefixes, prefix)
		}
		switch p.Behavior {
		case asbr.EndDT6:
			p.Behavior = asbr.EndDT4
		case asbr.EndDX6:
			p.Behavior = asbr.EndDX4
		case asbr.EndDT4, asbr.EndDX4: // of IPv4 already
		}
	}
}

func (t *translator) router(path string, c *router.Config) {
	t.prefixes(fault.Join(path, "networks"), &c.Networks)
	translate(t, fault.Join(path, "leaks"), &c.Leaks, false, func(l router.Leak) (router.Leak, bool) {
		p, ok := counterpartOf(l.Prefix)
		l.Prefix = p
		return l, ok
	})
	for i := range len(c.Neighbors) {
		if t.dual {
			c.Neighbors = append(c.Neighbors, c.Neighbors[i])
			i = len(c.Neighbors) - 1
			c.Neighbors[i].Name += ipv4Suffix
		}
		n, at := &c.Neighbors[i], index(fault.Join(path, "neighbors"), i)
		t.address(at+".address", &n.Address)
		n.Deny = slices.Clone(n.Deny)
		t.optional(&n.Deny)
	}
}
