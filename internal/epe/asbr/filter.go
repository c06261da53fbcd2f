package asbr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
)

// Import is what is rejected from every egress peer, beside what is always rejected: the SRv6
// block, our own prefixes, connected networks and session addresses.
type Import struct {
	// MaxLength is the longest IPv6 prefix that is accepted. Default: 48. Example: 48
	MaxLength int `yaml:"max_length,omitempty"`
	// MaxLengthIPv4 is the longest IPv4 prefix that is accepted. Default: 24. Example: 24
	MaxLengthIPv4 int `yaml:"max_length_ipv4,omitempty"`
	// Deny rejects further prefixes and all more specific ones, such as peering LANs of other
	// border routers. Example: [2001:db8:ff::/48]
	Deny []netip.Prefix `yaml:"deny,omitempty"`
	// AllowBogons accepts these entries of the bogon list, for labs. Example: [2001:db8::/32]
	AllowBogons []netip.Prefix `yaml:"allow_bogons,omitempty"`
}

// DefaultMaxLength and DefaultMaxLengthIPv4 are the longest prefixes that are commonly accepted
// between ASes (RFC 7454 section 6.1.3).
const (
	DefaultMaxLength     = 48
	DefaultMaxLengthIPv4 = 24
)

// Reasons to reject a route of an egress peer, beside those of bgp.
const (
	RejectSRv6    bgp.RejectReason = "srv6-block"
	RejectSession bgp.RejectReason = "session-address"
	RejectDenied  bgp.RejectReason = "denied"
	RejectBogon   bgp.RejectReason = "bogon"
)

// bogons are rejected from every egress peer (RFC 7454 section 6.1.1, IANA IPv4 and IPv6
// Special-Purpose Address Registries): in IPv6, what is not global unicast space (2000::/3) and, of
// that, what is not for the public Internet.
var bogons = []bgp.PrefixFilter{
	{Prefix: bgp.IPv6.Anywhere(), Min: 1, Max: 2, Reason: RejectBogon},
	bogon("::/3"), bogon("4000::/2"), bogon("8000::/2"), bogon("c000::/3"), bogon("e000::/4"), bogon("f000::/5"), bogon("f800::/6"),
	bogon("fc00::/7"), // unique local (RFC 4193)
	bogon("fe00::/7"), // link-local, site-local, multicast
	bogon("2001:2::/48"),
	bogon("2001:10::/28"),
	bogon("2001:db8::/32"), // documentation (RFC 3849)
	{Prefix: netip.MustParsePrefix("2002::/16"), Min: 17, Max: 128, Reason: RejectBogon}, // 6to4 (RFC 7526)
	bogon("3ffe::/16"), // 6bone (RFC 3701)
	bogon("3fff::/20"), // documentation (RFC 9637)

	{Prefix: bgp.IPv4.Anywhere(), Min: 1, Max: 7, Reason: RejectBogon}, // no allocation is as large (RFC 1466)
	bogon("0.0.0.0/8"),       // this network (RFC 791)
	bogon("10.0.0.0/8"),      // private use (RFC 1918)
	bogon("100.64.0.0/10"),   // shared address space (RFC 6598)
	bogon("127.0.0.0/8"),     // loopback (RFC 1122)
	bogon("169.254.0.0/16"),  // link-local (RFC 3927)
	bogon("172.16.0.0/12"),   // private use (RFC 1918)
	bogon("192.0.0.0/24"),    // protocol assignments (RFC 6890)
	bogon("192.0.2.0/24"),    // documentation (RFC 5737)
	bogon("192.88.99.0/24"),  // 6to4 relays (RFC 7526)
	bogon("192.168.0.0/16"),  // private use (RFC 1918)
	bogon("198.18.0.0/15"),   // benchmarking (RFC 2544)
	bogon("198.51.100.0/24"), // documentation (RFC 5737)
	bogon("203.0.113.0/24"),  // documentation (RFC 5737)
	bogon("224.0.0.0/3"),     // multicast (RFC 1112) and reserved
}

