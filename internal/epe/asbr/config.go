package asbr

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rtr"
	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon/control"
)

// Behavior names what the ASBR does with a packet that arrives for an SRv6-EPE SID (RFC 8986
// section 4).
type Behavior string

const (
	// EndDT6 decapsulates and looks the inner destination up in the peer's own table, which holds
	// exactly what that peer advertised: packets for anything else are dropped (RFC 8986 section
	// 4.6).
	EndDT6 Behavior = "end.dt6"
	// EndDX6 decapsulates and sends the inner packet to the peer without a lookup (RFC 8986 section
	// 4.4).
	EndDX6 Behavior = "end.dx6"
	// EndDX4 is EndDX6 for IPv4 packets (RFC 8986 section 4.5).
	EndDX4 Behavior = "end.dx4"
	// EndDT4 is EndDT6 for IPv4 packets (RFC 8986 section 4.7). It needs no VRF.
	EndDT4 Behavior = "end.dt4"
)

// codes are the codepoints of RFC 8986 section 10.2.
var codes = map[Behavior]uint16{EndDX6: 16, EndDX4: 17, EndDT6: 18, EndDT4: 19}

// SIDFormat is how the SID is encoded in a VPN route (RFC 9252 section 4).
type SIDFormat string

const (
	// FullSID encodes all bits in the Prefix-SID attribute, which every receiver supports.
	FullSID SIDFormat = "full"
	// TransposedSID encodes the function bits in the label, so that routes of several peers share
	// one attribute.
	TransposedSID SIDFormat = "transposed"
)

