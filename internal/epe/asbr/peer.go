package asbr

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/kernel/route"
)

const (
	// peerMetric is the metric of a peer's routes in its own table.
	peerMetric = 20
	// worstMetric is worse than that of any route of a peer, its default route included.
	worstMetric = 1<<32 - 1
)

// desired is where decisions about kernel objects go.
type desired interface {
	Set(route.Object)
	SetRoute(route.Route)
	Delete(route.Key)
	// Settled reports whether the kernel has the object as it was set.
	Settled(route.Key) bool
}

// announcer advertises to the reflectors.
type announcer interface {
	OriginateVPN([]bgp.VPNRoute) error // does not keep the slice
	WithdrawVPN([]bgp.VPNKey) error
	// SetBlackhole advertises or withdraws a prefix with BLACKHOLE.
	SetBlackhole(on bool, prefixes ...netip.Prefix) error
}

// peer is an egress peer: its SID, its table and its EPE Routes. They exist while both the session
// and the link are up.
type peer struct {
	Peer
	sid       netip.Addr
	structure srv6.Structure
	rd        vpn.ID
	rts       []vpn.ID   // of the EPE Routes
	nextHop   netip.Addr // of the EPE Routes: the ASBR
	kernel    desired
	announcer announcer

	id            netip.Addr // BGP identifier of the neighbor, if controllers need it
	session, link bool
	up            bool // as last applied to kernel and announcer
	// hidden: no route is advertised, while the kernel still has them. closed: as if the peer were
	// down.
	hidden, closed bool
	routes         hashtable.Prefixes[peerRoute]
	attributes     attributes
	rejected       map[bgp.RejectReason]uint64 // counts

	// waiting are the routes to advertise, and some that are not any more; withdrawn are those to
	// withdraw.
	waiting   []hashtable.Ref
	withdrawn []bgp.VPNKey
	batch     []bgp.VPNRoute // space for installed, used again
	// walking: the state of the peer is being applied to its routes, from next on.
	walking bool
	next    hashtable.Ref
	// retiring: the routes are gone, the SID is next.
	retiring bool
	// dead: the SID was advertised and nothing is reached through it now; blackholed: it is
	// advertised so.
	dead, blackholed bool
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
		Peer: *conf, sid: sid, structure: structure, rd: rd, rts: []vpn.ID{conf.RT}, nextHop: c.Address,
		rejected: map[bgp.RejectReason]uint64{},
	}, nil
}

// update applies one change of the peer's routes.
func (p *peer) update(u bgp.Update) {
	if why := (*bgp.RejectedError)(nil); errors.As(u.Rejected, &why) {
		p.rejected[why.Reason]++
	}
	if u.Withdrawn || u.Rejected != nil {
		p.remove(u.Prefix)
	} else {
		p.learn(u)
	}
}

// refresh applies the state of session and link to all of the peer.
func (p *peer) refresh() {
	up := p.session && p.link && !p.closed
	if up == p.up {
		return
	}
	p.up, p.dead = up, !up
	if up {
		p.blackholed = true // the speaker may have reported it itself
	}
	_ = p.blackhole() // before the work that follows; withdraw tries again
	if up {
		for _, o := range p.fixed() {
			p.kernel.Set(o)
		}
	}
	p.retiring = !up
	p.restart()
}

// hide withdraws the peer's routes from the reflectors, or advertises them again. The kernel keeps
// them.
func (p *peer) hide(hidden bool) {
	if p.hidden == hidden {
		return
	}
	p.hidden = hidden
	p.restart()
}

// close removes everything of the peer although it is up, or restores it.
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

// fixed are the objects that packets for the SID need, whatever their destination.
func (p *peer) fixed() []route.Object {
	alias := route.Route{Table: route.MainTable, Dst: p.alias(), Metric: peerMetric, Kind: route.Unicast, Link: p.Interface}
	var action route.LocalAction
	var objects []route.Object
	switch p.behavior() {
	case EndDT6:
		action = route.LocalAction{Behavior: route.EndDT6, Table: p.Table}
	case EndDX6:
		action = route.LocalAction{Behavior: route.EndDX6, Nexthop: p.Address}
	case EndDT4:
		action = route.LocalAction{Behavior: route.EndDX4, Nexthop: alias.Dst.Addr()}
		alias.Mark = p.mark()
		objects = append(objects, alias)
	case EndDX4:
		action = route.LocalAction{Behavior: route.EndDX4, Nexthop: alias.Dst.Addr()}
		alias.Gateway = p.Address
		objects = append(objects, alias)
	}
	return append(objects, route.Route{
		Table: route.MainTable, Dst: p.host(), Kind: route.Unicast, Link: p.Interface, Local: action,
	})
}

// host is the SID as a prefix.
func (p *peer) host() netip.Prefix { return host(p.sid) }

// blackhole advertises in one message what many withdrawals will: nothing is reached through the
// peer.
func (p *peer) blackhole() error {
	if !p.dead || p.blackholed {
		return nil
	}
	if err := p.announcer.SetBlackhole(true, p.host()); err != nil {
		return err
	}
	p.blackholed = true
	return nil
}

// withdraw withdraws at once what is no longer reached through the peer.
func (p *peer) withdraw() error {
	if err := p.blackhole(); err != nil {
		return err
	}
	if len(p.withdrawn) == 0 {
		return nil
	}
	keys := p.withdrawn
	p.withdrawn = nil
	return p.announcer.WithdrawVPN(keys)
}

// announce advertises what is newly reached through the peer and installed in the kernel. Routes
// that are not installed yet stay for the next call; more reports whether it should be soon.
func (p *peer) announce() (more bool, err error) {
	if len(p.waiting) == 0 || slices.ContainsFunc(p.fixed(), func(o route.Object) bool { return !p.kernel.Settled(o.Key()) }) {
		return false, nil
	}
	if p.blackholed && !p.dead {
		if err := p.announcer.SetBlackhole(false, p.host()); err != nil {
			return false, err
		}
		p.blackholed = false
	}
	routes, more := p.installed()
	if len(routes) == 0 {
		return more, nil
	}
	return more, p.announcer.OriginateVPN(routes)
}

// epeRoute is a route of the peer as it is advertised to servers, with the SID.
func (p *peer) epeRoute(r bgp.Update) bgp.VPNRoute {
	return bgp.VPNRoute{
		RD: p.rd, Prefix: r.Prefix, NextHop: p.nextHop, RTs: p.rts, SID: p.sid,
		Structure: p.structure, Behavior: codes[p.behavior()], Attributes: r.Attributes,
	}
}

// retire removes the SID once its routes are withdrawn; it reports whether it did.
func (p *peer) retire() bool {
	if !p.retiring || p.walking {
		return false
	}
	p.retiring = false
	for _, o := range p.fixed() {
		p.kernel.Delete(o.Key())
	}
	return true
}

func (p *peer) status(l *loads) PeerStatus {
	s := PeerStatus{
		Name: p.Name, SID: p.sid, Table: p.Table, RT: p.RT, RD: p.rd, Link: p.link, Session: p.session,
		Routes: p.routes.Len(), Load: l.status(&p.Peer), Rejected: maps.Clone(p.rejected),
	}
	for _, n := range p.rejected {
		s.Refused += n
	}
	return s
}
