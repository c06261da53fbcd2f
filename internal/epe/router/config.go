package router

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/daemon/control"
)

// Config is the `router:` section of a configuration file.
type Config struct {
	// ASN is the own autonomous system number.
	ASN uint32 `yaml:"asn"`
	// RouterID is the BGP identifier, an IPv4 address that no other speaker of the AS has.
	RouterID netip.Addr `yaml:"router_id"`
	// Networks are originated and advertised to every neighbor.
	Networks []netip.Prefix `yaml:"networks,omitempty"`
	// Leaks are originated as well, with an AS path behind the own number, as by a router that
	// leaks routes of others. Their traffic is not forwarded.
	Leaks []Leak `yaml:"leaks,omitempty"`
	// Generate originates a table like that of the Internet, for measurements. Their traffic is not
	// forwarded.
	Generate Generate `yaml:"generate,omitempty"`
	// Neighbors are the eBGP neighbors.
	Neighbors []Neighbor `yaml:"neighbors"`
	// PrefixLists are lists of prefixes that the rules of neighbors name. Of each list, the first
	// entry that matches a prefix decides; ge and le bound the length of the prefixes inside of an
	// entry.
	// Example: {customers: ["reject 2001:db8:a:1::/64", "accept 2001:db8:a::/48 le 64"]}
	PrefixLists map[string]policy.List `yaml:"prefix_lists,omitempty"`
	// Control is the path of the Unix socket for tabane reload, which only the daemon's user and
	// root can use. Default: /run/tabane/router.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9118 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	// Example: "[::1]:9118"
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Leak is a route that pretends to come from another AS.
type Leak struct {
	// Prefix is the destination of the route. Example: 2001:db8:c::/64
	Prefix netip.Prefix `yaml:"prefix"`
	// ASPath is the AS path behind the own number, the nearest AS first. Example: [65000, 65003]
	ASPath []uint32 `yaml:"as_path"`
}

// Equal reports whether two leaks are the same route.
func (l Leak) Equal(other Leak) bool {
	return l.Prefix == other.Prefix && slices.Equal(l.ASPath, other.ASPath)
}

// Neighbor is one eBGP neighbor.
type Neighbor struct {
	// Name identifies the neighbor in logs, status and metrics.
	Name string `yaml:"name"`
	// ASN is the neighbor's autonomous system number.
	ASN uint32 `yaml:"asn"`
	// Address is the neighbor's address on the link.
	Address netip.Addr `yaml:"address"`
	// Family is the IP version of the routes of the session: ipv4 or ipv6. IPv4 routes over an IPv6
	// session have IPv6 next hops (RFC 8950). Default: that of address. Example: ipv4
	Family bgp.IP `yaml:"family,omitempty"`
	// Interface is the link to the neighbor. The session goes down with it.
	Interface string `yaml:"interface"`
	// LocalPref is the LOCAL_PREF of all routes from the neighbor. Default: 100 (RFC 4271 section
	// 5.1.5).
	LocalPref uint32 `yaml:"local_pref,omitempty"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
	// BFD detects the loss of the neighbor (RFC 5880).
	BFD bfd.Config `yaml:"bfd,omitempty"`
	// Deny are prefixes that are not advertised to the neighbor, with everything inside of them;
	// "::/0" denies all of IPv6. Example: ["::/0"]
	Deny     []netip.Prefix `yaml:"deny,omitempty"`
	bgp.Keys `yaml:",inline"`
}

// Version is the IP version of the routes of the session.
func (n *Neighbor) Version() bgp.IP {
	if n.Family != "" {
		return n.Family
	}
	return bgp.IPOf(n.Address)
}

// versions are the IP versions of the routes of all neighbors.
func (c *Config) versions() []bgp.IP {
	var all []bgp.IP
	for i := range c.Neighbors {
		if v := c.Neighbors[i].Version(); !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// Check returns all faults of the configuration. It does not touch the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	faults.Merge("", control.CheckPath(c.Control))
	faults.Merge("", CheckPrefixes("networks", c.Networks))
	originated := map[netip.Prefix]bool{}
	for _, p := range c.Networks {
		originated[p] = true
	}
	for i, l := range c.Leaks {
		at := fmt.Sprintf("leaks[%d]", i)
		bgp.CheckPrefix(&faults, at+".prefix", l.Prefix)
		if originated[l.Prefix] {
			faults.Add(at+".prefix", "%s is originated already", l.Prefix)
		}
		originated[l.Prefix] = true
		if len(l.ASPath) == 0 || slices.Contains(l.ASPath, 0) {
			faults.Add(at+".as_path", "must be at least one AS number > 0, got %v", l.ASPath)
		}
	}
	faults.Merge("generate", c.Generate.check())
	if len(c.Neighbors) == 0 {
		faults.Add("neighbors", "must name at least one neighbor")
	}
	seen := fault.Seen{}
	for i, n := range c.Neighbors {
		at := fmt.Sprintf("neighbors[%d]", i)
		if n.Name == "" {
			faults.Add(at+".name", "must not be empty")
		}
		switch n.ASN {
		case 0:
			faults.Add(at+".asn", "must be > 0, got 0")
		case c.ASN:
			faults.Add(at+".asn", "a neighbor is another AS, got our own %d", n.ASN)
		}
		if n.Interface == "" {
			faults.Add(at+".interface", "must name the interface that the neighbor is reached by")
		}
		faults.Merge(at, bgp.CheckAddress(n.Address))
		faults.Merge(at, n.Family.Check(n.Address))
		faults.Merge(at, c.policies().CheckKeys(&n.Keys, n.Address, n.BFD))
		faults.Merge(at, bgp.CheckPassword(n.Password))
		faults.Merge(at, n.BFD.Check())
		faults.Merge(at, CheckPrefixes("deny", n.Deny))
		seen.Check(&faults, at, "name", n.Name)
		seen.Check(&faults, at, "address", n.Address)
	}
	return faults
}

// policies are what the rules of the neighbors have in common.
func (c *Config) policies() bgp.Policies { return bgp.Policies{Lists: c.PrefixLists} }

// Warnings returns what is valid and has no effect.
func (c *Config) Warnings() fault.List {
	var warnings fault.List
	keys := make([]*bgp.Keys, len(c.Neighbors))
	for i := range c.Neighbors {
		keys[i] = &c.Neighbors[i].Keys
		warnings.Merge(fmt.Sprintf("neighbors[%d]", i), c.policies().Warn(keys[i]))
	}
	warnings.Merge("prefix_lists", c.policies().WarnLists(keys...))
	return warnings
}

// CheckPrefixes returns a fault for each prefix of the list at path that a router cannot originate.
func CheckPrefixes(path string, prefixes []netip.Prefix) fault.List {
	var faults fault.List
	for i, p := range prefixes {
		bgp.CheckPrefix(&faults, fmt.Sprintf("%s[%d]", path, i), p)
	}
	return faults
}
