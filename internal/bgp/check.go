package bgp

import (
	"net/netip"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp/session"
)

// CheckIdentity returns the faults of a speaker's AS number and router ID.
func CheckIdentity(asn uint32, routerID netip.Addr) fault.List {
	var faults fault.List
	if asn == 0 {
		faults.Add("asn", "must be > 0, got 0")
	}
	if !routerID.Is4() || routerID.IsUnspecified() {
		faults.Add("router_id", "must be an IPv4 address other than 0.0.0.0, got %s", quote(routerID))
	}
	return faults
}

// CheckAddress returns the faults of a local or remote address of a session.
func CheckAddress(address netip.Addr) fault.List {
	var faults fault.List
	if !address.IsValid() || address.Is4In6() || address.IsUnspecified() || address.IsMulticast() || address.IsLinkLocalUnicast() || address.Zone() != "" {
		faults.Add("address", "must be a global unicast address, got %s", quote(address))
	}
	return faults
}

// CheckPassword returns the faults of a session's TCP-MD5 password (RFC 2385); it may be empty.
func CheckPassword(password string) fault.List {
	var faults fault.List
	if len(password) > session.MaxPassword {
		faults.Add("password", "must be at most %d bytes, got %d", session.MaxPassword, len(password))
	}
	return faults
}

func quote(a netip.Addr) string {
	if !a.IsValid() {
		return "none"
	}
	return a.String()
}
