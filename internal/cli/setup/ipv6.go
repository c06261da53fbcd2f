package setup

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/gateway/join"
)

const (
	forwarding6 = "net.ipv6.conf.all.forwarding"
	switchedOff = "net.ipv6.conf.default.disable_ipv6"
)

// acceptRA is the parameter by which a link takes its routers from advertisements: at 1 only while
// the host does not forward, at 2 always.
func acceptRA(link string) string { return "net/ipv6/conf/" + link + "/accept_ra" }

// unique returns the prefix for local use (RFC 4193) of the host with a hardware address. It is the
// same each time, because advertisements in the LAN repeat it.
func unique(hardware []byte) netip.Prefix {
	sum := sha256.Sum256(append([]byte("tabane site "), hardware...))
	a := [16]byte{0: 0xfd}
	copy(a[1:6], sum[:])
	return netip.PrefixFrom(netip.AddrFrom16(a), 48)
}

// private reports whether all of a prefix is private.
func private(p netip.Prefix) bool {
	return p.Addr().IsPrivate() && last(p).IsPrivate()
}

// WithoutIPv6 says why the host, as a VPS, cannot carry IPv6 of a site. It is empty if it can.
func (h *Host) WithoutIPv6() string {
	if h.NoIPv6 != "" {
		return h.NoIPv6
	}
	if h.Gateway != nil {
		if !h.tunnelAddress(netip.Addr.Is6).IsValid() {
			return "the gateway of the VPS has no address of IPv6 in the tunnel"
		}
		return ""
	}
	for _, l := range h.Lines {
		if !l.IPv6 {
			return fmt.Sprintf("IPv6 is switched off on %s", l.Name)
		}
	}
	if !slices.ContainsFunc(h.Lines, func(l Link) bool {
		return l.Internet6 && slices.ContainsFunc(l.Addresses6, func(p netip.Prefix) bool { return !private(p) })
	}) {
		return "this host has no line with a public address and a default route of IPv6"
	}
	return ""
}

// KeepsIPv6 says why IPv6 of the host's site is to go on without the tunnel. It is empty if it may
// go through the VPS.
func (h *Host) KeepsIPv6() string {
	if h.NoIPv6 != "" {
		return h.NoIPv6
	}
	for _, l := range h.LAN {
		if !l.IPv6 {
			return fmt.Sprintf("IPv6 is switched off on %s", l.Name)
		}
		for _, p := range l.Addresses6 {
			if !private(p) {
				return fmt.Sprintf("%s has the public network %v, which only its own line carries", l.Name, p.Masked())
			}
		}
	}
	return ""
}

// lan6 returns the private networks of IPv6 of the LAN: those that its interfaces have, or else the
// host's own prefix, of which they are to get addresses.
func (h *Host) lan6() []netip.Prefix {
	var list []netip.Prefix
	for _, l := range h.LAN {
		for _, a := range l.Addresses6 {
			if p := a.Masked(); !slices.ContainsFunc(list, p.Overlaps) {
				list = append(list, p)
			}
		}
	}
	if len(list) == 0 && len(h.LAN) > 0 {
		list = append(list, h.Unique)
	}
	return list
}

// Lacking returns the addresses that the interfaces of the LAN need for IPv6 of its hosts, in the
// order of LAN: of public ones, if the VPS gave the site a prefix, else private ones. It is empty
// if they have some of those, and shorter than LAN if the prefix is too small.
func (h *Host) Lacking(public netip.Prefix) []netip.Prefix {
	from, first := public, uint64(0)
	if !public.IsValid() {
		if !slices.Equal(h.lan6(), []netip.Prefix{h.Unique}) {
			return nil
		}
		from, first = h.Unique, 1
	}
	var list []netip.Prefix
	for i := range h.LAN {
		if n, ok := subnet(from, 64, first+uint64(i)); ok {
			list = append(list, netip.PrefixFrom(n.Addr().Next(), n.Bits()))
		}
	}
	return list
}

// subnet returns a part of a prefix of IPv6, by its number, and false if it has fewer.
func subnet(of netip.Prefix, bits int, number uint64) (netip.Prefix, bool) {
	if bits < of.Bits() || number>>(bits-of.Bits()) > 0 {
		return netip.Prefix{}, false
	}
	a := of.Addr().As16()
	high := binary.BigEndian.Uint64(a[:]) | number<<(64-bits)
	binary.BigEndian.PutUint64(a[:], high)
	return netip.PrefixFrom(netip.AddrFrom16(a), bits), true
}

// gateway6 returns the address of the VPS in the tunnel, which is not valid without IPv6.
func (h *Host) gateway6() netip.Addr {
	switch {
	case h.WithoutIPv6() != "":
		return netip.Addr{}
	case h.Gateway != nil:
		return h.tunnelAddress(netip.Addr.Is6)
	}
	return h.Unique.Addr().Next()
}

const (
	// siteBits is the length of a site's prefix, for 16 networks; lanBits that of one network,
	// which a site gets where the VPS has fewer than 256 of them.
	siteBits, lanBits = 60, 64
	// maxParts bounds how many parts of a prefix are looked at.
	maxParts = 1 << 16
)

// part returns a part of the public prefix for a site; it is not valid if none is free. The first
// part is left to the VPS itself.
func (h *Host) part() netip.Prefix {
	from := h.Routed
	if h.Gateway != nil {
		i := slices.IndexFunc(h.Gateway.Routed, join.ValidPrefix)
		if i < 0 {
			return netip.Prefix{}
		}
		from = h.Gateway.Routed[i]
	}
	if !from.IsValid() {
		return netip.Prefix{}
	}
	bits, number := siteBits, uint64(1)
	switch {
	case from.Bits() == lanBits:
		bits, number = lanBits, 0 // there is no other part
	case from.Bits() > siteBits-4:
		bits = lanBits
	}
	used := func(p netip.Prefix) bool {
		site, _ := h.siteWith(p)
		return site != "" || slices.ContainsFunc(h.Networks, func(n netip.Prefix) bool { return n.Bits() > from.Bits() && n.Overlaps(p) })
	}
	for ; number < maxParts; number++ {
		p, ok := subnet(from, bits, number)
		if !ok {
			break
		}
		if !used(p) {
			return p
		}
	}
	return netip.Prefix{}
}

// carried returns the LAN of a site as far as its VPS carries it.
func carried(r join.Request, a join.Answer) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(r.LAN), func(p netip.Prefix) bool { return p.Addr().Is6() && !a.Own6.IsValid() })
}