// Config is the `asbr:` section of a configuration file.
type Config struct {
	// ASN is the own autonomous system number.
	ASN uint32 `yaml:"asn"`
	// RouterID is the BGP identifier, an IPv4 address that no other speaker of the AS has.
	RouterID netip.Addr `yaml:"router_id"`
	// Address is the source of the iBGP sessions and the next hop of every route sent to the
	// reflectors, IPv4 routes included (RFC 8950). It is IPv6, as are the SIDs.
	Address netip.Addr `yaml:"address"`
	// Locator is the prefix that the SIDs are taken from.
	Locator Locator `yaml:"locator"`
	// SIDFormat is how the SID is encoded in a VPN route (RFC 9252 section 4): full or transposed.
	// Default: full.
	SIDFormat SIDFormat `yaml:"sid_format,omitempty"`
	// Prefixes are advertised to every egress peer with routes of that IP version.
	Prefixes []netip.Prefix `yaml:"prefixes"`
	// Reflectors are the route reflectors that this ASBR is a client of.
	Reflectors []Reflector `yaml:"reflectors"`
	// Controllers get the SIDs of the egress peers in BGP-LS, as peer segments (RFC 9086, RFC
	// 9514).
	// Default: none. Example: [{address: "2001:db8:1::cc"}]
	Controllers []Controller `yaml:"controllers,omitempty"`
	// Peers are the egress peers: the neighboring ASes that content can leave through.
	Peers []Peer `yaml:"peers"`
	// Import is what is rejected from every egress peer.
	Import Import `yaml:"import,omitempty"`
	// PrefixLists are lists of prefixes that the rules of peers name. Of each list, the first entry
	// that matches a prefix decides; ge and le bound the length of the prefixes inside of an entry.
	// Example: {customers: ["reject 2001:db8:a:1::/64", "accept 2001:db8:a::/48 le 64"]}
	PrefixLists map[string]policy.List `yaml:"prefix_lists,omitempty"`
	// RPKI validates the origin of routes from the egress peers (RFC 6811).
	RPKI *RPKI `yaml:"rpki,omitempty"`
	// Port is where BGP listens, so that another speaker of this host keeps port 179. Default: 179.
	// Example: 1790
	Port uint16 `yaml:"port,omitempty"`
	// Control is the path of the Unix socket for tabane reload and tabane asbr drain, which only
	// the daemon's user and root can use. Default: /run/tabane/asbr.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9116 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Locator is the ASBR's SRv6 locator, which its SIDs are allocated from. Block defaults to 32 bits
// (or the whole prefix if shorter) and Function to 16 bits.
type Locator struct {
	// Prefix is the locator itself, block and node (RFC 8986 section 3.1).
	Prefix netip.Prefix `yaml:"prefix"`
	// Block is the length of the locator block in bits. Default: 32, or all of a shorter prefix.
	// Example: 32
	Block uint8 `yaml:"block,omitempty"`
	// Function is the length of a SID's function part in bits. Default: 16. Example: 16
	Function uint8 `yaml:"function,omitempty"`
}

// Reflector is one route reflector that this ASBR is a client of.
type Reflector struct {
	// Address is the reflector's address.
	Address netip.Addr `yaml:"address"`
	// Port is where the reflector listens for BGP. Default: 179. Example: 1790
	Port uint16 `yaml:"port,omitempty"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
	// BFD detects the loss of the neighbor (RFC 5880).
	BFD bfd.Config `yaml:"bfd,omitempty"`
}

// Peer is one egress peer: a neighboring AS that content can leave through. One that IPv4 and IPv6
// packets leave through is two peers, with a session and a SID each; they may have the same route
// target.
type Peer struct {
	// Name identifies the peer in logs, status and metrics.
	Name string `yaml:"name"`
	// ASN is the peer's autonomous system number.
	ASN uint32 `yaml:"asn"`
	// Address is the peer's address on the link; the session and the packets go there.
	Address netip.Addr `yaml:"address"`
	// Family is the IP version of the peer's routes: ipv4 or ipv6. IPv4 routes over an IPv6 session
	// have IPv6 next hops (RFC 8950). Default: that of address. Example: ipv4
	Family bgp.IP `yaml:"family,omitempty"`
	// Interface is the link to the peer. The peer is lost when it goes down.
	Interface string `yaml:"interface"`
	// ID is the function part of the peer's SID, which therefore is the same after a restart.
	ID uint32 `yaml:"id"`
	// Table is the routing table that holds the routes that the peer advertised. No other program
	// may use it.
	Table uint32 `yaml:"table"`
	// RT is the route target by which servers recognize the peer's routes.
	RT vpn.ID `yaml:"rt"`
	// RD keeps the peer's routes apart from those of all other peers. Default: <router_id>:<id>.
	// Example: "192.0.2.1:1"
	RD vpn.ID `yaml:"rd,omitempty"`
	// Behavior is what is done with a packet that arrives for the peer's SID: end.dt6 forwards it
	// by the peer's own table, so that a destination that the peer did not advertise is refused;
	// end.dx6 sends it to the peer without a lookup. For IPv4 routes they are end.dt4 and end.dx4
	// (RFC 8986 sections 4.4 to 4.7). Default: end.dt6, with IPv4 routes end.dt4.
	// Example: end.dx6
	Behavior Behavior `yaml:"behavior,omitempty"`
	// LocalPref is the LOCAL_PREF of all routes from the peer. Default: 100 (RFC 4271 section
	// 5.1.5). Example: 200
	LocalPref uint32 `yaml:"local_pref,omitempty"`
	// Capacity is how much the link to the peer carries, which servers do not fill: from 90 % of it
	// on, networks take other egress paths. It is that of the interface, where peers share one. Default:
	// the speed of the interface; without one, nothing is reported to the servers. Example:
	// 10Gbit/s
	Capacity unit.Bandwidth `yaml:"capacity,omitempty"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
	// BFD detects the loss of the neighbor (RFC 5880).
	BFD bfd.Config `yaml:"bfd,omitempty"`
	// Prefixes are advertised to this peer alone, beside the common ones that they lie in. Where
	// EPE addresses for the peer are taken from them, return traffic arrives through this peer.
	Prefixes []netip.Prefix `yaml:"prefixes,omitempty"`
	// ThirdParty accepts next hops other than the peer on the peer's interface, and AS paths that
	// do not begin with the peer's AS, for route servers of exchanges (RFC 7947).
	// Example: true
	ThirdParty bool `yaml:"third_party,omitempty"`
	bgp.Keys   `yaml:",inline"`
}

// RPKI is the source of the Validated ROA Payloads (VRPs) and what is done with them.
type RPKI struct {
	rtr.Config `yaml:",inline"`
	// Invalid is what happens to a route whose origin is invalid: reject refuses it before the
	// import rules, accept leaves it to them. Default: reject
	Invalid policy.Action `yaml:"invalid,omitempty"`
}

// main is the kernel's main routing table, local its table of local addresses; neither can be a
// peer's.
const (
	mainTable  = 254
	localTable = 255
)

// family is the IP version of the peer's routes.
func (p *Peer) family() bgp.IP {
	if p.Family != "" {
		return p.Family
	}
	return bgp.IPOf(p.Address)
}

// behavior is that of the peer's SID.
func (p *Peer) behavior() Behavior {
	switch {
	case p.Behavior != "":
		return p.Behavior
	case p.family() == bgp.IPv4:
		return EndDT4
	}
	return EndDT6
}

// versions are the IP versions of the routes of all peers; IPv6 is always among them, which SIDs
// need.
func (c *Config) versions() []bgp.IP {
	if slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.family() == bgp.IPv4 }) {
		return []bgp.IP{bgp.IPv6, bgp.IPv4}
	}
	return []bgp.IP{bgp.IPv6}
}

