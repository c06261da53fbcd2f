package asbr

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bfd"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/srv6"
	"github.com/tabane/tabane/internal/vpn"
)

// Behavior names what the ASBR does with a packet that arrives for an SRv6-EPE SID (RFC 8986 section 4).
type Behavior string

const (
	// EndDT6 decapsulates and looks the inner destination up in the peer's own table, which holds exactly what
	// that peer announced: traffic for anything else is refused (RFC 8986 section 4.6).
	EndDT6 Behavior = "end.dt6"
	// EndDX6 decapsulates and hands the inner packet to the peer unseen (RFC 8986 section 4.4).
	EndDX6 Behavior = "end.dx6"
)

// SIDFormat says how the SID travels in a VPNv6 route (RFC 9252 section 4).
type SIDFormat string

const (
	// FullSID puts all bits into the Prefix-SID attribute; every receiver reads that.
	FullSID SIDFormat = "full"
	// TransposedSID puts the function bits into the label, so that routes of several peers share one attribute.
	TransposedSID SIDFormat = "transposed"
)

// Config is the `asbr:` section of a configuration file.
type Config struct {
	ASN      uint32     `yaml:"asn"`
	RouterID netip.Addr `yaml:"router_id"`
	// Address is the source of the iBGP sessions and the next hop of every route sent to the reflectors.
	Address    netip.Addr     `yaml:"address"`
	Locator    Locator        `yaml:"locator"`
	SIDFormat  SIDFormat      `yaml:"sid_format,omitempty"`
	Prefixes   []netip.Prefix `yaml:"prefixes"`
	Reflectors []Reflector    `yaml:"reflectors"`
	Peers      []Peer         `yaml:"peers"`
	// Status is where /status and /metrics are served; loopback unless told otherwise.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Locator is the ASBR's SRv6 locator: where its SIDs come from. Block defaults to 32 bits (or the whole prefix if
// shorter) and Function to 16 bits.
type Locator struct {
	Prefix   netip.Prefix `yaml:"prefix"`
	Block    uint8        `yaml:"block,omitempty"`
	Function uint8        `yaml:"function,omitempty"`
}

// Reflector is one route reflector that this ASBR is a client of.
type Reflector struct {
	Address  netip.Addr `yaml:"address"`
	Password string     `yaml:"password,omitempty"`
	BFD      bfd.Config `yaml:"bfd,omitempty"`
}

// Peer is one egress peer: a neighboring AS that content can leave through.
type Peer struct {
	Name      string     `yaml:"name"`
	ASN       uint32     `yaml:"asn"`
	Address   netip.Addr `yaml:"address"`
	Interface string     `yaml:"interface"`
	// ID is the function part of the peer's SID: the SID stays the same over restarts because it is written here.
	ID uint32 `yaml:"id"`
	// Table is the routing table that holds what the peer announced.
	Table uint32 `yaml:"table"`
	// RT is the route target by which servers recognize the peer, "65000:101".
	RT vpn.ID `yaml:"rt"`
	// RD keeps the peer's routes apart from every other peer's; "<router_id>:<id>" unless given.
	RD        vpn.ID     `yaml:"rd,omitempty"`
	Behavior  Behavior   `yaml:"behavior,omitempty"`
	LocalPref uint32     `yaml:"local_pref,omitempty"`
	Password  string     `yaml:"password,omitempty"`
	BFD       bfd.Config `yaml:"bfd,omitempty"`
	// Prefixes are announced to this peer alone, beside the common ones that they lie in: what servers send through the
	// peer is answered through it too, when their EPE addresses for it come from here.
	Prefixes []netip.Prefix `yaml:"prefixes,omitempty"`
	// WarnPrefixes logs a warning when the peer announces more; 0 means never.
	WarnPrefixes int `yaml:"warn_prefixes,omitempty"`
}

// main is the kernel's main routing table, local its table of local addresses; neither can be a peer's.
const (
	mainTable  = 254
	localTable = 255
)

// Check says everything that is wrong with the configuration. It does not touch the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	faults.Merge("", bgp.CheckAddress(c.Address))
	if err := c.Locator.srv6().Check(); err != nil {
		faults.Add("locator", "%v", err)
	}
	if c.SIDFormat != "" && c.SIDFormat != FullSID && c.SIDFormat != TransposedSID {
		faults.Add("sid_format", "must be %q or %q, got %q", FullSID, TransposedSID, c.SIDFormat)
	}
	if len(c.Prefixes) == 0 {
		faults.Add("prefixes", "must name at least one prefix to announce to the egress peers")
	}
	for i, p := range c.Prefixes {
		switch {
		case !p.IsValid() || !p.Addr().Is6() || p != p.Masked():
			faults.Add(fmt.Sprintf("prefixes[%d]", i), "must be an IPv6 prefix without host bits, got %v", p)
		case p.Overlaps(c.Locator.Prefix):
			faults.Add(fmt.Sprintf("prefixes[%d]", i), "%v overlaps the locator %v: SIDs would be reachable from outside", p, c.Locator.Prefix)
		}
	}
	if len(c.Reflectors) == 0 {
		faults.Add("reflectors", "must name at least one route reflector")
	}
	for i, r := range c.Reflectors {
		at := fmt.Sprintf("reflectors[%d]", i)
		faults.Merge(at, bgp.CheckAddress(r.Address))
		faults.Merge(at, bgp.CheckPassword(r.Password))
		faults.Merge(at, r.BFD.Check())
	}
	if len(c.Peers) == 0 {
		faults.Add("peers", "must name at least one egress peer")
	}
	seen := fault.Seen{}
	for i := range c.Peers {
		at := fmt.Sprintf("peers[%d]", i)
		p := &c.Peers[i]
		faults.Merge(at, c.checkPeer(p))
		seen.Check(&faults, at, "name", p.Name)
		seen.Check(&faults, at, "address", p.Address)
		seen.Check(&faults, at, "id", p.ID)
		seen.Check(&faults, at, "table", p.Table)
		seen.Check(&faults, at, "rt", p.RT)
		c.checkReturn(&faults, at, i)
		if rd, err := p.distinguisher(c.RouterID); err != nil {
			faults.Add(at+".rd", "%v", err)
		} else {
			seen.Check(&faults, at, "rd", rd)
		}
	}
	return faults
}

