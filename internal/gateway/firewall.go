package gateway

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/gateway/openplane"
	"github.com/tabane/tabane/internal/kernel/nft"
)

// The values of the key firewall.
const (
	FirewallReport = "report"
	FirewallManage = "manage"
)

// rulesOwner begins the comments of the gateway's rules in chains of others.
const rulesOwner = "tabane-gateway"

func (c *Config) checkFirewall(faults *fault.List) {
	checkName(faults, "firewall", c.Firewall, []string{FirewallReport, FirewallManage})
}

// forwarded returns the versions of IP that the gateway forwards.
func (c *Config) forwarded() (versions []bgp.IP) {
	for _, v := range []bgp.IP{bgp.IPv4, bgp.IPv6} {
		// The prefixes of a leader without interfaces are its own addresses.
		lan := (c.Role != RoleLeader || len(c.LAN.Interfaces) > 0) && slices.ContainsFunc(c.LAN.Prefixes, func(p netip.Prefix) bool { return bgp.IPOf(p.Addr()) == v })
		if lan || c.Masquerade && len(c.peerPrefixes(v)) > 0 {
			versions = append(versions, v)
		}
	}
	return versions
}

// Passages returns what firewalls of the host have to accept now, in the network namespace of the
// calling thread: connections of the LAN into the tunnel, and with masquerade those of peers to the
// Internet and to each other, and packets of the tunnel from peers whose addresses are not known.
func (c *Config) Passages() []nft.Passage { return c.passages(usesIP) }

func (c *Config) passages(uses func(link string, v bgp.IP) bool) []nft.Passage {
	names := map[bgp.IP]string{bgp.IPv4: "ip", bgp.IPv6: "ip6"}
	var list []nft.Passage
	add := func(p nft.Passage) {
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	tunnel := c.tunnelName()
	for _, v := range c.forwarded() {
		// Peers that the Internet is behind get no connections to hosts of the LAN, and none reach
		// hosts that are masqueraded.
		everybody := v == bgp.IPv4 && c.LAN.Masquerade || slices.ContainsFunc(c.peerPrefixes(v), func(p netip.Prefix) bool { return p.Bits() == 0 })
		for _, link := range c.LAN.Interfaces {
			add(nft.Passage{Version: names[v], In: link, Out: tunnel})
			add(nft.Passage{Version: names[v], In: tunnel, Out: link, Replies: everybody})
		}
		for _, link := range c.pathInterfaces() {
			if c.Masquerade {
				add(nft.Passage{Version: names[v], In: tunnel, Out: link})
				add(nft.Passage{Version: names[v], In: link, Out: tunnel, Replies: true})
			}
		}
		if c.Masquerade && c.peersOf(v) > 1 { // they reach each other as they reach the Internet
			add(nft.Passage{Version: names[v], In: tunnel, Out: tunnel})
		}
	}
	if c.Role != RoleMember && !slices.ContainsFunc(c.Peers, func(p Peer) bool { return len(p.Endpoints) == 0 }) {
		return list // answers to the gateway's own packets are of a connection that exists
	}
	for _, link := range c.interfaces() {
		for _, v := range []bgp.IP{bgp.IPv4, bgp.IPv6} {
			if uses(link, v) {
				add(nft.Passage{Version: names[v], In: link, Protocol: unix.IPPROTO_UDP, Port: c.Port()})
			}
		}
	}
	return list
}

// peersOf returns how many peers have prefixes of a version of IP.
func (c *Config) peersOf(v bgp.IP) int {
	n := 0
	for _, p := range c.Peers {
		if slices.ContainsFunc(p.Prefixes, func(p netip.Prefix) bool { return bgp.IPOf(p.Addr()) == v }) {
			n++
		}
	}
	return n
}

// usesIP reports whether an interface has an address of a version of IP that others may reach.
func usesIP(link string, v bgp.IP) bool {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return false // it has none until it exists
	}
	list, err := i.Addrs()
	return err == nil && slices.ContainsFunc(list, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && bgp.IPOf(p.Addr()) == v && p.Addr().IsGlobalUnicast()
	})
}

// firewall is that no firewall of the host drops what the gateway carries. With manage the gateway
// sees to that.
func (c *Config) firewall() condition.Condition {
	now := *c // a reload may replace it since
	owner := ""
	if c.Firewall == FirewallManage {
		owner = rulesOwner
	}
	return condition.Firewall(owner, now.Passages, now.marked()...)
}

// marked returns the packets of open peers, which firewalls of the host have to accept by their
// mark.
func (c *Config) marked() []nft.Packets {
	if !c.Open() {
		return nil
	}
	return []nft.Packets{{Mark: openplane.Mark, Bits: openplane.MarkBits, Lines: c.interfaces()}}
}

// firewall is that of the configuration, restored by the one of that time: a reload, or the end,
// may have come since.
func (g *Gateway) firewall() condition.Condition {
	c := g.config.firewall()
	if c.Restore != nil {
		c.Restore = func() (err error) {
			g.loop.Do(context.Background(), func() { err = g.permit() })
			return err
		}
	}
	return c
}

// permitOrLog is permit, which the condition retries.
func (g *Gateway) permitOrLog() {
	if err := g.permit(); err != nil {
		g.log.Error("rules of firewalls were not changed", "err", err)
	}
}

// permit has firewalls of the host accept what the gateway carries, or removes the rules of a
// previous instance or configuration.
func (g *Gateway) permit() error {
	var passages []nft.Passage
	var marked []nft.Packets
	return g.namespace.Do(func() error {
		if g.config.Firewall == FirewallManage {
			passages, marked = g.config.Passages(), g.config.marked()
		}
		inserted, err := nft.Permit(rulesOwner, passages, marked...)
		for _, b := range inserted {
			g.log.Info("a firewall drops packets of the gateway, inserted a rule", "chain", b.Chain, "rule", b.Passage)
		}
		return err
	})
}

// followPause is the least time between two looks at nftables: programs of containers change it
// often.
const followPause = 500 * time.Millisecond

// followFirewall restores the gateway's rules of nftables as soon as others have changed it, until
// ctx ends. Reloads of firewalls flush all tables: until then no packets are masqueraded, and the
// host itself resets connections whose packets reach it.
func (g *Gateway) followFirewall(ctx context.Context) {
	var changes <-chan struct{}
	if err := g.namespace.Do(func() (err error) { changes, err = nft.Follow(ctx); return err }); err != nil {
		return // a kernel without nf_tables
	}
	for range changes {
		var list []condition.Condition
		g.loop.Do(ctx, func() {
			if g.config.translates() || g.config.Firewall == FirewallManage {
				list = []condition.Condition{g.masquerading(), g.firewall()}
			}
		})
		var x condition.Examination
		if err := g.namespace.Do(func() error { x = condition.Examine(list); return nil }); err != nil {
			g.log.Warn("nftables is not examined", "err", err)
		}
		for _, name := range x.Restored {
			g.log.Warn("another program changed the host, restored it", "condition", name)
		}
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
}

// forbid removes the gateway's rules from firewalls of the host.
func (g *Gateway) forbid() error {
	return g.namespace.Do(func() error {
		_, err := nft.Permit(rulesOwner, nil)
		return err
	})
}
