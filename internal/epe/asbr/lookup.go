package asbr

import (
	"context"
	"errors"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Routes describes how a destination is reached.
type Routes struct {
	Destination netip.Prefix `json:"destination"`
	// EPE are the routes of each egress peer.
	EPE []PeerRoute `json:"epe_routes"`
	// BGP are the paths of the unicast route, which traffic without SID uses, and of the VPN routes
	// with the SIDs.
	BGP []bgp.Candidate `json:"bgp"`
}

// PeerRoute is the longest matching route that an egress peer advertised, which packets to the
// peer's SID use.
type PeerRoute struct {
	Peer   string       `json:"peer"`
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// Used: it is in the kernel and advertised to servers with the SID.
	Used   bool       `json:"used"`
	Reason string     `json:"reason"`
	RD     vpn.ID     `json:"rd"`
	SID    netip.Addr `json:"sid"`
}

// Routes looks a destination up. VPN routes are those of our egress peers, and of rd if it is
// valid.
func (a *ASBR) Routes(ctx context.Context, dst netip.Prefix, rd vpn.ID) (any, error) {
	r := Routes{Destination: dst}
	rds := []vpn.ID{rd}
	if !a.daemon.Do(ctx, func() {
		for _, p := range a.peers {
			if p.family() != bgp.IPOf(dst.Addr()) {
				continue
			}
			r.EPE, rds = append(r.EPE, p.lookup(dst)), append(rds, p.rd)
		}
	}) {
		return nil, errors.New("not running")
	}
	var err error
	r.BGP, err = a.daemon.Speaker.Lookup(dst, rds...)
	return r, err
}

func (p *peer) lookup(dst netip.Prefix) PeerRoute {
	r := PeerRoute{Peer: p.Name, RD: p.rd, SID: p.sid}
	var update bgp.Update
	n, ok := p.routes.Longest(dst)
	if ok {
		update = p.received(n)
		r.Prefix = update.Prefix
	}
	switch {
	case !p.link:
		r.Reason = "link is down"
	case !p.session:
		r.Reason = "session is down"
	case !ok:
		r.Reason = "the peer advertises no accepted route to it"
	case p.closed, p.hidden:
		r.Reason = "withdrawn from servers: draining"
	case !p.kernel.Settled(p.route(update).Key()):
		r.Reason = "not in the kernel yet"
	default:
		r.Used, r.Reason = true, "longest match of the peer's routes"
	}
	return r
}