// checkReturn says what is wrong with the prefixes of one peer alone.
func (c *Config) checkReturn(faults *fault.List, at string, peer int) {
	for i, p := range c.Peers[peer].Prefixes {
		at := fmt.Sprintf("%s.prefixes[%d]", at, i)
		covered := slices.ContainsFunc(c.Prefixes, func(common netip.Prefix) bool {
			return common.IsValid() && common.Bits() < p.Bits() && common.Contains(p.Addr())
		})
		switch {
		case !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6() || p != p.Masked():
			faults.Add(at, "must be an IPv6 prefix without host bits, got %v", p)
		case p.Overlaps(c.Locator.Prefix):
			faults.Add(at, "%v overlaps the locator %v: SIDs would be reachable from outside", p, c.Locator.Prefix)
		case !covered:
			faults.Add(at, "%v must lie inside of one of the common prefixes, which carries the answers when this peer is gone", p)
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

// announced are the prefixes of all peers, common or not.
func (c *Config) announced() []netip.Prefix { return append(slices.Clone(c.Prefixes), c.alone(nil)...) }

// alone are the prefixes that are announced to one peer each, other than this one.
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
	faults := bgp.CheckAddress(p.Address)
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
		faults.Add("interface", "must name the interface that the peer is reached by: its link decides whether the peer is alive")
	}
	if _, err := c.Locator.srv6().SID(p.ID); err != nil {
		faults.Add("id", "%v", err)
	}
	if p.Table == 0 || p.Table == mainTable || p.Table == localTable {
		faults.Add("table", "must be a table of its own, got %d", p.Table)
	}
	if !p.RT.IsValid() {
		faults.Add("rt", "must be given: servers recognize the peer by it")
	}
	if p.Behavior != "" && p.Behavior != EndDT6 && p.Behavior != EndDX6 {
		faults.Add("behavior", "must be %q or %q, got %q", EndDT6, EndDX6, p.Behavior)
	}
	return faults
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
