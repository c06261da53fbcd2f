package asbr

import (
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/srv6"
	"github.com/tabane/tabane/internal/vpn"
)

const (
	// peerMetric is the metric of what a peer announced, in its own table.
	peerMetric = 20
	// worstMetric is worse than anything a peer may announce, its default route included.
	worstMetric = 1<<32 - 1
)

// Codepoints of RFC 8986 section 10.2.
const (
	codeEndDX6 = 16
	codeEndDT6 = 18
)

// desired is where decisions about kernel objects go.
type desired interface {
	Set(route.Object)
	Delete(route.Key)
	// Settled tells whether the kernel has it so.
	Settled(route.Key) bool
}

// announcer tells the reflectors.
type announcer interface {
	OriginateVPN([]bgp.VPNRoute) error
	WithdrawVPN([]bgp.VPNKey) error
	// SetBlackhole advertises or withdraws a prefix with BLACKHOLE.
	SetBlackhole(on bool, prefixes ...netip.Prefix) error
}

// peer is an egress peer: its SID, its table and its EPE Routes. They exist while both the session and the link are up.
type peer struct {
	Peer
	sid       netip.Addr
	structure srv6.Structure
	rd        vpn.ID
	nextHop   netip.Addr // of the EPE Routes: the ASBR
	kernel    desired
	announcer announcer

	session, link bool
	// onLink are the prefixes of the interface: a next hop must be in one of them.
	onLink []netip.Prefix
	up     bool // what kernel and announcer were last told
	// hidden: the reflectors are told of no route, while the kernel still has them. closed: as if the peer were down.
	hidden, closed bool
	routes         map[netip.Prefix]bgp.Update
	refused        uint64

	// changed are the prefixes that the reflectors have to be told about.
	changed map[netip.Prefix]struct{}
	// retiring: the routes are gone, the SID is next.
	retiring bool
	// dead: the SID, once announced, leads nowhere, and told: the reflectors know.
	dead, told bool
}

func newPeer(c *Config, conf *Peer) (*peer, error) {
	locator := c.Locator.srv6()
	sid, err := locator.SID(conf.ID)
	if err != nil {
		return nil, err
	}
	structure := locator.Structure()
	if c.SIDFormat == TransposedSID {
		if structure, err = structure.Transposed(); err != nil {
			return nil, err
		}
	}
	rd, err := conf.distinguisher(c.RouterID)
	if err != nil {
		return nil, err
	}
	return &peer{
		Peer: *conf, sid: sid, structure: structure, rd: rd, nextHop: c.Address,
		routes:  map[netip.Prefix]bgp.Update{},
		changed: map[netip.Prefix]struct{}{},
	}, nil
}

// update takes one change of what the peer announces.
func (p *peer) update(u bgp.Update) {
	prefix := u.Prefix
	refused := u.Rejected != nil || !u.Withdrawn && !p.reaches(u.NextHop)
	if refused {
		p.refused++
	}
	withdrawn := u.Withdrawn || refused
	if withdrawn {
		if _, known := p.routes[prefix]; !known {
			return
		}
		delete(p.routes, prefix)
		p.kernel.Delete(p.route(u).Key())
	} else {
		p.routes[prefix] = u
		if p.up {
			p.kernel.Set(p.route(u))
		}
	}
	if p.up || withdrawn {
		p.changed[prefix] = struct{}{}
	}
}

// reaches tells whether a next hop is the peer or, as at an exchange, somebody else on the same link.
func (p *peer) reaches(nextHop netip.Addr) bool {
	return nextHop == p.Address || nextHop.IsLinkLocalUnicast() ||
		slices.ContainsFunc(p.onLink, func(on netip.Prefix) bool { return on.Contains(nextHop) })
}

// refresh makes everything of the peer follow its session and its link.
func (p *peer) refresh() {
	up := p.session && p.link && !p.closed
	if up == p.up {
		return
	}
	p.up, p.dead = up, !up
	if up {
		p.told = true // the speaker may have said so by itself
	}
	_ = p.tellLost() // before the work that follows; withdraw tries again
	if up {
		p.retiring = false
		p.kernel.Set(p.local())
	}
	for prefix, r := range p.routes {
		if up {
			p.kernel.Set(p.route(r))
		} else {
			p.kernel.Delete(p.route(r).Key())
		}
		p.changed[prefix] = struct{}{}
	}
	if !up {
		p.retiring = true
	}
}

