package reflector

import "net/netip"

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
}
