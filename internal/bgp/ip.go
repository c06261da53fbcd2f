package bgp

import (
	"net/netip"

	"github.com/tabane/tabane/internal/base/fault"
)

// IP is a version of the Internet Protocol, as configuration files name it.
type IP string

// The versions.
const (
	IPv4 IP = "ipv4"
	IPv6 IP = "ipv6"
)

// IPOf returns the version of an address; that of the invalid one is IPv6.
func IPOf(a netip.Addr) IP {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Check returns the faults of the IP version of the routes of a session with an address; it may be
// empty.
func (v IP) Check(address netip.Addr) fault.List {
	var faults fault.List
	switch {
	case v != "" && v != IPv4 && v != IPv6:
		faults.Add("family", "must be %q or %q, got %q", IPv4, IPv6, v)
	case v == IPv6 && address.Is4():
		faults.Add("family", "must be %q with the address %v: an IPv6 route has an IPv6 next hop", IPv4, address)
	}
	return faults
}

// Anywhere is the prefix of all addresses.
func (v IP) Anywhere() netip.Prefix {
	if v == IPv4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Unicast is the family of unicast routes.
func (v IP) Unicast() Family {
	if v == IPv4 {
		return IPv4Unicast
	}
	return IPv6Unicast
}

// VPN is the family of VPN routes.
func (v IP) VPN() Family {
	if v == IPv4 {
		return VPNv4
	}
	return VPNv6
}

// CheckPrefix adds a fault if a prefix is missing, is invalid or has host bits set; it reports
// whether it is valid.
func CheckPrefix(faults *fault.List, path string, p netip.Prefix) bool {
	if p == (netip.Prefix{}) {
		faults.Add(path, "must be given: an IP prefix without host bits")
		return false
	}
	if !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() {
		faults.Add(path, "must be an IP prefix without host bits, got %v", p)
		return false
	}
	return true
}
