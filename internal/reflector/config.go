package reflector

import (
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/fault"
)

// Config is the `reflector:` section of a configuration file.
type Config struct {
	ASN      uint32     `yaml:"asn"`
	RouterID netip.Addr `yaml:"router_id"`
	// Address is what the reflector listens on and talks from.
	Address netip.Addr `yaml:"address"`
	Clients []Client   `yaml:"clients"`
	// Status is where /status and /metrics are served; loopback unless told otherwise.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Client is an ASBR or a server of our AS.
type Client struct {
	Name     string     `yaml:"name"`
	Address  netip.Addr `yaml:"address"`
	Password string     `yaml:"password,omitempty"`
	BFD      bgp.BFD    `yaml:"bfd,omitempty"`
}

// Check says everything that is wrong with the configuration. It does not touch the system.
func (c *Config) Check() fault.List {
	faults := bgp.CheckIdentity(c.ASN, c.RouterID)
	faults.Merge("", bgp.CheckAddress(c.Address))
	if len(c.Clients) == 0 {
		faults.Add("clients", "must name at least one client")
	}
	seen := fault.Seen{}
	seen.Check(&faults, "", "address", c.Address)
	for i, client := range c.Clients {
		at := fmt.Sprintf("clients[%d]", i)
		if client.Name == "" {
			faults.Add(at+".name", "must not be empty")
		}
		faults.Merge(at, bgp.CheckAddress(client.Address))
		faults.Merge(at, bgp.CheckPassword(client.Password))
		faults.Merge(at, bgp.CheckBFD(client.BFD))
		seen.Check(&faults, at, "name", client.Name)
		seen.Check(&faults, at, "address", client.Address)
	}
	return faults
}