func bogon(prefix string) bgp.PrefixFilter {
	return bgp.Within(RejectBogon, netip.MustParsePrefix(prefix))[0]
}

// check returns the faults of the section import.
func (i *Import) check() fault.List {
	var faults fault.List
	if i.MaxLength < 0 || i.MaxLength > 128 {
		faults.Add("max_length", "must be from 1 to 128, got %d", i.MaxLength)
	}
	if i.MaxLengthIPv4 < 0 || i.MaxLengthIPv4 > 32 {
		faults.Add("max_length_ipv4", "must be from 1 to 32, got %d", i.MaxLengthIPv4)
	}
	for n, p := range i.Deny {
		bgp.CheckPrefix(&faults, fmt.Sprintf("deny[%d]", n), p)
	}
	for n, p := range i.AllowBogons {
		if !slices.ContainsFunc(bogons, func(b bgp.PrefixFilter) bool { return b.Prefix == p }) {
			faults.Add(fmt.Sprintf("allow_bogons[%d]", n), "must be one of %s, got %v", bogonText(), p)
		}
	}
	return faults
}

func bogonText() string {
	list := make([]string, 0, len(bogons))
	for _, b := range bogons {
		list = append(list, b.Prefix.String())
	}
	return strings.Join(list, ", ")
}

// networks are the host's own addresses and the networks that its interfaces are connected to.
type networks struct {
	connected []netip.Prefix
	byLink    map[string][]netip.Prefix
	own       []netip.Addr
}

func (n networks) equal(m networks) bool {
	return slices.Equal(n.connected, m.connected) && slices.Equal(n.own, m.own)
}

// importPolicy is what is accepted from a peer.
func (c *Config) importPolicy(p *Peer, n networks) bgp.ImportPolicy {
	sessions := []netip.Prefix{host(c.Address)}
	for _, r := range c.Reflectors {
		sessions = append(sessions, host(r.Address))
	}
	for i := range c.Peers {
		sessions = append(sessions, host(c.Peers[i].Address))
	}
	policy := bgp.ImportPolicy{
		Reject: slices.Concat(
			bgp.Within(RejectSRv6, c.Locator.blockPrefix()),
			bgp.Within(bgp.RejectOwnPrefix, c.Prefixes...),
			bgp.Within(bgp.RejectConnected, n.connected...),
			bgp.Within(RejectSession, sessions...),
			bgp.Within(RejectDenied, c.Import.Deny...),
			slices.DeleteFunc(slices.Clone(bogons), func(b bgp.PrefixFilter) bool { return slices.Contains(c.Import.AllowBogons, b.Prefix) }),
		),
		MaxLength:      c.Import.MaxLength,
		EnforceFirstAS: !p.ThirdParty,
		NextHops:       []netip.Prefix{host(p.Address)},
		OwnAddresses:   n.own,
	}
	policy.Reject = slices.DeleteFunc(policy.Reject, func(f bgp.PrefixFilter) bool { return bgp.IPOf(f.Prefix.Addr()) != p.family() })
	switch {
	case p.family() == bgp.IPv4:
		policy.MaxLength = cmp.Or(c.Import.MaxLengthIPv4, DefaultMaxLengthIPv4)
	case policy.MaxLength == 0:
		policy.MaxLength = DefaultMaxLength
	}
	if p.ThirdParty {
		policy.NextHops = append(policy.NextHops, linkLocal)
		policy.NextHops = append(policy.NextHops, n.byLink[p.Interface]...)
	}
	return policy
}

var linkLocal = netip.MustParsePrefix("fe80::/10")

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// blockPrefix is the SRv6 block of the network, which the locators of all border routers are in
// (RFC 8986 section 3.1).
func (l Locator) blockPrefix() netip.Prefix {
	return netip.PrefixFrom(l.Prefix.Addr(), int(l.srv6().Block)).Masked()
}
