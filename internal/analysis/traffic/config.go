package traffic

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
)

// Config is the `serve:` section of a configuration file or of a scenario's node.
type Config struct {
	// Port is the TCP port to serve on, on all addresses.
	Port uint16 `yaml:"port"`
	// Ports are further ports that serve the same, as for policies of edge.
	Ports []uint16 `yaml:"ports,omitempty"`
}

// Listen returns the addresses to serve on.
func (c *Config) Listen() []netip.AddrPort {
	all := []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), c.Port)}
	for _, port := range c.Ports {
		all = append(all, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	}
	return all
}

// Check returns all faults of the configuration. It does not access the system.
func (c *Config) Check() fault.List {
	var faults fault.List
	if c.Port == 0 {
		faults.Add("port", "must be > 0, got 0")
	}
	for i, port := range c.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		switch {
		case port == 0:
			faults.Add(at, "must be > 0, got 0")
		case port == c.Port || slices.Contains(c.Ports[:i], port):
			faults.Add(at, "%d is given twice", port)
		}
	}
	return faults
}
