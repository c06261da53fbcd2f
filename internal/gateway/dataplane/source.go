package dataplane

import (
	"net/netip"
)

// Nobody is whose addresses are that no peer may send from.
const Nobody = -1

// noHosts are addresses that no packet between hosts of two sites has as its source or destination,
// because no router forwards them (RFC 6890, the IANA special-purpose address registries): a peer
// could speak for this host, or reach services of it and its links that are meant for neighbors
// alone. Private use, shared, benchmarking and documentation space is not among them: sites and
// labs use it.
var noHosts = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),      // this network (RFC 791)
	netip.MustParsePrefix("127.0.0.0/8"),    // loopback (RFC 1122)
	netip.MustParsePrefix("169.254.0.0/16"), // link-local (RFC 3927)
	netip.MustParsePrefix("224.0.0.0/4"),    // multicast (RFC 5771)
	netip.MustParsePrefix("240.0.0.0/4"),    // reserved, limited broadcast (RFC 1112)
	netip.MustParsePrefix("::/96"),          // unspecified, loopback, IPv4-compatible (RFC 4291)
	netip.MustParsePrefix("::ffff:0:0/96"),  // IPv4-mapped (RFC 4291)
	netip.MustParsePrefix("fe80::/10"),      // link-local (RFC 4291)
	netip.MustParsePrefix("ff00::/8"),       // multicast (RFC 4291)
}

// Owners returns whose addresses are that a packet from a peer may have as its source: the index of
// the peer in Peers, or Nobody. The longest prefix decides.
//
// Networks and addresses of this site are nobody's, so that a peer with a default route, or a
// prefix around the LAN's, does not speak for hosts of this site. A network that is connected here
// is the peer's if the peer has just this prefix, as in the kernel's tables.
func (s *State) Owners() map[netip.Prefix]int {
	owners := map[netip.Prefix]int{}
	for _, p := range noHosts {
		owners[p] = Nobody
	}
	for _, p := range s.Local {
		owners[p] = Nobody
	}
	for i := range s.Peers {
		for _, p := range s.Peers[i].Prefixes {
			owners[p] = i
		}
	}
	for _, p := range s.LAN.Prefixes {
		owners[p] = Nobody
	}
	for _, p := range s.Local {
		if p.IsSingleIP() {
			owners[p] = Nobody
		}
	}
	return owners
}

// Reach returns which addresses packets of the peer may have as their destination. The longest
// prefix decides; an address without one is not among them.
func (p *Peer) Reach() map[netip.Prefix]bool {
	reach := map[netip.Prefix]bool{}
	for _, n := range noHosts {
		reach[n] = false
	}
	for _, a := range p.Allow {
		reach[a] = true
	}
	if len(p.Allow) == 0 {
		reach[netip.PrefixFrom(netip.IPv4Unspecified(), 0)], reach[netip.PrefixFrom(netip.IPv6Unspecified(), 0)] = true, true
	}
	return reach
}
