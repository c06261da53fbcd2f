package edge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/mptcp"
)

// Config is the `edge:` section of a configuration file.
type Config struct {
	// ASN is the own autonomous system number.
	ASN uint32 `yaml:"asn"`
	// RouterID is the BGP identifier, an IPv4 address that no other speaker of the AS has.
	RouterID netip.Addr `yaml:"router_id"`
	// Interface is the NIC that carries the default address and the EPE addresses. Its MTU is that
	// of the path to the border routers, or that of another NIC that leads there, if it is smaller.
	Interface string `yaml:"interface"`
	// Address is the default address: clients connect to it, and its traffic follows BGP's best
	// path. The sessions with reflectors start from it.
	Address netip.Addr `yaml:"address"`
	// Prefix is the on-link prefix that the default address and the EPE addresses belong to.
	Prefix netip.Prefix `yaml:"prefix"`
	// Addresses are further default addresses, such as an IPv4 address, or one that is routed to
	// lo. A client can use only EPE addresses of the IP version that it connected with.
	Addresses []Address `yaml:"addresses,omitempty"`
	// Routes is who installs the routes to clients in the tables of the egress peers: bgp is this
	// daemon, with the routes of the reflectors; kernel is another program, such as FRR or a
	// script. This daemon then follows the tables and manages addresses, policy rules and MPTCP. Default:
	// bgp.
	// Example: kernel
	Routes RouteSource `yaml:"routes,omitempty"`
	// BestPaths is what happens to the best path of each unicast route that the reflectors
	// advertise: install adds it to the main table, with metric 4096, so that all traffic of this
	// host follows BGP unless another route to its destination has a lower metric; leave adds only
	// the routes to the locators, which packets to SIDs need, and leaves all else to the routes
	// that this host has. Default: install. Example: leave
	BestPaths BestPaths `yaml:"best_paths,omitempty"`
	// Reflectors are the route reflectors that this server is a client of. Default: none; required
	// unless routes is kernel.
	Reflectors []Reflector `yaml:"reflectors,omitempty"`
	// Locators are the only blocks that a SID is accepted from. A route with any other SID is
	// refused and counted. Default: none; required unless routes is kernel.
	Locators []netip.Prefix `yaml:"locators,omitempty"`
	// Encap is how a packet is encapsulated toward a SID: encap.red adds an outer IPv6 header of
	// 40 bytes, encap a segment routing header as well, 64 bytes (RFC 8986 sections 5.1 and 5.2).
	// Default: encap.red.
	Encap Encap `yaml:"encap,omitempty"`
	// Peers are the egress peers that this server uses.
	Peers []Peer `yaml:"peers"`
	// MPTCP is how the paths of connections are managed.
	MPTCP Paths `yaml:"mptcp,omitempty"`
	// Delivery is how packets from the default addresses reach client networks. It is for all
	// clients: TCP, QUIC and any other protocol, and the first subflow of MPTCP.
	Delivery Delivery `yaml:"delivery,omitempty"`
	// Control is the path of the Unix socket for tabane reload, which only the daemon's user and
	// root can use. What mptcp.use: overflow learned of paths is kept beside it, in edge.paths. Default:
	// /run/tabane/edge.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9117 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Address is a further default address.
type Address struct {
	// Address is the address and the length of its on-link prefix. Example: 192.0.2.10/24
	Address netip.Prefix `yaml:"address"`
	// Interface is the interface that carries the address. Default: the NIC. Example: lo
	Interface string `yaml:"interface,omitempty"`
}

// RouteSource is who installs the routes of the egress peers.
type RouteSource string

const (
	// BGPRoutes are installed by this daemon, as the reflectors advertise them.
	BGPRoutes RouteSource = "bgp"
	// KernelRoutes are installed by other programs.
	KernelRoutes RouteSource = "kernel"
)

// BestPaths is what happens to the best paths of unicast routes.
type BestPaths string

const (
	// InstallBestPaths adds them to the main table.
	InstallBestPaths BestPaths = "install"
	// LeaveBestPaths adds only those to the locators, and leaves all else to the routes of the
	// host.
	LeaveBestPaths BestPaths = "leave"
)

// installs reports whether the best path to a prefix is added to the main table.
func (c *Config) installs(p netip.Prefix) bool {
	return c.BestPaths != LeaveBestPaths || bgp.Inside(c.Locators, p)
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
	// Port is where the reflector listens for BGP. Default: 179. Example: 1790
	Port uint16 `yaml:"port,omitempty"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
	// BFD detects the loss of the neighbor (RFC 5880).
	BFD bfd.Config `yaml:"bfd,omitempty"`
}

// Peer is one egress peer as the server sees it: a route target, a table and an EPE address. One
// that IPv4 and IPv6 packets leave through is two peers, which may have the same route target and
// table number.
type Peer struct {
	// Name identifies the peer in logs, status and metrics.
	Name string `yaml:"name"`
	// RT is the route target of the peer's routes, as on the border router. Default: none; required
	// unless routes is kernel.
	RT vpn.ID `yaml:"rt,omitempty"`
	// Address is the EPE address: traffic from it leaves through this peer or not at all. Its IP
	// version is that of the peer's routes.
	Address netip.Addr `yaml:"address"`
	// Interface is the interface that carries the EPE address. Default: the NIC. Example: lo
	Interface string `yaml:"interface,omitempty"`
	// Table is the routing table for traffic from the EPE address. No other program may use it.
	Table uint32 `yaml:"table"`
	// Prefix is the on-link prefix of Address when it is not that of a default address. Where the
	// prefix is advertised through this peer alone, return traffic arrives through this peer.
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

// Use is which subflows of a connection carry data.
type Use string

const (
	// UseAll gives data to all subflows, as Linux' scheduler decides.
	UseAll Use = "all"
	// UseOverflow gives data to one path, and to others while it is saturated.
	UseOverflow Use = "overflow"
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
	// Use is which subflows carry data: all, as Linux' scheduler decides; or overflow, the one with
	// the shortest delay first, and others while it is saturated and as long as they help, so that
	// slow paths do not delay small objects and streams. Subflows that carry no data are backups.
	// What is measured of a path is used for 10 minutes for further connections of the client's /48
	// (IPv4: /24), also after a restart. Default: all.
	// Example: overflow
	Use Use `yaml:"use,omitempty"`
	// Policies replace use for connections of a port, a mark or a cgroup. The first one whose
	// conditions all apply is used.
	Policies []Policy `yaml:"policies,omitempty"`
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
	if c.Interface == "" || c.Interface == "lo" {
		faults.Add("interface", "must name the NIC toward the border routers, got %q", c.Interface)
	}
	faults.Merge("", bgp.CheckAddress(c.Address))
	if bgp.CheckPrefix(&faults, "prefix", c.Prefix) && c.Address.IsValid() && !c.Prefix.Contains(c.Address) {
		faults.Add("address", "%v is outside the prefix %v: no return traffic would reach it", c.Address, c.Prefix)
	}
	c.checkRoutes(&faults)
	if c.BestPaths != "" && c.BestPaths != InstallBestPaths && c.BestPaths != LeaveBestPaths {
		faults.Add("best_paths", "must be %q or %q, got %q", InstallBestPaths, LeaveBestPaths, c.BestPaths)
	}
	if c.Encap != "" && c.Encap != EncapRed && c.Encap != EncapFull {
		faults.Add("encap", "must be %q or %q, got %q", EncapRed, EncapFull, c.Encap)
	}
	seen := fault.Seen{}
	seen.Check(&faults, "", "address", c.Address)
	for i, a := range c.Addresses {
		at := fmt.Sprintf("addresses[%d]", i)
		faults.Merge(at, bgp.CheckAddress(a.Address.Addr()))
		seen.Check(&faults, at, "address", a.Address.Addr())
	}
	c.checkReflectors(&faults, seen)
	c.checkVersions(&faults)
	c.checkPeers(&faults, seen)
	faults.Merge("mptcp", c.MPTCP.Check())
	c.checkPolicies(&faults)
	c.checkDelivery(&faults)
	return faults
}

// checkReflectors adds the faults of the reflectors. seen has the addresses before them.
func (c *Config) checkReflectors(faults *fault.List, seen fault.Seen) {
	for i, r := range c.Reflectors {
		at := fmt.Sprintf("reflectors[%d]", i)
		faults.Merge(at, bgp.CheckAddress(r.Address))
		faults.Merge(at, bgp.CheckPassword(r.Password))
		faults.Merge(at, r.BFD.Check())
		if r.Address.IsValid() && c.Address.IsValid() && !c.local(r.Address).IsValid() {
			faults.Add(at+".address", "no default address is %s: the session has no source", bgp.IPOf(r.Address))
		}
		seen.Check(faults, at, "address", r.Address)
	}
}

// checkPeers adds the faults of the egress peers. seen has the addresses before them.
func (c *Config) checkPeers(faults *fault.List, seen fault.Seen) {
	if len(c.Peers) == 0 {
		faults.Add("peers", "must name at least one egress peer")
	}
	if c.MPTCP.manager() == KernelPathManager && len(c.Peers) > maxSubflows {
		faults.Add("peers", "must be at most %d with the kernel's path manager, which advertises no more addresses to a client, got %d", maxSubflows, len(c.Peers))
	}
	for i, p := range c.Peers {
		at := fmt.Sprintf("peers[%d]", i)
		if p.Name == "" {
			faults.Add(at+".name", "must not be empty")
		}
		if !p.RT.IsValid() && c.Routes != KernelRoutes {
			faults.Add(at+".rt", "must be given: it says which routes are this peer's")
		}
		if p.RT == bgp.LoadTarget(c.ASN) {
			faults.Add(at+".rt", "%s is that of the loads of egress links", p.RT)
		}
		if p.Table == 0 || p.Table == mainTable || p.Table == localTable {
			faults.Add(at+".table", "must be a table of its own, got %d", p.Table)
		}
		faults.Merge(at, bgp.CheckAddress(p.Address))
		c.checkPrefix(faults, at, i)
		seen.Check(faults, at, "name", p.Name)
		if p.RT.IsValid() {
			seen.Check(faults, at, "rt", p.target())
		}
		seen.Check(faults, at, "address", p.Address)
		seen.Check(faults, at, "table", p.fib())
	}
}

// local returns the default address that a session with a neighbor starts from; it is not valid if
// none is of the neighbor's IP version.
func (c *Config) local(neighbor netip.Addr) netip.Addr {
	for _, a := range c.defaults() {
		if a.Address.Addr().Is4() == neighbor.Is4() {
			return a.Address.Addr()
		}
	}
	return netip.Addr{}
}

// defaults are all default addresses.
func (c *Config) defaults() []Address {
	all := append([]Address{{netip.PrefixFrom(c.Address, c.Prefix.Bits()), ""}}, c.Addresses...)
	for i := range all {
		all[i].Interface = cmp.Or(all[i].Interface, c.Interface)
	}
	return all
}

// versions are the IP versions of the EPE addresses. IPv6 is always among them: by it SIDs are
// reached.
func (c *Config) versions() []bgp.IP {
	if slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.Address.Is4() }) {
		return []bgp.IP{bgp.IPv6, bgp.IPv4}
	}
	return []bgp.IP{bgp.IPv6}
}

// checkVersions adds a fault for each default address whose clients could use no EPE address, and
// for each EPE address that would be advertised to no client: MPTCP cannot mix IP versions, as the
// routes to a client are known only for the address that it connects from.
func (c *Config) checkVersions(faults *fault.List) {
	for i, a := range c.Addresses {
		v := bgp.IPOf(a.Address.Addr())
		if a.Address.IsValid() && len(c.Peers) > 0 && !slices.ContainsFunc(c.Peers, func(p Peer) bool { return bgp.IPOf(p.Address) == v }) {
			faults.Add(fmt.Sprintf("addresses[%d].address", i), "no peer has an %s address: clients that connect to %v could use no egress peer", v, a.Address.Addr())
		}
	}
	for i, p := range c.Peers {
		if p.Address.IsValid() && c.Address.IsValid() && !c.local(p.Address).IsValid() {
			faults.Add(fmt.Sprintf("peers[%d].address", i), "no default address is %s: %v would be advertised to no client", bgp.IPOf(p.Address), p.Address)
		}
	}
}

// A target is a route target within an IP version.
type target struct {
	rt      vpn.ID
	version bgp.IP
}

func (t target) String() string { return fmt.Sprintf("%v for %s", t.rt, t.version) }

func (p *Peer) target() target { return target{p.RT, bgp.IPOf(p.Address)} }

// A fib is a routing table: IPv4 and IPv6 have tables of their own.
type fib struct {
	number  uint32
	version bgp.IP
}

func (t fib) String() string { return fmt.Sprintf("%d for %s", t.number, t.version) }

func (p *Peer) fib() fib { return fib{p.Table, bgp.IPOf(p.Address)} }

// checkPrefix adds the faults of a peer's prefix, its own or that of a default address.
func (c *Config) checkPrefix(faults *fault.List, at string, peer int) {
	p := c.Peers[peer]
	if p.Prefix == (netip.Prefix{}) {
		c.checkInside(faults, at+".address", p.Address)
		return
	}
	at += ".prefix"
	switch {
	case !bgp.CheckPrefix(faults, at, p.Prefix):
	case p.Address.IsValid() && !p.Prefix.Contains(p.Address):
		faults.Add(at, "%v does not contain the address %v: no return traffic would reach it", p.Prefix, p.Address)
	case slices.ContainsFunc(c.defaults(), func(a Address) bool { return p.Prefix.Contains(a.Address.Addr()) }):
		faults.Add(at, "%v contains a default address, whose return traffic may arrive through any peer", p.Prefix)
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

// onLink returns the prefixes of all default and EPE addresses.
func (c *Config) onLink() []netip.Prefix {
	var prefixes []netip.Prefix
	add := func(p netip.Prefix) {
		if p.IsValid() && !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	for _, a := range c.defaults() {
		add(a.Address.Masked())
	}
	for _, p := range c.Peers {
		add(p.Prefix)
	}
	return prefixes
}

// checkInside adds a fault if a valid EPE address is outside the prefixes of all default addresses
// of its IP version.
func (c *Config) checkInside(faults *fault.List, path string, address netip.Addr) {
	var own []netip.Prefix
	for _, a := range c.defaults() {
		if a.Address.IsValid() && a.Address.Addr().Is4() == address.Is4() {
			own = append(own, a.Address.Masked())
		}
	}
	if !address.IsValid() || len(own) == 0 || slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(address) }) {
		return
	}
	text := fmt.Sprint(own[0])
	for _, p := range own[1:] {
		text += fmt.Sprintf(" and %v", p)
	}
	faults.Add(path, "%v is outside the prefix %s: no return traffic would reach it", address, text)
}

// checkRoutes adds the faults of where routes come from.
func (c *Config) checkRoutes(faults *fault.List) {
	switch c.Routes {
	case "", BGPRoutes:
		if len(c.Reflectors) == 0 {
			faults.Add("reflectors", "must name at least one route reflector")
		}
		c.checkLocators(faults)
	case KernelRoutes:
		for key, given := range map[string]bool{
			"best_paths": c.BestPaths != "", "reflectors": len(c.Reflectors) > 0, "locators": len(c.Locators) > 0, "encap": c.Encap != "",
		} {
			if given {
				faults.Add(key, "has no effect with routes: %s, where another program installs the routes", KernelRoutes)
			}
		}
		if c.MPTCP.manager() == KernelPathManager {
			faults.Add("mptcp.path_manager", "%q follows no routes: routes: %s needs %q", KernelPathManager, KernelRoutes, UserPathManager)
		}
	default:
		faults.Add("routes", "must be %q or %q, got %q", BGPRoutes, KernelRoutes, c.Routes)
	}
}

// Warnings returns what is valid and does not fit: edge's path manager selects peers for each
// connection, the kernel's takes no more than fit.
func (c *Config) Warnings() fault.List {
	var warnings fault.List
	if c.MPTCP.manager() == KernelPathManager {
		return nil
	}
	for _, ip := range []bgp.IP{bgp.IPv6, bgp.IPv4} {
		n := 0
		for _, p := range c.Peers {
			if bgp.IPOf(p.Address) == ip {
				n++
			}
		}
		if n > pathmanager.MaxSlots {
			warnings.Add("peers", "%d have %s addresses: a connection uses at most %d of those that reach its client, the best by LOCAL_PREF, AS path and ORIGIN, those with backup last",
				n, ip, pathmanager.MaxSlots)
		}
	}
	return warnings
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
		for _, a := range c.defaults() {
			if p := a.Address.Masked(); p.IsValid() && l.Overlaps(p) {
				faults.Add(at, "%v overlaps prefix %v: a SID must not be one of our addresses", l, p)
			}
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
	switch p.Use {
	case "", UseAll:
	case UseOverflow:
		if p.manager() == KernelPathManager {
			faults.Add("use", "%q needs path_manager: %q, without limits", UseOverflow, UserPathManager)
		}
	default:
		faults.Add("use", "must be %q or %q, got %q", UseAll, UseOverflow, p.Use)
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

// CanChoose reports whether Use can be UseOverflow.
func (p Paths) CanChoose() bool { return p.manager() == UserPathManager }

// Chooses reports whether the paths of some connections are chosen, where others use all.
func (p Paths) Chooses() bool { return p.Use == UseOverflow || len(p.Policies) > 0 }

func (p Paths) use() Use { return cmp.Or(p.Use, UseAll) }

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

// links are the interfaces that packets to and from clients take.
func (c *Config) links() []string {
	links := []string{c.Interface}
	for _, p := range c.Peers {
		if p.Interface != "" && p.Interface != "lo" && !slices.Contains(links, p.Interface) {
			links = append(links, p.Interface)
		}
	}
	return links
}
