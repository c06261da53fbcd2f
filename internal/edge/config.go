package edge

import (
	"net/netip"
)

// Config is the `edge:` section of a configuration file: everything that makes a host deliver over every egress path.
type Config struct {
	ASN      uint32     `yaml:"asn"`
	RouterID netip.Addr `yaml:"router_id"`
	// Interface is the NIC that carries the default address and the EPE addresses.
	Interface string `yaml:"interface"`
	// Address is the default address: clients connect to it, and its traffic follows BGP's best path.
	Address netip.Addr `yaml:"address"`
	// Prefix is the on-link prefix that the default address and all EPE addresses belong to.
	Prefix     netip.Prefix `yaml:"prefix"`
	Reflectors []Reflector  `yaml:"reflectors"`
	// Locators are the only blocks that a SID is accepted from.
	Locators []netip.Prefix `yaml:"locators"`
	// Encap is encap.red (no SRH where one SID suffices, RFC 8986 section 5.2) unless told otherwise.
	Encap Encap  `yaml:"encap,omitempty"`
	Peers []Peer `yaml:"peers"`
	MPTCP MPTCP  `yaml:"mptcp,omitempty"`
	// Status is where /status and /metrics are served; loopback unless told otherwise.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Encap is how a packet is put on the way to a SID.
type Encap string

const (
	// EncapRed is an outer IPv6 header alone: 40 bytes.
	EncapRed Encap = "encap.red"
	// EncapFull carries a segment routing header as well: 64 bytes.
	EncapFull Encap = "encap"
)

// Reflector is one route reflector that this server is a client of.
type Reflector struct {
	Address  netip.Addr `yaml:"address"`
	Password string     `yaml:"password,omitempty"`
}

// Peer is one egress peer as the server sees it: a route target, a table and an EPE address.
type Peer struct {
	Name    string     `yaml:"name"`
	RT      string     `yaml:"rt"`
	Address netip.Addr `yaml:"address"`
	Table   uint32     `yaml:"table"`
	// Backup asks MPTCP to use this path only when no other is left.
	Backup bool `yaml:"backup,omitempty"`
}

// MPTCP bounds what the kernel's path manager does; both default to 8, the kernel's maximum.
type MPTCP struct {
	Subflows        uint32 `yaml:"subflows,omitempty"`
	AddAddrAccepted uint32 `yaml:"add_addr_accepted,omitempty"`
}
