package reflector

import (
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/daemon/control"
)

// Config is the `reflector:` section of a configuration file.
type Config struct {
	// ASN is the own autonomous system number.
	ASN uint32 `yaml:"asn"`
	// RouterID is the BGP identifier, an IPv4 address that no other speaker of the AS has.
	RouterID netip.Addr `yaml:"router_id"`
	// Address is where the reflector listens and the source of its sessions.
	Address netip.Addr `yaml:"address"`
	// Clients are the border routers and servers of the AS. They may be absent if listen is there.
	// Default: none
	Clients []Client `yaml:"clients,omitempty"`
	// Listen accepts clients by their prefix, so that a new server needs no change here.
	Listen []Listen `yaml:"listen,omitempty"`
	// Port is where BGP listens, so that another speaker of this host keeps port 179. Default: 179.
	// Example: 1790
	Port uint16 `yaml:"port,omitempty"`
	// Control is the path of the Unix socket for tabane reload, which only the daemon's user and
	// root can use. Default: /run/tabane/reflector.sock.
	Control string `yaml:"control,omitempty"`
	// Status is where /status and /metrics are served. Default: port 9119 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Client is an ASBR or a server of our AS.
type Client struct {
	// Name identifies the client in logs, status and metrics.
	Name string `yaml:"name"`
	// Address is the client's address. The client connects from it.
	Address netip.Addr `yaml:"address"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
	// BFD detects the loss of the neighbor (RFC 5880).
	BFD bfd.Config `yaml:"bfd,omitempty"`
	// Locator is the client's SRv6 locator. When BFD detects the loss of the client, the servers
	// are sent the loss of the locator first. It needs bfd.
	Locator netip.Prefix `yaml:"locator,omitempty"`
}

// Listen is a group of clients that connect from the addresses of a prefix. A client with an entry
// of its own is not part of the group.
type Listen struct {
	// Name identifies the group; its clients are named NAME/ADDRESS in logs, status and metrics.
	// Example: servers
	Name string `yaml:"name"`
	// Prefix has the addresses of the clients. Example: 2001:db8:1:2::/64
	Prefix netip.Prefix `yaml:"prefix"`
	// Limit is the highest number of clients of the group that have a session. Default: 100
	Limit int `yaml:"limit,omitempty"`
	// Password is the key of TCP MD5 (RFC 2385) for all sessions of the group. Example: secret
	Password string `yaml:"password,omitempty"`
}

// DefaultLimit is the number of clients of a group that may have a session.
const DefaultLimit = 100

func (c *Config) checkListen(faults *fault.List, seen fault.Seen) {
	for i, l := range c.Listen {
		at := fmt.Sprintf("listen[%d]", i)
		if l.Name == "" {
			faults.Add(at+".name", "must not be empty")
		}
		seen.Check(faults, at, "name", l.Name)
		if l.Prefix.IsValid() && l.Prefix.Addr().Is4() != c.Address.Is4() {
			faults.Add(at+".prefix", "must be of the same address family as address, got %v", l.Prefix)
		}
		if !l.Prefix.IsValid() || l.Prefix.Addr().Is4In6() || l.Prefix != l.Prefix.Masked() || l.Prefix.Addr().IsLinkLocalUnicast() {
			faults.Add(at+".prefix", "must be a prefix of global addresses without host bits, got %v", l.Prefix)
		}
		for j, other := range c.Listen[:i] {
			if l.Prefix.IsValid() && other.Prefix == l.Prefix {
				faults.Add(at+".prefix", "%v is already listen[%d].prefix", l.Prefix, j)
			}
		}
		if l.Limit < 0 {
			faults.Add(at+".limit", "must be > 0, got %d", l.Limit)
		}
		faults.Merge(at, bgp.CheckPassword(l.Password))
	}
}

// checkLocator checks a client's locator, which is optional.
func (c *Config) checkLocator(faults *fault.List, at string, client int) {
	l := c.Clients[client].Locator
	switch {
	case l == (netip.Prefix{}):
	case !l.IsValid() || !l.Addr().Is6() || l.Addr().Is4In6() || l != l.Masked():
		faults.Add(at, "must be an IPv6 prefix without host bits, got %v", l)
	case !c.Clients[client].BFD.Enabled():
		faults.Add(at, "needs bfd, which detects the loss of the client")
	default:
		for i, other := range c.Clients[:client] {
			if other.Locator.IsValid() && other.Locator.Overlaps(l) {
				faults.Add(at, "%v overlaps clients[%d].locator %v", l, i, other.Locator)
			}
		}
	}
}

// Check returns all faults of the configuration. It does not touch the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	faults.Merge("", control.CheckPath(c.Control))
	faults.Merge("", bgp.CheckAddress(c.Address))
	if len(c.Clients) == 0 && len(c.Listen) == 0 {
		faults.Add("clients", "must name at least one client, or listen a prefix of clients")
	}
	seen := fault.Seen{}
	c.checkListen(&faults, seen)
	seen.Check(&faults, "", "address", c.Address)
	for i, client := range c.Clients {
		at := fmt.Sprintf("clients[%d]", i)
		if client.Name == "" {
			faults.Add(at+".name", "must not be empty")
		}
		faults.Merge(at, bgp.CheckAddress(client.Address))
		faults.Merge(at, bgp.CheckPassword(client.Password))
		faults.Merge(at, client.BFD.Check())
		c.checkLocator(&faults, at+".locator", i)
		seen.Check(&faults, at, "name", client.Name)
		seen.Check(&faults, at, "address", client.Address)
	}
	return faults
}
