package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/nft"
)

// natTable is the table of nftables that the gateway owns.
const natTable = "tabane-gateway"

// aside are addresses that the public Internet does not route (RFC 6890; in IPv6 everything outside
// of 2000::/3). A peer without them has the way to the Internet all the same.
var aside = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/3"), netip.MustParsePrefix("4000::/2"), netip.MustParsePrefix("8000::/1"),
}

// translates reports whether the gateway needs the table: for packets from peers, or from the LAN.
func (c *Config) translates() bool { return c.Masquerade || c.LAN.Masquerade }

// hidden returns the prefixes of the LAN that peers do not see.
func (c *Config) hidden() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(c.LAN.Prefixes), func(p netip.Prefix) bool { return !p.Addr().Is4() })
}

// checkHidden checks the masquerading of the LAN.
func (c *Config) checkHidden(faults *fault.List) {
	const at = "lan.masquerade"
	open := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.mode().Open() })
	switch {
	case !c.LAN.Masquerade:
	case c.Masquerade:
		faults.Add(at, "must be left out beside masquerade, which is for the gateway that has the way to the Internet")
	case c.Role != "":
		faults.Add(at, "must be left out with role %s", c.Role)
	case open >= 0:
		faults.Add(at, "must not be with peers[%d], whose packets are not encrypted: they do not pass nftables", open)
	case len(c.hidden()) == 0:
		faults.Add(at, "must be left out: lan.prefixes has no network of IPv4")
	case !slices.ContainsFunc(c.Tunnel.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() }):
		faults.Add(at, "needs an address of IPv4 in tunnel.addresses, which the peers have in their prefixes")
	}
}

func (c *Config) checkMasquerade(faults *fault.List) {
	c.checkRouted(faults)
	c.checkHidden(faults)
	if !c.Masquerade {
		return
	}
	var b netipx.IPSetBuilder
	for _, p := range c.Peers {
		for _, prefix := range p.Prefixes {
			if prefix.IsValid() {
				b.AddPrefix(prefix)
			}
		}
	}
	for _, p := range aside {
		b.AddPrefix(p)
	}
	set, err := b.IPSet()
	if err != nil {
		panic("BUG: " + err.Error()) // of prefixes that are not valid
	}
	for _, v := range []bgp.IP{bgp.IPv4, bgp.IPv6} {
		if set.ContainsPrefix(v.Anywhere()) {
			faults.Add("masquerade", "must be left out: the peers' prefixes contain every public address of %v, so that packets from everywhere would be masqueraded; the key is for the gateway that has the way to the Internet", v.Anywhere())
		}
	}
}

// maxRouted bounds routed, and inbound.
const maxRouted = 64

// checkRouted checks the prefixes that keep their addresses.
func (c *Config) checkRouted(faults *fault.List) {
	const routed, inbound = "routed", "inbound"
	for _, l := range []struct {
		key  string
		list []netip.Prefix
	}{{routed, c.Routed}, {inbound, c.Inbound}} {
		if len(l.list) > maxRouted {
			faults.Add(l.key, "must be at most %d, got %d", maxRouted, len(l.list))
		}
		for i, p := range l.list {
			at := fmt.Sprintf("%s[%d]", l.key, i)
			switch {
			case !checkPrefix(faults, at, p):
			case l.key == routed && p.Bits() == 0:
				faults.Add(at, "must not be a default route")
			case l.key == inbound && !bgp.Inside(c.Routed, p):
				faults.Add(at, "%v is in no prefix of routed", p)
			}
		}
	}
	if len(c.Routed) > 0 && !c.Masquerade {
		faults.Add(routed, "must be left out without masquerade: then packets from all peers keep their source")
	}
}

// translation returns the desired table.
func (c *Config) translation() *nft.Translation {
	if c.LAN.Masquerade {
		return &nft.Translation{Table: natTable, Links: []string{c.tunnelName()}, Sources: c.hidden()}
	}
	t := &nft.Translation{Table: natTable, Links: c.pathInterfaces(), Kept: c.Routed, Open: c.Inbound}
	for _, p := range c.Peers {
		t.Sources = append(t.Sources, p.Prefixes...)
	}
	return t
}

// translate makes the table in the kernel, or removes that of a previous instance or configuration.
func (g *Gateway) translate() error {
	if g.translation = nil; g.config.translates() {
		g.translation = g.config.translation()
		return g.namespace.Do(g.config.translation().Set)
	}
	return g.untranslate()
}

// reportForeign logs that the table has rules of somebody else's, which go when the gateway makes or
// removes it.
func (g *Gateway) reportForeign() {
	foreign := false
	err := g.namespace.Do(func() (err error) { foreign, err = nft.Foreign(natTable); return err })
	if err != nil {
		g.log.Warn("table of nftables is not examined", "err", err)
	}
	if foreign {
		g.log.Warn("table of nftables had rules that are not the gateway's, and they are removed: give them a table of another name", "table", "inet "+natTable)
	}
}

func (g *Gateway) untranslate() error {
	return g.namespace.Do(func() error { return nft.Delete(natTable) })
}

// masquerading is that the table is as the gateway has made it, or that there is none. The
// configuration is read when the condition is examined: a reload may have replaced it since.
func (g *Gateway) masquerading() condition.Condition {
	return condition.Condition{
		Name: "masquerading", Good: "packets are masqueraded if the configuration says so, and no others",
		Examine: func() (problems []health.Problem, err error) {
			g.withTranslation(func(t *nft.Translation) { problems, err = examineTranslation(t) })
			return problems, err
		},
		Restore: func() (err error) {
			g.withTranslation(func(t *nft.Translation) {
				if t == nil {
					err = nft.Delete(natTable)
				} else {
					err = t.Set()
				}
			})
			return err
		},
	}
}

// withTranslation calls do with the desired table, or nil without one, outside of the loop. It does
// not after the loop has ended.
func (g *Gateway) withTranslation(do func(*nft.Translation)) {
	g.translating.Lock()
	defer g.translating.Unlock()
	var t *nft.Translation
	if g.loop.Do(context.Background(), func() { t = g.translation }) {
		do(t)
	}
}

func examineTranslation(t *nft.Translation) ([]health.Problem, error) {
	if t == nil {
		if there, err := nft.Exists(natTable); !there || err != nil {
			return nil, err
		}
		return []health.Problem{{
			Text:   fmt.Sprintf("the table %q of nftables is there without masquerade: true, so that packets may be masqueraded", natTable),
			Remedy: "nft delete table inet " + natTable,
		}}, nil
	}
	if ok, err := t.Holds(); ok || err != nil {
		return nil, err
	}
	return []health.Problem{{
		Text:   fmt.Sprintf("another program changed the table %q of nftables, so that packets may not be masqueraded", natTable),
		Remedy: fmt.Sprintf("stop what changes it, such as a firewall that flushes all tables (nft list table inet %s)", natTable),
	}}, nil
}
