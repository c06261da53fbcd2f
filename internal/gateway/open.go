package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/kernel/route"
)

// maxOpen bounds the open peers, and maxFlowRules how many rules of them can have the discipline
// flow: the program has tables for so many.
const maxOpen, maxFlowRules = openbpf.MaxPeers, openbpf.MaxTables

// modes are the values of a peer's mode, the default first, seals those of its seal.
var (
	modes = []string{dataplane.Tunnel.String(), dataplane.Plain.String(), dataplane.NAT.String()}
	seals = []string{"all", "none"}
)

// mode returns the mode of a checked peer.
func (p *Peer) mode() dataplane.Mode { return ModeOf(p.Mode, p.Seal) }

// ModeOf returns the mode that a peer's keys mode and seal select, which must have passed
// CheckMode:
//
//	mode    seal    packets
//	tunnel  all     dataplane.Tunnel: in UDP, encrypted; the default
//	tunnel  none    dataplane.Unsealed: in UDP, not encrypted
//	plain   absent  dataplane.Plain: as they are
//	nat     absent  dataplane.NAT: as they are, with the gateway's address as source
func ModeOf(mode, seal string) dataplane.Mode {
	switch {
	case mode == modes[1]:
		return dataplane.Plain
	case mode == modes[2]:
		return dataplane.NAT
	case seal == seals[1]:
		return dataplane.Unsealed
	}
	return dataplane.Tunnel
}

// CheckMode adds the faults of a peer's keys mode and seal.
func CheckMode(faults *fault.List, at, mode, seal string) {
	checkName(faults, at+".mode", mode, modes)
	checkName(faults, at+".seal", seal, seals)
	if (mode == modes[1] || mode == modes[2]) && seal == seals[0] {
		faults.Add(at+".seal", "must be left out with mode %s, which has no tunnel", mode)
	}
}

// checkName adds a fault if a value is none of the names, and not empty.
func checkName(faults *fault.List, at, value string, names []string) {
	if value != "" && !slices.Contains(names, value) {
		faults.Add(at, "must be one of %s, got %q%s", strings.Join(names, ", "), value, fault.Suggest(value, names))
	}
}

// Open reports whether a peer's packets are carried by the open plane.
func (c *Config) Open() bool {
	return slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.mode().Open() })
}

// Programs reports whether the gateway loads programs into the kernel: for open peers, or a member
// that relays their packets.
func (c *Config) Programs() bool { return c.Open() || c.Role == RoleMember }

// unlisted returns the interfaces that have addresses of the LAN, by those of the host, but are
// none of the LAN's: no packets to open peers are taken from them. Such are the VLANs of an
// interface, and the bridge of a port.
func (c *Config) unlisted(connected []route.Address) (list []string) {
	if !c.Open() || len(c.LAN.Interfaces) == 0 {
		return nil
	}
	known := slices.Concat(c.LAN.Interfaces, c.interfaces(), []string{c.tunnelName(), "lo"})
	for _, a := range connected {
		hosts := !a.Prefix.IsSingleIP() && slices.ContainsFunc(c.LAN.Prefixes, func(p netip.Prefix) bool { return p.Contains(a.Prefix.Addr()) })
		if hosts && !slices.Contains(known, a.Link) && !slices.Contains(list, a.Link) {
			list = append(list, a.Link)
		}
	}
	return list
}

// checkMode adds the faults of a peer's mode, and of what its packets cannot be carried with.
func (c *Config) checkMode(faults *fault.List, at string, p *Peer) {
	CheckMode(faults, at, p.Mode, p.Seal)
	mode := p.mode()
	if !mode.Open() {
		return
	}
	switch {
	case c.Role == RoleMember:
		faults.Add(at+".mode", "must be %s in a member, whose program in the kernel only relays: packets to peers are encrypted", dataplane.Tunnel)
	case c.Role != "" && mode != dataplane.Unsealed:
		faults.Add(at+".mode", "must be %s in an alliance, with seal none if packets need no encryption: members relay messages of the tunnel only", dataplane.Tunnel)
	}
	if len(c.LAN.Interfaces) == 0 && c.Role != RoleLeader {
		faults.Add("lan.interfaces", "must be given: mode %s is for packets that they receive", mode)
	}
	for j, prefix := range p.Prefixes {
		// Without interfaces of the LAN, the program sends none.
		if prefix.IsValid() && prefix.Bits() == 0 && len(c.LAN.Interfaces) > 0 {
			faults.Add(fmt.Sprintf("%s.prefixes[%d]", at, j), "must not be the default route with mode %s: packets to networks that are reached otherwise would be sent to the peer", mode)
		}
	}
}

