package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/tabane/tabane/internal/bfd"
)

// Family is an address family.
type Family uint8

const (
	IPv6Unicast Family = iota + 1 // AFI 2, SAFI 1
	VPNv6                         // AFI 2, SAFI 128
)

func (f Family) String() string {
	switch f {
	case IPv6Unicast:
		return "ipv6-unicast"
	case VPNv6:
		return "vpnv6"
	}
	return fmt.Sprintf("family(%d)", uint8(f))
}

// Indices of the families in the configuration of GoBGP.
const (
	familyIndexUnicast = 1
	familyIndexVPN     = 5
)

const (
	// DefaultHoldTime is short because without BFD only the hold timer detects a dead neighbor.
	// Keepalives are sent at a third of it.
	DefaultHoldTime = 9 * time.Second
	// DefaultConnectRetry is the minimum that GoBGP accepts.
	DefaultConnectRetry = 2 * time.Second

	minHoldTime     = 3 * time.Second // RFC 4271 section 4.2
	maxHoldTime     = 65535 * time.Second
	minConnectRetry = 2 * time.Second
)

// ExportPolicy filters and changes the routes advertised to a neighbor.
type ExportPolicy struct {
	// Reject rejects these prefixes and all more specific ones.
	Reject []netip.Prefix
	// Shutdown adds the community GRACEFUL_SHUTDOWN to every route (RFC 8326) and, to neighbors of
	// our own AS, advertises it with the lowest LOCAL_PREF.
	Shutdown bool
}

func (p ExportPolicy) equal(q ExportPolicy) bool {
	return p.Shutdown == q.Shutdown && slices.Equal(p.Reject, q.Reject)
}

// Neighbor describes a session.
type Neighbor struct {
	Name         string // appears in events and logs; unique
	Address      netip.Addr
	Interface    string     // required for a link-local address, otherwise empty
	LocalAddress netip.Addr // if invalid, the kernel selects it
	ASN          uint32
	Families     []Family
	Port         uint16 // 0 is DefaultPort

	ReflectorClient bool // the neighbor is our route reflector client (RFC 4456)
	Passive         bool // wait for the neighbor's connection
	Password        string
	Multihop        uint8         // eBGP multihop: hop limit; 0: directly connected
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
	case n.LocalAddress.IsValid() && (!n.LocalAddress.Is6() || n.LocalAddress.Is4In6() || n.LocalAddress.Zone() != ""):
		return fmt.Errorf("local address %s is not a plain IPv6 address", n.LocalAddress)
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
		if f != IPv6Unicast && f != VPNv6 {
			return fmt.Errorf("unknown family %s", f)
		}
		if seen[f] {
			return fmt.Errorf("%s is given twice", f)
		}
		seen[f] = true
	}
	for _, p := range n.Locators {
		if err := checkPrefix(p); err != nil {
			return fmt.Errorf("locator %s: %w", p, err)
		}
	}
	return errors.Join(n.Import.check(), checkRejected(n.Export.Reject))
}

func checkRejected(prefixes []netip.Prefix) error {
	for _, p := range prefixes {
		if !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6() || p != p.Masked() {
			return fmt.Errorf("rejected prefix %s is not an IPv6 prefix without host bits", p)
		}
	}
	return nil
}

// neighbor is a Neighbor and the state of its session.
type neighbor struct {
	Neighbor
	key netip.Addr // address with zone, as in GoBGP

	// Guarded by instance.calls.
	disabled bool
	added    time.Time // when it was last added to GoBGP

	// Guarded by sessions.mu.
	up       bool
	idle     bool // GoBGP is in state Idle before its next attempt
	deleting bool // the session is being closed by us
	reason   string
	history  history
	adjIn    map[netip.Prefix]struct{} // accepted routes
	warned   bool
	rules    policyEntry // with the current import policy
	// updated holds the prefixes for which an UPDATE arrived while the import policy is being
	// replaced; otherwise it is nil.
	updated map[netip.Prefix]struct{}
}

// config returns the neighbor's GoBGP configuration. own is our AS number, cluster our cluster ID.
func (n *neighbor) config(own uint32, cluster netip.Addr) *api.Peer {
	hold, retry := n.HoldTime, n.ConnectRetry
	if hold == 0 {
		hold = DefaultHoldTime
	}
	if retry == 0 {
		retry = DefaultConnectRetry
	}
	port := n.Port
	if port == 0 {
		port = DefaultPort
	}
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: n.key.String(),
			PeerAsn:         n.ASN,
			AuthPassword:    n.Password,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          uint64(hold / time.Second),
			KeepaliveInterval: uint64(hold / 3 / time.Second),
			ConnectRetry:      uint64(retry / time.Second),
		}},
		Transport: &api.Transport{
			RemotePort:  uint32(port),
			PassiveMode: n.Passive,
		},
	}
	if n.LocalAddress.IsValid() {
		p.Transport.LocalAddress = n.LocalAddress.WithZone(n.Interface).String()
	}
	for _, f := range n.Families {
		safi := api.Family_SAFI_UNICAST
		if f == VPNv6 {
			safi = api.Family_SAFI_MPLS_VPN
		}
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{
			Family: &api.Family{Afi: api.Family_AFI_IP6, Safi: safi}, Enabled: true,
		}})
	}
	if n.ASN == own {
		if n.ReflectorClient {
			p.RouteReflector = &api.RouteReflector{
				RouteReflectorClient:    true,
				RouteReflectorClusterId: cluster.String(),
			}
		}
		// Without a family, the capability concerns only the End-of-RIB marker (RFC 4724
		// section 3). GoBGP keeps no route after the end of the session: see restartIdle.
		p.GracefulRestart = &api.GracefulRestart{Enabled: true, HelperOnly: true, RestartTime: 1}
		return p
	}
	// GoBGP ignores a route whose AS path contains our AS, but does not withdraw the route that
	// it replaces. Therefore GoBGP accepts these routes, and the import policy rejects them.
	p.Conf.AllowOwnAsn = 255
	if n.Multihop > 0 {
		p.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(n.Multihop)}
	}
	return p
}
