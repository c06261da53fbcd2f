package asbr

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/linkstate"
	"github.com/tabane/tabane/internal/bgp/session"
)

// Controller is a controller that the SIDs of the egress peers are exported to.
type Controller struct {
	// Address is the controller's address. Example: 2001:db8:1::cc
	Address netip.Addr `yaml:"address"`
	// Port is where the controller listens for BGP. Default: 179. Example: 1790
	Port uint16 `yaml:"port,omitempty"`
	// ASN is the controller's AS number. Default: the own one. Example: 64999
	ASN uint32 `yaml:"asn,omitempty"`
	// Password is the key of TCP MD5 (RFC 2385) for the session. Example: secret
	Password string `yaml:"password,omitempty"`
}

// controllerHops is the hop limit towards controllers of another AS.
const controllerHops = 255

// checkControllers adds the faults of the controllers.
func (c *Config) checkControllers(faults *fault.List, seen fault.Seen) {
	for i, to := range c.Controllers {
		at := fmt.Sprintf("controllers[%d]", i)
		faults.Merge(at, bgp.CheckAddress(to.Address))
		faults.Merge(at, bgp.CheckPassword(to.Password))
		seen.Check(faults, at, "address", to.Address)
		if to.Address.Is4() && slices.ContainsFunc(c.Reflectors, func(r Reflector) bool { return r.Address == to.Address }) {
			faults.Add(at+".address", "%v is a reflector", to.Address)
		}
	}
}

// newExporter returns the exporter to the controllers; nil without any.
func (c *Config) newExporter(log *slog.Logger) (*linkstate.Exporter, error) {
	if len(c.Controllers) == 0 {
		return nil, nil
	}
	var configs []session.Config
	for _, to := range c.Controllers {
		conf := session.Config{
			Remote:   netip.AddrPortFrom(to.Address, cmp.Or(to.Port, bgp.DefaultPort)),
			LocalASN: c.ASN, RemoteASN: cmp.Or(to.ASN, c.ASN), RouterID: c.RouterID, HoldTime: bgp.DefaultHoldTime, ConnectRetry: bgp.DefaultConnectRetry,
			Password: to.Password, Log: log.With("controller", to.Address),
		}
		if to.Address.Is6() {
			conf.Local = c.Address
		}
		if conf.LocalASN != conf.RemoteASN {
			conf.Multihop = controllerHops
		}
		configs = append(configs, conf)
	}
	return linkstate.New(configs)
}

// exportSIDs has the controllers sent the SIDs of the peers that packets can leave through now.
func (a *ASBR) exportSIDs() {
	if a.exporter == nil {
		return
	}
	var list []linkstate.Segment
	for _, p := range a.peers {
		if !p.serves() {
			continue
		}
		list = append(list, linkstate.Segment{SID: p.sid, Structure: p.structure, Behavior: codes[p.behavior()], PeerASN: p.ASN, PeerID: p.id})
	}
	a.exporter.Set(list)
}

// identify looks up the BGP identifier of a peer whose session has come up.
func (a *ASBR) identify(p *peer) {
	if a.exporter == nil {
		return
	}
	if d, err := a.daemon.Speaker.Neighbor(p.Name); err == nil {
		p.id = d.RouterID
	}
}
