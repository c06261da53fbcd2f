package edge

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/control"
	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/vpn"
)

// Config is the `edge:` section of a configuration file.
type Config struct {
	// ASN is the own autonomous system number.
	ASN uint32 `yaml:"asn"`
	// RouterID is the BGP identifier, an IPv4 address that no other speaker of the AS has.
	RouterID netip.Addr `yaml:"router_id"`
	// Interface is the NIC that carries the default address and the EPE addresses.
	Interface string `yaml:"interface"`
	// Address is the default address: clients connect to it, and its traffic follows BGP's best
	// path.
	Address netip.Addr `yaml:"address"`
	// Prefix is the on-link prefix that the default address and the EPE addresses belong to.
	Prefix netip.Prefix `yaml:"prefix"`
	// Reflectors are the route reflectors that this server is a client of.
	Reflectors []Reflector `yaml:"reflectors"`
	// Locators are the only blocks that a SID is accepted from. A route with any other SID is
	// refused and counted.
	Locators []netip.Prefix `yaml:"locators"`
	// Encap is how a packet is encapsulated toward a SID: encap.red adds an outer IPv6 header of
	// 40 bytes, encap a segment routing header as well, 64 bytes (RFC 8986 sections 5.1 and 5.2).
	// Default: encap.red.
	Encap Encap `yaml:"encap,omitempty"`
	// Peers are the egress peers that this server uses.
	Peers []Peer `yaml:"peers"`
	// MPTCP is how the paths of connections are managed.
	MPTCP Paths `yaml:"mptcp,omitempty"`
	// Control is the path of the Unix socket for tabane reload, which only the daemon's user and root
	// can use. Default: /run/tabane/edge.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9117 of ::1.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Encap is the encapsulation mode toward a SID.
type Encap string

const (
	// EncapRed adds only an outer IPv6 header: 40 bytes.
	EncapRed Encap = "encap.red"
	// EncapFull adds a segment routing header as well: 64 bytes.
	EncapFull Encap = "encap"
)

// Reflector is one route reflector that this server is a client of.
type Reflector struct {
	// Address is the reflector's address.
	Address netip.Addr `yaml:"address"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
}

// Peer is one egress peer as the server sees it: a route target, a table and an EPE address.
type Peer struct {
	// Name identifies the peer in logs, status and metrics.
	Name string `yaml:"name"`
	// RT is the route target of the peer's routes, as on the border router.
	RT vpn.ID `yaml:"rt"`
	// Address is the EPE address: traffic from it leaves through this peer or not at all.
	Address netip.Addr `yaml:"address"`
	// Table is the routing table for traffic from the EPE address. No other program may use it.
	Table uint32 `yaml:"table"`
	// Prefix is the on-link prefix of Address when it is not the common one. Where the prefix is
	// advertised through this peer alone, return traffic arrives through this peer.
	Prefix netip.Prefix `yaml:"prefix,omitempty"`
	// Backup makes the subflow a backup (RFC 8684 section 3.1.1): it is used when no other path
	// works. Example: true
	Backup bool `yaml:"backup,omitempty"`
}

// PathManager selects the path manager that announces EPE addresses to clients.
type PathManager string

const (
	// UserPathManager is this daemon: it announces an address to a client only while the peer
	// has a route to the client, withdraws the address as soon as the route is withdrawn, and
	// detects stalled subflows.
	UserPathManager PathManager = "user"
	// KernelPathManager is the in-kernel path manager, which announces every address to every
	// client.
	KernelPathManager PathManager = "kernel"
)

// BestPath is the use of the subflow on the default address, which follows BGP's best path, once
// the connection has a subflow to every egress peer.
type BestPath string

const (
	// BackupBestPath makes it a backup, for a best path through one of the peers.
	BackupBestPath BestPath = "backup"
	// SharingBestPath always sends data on it, for a best path through an egress peer that is
	// not configured.
	SharingBestPath BestPath = "share"
)

// Paths is how the server manages the paths of its connections.
type Paths struct {
	// PathManager is the path manager that decides which addresses a client is sent: user is this
	// daemon, which advertises an EPE address while the peer has a route to the client and no
	// longer, and watches whether what is sent arrives; kernel sends every address to every
	// client. Default: user, or kernel when subflows or add_addr_accepted is set.
	PathManager PathManager `yaml:"path_manager,omitempty"`
	// BestPath is the use of the subflow on the default address, which follows BGP's best path,
	// once the connection has a subflow to every egress peer: backup is for when all other
	// subflows fail, which suits a best path through one of the peers; share sends over it always,
	// for a best path through another peer. Default: backup; with the kernel's path manager share.
	// Example: share
	BestPath BestPath `yaml:"best_path,omitempty"`
	// MPTCP is for the kernel's path manager only.
	MPTCP `yaml:",inline"`
}

// MPTCP are the limits of the kernel's path manager; both default to 8, the kernel's maximum.
type MPTCP struct {
	// Subflows is how many subflows the kernel's path manager may add to the first one. Default:
	// 8, the kernel's maximum.
	Subflows uint32 `yaml:"subflows,omitempty"`
	// AddAddrAccepted is how many addresses advertised by the other end the kernel's path manager
	// accepts. Default: 8, the kernel's maximum.
	AddAddrAccepted uint32 `yaml:"add_addr_accepted,omitempty"`
}

// maxSubflows is the kernel's maximum of both limits (MPTCP_PM_ADDR_MAX in net/mptcp/protocol.h).
const maxSubflows = 8

// main is the kernel's main routing table, local its table of local addresses; neither can be a
// peer's.
const (
	mainTable  = 254
	localTable = 255
)

// Check returns all faults of the configuration. It does not access the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	faults.Merge("", control.CheckPath(c.Control))
	if c.Interface == "" {
		faults.Add("interface", "must name the interface that carries the addresses")
	}
	faults.Merge("", bgp.CheckAddress(c.Address))
	if !c.Prefix.IsValid() || !c.Prefix.Addr().Is6() || c.Prefix != c.Prefix.Masked() {
		faults.Add("prefix", "must be an IPv6 prefix without host bits, got %v", c.Prefix)
	}
	c.checkInside(&faults, "address", c.Address)
	if len(c.Reflectors) == 0 {
		faults.Add("reflectors", "must name at least one route reflector")
	}
	for i, r := range c.Reflectors {
		at := fmt.Sprintf("reflectors[%d]", i)
		faults.Merge(at, bgp.CheckAddress(r.Address))
		faults.Merge(at, bgp.CheckPassword(r.Password))
	}
	c.checkLocators(&faults)
	if c.Encap != "" && c.Encap != EncapRed && c.Encap != EncapFull {
		faults.Add("encap", "must be %q or %q, got %q", EncapRed, EncapFull, c.Encap)
	}
	if len(c.Peers) == 0 {
		faults.Add("peers", "must name at least one egress peer")
	}
	seen := fault.Seen{}
	seen.Check(&faults, "", "address", c.Address)
	for i, p := range c.Peers {
		at := fmt.Sprintf("peers[%d]", i)
		if p.Name == "" {
			faults.Add(at+".name", "must not be empty")
		}
		if !p.RT.IsValid() {
			faults.Add(at+".rt", "must be given: it says which routes are this peer's")
		}
		if p.Table == 0 || p.Table == mainTable || p.Table == localTable {
			faults.Add(at+".table", "must be a table of its own, got %d", p.Table)
		}
		faults.Merge(at, bgp.CheckAddress(p.Address))
		c.checkPrefix(&faults, at, i)
		seen.Check(&faults, at, "name", p.Name)
		seen.Check(&faults, at, "rt", p.RT)
		seen.Check(&faults, at, "address", p.Address)
		seen.Check(&faults, at, "table", p.Table)
	}
	faults.Merge("mptcp", c.MPTCP.Check())
	return faults
}

// checkPrefix adds the faults of a peer's prefix, its own or the common one.
func (c *Config) checkPrefix(faults *fault.List, at string, peer int) {
	p := c.Peers[peer]
	if p.Prefix == (netip.Prefix{}) {
		c.checkInside(faults, at+".address", p.Address)
		return
	}
	at += ".prefix"
	switch {
	case !p.Prefix.IsValid() || !p.Prefix.Addr().Is6() || p.Prefix.Addr().Is4In6() || p.Prefix != p.Prefix.Masked():
		faults.Add(at, "must be an IPv6 prefix without host bits, got %v", p.Prefix)
	case p.Address.IsValid() && !p.Prefix.Contains(p.Address):
		faults.Add(at, "%v does not hold the address %v: no answer would come back to it", p.Prefix, p.Address)
	case p.Prefix.Contains(c.Address):
		faults.Add(at, "%v holds the default address, whose answers come back every way", p.Prefix)
	}
	for i, l := range c.Locators {
		if p.Prefix.IsValid() && l.IsValid() && l.Overlaps(p.Prefix) {
			faults.Add(at, "%v overlaps locators[%d] %v: a SID must not be one of our addresses", p.Prefix, i, l)
		}
	}
	for i, other := range c.Peers[:peer] {
		if p.Prefix.IsValid() && other.Prefix.IsValid() && other.Prefix.Overlaps(p.Prefix) {
			faults.Add(at, "%v overlaps peers[%d].prefix %v", p.Prefix, i, other.Prefix)
		}
	}
}

// onLink returns the prefixes of the default address and of all EPE addresses.
func (c *Config) onLink() []netip.Prefix {
	prefixes := []netip.Prefix{c.Prefix}
	for _, p := range c.Peers {
		if p.Prefix.IsValid() {
			prefixes = append(prefixes, p.Prefix)
		}
	}
	return prefixes
}

// checkInside adds a fault if a valid address is outside the prefix.
func (c *Config) checkInside(faults *fault.List, path string, address netip.Addr) {
	if address.IsValid() && c.Prefix.IsValid() && !c.Prefix.Contains(address) {
		faults.Add(path, "%v is outside the prefix %v: no answer would come back to it", address, c.Prefix)
	}
}

func (c *Config) checkLocators(faults *fault.List) {
	if len(c.Locators) == 0 {
		faults.Add("locators", "must name at least one block that SIDs are accepted from")
	}
	for i, l := range c.Locators {
		at := fmt.Sprintf("locators[%d]", i)
		if !l.IsValid() || !l.Addr().Is6() || l != l.Masked() {
			faults.Add(at, "must be an IPv6 prefix without host bits, got %v", l)
			continue
		}
		if l.Overlaps(c.Prefix) {
			faults.Add(at, "%v overlaps prefix %v: a SID must not be one of our addresses", l, c.Prefix)
		}
		for j, other := range c.Locators[:i] {
			if l.Overlaps(other) {
				faults.Add(at, "%v overlaps locators[%d] %v", l, j, other)
			}
		}
	}
}

// Check returns the faults of the path manager and its limits.
func (p Paths) Check() fault.List {
	faults := p.MPTCP.Check()
	switch p.PathManager {
	case "", KernelPathManager:
	case UserPathManager:
		if p.MPTCP != (MPTCP{}) {
			faults.Add("path_manager", "%q has no limits: remove subflows and add_addr_accepted", UserPathManager)
		}
	default:
		faults.Add("path_manager", "must be %q or %q, got %q", UserPathManager, KernelPathManager, p.PathManager)
	}
	switch p.BestPath {
	case "", SharingBestPath:
	case BackupBestPath:
		if p.manager() == KernelPathManager {
			faults.Add("best_path", "%q needs path_manager: %q, without limits", BackupBestPath, UserPathManager)
		}
	default:
		faults.Add("best_path", "must be %q or %q, got %q", BackupBestPath, SharingBestPath, p.BestPath)
	}
	return faults
}

func (p Paths) manager() PathManager {
	switch {
	case p.PathManager != "":
		return p.PathManager
	case p.MPTCP != (MPTCP{}):
		return KernelPathManager
	}
	return UserPathManager
}

// Check returns the faults of the limits.
func (m MPTCP) Check() fault.List {
	var faults fault.List
	if m.Subflows > maxSubflows {
		faults.Add("subflows", "must be at most %d, got %d", maxSubflows, m.Subflows)
	}
	if m.AddAddrAccepted > maxSubflows {
		faults.Add("add_addr_accepted", "must be at most %d, got %d", maxSubflows, m.AddAddrAccepted)
	}
	return faults
}

func (c *Config) encap() route.EncapMode {
	if c.Encap == EncapFull {
		return route.EncapFull
	}
	return route.EncapRed
}

// limits returns the path manager's limits, with defaults for zero values.
func (c *Config) limits() mptcp.Limits {
	return mptcp.Limits{Subflows: cmp.Or(c.MPTCP.Subflows, maxSubflows), AddAddrAccepted: cmp.Or(c.MPTCP.AddAddrAccepted, maxSubflows)}
}
