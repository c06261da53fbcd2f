package router

import "net/netip"

// Config is the `router:` section of a configuration file.
type Config struct {
	ASN      uint32     `yaml:"asn"`
	RouterID netip.Addr `yaml:"router_id"`
	// Networks are originated to every neighbour.
	Networks  []netip.Prefix `yaml:"networks,omitempty"`
	Neighbors []Neighbor     `yaml:"neighbors"`
	// Status is where /status and /metrics are served; loopback unless told otherwise.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Neighbor is one eBGP neighbour.
type Neighbor struct {
	Name      string     `yaml:"name"`
	ASN       uint32     `yaml:"asn"`
	Address   netip.Addr `yaml:"address"`
	Interface string     `yaml:"interface"`
	LocalPref uint32     `yaml:"local_pref,omitempty"`
	Password  string     `yaml:"password,omitempty"`
}