// hide withdraws the peer's routes from the reflectors, or announces them again. The kernel keeps them.
func (p *peer) hide(hidden bool) {
	if p.hidden == hidden {
		return
	}
	p.hidden = hidden
	if p.up {
		for prefix := range p.routes {
			p.changed[prefix] = struct{}{}
		}
	}
}

// close takes everything of the peer away although it is up, or brings it back.
func (p *peer) close(closed bool) {
	p.closed = closed
	p.refresh()
}

// route is a route of the peer in its table.
func (p *peer) route(r bgp.Update) route.Route {
	return route.Route{
		Table: p.Table, Dst: r.Prefix, Metric: peerMetric, Kind: route.Unicast, Gateway: r.NextHop.WithZone(""), Link: p.Interface,
	}
}

// local is the SID in the kernel.
func (p *peer) local() route.Route {
	action := route.LocalAction{Behavior: route.EndDT6, Table: p.Table}
	if p.Behavior == EndDX6 {
		action = route.LocalAction{Behavior: route.EndDX6, Nexthop: p.Address}
	}
	return route.Route{
		Table: route.MainTable, Dst: p.host(), Kind: route.Unicast, Link: p.Interface, Local: action,
	}
}

// host is the SID as a prefix.
func (p *peer) host() netip.Prefix { return netip.PrefixFrom(p.sid, p.sid.BitLen()) }

// tellLost says in one message what will take many: nothing is reached through the peer.
func (p *peer) tellLost() error {
	if !p.dead || p.told {
		return nil
	}
	if err := p.announcer.SetBlackhole(true, p.host()); err != nil {
		return err
	}
	p.told = true
	return nil
}

// withdraw tells the reflectors at once what is no longer reached through the peer.
func (p *peer) withdraw() error {
	if err := p.tellLost(); err != nil {
		return err
	}
	var gone []bgp.VPNKey
	for prefix := range p.changed {
		if _, ok := p.routes[prefix]; !ok || !p.up || p.hidden {
			gone = append(gone, bgp.VPNKey{RD: p.rd, Prefix: prefix})
			delete(p.changed, prefix)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return p.announcer.WithdrawVPN(gone)
}

// announce tells the reflectors what is newly reached through the peer and forwarded by the kernel. What the kernel does
// not have yet stays for the next time.
func (p *peer) announce() error {
	if len(p.changed) == 0 || !p.kernel.Settled(p.local().Key()) {
		return nil
	}
	if p.told && !p.dead {
		if err := p.announcer.SetBlackhole(false, p.host()); err != nil {
			return err
		}
		p.told = false
	}
	routes := make([]bgp.VPNRoute, 0, len(p.changed))
	for prefix := range p.changed {
		if r := p.routes[prefix]; p.kernel.Settled(p.route(r).Key()) {
			routes = append(routes, p.epeRoute(r))
			delete(p.changed, prefix)
		}
	}
	if len(routes) == 0 {
		return nil
	}
	return p.announcer.OriginateVPN(routes)
}

// epeRoute is a route of the peer as the servers see it: the prefix together with the SID.
func (p *peer) epeRoute(r bgp.Update) bgp.VPNRoute {
	code := uint16(codeEndDT6)
	if p.Behavior == EndDX6 {
		code = codeEndDX6
	}
	return bgp.VPNRoute{
		RD: p.rd, Prefix: r.Prefix, NextHop: p.nextHop, RTs: []vpn.ID{p.RT}, SID: p.sid,
		Structure: p.structure, Behavior: code, Attributes: r.Attributes,
	}
}

// retire takes the SID away once its routes are gone; it reports whether it did.
func (p *peer) retire() bool {
	if !p.retiring {
		return false
	}
	p.retiring = false
	p.kernel.Delete(p.local().Key())
	return true
}

func (p *peer) status() PeerStatus {
	return PeerStatus{
		Name: p.Name, SID: p.sid, Table: p.Table, RT: p.RT, RD: p.rd, Link: p.link, Session: p.session,
		Routes: len(p.routes), Refused: p.refused,
	}
}
