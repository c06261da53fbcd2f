package traffic

import (
	"net/netip"

	"github.com/tabane/tabane/internal/fault"
)

// Config is the `serve:` section of a configuration file or of a scenario's node.
type Config struct {
	// Port is the TCP port to serve on, on all addresses.
	Port uint16 `yaml:"port"`
}

// Listen returns the addresses to serve on.
func (c *Config) Listen() []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), c.Port)}
}

// Check returns all faults of the configuration. It does not access the system.
func (c *Config) Check() fault.List {
	var faults fault.List
	if c.Port == 0 {
		faults.Add("port", "must be > 0, got 0")
	}
	return faults
}