// checkOpen adds the faults of what open peers' packets cannot be carried with.
func (c *Config) checkOpen(faults *fault.List) {
	if !c.Open() {
		return
	}
	open := 0
	first := ""
	for i := range c.Peers {
		if c.Peers[i].mode().Open() {
			if open++; first == "" {
				first = fmt.Sprintf("peers[%d] has mode %s", i, c.Peers[i].mode())
			}
		}
	}
	if open > maxOpen {
		faults.Add("peers", "must have at most %d with another mode than %s, got %d", maxOpen, dataplane.Tunnel, open)
	}
	for i, p := range c.Paths {
		if p.Rate.Down == RateAuto || p.Rate.Up == RateAuto {
			faults.Add(fmt.Sprintf("paths[%d].rate", i), "must not be auto: %s, whose packets do not measure it", first)
		}
	}
	if len(c.Policy) == 0 {
		faults.Add("policy", "must be given: %s, and discipline %s, the default, is for mode %s", first, dataplane.Auto, dataplane.Tunnel)
	}
	flows := 0
	disciplines := dataplane.Plain.Disciplines()
	for i, r := range c.Policy {
		d, _ := r.Discipline.plane(len(c.Paths))
		at := fmt.Sprintf("policy[%d]", i)
		if d.Name != "" && !slices.Contains(disciplines, d.Name) {
			faults.Add(at+".discipline", "must be one of %s, got %s: %s", strings.Join(disciplines, ", "), d.Name, first)
		}
		if r.Resequence.Bound > 0 {
			faults.Add(at+".resequence", "must be off or left out: %s, whose packets are not held", first)
		}
		if d.Name == dataplane.Redundant && slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.mode() == dataplane.NAT }) {
			faults.Add(at+".discipline", "must not be %s with mode %s", d.Name, dataplane.NAT)
		}
		if d.Name == dataplane.Flow {
			flows += open
		}
	}
	if flows > maxFlowRules {
		faults.Add("policy", "must have fewer rules of discipline %s: for %d open peers they are %d, more than %d", dataplane.Flow, open, flows, maxFlowRules)
	}
}

// warnOpen adds what is to be known of open peers.
func (c *Config) warnOpen(warnings *fault.List) {
	if !c.Open() {
		return
	}
	plain := false
	for i := range c.Peers {
		switch m := c.Peers[i].mode(); m {
		case dataplane.Plain, dataplane.NAT:
			plain = plain || m == dataplane.Plain
			warnings.Add(fmt.Sprintf("peers[%d].mode", i), "%s encrypts and authenticates nothing: an attacker on a line reads and forges packets of the hosts, and packets to the peer bypass nftables, which therefore has to accept those from it by their mark", m)
		case dataplane.Unsealed:
			who := "an attacker on a line, or on the way between the gateways,"
			if c.Role != "" {
				who = "a member, or an attacker on its short link, on a line, or on the way between the gateways,"
			}
			warnings.Add(fmt.Sprintf("peers[%d].seal", i), "none encrypts nothing: %s reads packets of the hosts and forges those of the peer's prefixes, with the cookie that it sees; all others have to guess 64 bits. Packets to the peer bypass nftables, which therefore has to accept those from it by their mark", who)
			if c.Role == RoleLeader && len(c.LAN.Interfaces) == 0 {
				warnings.Add(fmt.Sprintf("peers[%d].seal", i), "has effect on packets from the peer alone: without lan.interfaces all that are sent to it are this host's own, which are encrypted")
			}
		case dataplane.Tunnel:
		}
	}
	for i := range c.Policy {
		if plain && c.Policy[i].Discipline.Name == dataplane.Redundant {
			warnings.Add(fmt.Sprintf("policy[%d].discipline", i), "hosts behind open peers get each packet once for every path: plain packets have no number")
		}
	}
}
