package flows

import (
	"net/netip"
	"slices"
)

// Gateway describes the gateway that this host is: which flows belong to its NAT sessions, and
// which path an interface is.
type Gateway struct {
	// Paths are the names of the paths by their interfaces.
	Paths map[string]string
	// LAN are the prefixes of this site, NAT those of the peers with mode nat.
	LAN, NAT []netip.Prefix
}

// translation is a connection between hosts whose packets the gateways translate: a session in each
// direction.
type translation struct {
	// host is the end in the LAN, far the other one; without an address where no packet has shown
	// it.
	host, far netip.AddrPort
	protocol  string
	flows     int
	// merged is what this one turned out to be a part of.
	merged *translation
	round  uint64
	bytes  [2]uint64 // over paths, in the interval
}

// whole returns the connection that a translation is a part of.
func (n *translation) whole() *translation {
	for n.merged != nil {
		n = n.merged
	}
	return n
}

// translationKey is what the gateways do not change in the packets of one direction: an end, and
// the port of the other one.
type translationKey struct {
	protocol string
	end      netip.AddrPort
	port     uint16
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// translate finds the translated connection of a new flow, and its path.
func (t *tracker) translate(f *Flow) {
	if t.gateway == nil {
		return
	}
	path, onPath := t.gateway.Paths[f.Interface]
	f.Path = path
	lan, peers := t.gateway.LAN, t.gateway.NAT
	switch {
	case onPath && f.Sent && within(peers, f.Remote.Addr()) && !within(lan, f.Local.Addr()):
		// From a path's address to a host of the peer.
		f.nat = t.translated(translation{far: f.Remote, protocol: f.Protocol}, f.Local.Port())
	case onPath && !f.Sent && within(lan, f.Local.Addr()) && !within(peers, f.Remote.Addr()):
		f.nat = t.translated(translation{host: f.Local, protocol: f.Protocol}, f.Remote.Port())
	case !onPath && within(peers, f.Local.Addr()) && within(lan, f.Remote.Addr()):
		// Between the hosts, on an interface of the LAN, whose local end is the far host.
		f.nat = t.translated(translation{host: f.Remote, far: f.Local, protocol: f.Protocol}, 0)
	default:
		return
	}
	f.nat.flows++
}

// translated returns the connection with the known ends, and the port of an unknown one.
func (t *tracker) translated(n translation, port uint16) *translation {
	var keys []translationKey
	if n.far.IsValid() {
		// In both directions the port of the other end remains.
		p := port
		if n.host.IsValid() {
			p = n.host.Port()
		}
		keys = append(keys, translationKey{n.protocol, n.far, p})
	}
	if n.host.IsValid() {
		p := port
		if n.far.IsValid() {
			p = n.far.Port()
		}
		keys = append(keys, translationKey{n.protocol, n.host, p})
	}
	var found *translation
	for _, k := range keys {
		old := t.translations[k]
		if old == nil {
			continue
		}
		if old = old.whole(); found != nil && found != old {
			found.flows += old.flows
			for i := range old.bytes {
				if old.round == found.round {
					found.bytes[i] += old.bytes[i]
				}
			}
			old.merged = found
		} else {
			found = old
		}
	}
	if found == nil {
		if !n.host.IsValid() {
			n.host = netip.AddrPortFrom(netip.Addr{}, port)
		}
		if !n.far.IsValid() {
			n.far = netip.AddrPortFrom(netip.Addr{}, port)
		}
		found = &n
	}
	for _, k := range keys {
		if k.end.Addr().IsValid() {
			t.translations[k] = found
		}
	}
	if n.host.Addr().IsValid() {
		found.host = n.host
	}
	if n.far.Addr().IsValid() {
		found.far = n.far
	}
	return found
}

// carryTranslation adds the flow's delta to its translated connection.
func (t *tracker) carryTranslation(f *Flow) {
	if f.nat == nil || f.Path == "" {
		return
	}
	n := f.nat.whole()
	if n.round != t.round {
		n.round, n.bytes = t.round, [2]uint64{}
	}
	n.bytes[f.key.Direction] += f.Delta.Bytes
}

// untranslate removes a flow from its translated connection.
func (t *tracker) untranslate(f *Flow) {
	if f.nat == nil {
		return
	}
	n := f.nat.whole()
	if n.flows--; n.flows > 0 {
		return
	}
	for _, k := range []translationKey{{n.protocol, n.far, n.host.Port()}, {n.protocol, n.host, n.far.Port()}} {
		if old := t.translations[k]; old != nil && old.whole() == n {
			delete(t.translations, k)
		}
	}
}
