package setup

import (
	"crypto/sha256"
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
// order of LAN. It is empty if one of them has a private one.
func (h *Host) Lacking() []netip.Prefix {
	if !slices.Equal(h.lan6(), []netip.Prefix{h.Unique}) {
		return nil
	}
	var list []netip.Prefix
	for i := range h.LAN {
		a := h.Unique.Addr().As16()
		a[7], a[15] = byte(i+1), 1 // a host has less than 255 of them: a request is bounded
		list = append(list, netip.PrefixFrom(netip.AddrFrom16(a), 64))
	}
	return list
}

// carried returns the LAN of a site as far as its VPS carries it.
func carried(r join.Request, a join.Answer) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(r.LAN), func(p netip.Prefix) bool { return p.Addr().Is6() && !a.Own6.IsValid() })
}
