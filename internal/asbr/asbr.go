// Package asbr is the border router of a content provider: it gives each egress peer an SRv6-EPE SID, keeps what that peer
// announced in a table of its own, and announces the same to the reflectors as VPNv6 routes that carry the SID
// (docs/papers.md, paper A, sections 3.1 and 4.1).
//
// It refuses to send a packet to a peer for anything the peer did not announce, to carry traffic between peers, and to
// choose a path: servers do that.
package asbr

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/vpn"
)

// Options is what an ASBR is made of.
type Options struct {
	Config Config
	// Keep leaves tables and SIDs in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

// ASBR is a running border router.
type ASBR struct {
	config Config
	log    *slog.Logger
	daemon *daemon.Daemon
	peers  []*peer
	// neighbors are the sessions, with what each of them is told while the ASBR is in service.
	neighbors []bgp.Neighbor
	drain     drain
	running   context.Context // ends with Run
}

// New checks that this host can be an ASBR and opens what it needs. Nothing in the kernel has changed yet. A host without
// SRv6, without forwarding or without the privilege is an error that says what to do.
func New(ctx context.Context, o Options) (*ASBR, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if err := daemon.CheckForwarding(); err != nil {
		return nil, err
	}
	a := &ASBR{config: o.Config, log: o.Log}
	a.neighbors = a.reflectors()
	for i := range o.Config.Peers {
		p, err := newPeer(&a.config, &a.config.Peers[i])
		if err != nil {
			return nil, err
		}
		a.peers = append(a.peers, p)
		a.neighbors = append(a.neighbors, a.neighbor(p))
	}
	d, err := daemon.New(ctx, daemon.Options{
		Protocol:  route.ASBR,
		Speaker:   bgp.Options{ASN: o.Config.ASN, RouterID: o.Config.RouterID, Report: bgp.ReportAdjIn},
		Neighbors: a.neighbors,
		Keep:      o.Keep,
		Log:       o.Log,
	})
	if err != nil {
		return nil, err
	}
	a.daemon = d
	for _, p := range a.peers {
		p.kernel, p.announcer = d.Kernel, d.Speaker
	}
	return a, nil
}

func (a *ASBR) reflectors() []bgp.Neighbor {
	neighbors := make([]bgp.Neighbor, len(a.config.Reflectors))
	for i, r := range a.config.Reflectors {
		neighbors[i] = bgp.Neighbor{
			Name: "reflector " + r.Address.String(), Address: r.Address, LocalAddress: a.config.Address, ASN: a.config.ASN,
			Families: []bgp.Family{bgp.IPv6Unicast, bgp.VPNv6}, Password: r.Password, NextHopSelf: true, BFD: r.BFD,
			// Our prefixes are here; another ASBR's route for them would lead our own answers a way round.
			// The EPE Routes of other ASBRs are for servers.
			Import: bgp.ImportPolicy{Reject: a.config.Prefixes, RejectVPN: true},
			Export: bgp.ExportPolicy{Reject: a.config.alone(nil)},
		}
	}
	return neighbors
}

func (a *ASBR) neighbor(p *peer) bgp.Neighbor {
	return bgp.Neighbor{
		Name: p.Name, Address: p.Address, ASN: p.ASN, Families: []bgp.Family{bgp.IPv6Unicast}, Password: p.Password,
		LocalPref: p.LocalPref, ExportLocalOnly: true, BFD: p.BFD, Locators: []netip.Prefix{p.host()},
		// Our own space and our SIDs cannot lie behind a peer.
		Import: bgp.ImportPolicy{Reject: append([]netip.Prefix{a.config.Locator.Prefix}, a.config.Prefixes...), WarnPrefixes: p.WarnPrefixes},
		Export: bgp.ExportPolicy{Reject: a.config.alone(&p.Peer)},
	}
}

// Run is an ASBR until ctx ends. It always closes what New opened.
func (a *ASBR) Run(ctx context.Context) error {
	// A packet for an SID that was never given, or is gone, ends here.
	a.daemon.Kernel.Set(route.Route{Table: route.MainTable, Dst: a.config.Locator.Prefix, Metric: worstMetric, Kind: route.Unreachable})
	for _, p := range a.peers {
		a.daemon.Kernel.Set(route.Route{Table: p.Table, Dst: anywhere, Metric: worstMetric, Kind: route.Unreachable})
	}
	if err := a.daemon.Speaker.Originate(a.config.routes()...); err != nil {
		return errors.Join(err, a.daemon.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	a.running = ctx
	err := a.daemon.Run(ctx, a)
	cancel()
	if a.drain.done != nil {
		<-a.drain.done
	}
	return err
}

// routes are what the ASBR originates itself.
func (c *Config) routes() []bgp.UnicastRoute {
	routes := []bgp.UnicastRoute{{
		Prefix: c.Locator.Prefix, NextHop: c.Address,
		// Servers need the locator, egress peers must not have it.
		Attributes: bgp.Attributes{Communities: []uint32{bgp.NoExport}},
	}}
	for _, p := range c.announced() {
		routes = append(routes, bgp.UnicastRoute{Prefix: p, NextHop: c.Address})
	}
	return routes
}

var anywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

// BGP implements daemon.Machine.
func (a *ASBR) BGP(events []bgp.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case bgp.Session:
			if p := a.peer(e.Neighbor); p != nil {
				p.session = e.Up
				p.onLink = onLink(p.Interface)
				p.refresh()
			}
		case bgp.Update:
			if p := a.peer(e.Neighbor); p != nil {
				p.update(e)
			}
		}
	}
	a.withdraw()
}

// onLink are the prefixes of an interface's addresses; none when it is not there.
func onLink(name string) []netip.Prefix {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	addrs, err := link.Addrs()
	if err != nil {
		return nil
	}
	var prefixes []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes
}

// withdraw comes before the kernel forgets: what is still on its way finds its route for as long as possible.
func (a *ASBR) withdraw() {
	for _, p := range a.peers {
		if err := p.withdraw(); err != nil {
			a.log.Error("withdraw routes of egress peer", "peer", p.Name, "err", err)
		}
	}
}

func (a *ASBR) peer(name string) *peer {
	for _, p := range a.peers {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Link implements daemon.Machine: a link that is down ends the session at once, without waiting for the hold timer. The
// reflectors hear first: with a full table the end of a session takes seconds.
func (a *ASBR) Link(name string, up bool) {
	var changed []*peer
	for _, p := range a.peers {
		if p.Interface == name && p.link != up {
			p.link = up
			p.refresh()
			changed = append(changed, p)
		}
	}
	a.withdraw()
	for _, p := range changed {
		a.daemon.FollowLink(p.Name, name, up)
	}
}

// Settled implements daemon.Machine: an SID that works is announced, one whose routes are gone is taken away.
func (a *ASBR) Settled() (again bool) {
	for _, p := range a.peers {
		if err := p.announce(); err != nil {
			a.log.Error("announce routes of egress peer", "peer", p.Name, "err", err)
		}
		again = p.retire() || again
	}
	return again
}

// Status is what /status shows.
type Status struct {
	Role  string `json:"role"`
	Ready bool   `json:"ready"`
	ASN   uint32 `json:"asn"`
	// Drain is how far the ASBR has left service; nothing while it is in service.
	Drain    Stage               `json:"drain,omitempty"`
	Locator  netip.Prefix        `json:"locator"`
	Pending  int                 `json:"pending"`
	Sessions []bgp.SessionStatus `json:"sessions"`
	Peers    []PeerStatus        `json:"peers"`
}

// PeerStatus is one egress peer in a Status.
type PeerStatus struct {
	Name    string     `json:"name"`
	SID     netip.Addr `json:"sid"`
	Table   uint32     `json:"table"`
	RT      vpn.ID     `json:"rt"`
	RD      vpn.ID     `json:"rd"`
	Link    bool       `json:"link"`
	Session bool       `json:"session"`
	Routes  int        `json:"routes"`
	// Refused counts routes of the peer that were not taken.
	Refused uint64 `json:"refused"`
}

// Status says how the ASBR is; before Run and after it, it says nothing but the role.
func (a *ASBR) Status() any {
	s := Status{Role: "asbr", ASN: a.config.ASN, Locator: a.config.Locator.Prefix}
	a.daemon.Do(context.Background(), func() {
		s.Pending, s.Sessions = a.daemon.Kernel.Pending(), a.daemon.Speaker.Sessions()
		s.Drain = a.drain.stage
		s.Ready = a.daemon.AllUp() && s.Pending == 0 && s.Drain == Serving
		for _, p := range a.peers {
			s.Peers = append(s.Peers, p.status())
			s.Ready = s.Ready && len(p.routes) > 0
		}
	})
	return s
}
