package asbr

import (
	"net/netip"

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/srv6"
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
}

// Peer is one egress peer: a neighbouring AS that content can leave through.
type Peer struct {
	Name      string     `yaml:"name"`
	ASN       uint32     `yaml:"asn"`
	Address   netip.Addr `yaml:"address"`
	Interface string     `yaml:"interface"`
	// ID is the function part of the peer's SID: the SID stays the same over restarts because it is written here.
	ID uint32 `yaml:"id"`
	// Table is the routing table that holds what the peer announced.
	Table uint32 `yaml:"table"`
	// RT is the route target by which servers recognise the peer, "65000:101".
	RT string `yaml:"rt"`
	// RD keeps the peer's routes apart from every other peer's; "<router_id>:<id>" unless given.
	RD        string   `yaml:"rd,omitempty"`
	Behavior  Behavior `yaml:"behavior,omitempty"`
	LocalPref uint32   `yaml:"local_pref,omitempty"`
	Password  string   `yaml:"password,omitempty"`
	// MaxPrefixes ends the session when the peer announces more; 0 means no limit.
	MaxPrefixes uint32 `yaml:"max_prefixes,omitempty"`
}