// of returns the prefixes of an IP version.
func of(v bgp.IP, prefixes []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return bgp.IPOf(p.Addr()) != v })
}

// Check returns all faults of the configuration. It does not touch the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	faults.Merge("", bgp.CheckAddress(c.Address))
	if c.Address.Is4() {
		faults.Add("address", "must be IPv6, by which servers reach the SIDs, got %v", c.Address)
	}
	if !c.Locator.Prefix.IsValid() {
		faults.Add("locator.prefix", "must be the prefix that SIDs are allocated from, got none")
	} else if err := c.Locator.srv6().Check(); err != nil {
		faults.Add("locator", "%v", err)
	}
	if c.SIDFormat != "" && c.SIDFormat != FullSID && c.SIDFormat != TransposedSID {
		faults.Add("sid_format", "must be %q or %q, got %q", FullSID, TransposedSID, c.SIDFormat)
	}
	if len(c.Prefixes) == 0 {
		faults.Add("prefixes", "must name at least one prefix to advertise to the egress peers")
	}
	for i, p := range c.Prefixes {
		at := fmt.Sprintf("prefixes[%d]", i)
		if bgp.CheckPrefix(&faults, at, p) && p.Overlaps(c.Locator.Prefix) {
			faults.Add(at, "%v overlaps the locator %v: SIDs would be reachable from outside", p, c.Locator.Prefix)
		}
	}
	if len(c.Reflectors) == 0 {
		faults.Add("reflectors", "must name at least one route reflector")
	}
	seen := fault.Seen{}
	seen.Check(&faults, "", "address", c.Address)
	for i, r := range c.Reflectors {
		at := fmt.Sprintf("reflectors[%d]", i)
		seen.Check(&faults, at, "address", r.Address)
		faults.Merge(at, bgp.CheckAddress(r.Address))
		faults.Merge(at, bgp.CheckPassword(r.Password))
		faults.Merge(at, r.BFD.Check())
	}
	c.checkControllers(&faults, seen)
	faults.Merge("import", c.Import.check())
	if c.RPKI != nil {
		faults.Merge("rpki", c.RPKI.check())
	}
	faults.Merge("", control.CheckPath(c.Control))
	if len(c.Peers) == 0 {
		faults.Add("peers", "must name at least one egress peer")
	}
	for i := range c.Peers {
		at := fmt.Sprintf("peers[%d]", i)
		p := &c.Peers[i]
		faults.Merge(at, c.checkPeer(p))
		seen.Check(&faults, at, "name", p.Name)
		seen.Check(&faults, at, "address", p.zoned())
		seen.Check(&faults, at, "id", p.ID)
		// IPv4 and IPv6 have tables of their own.
		seen.Check(&faults, at, "table", ofVersion[uint32]{p.Table, p.family()})
		seen.Check(&faults, at, "rt", ofVersion[vpn.ID]{p.RT, p.family()})
		if len(of(p.family(), c.Prefixes)) == 0 {
			faults.Add("prefixes", "must name at least one %s prefix to advertise to peers[%d]", p.family(), i)
		}
		c.checkReturn(&faults, at, i)
		c.checkCapacity(&faults, at, i)
		if rd, err := p.distinguisher(c.RouterID); err != nil {
			faults.Add(at+".rd", "%v", err)
		} else {
			seen.Check(&faults, at, "rd", rd)
		}
	}
	return faults
}

