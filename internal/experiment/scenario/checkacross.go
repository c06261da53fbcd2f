package scenario

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/role"
)

// speaker is a BGP identifier and its AS, which together must be unique (RFC 6286).
type speaker struct {
	asn uint32
	id  netip.Addr
}

func (s speaker) String() string { return fmt.Sprintf("%s in AS %d", s.id, s.asn) }

// locator is an ASBR's locator and its path in the file.
type locator struct {
	path   string
	prefix netip.Prefix
}

// firstUse is the node and the path of the first use of a value.
type firstUse struct{ node, path string }

// acrossNodes checks for conflicts between nodes. Those within one node's section are left to that
// section's check.
func (c *checker) acrossNodes() {
	speakers := fault.Seen{}
	targets, distinguishers := map[vpn.ID]firstUse{}, map[vpn.ID]firstUse{}
	epe := map[netip.Addr]firstUse{}
	var locators []locator
	hosts := map[string]host{} // by node

	checkSpeaker := func(path string, asn uint32, id netip.Addr) {
		if asn != 0 && id.IsValid() {
			speakers.Check(&c.List, path, "router_id", speaker{asn, id})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.spec.Nodes)) {
		n := c.spec.Nodes[name]
		if n == nil {
			continue
		}
		path := at("nodes", name)
		for _, d := range n.Sections.Present() {
			h := d.Host(&n.Sections)
			checkSpeaker(fault.Join(path, d.Name), h.ASN, h.RouterID)
			if h.ASN != 0 {
				hosts[name] = host{fault.Join(path, d.Name), h}
			}
		}
		if a := n.ASBR; a != nil {
			path := fault.Join(path, role.ASBR)
			if p := a.Locator.Prefix; p.IsValid() {
				where := fault.Join(path, "locator.prefix")
				for _, l := range locators {
					if l.prefix.Overlaps(p) {
						c.Add(where, "%s overlaps %s of %s", p, l.prefix, l.path)
					}
				}
				locators = append(locators, locator{where, p})
			}
			for i, p := range a.Peers {
				path := index(fault.Join(path, "peers"), i)
				c.oneNode(targets, name, fault.Join(path, "rt"), p.RT, "servers could not distinguish the peers")
				c.oneNode(distinguishers, name, fault.Join(path, "rd"), distinguisher(a, p), "reflectors would keep one peer's routes only")
			}
		}
		if e := n.Edge; e != nil {
			path := fault.Join(path, role.Edge)
			for i, p := range e.Peers {
				c.epeAddress(epe, name, index(fault.Join(path, "peers"), i), p)
			}
		}
	}
	c.sessions(hosts)
}

// host is a node's BGP speaker and the path of its section.
type host struct {
	path string
	role.Host
}

// sessions adds a fault for each session whose remote AS number differs from that of the node with
// the address: it would never be established (RFC 4271 section 6.2, Bad Peer AS).
func (c *checker) sessions(hosts map[string]host) {
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		for _, s := range hosts[name].Sessions {
			for _, other := range slices.Sorted(maps.Keys(hosts)) {
				h := hosts[other]
				if other != name && h.ASN != s.ASN && s.ASN != 0 && c.has(other, s.Address) {
					c.Add(fault.Join(hosts[name].path, s.Path), "node %q with address %s is in AS %d (%s), not in AS %d",
						other, s.Address, h.ASN, fault.Join(h.path, "asn"), s.ASN)
				}
			}
		}
	}
}

// distinguisher returns the peer's RD, "<router_id>:<id>" unless given; no ID where the check of
// the asbr section finds a fault.
func distinguisher(a *asbr.Config, p asbr.Peer) vpn.ID {
	if p.RD.IsValid() || p.ID > math.MaxUint16 {
		return p.RD
	}
	rd, err := vpn.FromAddress(a.RouterID, uint16(p.ID))
	if err != nil {
		return vpn.ID{}
	}
	return rd
}

// oneNode adds a fault if another node uses id too. otherwise is what would go wrong.
func (c *checker) oneNode(m map[vpn.ID]firstUse, node, path string, id vpn.ID, otherwise string) {
	first, twice := m[id]
	switch {
	case !id.IsValid():
	case !twice:
		m[id] = firstUse{node, path}
	case first.node != node:
		c.Add(path, "%s is already used in %s: %s", id, first.path, otherwise)
	}
}

func (c *checker) epeAddress(m map[netip.Addr]firstUse, node, path string, p edge.Peer) {
	if !p.Address.IsValid() {
		return
	}
	path = fault.Join(path, "address")
	if where, taken := c.addresses[p.Address]; taken {
		c.Add(path, "%s is already given in %s: an EPE address belongs to edge alone", p.Address, where)
		return
	}
	first, twice := m[p.Address]
	switch {
	case !twice:
		m[p.Address] = firstUse{node, path}
	case first.node != node:
		c.Add(path, "%s is already used in %s", p.Address, first.path)
	}
}
