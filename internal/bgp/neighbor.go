package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/message"
)

// Family is an address family.
type Family = message.Family

const (
	IPv4Unicast = message.IPv4Unicast
	IPv6Unicast = message.IPv6Unicast
	VPNv4       = message.VPNv4
	VPNv6       = message.VPNv6
)

// Role is what this router is for a neighbor of another AS (RFC 9234).
type Role = message.Role

const (
	// DefaultHoldTime is short because without BFD only the hold timer detects a dead neighbor.
	// Keepalives are sent at a third of it.
	DefaultHoldTime = 9 * time.Second
	// DefaultConnectRetry is short because a neighbor that restarts is soon reachable again.
	DefaultConnectRetry = time.Second

	minHoldTime     = 3 * time.Second // RFC 4271 section 4.2
	maxHoldTime     = 65535 * time.Second
	minConnectRetry = time.Second
)

// Neighbor describes a session.
type Neighbor struct {
	Name         string // appears in events and logs; unique
	Address      netip.Addr
	Interface    string     // required for a link-local address, otherwise empty
	LocalAddress netip.Addr // if invalid, the kernel selects it
	ASN          uint32
	Families     []Family
	Port         uint16 // 0 is DefaultPort

	// Role is what this router is for the neighbor; empty: it is not said, and nothing depends on it.
	Role Role

	ReflectorClient bool // the neighbor is our route reflector client (RFC 4456)
	Passive         bool // wait for the neighbor's connection
	Password        string
	Multihop        uint8         // eBGP multihop: hop limit; 0: directly connected
	GTSM            bool          // only from at most Multihop hops away, by default 1 (RFC 5082)
	HoldTime        time.Duration // whole seconds; 0 is DefaultHoldTime
	ConnectRetry    time.Duration // whole seconds, time between attempts to connect; 0 is DefaultConnectRetry
	BFD             bfd.Config
	// Locators are prefixes reached through the neighbor whose loss is advertised first when
	// BFD goes down: withdrawing a full table takes seconds, in arbitrary order. They are
	// advertised with BLACKHOLE until everything else is withdrawn. For an external neighbor
	// they are also advertised when the neighbor closes the session, until SetBlackhole
	// withdraws them.
	Locators []netip.Prefix
	// Retain is how long best paths are kept after the session was lost or closed by the
	// neighbor. It is for route reflectors, which do not forward packets. After the session is
	// up again, stale routes are withdrawn soon after End-of-RIB. 0 withdraws at once. It
	// excludes ReportAdjIn.
	Retain time.Duration

	// NextHopSelf sets our address as next hop of external routes advertised to this internal
	// neighbor. External neighbors always receive our address.
	NextHopSelf bool
	// LocalPref is set on all routes received from the neighbor; 0 leaves them unchanged.
	LocalPref uint32
	Import    ImportPolicy
	Export    ExportPolicy
	// ExportLocalOnly advertises only routes originated by this speaker: no transit between
	// neighbors.
	ExportLocalOnly bool
}

func (n Neighbor) check(own uint32) error {
	internal := n.ASN == own
	switch {
	case n.Name == "":
		return errors.New("name is missing")
	case n.Address.Zone() != "":
		return fmt.Errorf("address %s: give the zone as interface", n.Address)
	case n.Address.IsLinkLocalUnicast() && n.Interface == "":
		return fmt.Errorf("address %s is link-local: interface is missing", n.Address)
	case !n.Address.IsLinkLocalUnicast() && n.Interface != "":
		return fmt.Errorf("address %s is not link-local: interface %q has no effect", n.Address, n.Interface)
	case !n.Address.IsLinkLocalUnicast() && len(CheckAddress(n.Address)) > 0:
		return CheckAddress(n.Address).Err()
	case n.LocalAddress.IsValid() && (n.LocalAddress.Is4In6() || n.LocalAddress.Zone() != "" || n.LocalAddress.Is4() != n.Address.Is4()):
		return fmt.Errorf("local address %s is not a plain address of the same family as %s", n.LocalAddress, n.Address)
	case n.LocalAddress.IsValid() && n.LocalAddress.IsLinkLocalUnicast() != n.Address.IsLinkLocalUnicast():
		return fmt.Errorf("local address %s and address %s must both be link-local or neither", n.LocalAddress, n.Address)
	case n.ASN == 0:
		return errors.New("as number must be > 0")
	case len(n.Families) == 0:
		return errors.New("families are missing")
	case n.ReflectorClient && !internal:
		return fmt.Errorf("reflector client has as number %d, must be our own %d", n.ASN, own)
	case n.NextHopSelf && !internal:
		return errors.New("next hop self needs a neighbor of our own as")
	case n.Role != "" && (internal || !n.Role.IsValid()):
		return fmt.Errorf("role %s is not that for a neighbor of as %d", n.Role, n.ASN)
	case n.Multihop != 0 && internal:
		return errors.New("multihop needs a neighbor of another as")
	case len(CheckPassword(n.Password)) > 0:
		return CheckPassword(n.Password).Err()
	case n.HoldTime != 0 && (n.HoldTime < minHoldTime || n.HoldTime > maxHoldTime || n.HoldTime%time.Second != 0):
		return fmt.Errorf("hold time must be whole seconds from %s to %s, got %s", minHoldTime, maxHoldTime, n.HoldTime)
	case n.ConnectRetry != 0 && (n.ConnectRetry < minConnectRetry || n.ConnectRetry%time.Second != 0):
		return fmt.Errorf("connect retry must be whole seconds from %s, got %s", minConnectRetry, n.ConnectRetry)
	case n.Retain < 0:
		return fmt.Errorf("retain time must be >= 0, got %s", n.Retain)
	case len(n.BFD.Check()) > 0:
		return n.BFD.Check().Err()
	case !n.BFD.Enabled() && internal && len(n.Locators) > 0:
		return errors.New("locators of a neighbor of our own as need bfd, which detects its failure")
	case n.BFD.Enabled() && n.Multihop != 0:
		return errors.New("bfd and multihop exclude each other: bfd here is single-hop (rfc 5881)")
	case n.Import.EnforceFirstAS && internal:
		return errors.New("enforce first as needs a neighbor of another as")
	}
	seen := map[Family]bool{}
	for _, f := range n.Families {
		if !f.IsValid() {
			return fmt.Errorf("unknown family %s", f)
		}
		if seen[f] {
			return fmt.Errorf("%s is given twice", f)
		}
		seen[f] = true
	}
	for _, p := range n.Locators {
		if err := checkPrefix(p); err != nil {
			return fmt.Errorf("locator %q: %w", p, err)
		}
	}
	return errors.Join(n.Import.check(), n.Export.check())
}
