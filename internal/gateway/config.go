package gateway

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/sealed"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Config is the `gateway:` section of a configuration file.
type Config struct {
	// Key is the file of the private key, which tabane gateway key makes. Only its owner may be
	// able to read it, and if that is root the group tabane. A relative path is relative to the
	// configuration file. Example: gw.key
	Key string `yaml:"key"`
	// Listen is the UDP port of all paths. A network that lets only a few ports pass may let 443,
	// which HTTP/3 has. Default: 4790
	Listen uint16 `yaml:"listen,omitempty"`
	// Role is what the gateway is in an alliance, whose hosts share their lines: home-agent, leader
	// or member. docs/shake.md describes them. Default: it is in none
	Role string `yaml:"role,omitempty"`
	// LAN is the network that this gateway serves. A leader and a home agent need one; others
	// without one carry their own packets and what they forward, as a VPS does.
	LAN LAN `yaml:"lan,omitempty"`
	// Masquerade gives packets from peers' prefixes that leave by a path, outside of the tunnel,
	// the address of the path's interface as source, so that they reach the Internet. The rules are
	// in the table tabane-gateway of nftables. Example: true
	Masquerade bool `yaml:"masquerade,omitempty"`
	// Routed are prefixes that this host's provider routes to it, and of which peers have parts.
	// With masquerade, packets from there keep their source, and no host of the Internet can
	// connect to one of them, unless inbound has it. What no peer has is unreachable.
	// Example: ["2001:db8:100::/48"]
	Routed []netip.Prefix `yaml:"routed,omitempty"`
	// Inbound are the parts of routed that hosts of the Internet may connect to. Example:
	// ["2001:db8:100:10::5/128"]
	Inbound []netip.Prefix `yaml:"inbound,omitempty"`
	// Firewall is what happens where a chain of nftables or iptables drops packets that the gateway
	// carries. report: tabane doctor, the status and the log name the chain and the rule to add.
	// manage: the daemon inserts that rule, with its name as comment, and removes it when it stops;
	// in chains of nftables and iptables-nft. Default: report
	Firewall string `yaml:"firewall,omitempty"`
	// Tunnel is the interface that packets to the peers are routed to.
	Tunnel Tunnel `yaml:"tunnel,omitempty"`
	// Paths are the lines of this site, 1 to 16.
	Paths []Path `yaml:"paths"`
	// Peers are the other gateways, optional for a member only. A leader has one, its home agent;
	// the leaders of a home agent are its peers without endpoints.
	Peers []Peer `yaml:"peers,omitempty"`
	// Registration bounds what is registered between a leader, its members and its home agent.
	Registration Registration `yaml:"registration,omitempty"`
	// ShortLinks are the interfaces over which leaders reach a member. Example: [wlan0]
	ShortLinks []string `yaml:"short_links,omitempty"`
	// Leaders are the hosts that a member relays for.
	Leaders []Leader `yaml:"leaders,omitempty"`
	// Policy is how packets are distributed over the paths: the first rule that matches a packet
	// decides. Default: discipline auto, resequence auto
	Policy []Rule `yaml:"policy,omitempty"`
	// Probes measure the paths. Default: sealed
	Probes Probes `yaml:"probes,omitempty"`
	// QuotaFile keeps what lines with a quota have carried. Default: /var/lib/tabane/gateway.quota
	// Example: gateway.quota
	QuotaFile string `yaml:"quota_file,omitempty"`
	// Control is the path of the Unix socket for tabane reload, which only the daemon's user and
	// root can use. Default: /run/tabane/gateway.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9115 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	// Example: "[::1]:9115"
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Probes measure the paths. On a slow path they are sent less often than configured, down to one
// each second: never so often that they take more than 1 % of its rate. The short form is the
// format.
type Probes struct {
	// Format is sealed, which measures delay and jitter by every packet; or compatible, which
	// measures them by the probes of Mobile IP SHAKE alone (60 and 64 bytes, not authenticated).
	// With compatible, a configured rate is used as it is, and packets are not queued in front of
	// the path. Both gateways need the same format. Default: sealed
	Format string `yaml:"format,omitempty"`
	// Interval is the time between probes of a path without traffic, 100ms to 1m. Default: 1s
	Interval time.Duration `yaml:"interval,omitempty"`
	// Busy is the time between them while packets flow, 10ms to the interval. Default: 50ms
	Busy time.Duration `yaml:"busy,omitempty"`
}

// The formats of probes.
const (
	ProbesSealed     = "sealed"
	ProbesCompatible = "compatible"
)

// ParseShort implements field.Short.
func (p *Probes) ParseShort(text string) error {
	if text != ProbesSealed && text != ProbesCompatible {
		return fmt.Errorf("want %s or %s, got %q", ProbesSealed, ProbesCompatible, text)
	}
	*p = Probes{Format: text}
	return nil
}

// Short implements field.Short.
func (p *Probes) Short() (string, bool) { return p.Format, p.Interval == 0 && p.Busy == 0 }

// The bounds and defaults of the intervals of probes.
const (
	minInterval, defaultInterval, maxInterval = 100 * time.Millisecond, time.Second, time.Minute
	minBusy, defaultBusy                      = 10 * time.Millisecond, 50 * time.Millisecond
)

// plane returns the probes as the plane has them.
func (p *Probes) plane() dataplane.Probes {
	idle := cmp.Or(p.Interval, defaultInterval)
	return dataplane.Probes{Compatible: p.Format == ProbesCompatible, Idle: idle, Busy: cmp.Or(p.Busy, min(defaultBusy, idle))}
}

func (c *Config) checkProbes(faults *fault.List) {
	p := c.Probes
	if p.Format != "" && p.Format != ProbesSealed && p.Format != ProbesCompatible {
		faults.Add("probes.format", "must be %s or %s, got %q", ProbesSealed, ProbesCompatible, p.Format)
	}
	if p.Interval != 0 && (p.Interval < minInterval || p.Interval > maxInterval) {
		faults.Add("probes.interval", "must be %s to %s, got %s", minInterval, maxInterval, p.Interval)
	}
	if idle := cmp.Or(p.Interval, defaultInterval); p.Busy != 0 && (p.Busy < minBusy || p.Busy > idle) {
		faults.Add("probes.busy", "must be %s to the interval, %s, got %s", minBusy, idle, p.Busy)
	}
}

// LAN is the network behind a gateway.
type LAN struct {
	// Interfaces are the interfaces that lead to the hosts. Example: [eth0]
	Interfaces []string `yaml:"interfaces,omitempty"`
	// Prefixes are the addresses of the hosts. Example: [10.1.0.0/16]
	Prefixes []netip.Prefix `yaml:"prefixes,omitempty"`
	// Masquerade gives packets of IPv4 from the LAN that go to peers the gateway's address in the
	// tunnel as source. It is for a LAN whose addresses another site has, too: hosts connect to the
	// Internet and to other sites through the peers, and nobody connects to them. Example: true
	Masquerade bool `yaml:"masquerade,omitempty"`
}

// Tunnel is the interface of the tunnel.
type Tunnel struct {
	// Interface is its name. Default: tabane0
	Interface string `yaml:"interface,omitempty"`
	// MTU is the largest packet that is carried whole, in bytes. Default: what the smallest MTU of
	// the paths' interfaces leaves: 72 bytes less, or 92 if the gateways reach each other by IPv6.
	// Example: 1400
	MTU int `yaml:"mtu,omitempty"`
	// Addresses are those of the gateway on the tunnel, which it answers from. Without any it uses
	// those of its other interfaces. Example: [10.1.255.1/32]
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
}

// Path is a line of the site.
type Path struct {
	// Name identifies the path in logs, status and metrics. Example: fiber
	Name string `yaml:"name"`
	// Interface is the interface of the line. Example: eth1
	Interface string `yaml:"interface"`
	// Via are the routers on the line, at most one of each IP version. Packets of the path are sent
	// to them; no other packet is. Default: where the main table's routes through the interface
	// lead.
	// Example: [192.0.2.1]
	Via []netip.Addr `yaml:"via,omitempty"`
	// Rate is the rate in both directions, or down and up, of whole IP packets. It is a bandwidth,
	// auto if it is to be measured, or none for a direction that carries nothing. Example: 50Mbit/s
	// Default: of a path over a member, what it offers
	Rate Rates `yaml:"rate,omitempty"`
	// Strict makes the rates a limit that is never exceeded, as for a metered line or one whose
	// provider drops what is more. Otherwise up to 1.5 times a rate is used where the line carries
	// it. Rates must be bandwidths of at most 2 Gbit/s, or none. Example: true
	Strict bool `yaml:"strict,omitempty"`
	// Cost compares the prices of paths. Paths of a higher cost carry no copies, unless a rule has
	// copy_costlier. Default: 0
	Cost int `yaml:"cost,omitempty"`
	// Backup has packets sent over the line only while no other one carries them, with true; with
	// full, also while the others cannot take all. docs/gateway-measured.md has what such a line
	// carries in a day, section An idle line. Example: true
	Backup Backup `yaml:"backup,omitempty"`
	// Probes is the time within which a line that is a backup, or has used up its quota, is found
	// dead while it carries no packets, 5s to 1h. It is probed a little more often than that. Default:
	// 30s
	// Example: 2m
	Probes time.Duration `yaml:"probes,omitempty"`
	// Quota is what the line may carry in a month. The short form is the volume. Example:
	// 20GB/month
	Quota Quota `yaml:"quota,omitempty"`
	// Member makes the path one of a leader over a member, which relays messages between the
	// interface, a link to it, and the home agent.
	Member Member `yaml:"member,omitempty"`
}

// Quota is what a line may carry in a month, in both directions together, in bytes of IP packets
// with the headers of the tunnel.
type Quota struct {
	// Volume is that of a month. Example: 20GB
	Volume unit.Size `yaml:"volume"`
	// Day is the day of the month with which a new count begins, 1 to 28. Default: 1
	Day int `yaml:"day,omitempty"`
	// Then is what happens when the volume is used up: stop, so that no packets are sent over the
	// line; or backup, so that it is used as a backup. Default: stop
	Then string `yaml:"then,omitempty"`
}

// Rates are the rates of a path.
type Rates struct {
	// Down is the rate towards this site. Example: 300Mbit/s
	Down Rate `yaml:"down"`
	// Up is the rate from this site. Example: 50Mbit/s
	Up Rate `yaml:"up"`
}

// Peer is another gateway.
type Peer struct {
	// Name identifies the peer in logs, status and metrics. Example: hq
	Name string `yaml:"name"`
	// PublicKey is the peer's public key, as tabane gateway key prints it on the other side.
	// Example: lI7yrR4NpZtPhsJMRLPqKeoJPjDqVVG6D5IbeAmMQmk=
	PublicKey string `yaml:"public_key"`
	// PresharedKey is a file with a secret that both sides have besides their keys, 32 bytes in
	// base64. Example: hq.psk
	PresharedKey string `yaml:"preshared_key,omitempty"`
	// Endpoints are where the peer listens. Each path uses the first one that answers through its
	// interface. The addresses of a name are looked up again every minute. A peer without endpoints
	// has to start the session itself. Example: ["hq.example:4790"]
	Endpoints []Endpoint `yaml:"endpoints,omitempty"`
	// Mode is how packets to the peer are carried: tunnel, in UDP and encrypted unless seal is
	// none; plain, as they are, by an eBPF program; or nat, as plain with the address of each path
	// as their source. If it is nat, the peer needs nat, too. docs/gateway.md compares them,
	// section Modes. Default: tunnel
	Mode string `yaml:"mode,omitempty"`
	// Seal is which packets of mode tunnel are encrypted: all, or none, so that an eBPF program
	// sends them. The peer needs the same value. Default: all
	Seal string `yaml:"seal,omitempty"`
	// Prefixes are behind the peer: packets to them are sent to it, and it may send only packets
	// from them.
	// Example: [10.2.0.0/16]
	Prefixes []netip.Prefix `yaml:"prefixes"`
	// Allow are the destinations behind this gateway that packets from the peer may have, answers
	// to this site's hosts as well. Others are dropped and counted (destination not allowed). Default:
	// all Example: [10.1.0.0/24]
	Allow []netip.Prefix `yaml:"allow,omitempty"`
}

// Endpoint is where a peer listens: a host and a port.
type Endpoint string

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *Endpoint) UnmarshalText(text []byte) error {
	read := Endpoint(text)
	_, _, err := read.split()
	if err == nil {
		*e = read
	}
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e), nil }