// checkReturn checks the prefixes that are advertised to one peer alone.
func (c *Config) checkReturn(faults *fault.List, at string, peer int) {
	for i, p := range c.Peers[peer].Prefixes {
		at := fmt.Sprintf("%s.prefixes[%d]", at, i)
		covered := slices.ContainsFunc(c.Prefixes, func(common netip.Prefix) bool {
			return common.IsValid() && common.Bits() < p.Bits() && common.Contains(p.Addr())
		})
		switch {
		case !bgp.CheckPrefix(faults, at, p):
		case bgp.IPOf(p.Addr()) != c.Peers[peer].family():
			faults.Add(at, "must be %s as the routes of the peer, got %v", c.Peers[peer].family(), p)
		case p.Overlaps(c.Locator.Prefix):
			faults.Add(at, "%v overlaps the locator %v: SIDs would be reachable from outside", p, c.Locator.Prefix)
		case !covered:
			faults.Add(at, "%v must lie inside one of the common prefixes, which carries the return traffic when this peer is down", p)
		}
		for j, other := range c.Peers[:peer+1] {
			for k, q := range other.Prefixes {
				if (j < peer || k < i) && p.Overlaps(q) {
					faults.Add(at, "%v overlaps peers[%d].prefixes[%d] %v", p, j, k, q)
				}
			}
		}
	}
}

// announced are all prefixes that are advertised, common or to one peer.
func (c *Config) announced() []netip.Prefix { return append(slices.Clone(c.Prefixes), c.alone(nil)...) }

// alone are the prefixes that are advertised to one peer each, except this one.
func (c *Config) alone(except *Peer) []netip.Prefix {
	var all []netip.Prefix
	for i := range c.Peers {
		if except == nil || c.Peers[i].Name != except.Name {
			all = append(all, c.Peers[i].Prefixes...)
		}
	}
	return all
}

