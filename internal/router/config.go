package router

import (
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/bfd"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/fault"
)

// Config is the `router:` section of a configuration file.
type Config struct {
	ASN      uint32     `yaml:"asn"`
	RouterID netip.Addr `yaml:"router_id"`
	// Networks are originated to every neighbor.
	Networks  []netip.Prefix `yaml:"networks,omitempty"`
	Neighbors []Neighbor     `yaml:"neighbors"`
	// Status is where /status and /metrics are served; loopback unless told otherwise.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Neighbor is one eBGP neighbor.
type Neighbor struct {
	Name      string     `yaml:"name"`
	ASN       uint32     `yaml:"asn"`
	Address   netip.Addr `yaml:"address"`
	Interface string     `yaml:"interface"`
	LocalPref uint32     `yaml:"local_pref,omitempty"`
	Password  string     `yaml:"password,omitempty"`
	BFD       bfd.Config `yaml:"bfd,omitempty"`
	// Deny keeps these prefixes and everything inside of them from the neighbor; it is told everything else. "::/0" tells
	// it nothing.
	Deny []netip.Prefix `yaml:"deny,omitempty"`
}

// Check says everything that is wrong with the configuration. It does not touch the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	checkPrefixes(&faults, "networks", c.Networks)
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
		faults.Merge(at, bgp.CheckPassword(n.Password))
		faults.Merge(at, n.BFD.Check())
		checkPrefixes(&faults, at+".deny", n.Deny)
		seen.Check(&faults, at, "name", n.Name)
		seen.Check(&faults, at, "address", n.Address)
	}
	return faults
}

func checkPrefixes(faults *fault.List, at string, prefixes []netip.Prefix) {
	for i, p := range prefixes {
		if !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6() || p != p.Masked() {
			faults.Add(fmt.Sprintf("%s[%d]", at, i), "must be an IPv6 prefix without host bits, got %v", p)
		}
	}
}