// hostName is a name of the DNS (RFC 1123 section 2.1).
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?$`)

// split returns the host and the port of the address.
func (e Endpoint) split() (host string, port uint16, err error) {
	host, number, err := net.SplitHostPort(string(e))
	wrong := fmt.Errorf(`want HOST:PORT like "hq.example:4790" or "[2001:db8::1]:4790", got %q`, string(e))
	if err != nil {
		return "", 0, wrong
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return "", 0, wrong
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
			return "", 0, fmt.Errorf("want the address of a gateway, got %q", string(e))
		}
		return host, uint16(n), nil
	}
	// What looks like an address and is none is not a name either.
	const longestName = 253
	if !hostName.MatchString(host) || len(host) > longestName || strings.Trim(host, "0123456789.") == "" {
		return "", 0, wrong
	}
	return host, uint16(n), nil
}

// Rule is an entry of the policy.
type Rule struct {
	// Match selects packets; all its keys have to match. Default: all packets
	Match Match `yaml:"match,omitempty"`
	// Discipline distributes the packets over the paths: auto, dq, dqj, ratio, redundant, flow or
	// best, or its parameters. docs/gateway.md describes them.
	Discipline Discipline `yaml:"discipline"`
	// Resequence is how the receiver restores the order of the packets: auto, off, or the longest
	// time that a packet is held. Default: auto. Example: 20ms
	Resequence Resequence `yaml:"resequence,omitempty"`
	// CopyCostlier lets the discipline auto send copies of packets on paths that cost more than
	// that of the packet. Default: false. Example: true
	CopyCostlier bool `yaml:"copy_costlier,omitempty"`
}

// Match selects packets.
type Match struct {
	// Protocol is an IP protocol: tcp, udp, icmp (of both IP versions), sctp, dccp, gre, esp, or a
	// number. Example: udp
	Protocol Protocol `yaml:"protocol,omitempty"`
	// Port is the source or destination port. Example: 443
	Port uint16 `yaml:"port,omitempty"`
	// DSCP is a differentiated services code point: ef, va, cs0 to cs7, af11 to af43, le, or a
	// number.
	// Example: ef
	DSCP DSCP `yaml:"dscp,omitempty"`
	// Prefix contains the source or the destination. Example: 10.2.3.0/24
	Prefix netip.Prefix `yaml:"prefix,omitempty"`
	// Mark is the packet's mark in the kernel (SO_MARK, tc skbedit) at ingress of the LAN's
	// interface: a number, or a number and the mask of the bits that are compared. All peers need
	// mode plain, mode nat or seal none, because the TUN device does not pass marks on. Example:
	// 0x10/0xff
	Mark Mark `yaml:"mark,omitempty"`
}

// Discipline is a discipline with its parameters. The short form is its name, or that of a choice
// of the discipline flow.
type Discipline struct {
	// Name is the discipline. Default: the one that has the parameter. Example: auto
	Name string `yaml:"name,omitempty"`
	// Ratio is the number of consecutive packets for each path, in their order. 0 leaves a path
	// out.
	// Example: "2:1"
	Ratio string `yaml:"ratio,omitempty"`
	// Flow is how the discipline flow chooses the path of a new flow: pinned, by the paths' rates;
	// cheapest, the same among the paths of the lowest cost; or fastest. Default: pinned
	Flow string `yaml:"flow,omitempty"`
}

// ParseShort implements field.Short.
func (d *Discipline) ParseShort(text string) error {
	if text == dataplane.Ratio {
		return fmt.Errorf(`want the ratio too: {ratio: "2:1"}`)
	}
	if !slices.Contains(sched.Disciplines(), text) {
		return fmt.Errorf("want one of %s, got %q%s", strings.Join(sched.Disciplines(), ", "), text, fault.Suggest(text, sched.Disciplines()))
	}
	*d = Discipline{Name: text}
	return nil
}

// Short implements field.Short.
func (d *Discipline) Short() (string, bool) { return d.Name, d.Ratio == "" && d.Flow == "" }

// maxRatio bounds the number of consecutive packets on one path.
const maxRatio = 1000

// choices are how the discipline flow can choose a path, the default first.
var choices = []sched.Choice{sched.Pinned, sched.Cheapest, sched.Fastest}

// choice returns the choice of that name; false if there is none.
func choice(name string) (sched.Choice, bool) {
	i := slices.IndexFunc(choices, func(c sched.Choice) bool { return c.String() == name })
	if i < 0 {
		return 0, false
	}
	return choices[i], true
}

// plane returns the discipline as the plane has it, for so many paths.
func (d *Discipline) plane(paths int) (dataplane.Discipline, fault.List) {
	var faults fault.List
	r := dataplane.Discipline{Name: d.Name}
	switch {
	case d.Ratio != "" && d.Flow != "":
		faults.Add("flow", "must be left out beside ratio: they are parameters of two disciplines")
	case d.Ratio != "":
		r.Name = cmp.Or(d.Name, dataplane.Ratio)
		if r.Name != dataplane.Ratio {
			faults.Add("ratio", "is not a parameter of %s", d.Name)
		}
		r.Ratio = d.ratio(&faults, paths)
	case d.Flow != "":
		if r.Name = cmp.Or(d.Name, dataplane.Flow); r.Name != dataplane.Flow {
			faults.Add("flow", "is not a parameter of %s", d.Name)
		}
		var known bool
		if r.Choice, known = choice(d.Flow); !known {
			faults.Add("flow", "must be one of pinned, cheapest, fastest, got %q", d.Flow)
		}
	case d.Name == "":
		faults.Add("", "must be one of %s", strings.Join(sched.Disciplines(), ", "))
	case d.Name == dataplane.Ratio:
		faults.Add("ratio", "must be given")
	case !slices.Contains(sched.Disciplines(), d.Name):
		faults.Add("name", "must be one of %s, got %q%s", strings.Join(sched.Disciplines(), ", "), d.Name, fault.Suggest(d.Name, sched.Disciplines()))
	}
	return r, faults
}

// ratio returns the numbers of Ratio.
func (d *Discipline) ratio(faults *fault.List, paths int) []int {
	var list []int
	sum := 0
	for text := range strings.SplitSeq(d.Ratio, ":") {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n > maxRatio {
			faults.Add("ratio", `must be numbers from 0 to %d like "2:1", one for each path, got %q`, maxRatio, d.Ratio)
			return nil
		}
		list, sum = append(list, int(n)), sum+int(n)
	}
	switch {
	case sum == 0:
		faults.Add("ratio", "must give packets to at least one path, got %q", d.Ratio)
	case len(list) != paths:
		faults.Add("ratio", "must have one number for each of the %d paths, got %q", paths, d.Ratio)
	}
	return list
}

// The defaults of a Config.
const (
	defaultListen = 4790
	// firstUserPort is the default of net.ipv4.ip_unprivileged_port_start.
	firstUserPort = 1024
	// DefaultInterface is the interface of the tunnel.
	DefaultInterface = "tabane0"
)

// Port returns the UDP port of all paths.
func (c *Config) Port() uint16       { return cmp.Or(c.Listen, defaultListen) }
func (c *Config) tunnelName() string { return cmp.Or(c.Tunnel.Interface, DefaultInterface) }

// LowPort reports whether the port needs CAP_NET_BIND_SERVICE, also while the gateway runs: an
// interface that comes back gets a socket of its own.
func (c *Config) LowPort() bool { return c.Port() < firstUserPort }

const (
	// minMTU is the smallest MTU of IPv6 (RFC 8200 section 5), maxMTU what fits an IPv4 packet with
	// the tunnel.
	minMTU, maxMTU = 1280, 65535 - 72
	// maxPeers bounds peers, maxPrefixes the prefixes of each.
	maxPeers, maxPrefixes = 1000, 1000
	// maxRules bounds the policy: each packet is compared with it.
	maxRules = 64
	// maxCost bounds the cost of a path, maxHold the time that a packet is held.
	maxCost = 1_000_000
	maxHold = 2 * time.Second
)

var linkNames = regexp.MustCompile(`^[^\s/:.][^\s/:]{0,14}$`)

const wantWord = "must be letters, digits, dots, underscores and hyphens, at most 64, got %q"

// Check returns all faults of the section. It does not access the system: Files does.
func (c *Config) Check() fault.List {
	faults := control.CheckPath(c.Control)
	if c.Key == "" {
		faults.Add("key", "must be the file of the private key: tabane gateway key --out FILE")
	}
	c.checkLAN(&faults)
	c.checkTunnel(&faults)
	c.checkPaths(&faults)
	c.checkPeers(&faults)
	c.checkMasquerade(&faults)
	c.checkFirewall(&faults)
	c.checkPolicy(&faults)
	c.checkAlliance(&faults)
	c.checkProbes(&faults)
	c.checkOpen(&faults)
	return faults
}

func checkLink(faults *fault.List, at, name string) {
	if !linkNames.MatchString(name) {
		faults.Add(at, "must be the name of an interface, at most 15 bytes, got %q", name)
	}
}

// checkPrefix adds the faults of a prefix of hosts; it reports whether there are none.
func checkPrefix(faults *fault.List, at string, p netip.Prefix) bool {
	if !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() || p.Bits() > 0 && !unicast(p) {
		faults.Add(at, "must be a prefix of unicast addresses without host bits, got %v", p)
		return false
	}
	return true
}

// unicast reports whether a prefix has addresses that a host may have beyond its link. 0.0.0.0/1
// has.
func unicast(p netip.Prefix) bool {
	a := p.Addr()
	return !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.IsLoopback() && (a.Is6() || p.Bits() < 8 || a.As4()[0] != 0) && (a.Is4() || p.Bits() < 96 || !a.IsUnspecified())
}

func (c *Config) checkLAN(faults *fault.List) {
	seen := fault.Seen{}
	for i, name := range c.LAN.Interfaces {
		at := fmt.Sprintf("lan.interfaces[%d]", i)
		checkLink(faults, at, name)
		seen.Check(faults, at, "", name)
	}
	if len(c.LAN.Prefixes) == 0 && (c.Role == RoleLeader || c.Role == RoleHomeAgent || len(c.LAN.Interfaces) > 0) {
		faults.Add("lan.prefixes", "must have at least one prefix")
	}
	for i, p := range c.LAN.Prefixes {
		at := fmt.Sprintf("lan.prefixes[%d]", i)
		if !checkPrefix(faults, at, p) {
			continue
		}
		for j, o := range c.LAN.Prefixes[:i] {
			if o.IsValid() && o.Overlaps(p) {
				faults.Add(at, "%v overlaps lan.prefixes[%d] %v", p, j, o)
			}
		}
	}
}

func (c *Config) checkTunnel(faults *fault.List) {
	if c.Tunnel.Interface != "" {
		checkLink(faults, "tunnel.interface", c.Tunnel.Interface)
	}
	if m := c.Tunnel.MTU; m != 0 && (m < minMTU || m > maxMTU) {
		faults.Add("tunnel.mtu", "must be %d to %d bytes, got %d", minMTU, maxMTU, m)
	}
	for i, a := range c.Tunnel.Addresses {
		if !a.IsValid() || a.Addr().Is4In6() || a.Addr().IsMulticast() || a.Addr().IsUnspecified() || a.Addr().IsLoopback() {
			faults.Add(fmt.Sprintf("tunnel.addresses[%d]", i), "must be an address with its prefix length, got %v", a)
		}
	}
}

func (c *Config) checkPaths(faults *fault.List) {
	if n := len(c.Paths); n == 0 || n > dataplane.MaxPaths {
		faults.Add("paths", "must be 1 to %d, got %d", dataplane.MaxPaths, n)
	}
	seen := fault.Seen{}
	up := false
	for i, p := range c.Paths {
		at := fmt.Sprintf("paths[%d]", i)
		if !tunnel.ValidName(p.Name) {
			faults.Add(at+".name", wantWord, p.Name)
		}
		checkLink(faults, at+".interface", p.Interface)
		seen.Check(faults, at, "name", p.Name)
		if !p.overMember() { // several members may be on one link
			seen.Check(faults, at, "interface", p.Interface)
		}
		if p.Interface == c.tunnelName() {
			faults.Add(at+".interface", "%q is the tunnel itself", p.Interface)
		}
		if i := slices.Index(c.LAN.Interfaces, p.Interface); i >= 0 {
			faults.Add(at+".interface", "%q is lan.interfaces[%d] already", p.Interface, i)
		}
		for j, via := range p.Via {
			at := fmt.Sprintf("%s.via[%d]", at, j)
			switch {
			case !via.IsValid() || via.Is4In6() || via.IsUnspecified() || via.IsMulticast() || via.IsLoopback() || via.Zone() != "":
				faults.Add(at, "must be the address of a router on the line, without a zone, got %v", via)
			case slices.ContainsFunc(p.Via[:j], func(o netip.Addr) bool { return o.Is4() == via.Is4() }):
				faults.Add(at, "must be of another IP version than the one before, got %v", via)
			}
		}
		if p.Rate.Down == 0 && !p.overMember() {
			faults.Add(at+".rate.down", "must be given: a bandwidth, auto or none")
		}
		if p.Rate.Up == 0 && !p.overMember() {
			faults.Add(at+".rate.up", "must be given: a bandwidth, auto or none")
		}
		if p.Rate == (Rates{RateNone, RateNone}) {
			faults.Add(at+".rate", "must not be none in both directions: such a path carries nothing")
		}
		up = up || p.Rate.Up != RateNone
		if p.Strict {
			c.checkStrict(faults, at, &p)
		}
		if p.Cost < 0 || p.Cost > maxCost {
			faults.Add(at+".cost", "must be 0 to %d, got %d", maxCost, p.Cost)
		}
		c.checkMetered(faults, at, &p)
	}
	if n := len(c.Paths); n > 0 && !slices.ContainsFunc(c.Paths, func(p Path) bool { return p.Backup == NoBackup }) {
		faults.Add(fmt.Sprintf("paths[%d].backup", n-1), "must be left out: one path has to be no backup")
	}
	if !up && len(c.Paths) > 0 {
		faults.Add("paths", "must have a path with a rate up: otherwise nothing can be sent")
	}
}

// checkStrict checks a path whose rates are never to be exceeded.
func (c *Config) checkStrict(faults *fault.List, at string, p *Path) {
	for _, r := range []struct {
		name string
		rate Rate
	}{{"down", p.Rate.Down}, {"up", p.Rate.Up}} {
		switch b := unit.Bandwidth(r.rate); {
		case r.rate == RateAuto || r.rate == 0 && p.overMember():
			faults.Add(at+".rate."+r.name, "must be a bandwidth: strict does not let it be exceeded")
		case b > sealed.MaxShaped:
			faults.Add(at+".rate."+r.name, "must be at most %v with strict, got %v: packets of faster lines are not paced", sealed.MaxShaped, b)
		}
	}
	if c.Probes.Format == ProbesCompatible {
		faults.Add(at+".strict", "must not be with probes.format %s: packets are not paced", c.Probes.Format)
	}
	if i := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.mode().Open() }); i >= 0 {
		faults.Add(at+".strict", "must not be with peers[%d], whose packets are not encrypted: a program in the kernel sends them, and does not pace them", i)
	}
}

// owned is a prefix of a peer and the path of its value.
type owned struct {
	prefix netip.Prefix
	at     string
}

func (c *Config) checkPeers(faults *fault.List) {
	if n := len(c.Peers); n == 0 && c.Role != RoleMember || n > maxPeers {
		faults.Add("peers", "must be 1 to %d, got %d", maxPeers, n)
	}
	seen := fault.Seen{}
	var prefixes []owned
	for i, p := range c.Peers {
		at := fmt.Sprintf("peers[%d]", i)
		if !tunnel.ValidName(p.Name) {
			faults.Add(at+".name", wantWord, p.Name)
		}
		seen.Check(faults, at, "name", p.Name)
		if _, err := handshake.ParsePublicKey(p.PublicKey); err != nil {
			faults.Add(at+".public_key", "%v", err)
		} else {
			seen.Check(faults, at, "public_key", p.PublicKey)
		}
		c.checkMode(faults, at, &p)
		checkEndpoints(faults, at+".endpoints", p.Endpoints)
		if n := len(p.Prefixes); n == 0 || n > maxPrefixes {
			faults.Add(at+".prefixes", "must be 1 to %d, got %d", maxPrefixes, n)
		}
		for j, prefix := range p.Prefixes {
			at := fmt.Sprintf("%s.prefixes[%d]", at, j)
			if checkPrefix(faults, at, prefix) {
				prefixes = append(prefixes, owned{prefix, at})
			}
		}
		checkAllow(faults, at+".allow", p.Allow)
	}
	c.checkOverlaps(faults, prefixes)
}

// checkAllow adds the faults of what a peer may reach.
func checkAllow(faults *fault.List, key string, list []netip.Prefix) {
	if len(list) > maxPrefixes {
		faults.Add(key, "must be at most %d, got %d", maxPrefixes, len(list))
	}
	seen := fault.Seen{}
	for i, p := range list {
		at := fmt.Sprintf("%s[%d]", key, i)
		if checkPrefix(faults, at, p) {
			seen.Check(faults, at, "", p.String())
		}
	}
}

// checkOverlaps adds a fault for each prefix of a peer that overlaps another one. A default route
// may contain those of other peers: the longest prefix wins, in the kernel's tables as in the
// plane's. The prefixes of the LAN may be part of a peer's, but not contain one.
func (c *Config) checkOverlaps(faults *fault.List, list []owned) {
	for _, p := range list {
		for i, l := range c.LAN.Prefixes {
			if l.IsValid() && l.Overlaps(p.prefix) && l.Bits() <= p.prefix.Bits() {
				faults.Add(p.at, "%v overlaps lan.prefixes[%d] %v", p.prefix, i, l)
			}
		}
	}
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	// Sorted by address, overlapping prefixes follow each other: the shorter one first.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(list[a].prefix.Addr().Compare(list[b].prefix.Addr()), cmp.Compare(list[a].prefix.Bits(), list[b].prefix.Bits()))
	})
	var around []int
	for _, i := range order {
		for len(around) > 0 && !list[around[len(around)-1]].prefix.Overlaps(list[i].prefix) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 && (list[around[len(around)-1]].prefix.Bits() > 0 || list[i].prefix.Bits() == 0) {
			first, second := list[min(i, around[len(around)-1])], list[max(i, around[len(around)-1])]
			faults.Add(second.at, "%v overlaps %s %v", second.prefix, first.at, first.prefix)
		}
		around = append(around, i)
	}
}

func checkEndpoints(faults *fault.List, key string, list []Endpoint) {
	seen := fault.Seen{}
	for i, e := range list {
		at := fmt.Sprintf("%s[%d]", key, i)
		if _, _, err := e.split(); err != nil {
			faults.Add(at, "%v", err)
		}
		seen.Check(faults, at, "", e)
	}
}

func (c *Config) checkPolicy(faults *fault.List) {
	if n := len(c.Policy); n > maxRules {
		faults.Add("policy", "must have at most %d rules, got %d", maxRules, n)
	}
	for i, r := range c.Policy {
		at := fmt.Sprintf("policy[%d]", i)
		_, list := r.Discipline.plane(len(c.Paths))
		faults.Merge(at+".discipline", list)
		if r.Match.Port != 0 && !r.Match.Protocol.hasPorts() {
			faults.Add(at+".match.port", "must be left out: protocol %s has no ports", r.Match.Protocol.name)
		}
		if i := slices.IndexFunc(c.Peers, func(p Peer) bool { return !p.mode().Open() }); i >= 0 && r.Match.Mark.mask != 0 {
			faults.Add(at+".match.mark", "must be left out: peers[%d] has mode %s, and the kernel does not pass the marks of packets to the device of the tunnel", i, dataplane.Tunnel)
		}
		if m := r.Match.Prefix; m != (netip.Prefix{}) {
			checkPrefix(faults, at+".match.prefix", m)
		}
		if r.CopyCostlier && r.Discipline.Name != dataplane.Auto {
			faults.Add(at+".copy_costlier", "must be left out: of all disciplines, %s alone sends copies where they are free, and %s sends all", dataplane.Auto, dataplane.Redundant)
		}
		if d := r.Resequence.Bound; d < 0 || d > maxHold {
			faults.Add(at+".resequence", "must be auto, off, or a time up to %s, got %s", maxHold, d)
		}
	}
	if n := len(c.Policy); n > 0 && c.Policy[n-1].Match != (Match{}) {
		faults.Add(fmt.Sprintf("policy[%d].match", n-1), "must be left out in the last rule, which is for all other packets")
	}
}

// Warnings returns what is valid and has no effect, or another one than may be expected.
func (c *Config) Warnings() fault.List {
	var warnings fault.List
	c.warnOpen(&warnings)
	if c.Probes.Format == ProbesCompatible {
		warnings.Add("probes.format", "nothing authenticates compatible probes: a stranger who sees one, or guesses its number and time, "+
			"can make a path look slow or jittery, so that it is avoided, or fast, so that it is preferred; packets stay sealed")
	}
	if len(c.Policy) == 0 {
		return warnings
	}
	costs := !slices.ContainsFunc(c.Paths, func(p Path) bool { return p.Cost != c.Paths[0].Cost })
	for i, r := range c.Policy {
		if r.CopyCostlier && costs {
			warnings.Add(fmt.Sprintf("policy[%d].copy_costlier", i), "has no effect: all paths have the same cost")
		}
	}
	all := slices.IndexFunc(c.Policy, func(r Rule) bool { return r.Match == (Match{}) })
	for i := all + 1; i < len(c.Policy); i++ {
		warnings.Add(fmt.Sprintf("policy[%d]", i), "no packet reaches it: policy[%d] matches all", all)
	}
	return warnings
}