func (c *Config) checkPeer(p *Peer) fault.List {
	var faults fault.List
	if !p.Address.IsLinkLocalUnicast() || p.Address.Zone() != "" { // the interface is its zone
		faults = bgp.CheckAddress(p.Address)
	}
	faults.Merge("", c.policies().CheckKeys(&p.Keys, p.Address, p.BFD))
	if p.Multihop > 0 && !p.ThirdParty {
		faults.Add("multihop", "needs third_party: true, because the next hops of the routes are on the link and %s is not", p.Address)
	}
	faults.Merge("", bgp.CheckPassword(p.Password))
	faults.Merge("", p.BFD.Check())
	if p.Name == "" {
		faults.Add("name", "must not be empty")
	}
	switch p.ASN {
	case 0:
		faults.Add("asn", "must be > 0, got 0")
	case c.ASN:
		faults.Add("asn", "an egress peer is another AS, got our own %d", p.ASN)
	}
	if p.Interface == "" {
		faults.Add("interface", "must name the interface to the peer: the peer is down when its link is")
	}
	if l := c.Locator.srv6(); l.Check() == nil {
		if _, err := l.SID(p.ID); err != nil {
			faults.Add("id", "%v", err)
		}
	}
	if p.Table == 0 || p.Table == mainTable || p.Table == localTable {
		faults.Add("table", "must be a table of its own, got %d", p.Table)
	}
	if !p.RT.IsValid() {
		faults.Add("rt", "must be given: servers recognize the peer by it")
	} else if p.RT == bgp.LoadTarget(c.ASN) {
		faults.Add("rt", "%s is that of the loads of egress links", p.RT)
	}
	if family := p.Family.Check(p.Address); len(family) > 0 {
		faults.Merge("", family)
		return faults
	}
	dt, dx := EndDT6, EndDX6
	if p.family() == bgp.IPv4 {
		dt, dx = EndDT4, EndDX4
	}
	if b := p.behavior(); b != dt && b != dx {
		faults.Add("behavior", "must be %q or %q for %s routes, got %q", dt, dx, p.family(), b)
	} else if p.family() == bgp.IPv4 && p.ID > maxAlias {
		faults.Add("id", "must be at most %d with IPv4 routes, got %d", maxAlias, p.ID)
	}
	if p.Behavior == EndDX6 && p.Address.IsLinkLocalUnicast() {
		faults.Add("behavior", "%s needs a global address of the peer, got %s: use %s", EndDX6, p.Address, EndDT6)
	}
	return faults
}

// ofVersion is a value that is unique within an IP version.
type ofVersion[T comparable] struct {
	value   T
	version bgp.IP
}

func (o ofVersion[T]) String() string { return fmt.Sprintf("%v for %s", o.value, o.version) }

// zoned is the peer's address, with the interface as zone if it is link-local: peers on different
// links may have the same one.
func (p *Peer) zoned() netip.Addr {
	if p.Address.IsLinkLocalUnicast() {
		return p.Address.WithZone(p.Interface)
	}
	return p.Address
}

// policies are what the rules of the peers have in common.
func (c *Config) policies() bgp.Policies {
	return bgp.Policies{Lists: c.PrefixLists, RPKI: c.RPKI != nil, RejectInvalid: c.RPKI != nil && c.RPKI.Invalid != policy.Accept}
}

func (r *RPKI) check() fault.List {
	faults := r.Config.Check()
	if r.Invalid != "" && r.Invalid != policy.Accept && r.Invalid != policy.Reject {
		faults.Add("invalid", "must be %q or %q, got %q", policy.Reject, policy.Accept, r.Invalid)
	}
	return faults
}

// Warnings returns what is valid and has no effect.
func (c *Config) Warnings() fault.List {
	var warnings fault.List
	policies := c.policies()
	keys := make([]*bgp.Keys, len(c.Peers))
	for i := range c.Peers {
		keys[i] = &c.Peers[i].Keys
		warnings.Merge(fmt.Sprintf("peers[%d]", i), policies.Warn(keys[i]))
	}
	warnings.Merge("prefix_lists", policies.WarnLists(keys...))
	return warnings
}

// distinguisher is the peer's route distinguisher with its default filled in.
func (p *Peer) distinguisher(router netip.Addr) (vpn.ID, error) {
	switch {
	case p.RD.IsValid():
		return p.RD, nil
	case p.ID > math.MaxUint16:
		return vpn.ID{}, fmt.Errorf("must be given, because id %d does not fit into <router_id>:<id>", p.ID)
	case !router.Is4():
		return vpn.ID{}, nil // reported as a fault of router_id
	}
	return vpn.FromAddress(router, uint16(p.ID))
}

// srv6 is the locator with its defaults filled in.
func (l Locator) srv6() srv6.Locator {
	block, function := l.Block, l.Function
	if block == 0 {
		block = uint8(min(32, max(0, l.Prefix.Bits())))
	}
	if function == 0 {
		function = 16
	}
	return srv6.Locator{Prefix: l.Prefix, Block: block, Function: function}
}
