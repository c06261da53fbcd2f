// Package asbr is the border router of a content provider: it gives each egress peer an SRv6-EPE
// SID, installs the routes of that peer in a table of its own, and advertises them to the route
// reflectors as VPNv6 routes with the SID (docs/papers.md, paper A, sections 3.1 and 4.1).
//
// It never forwards a packet to a peer that did not advertise its destination, accepts no SRv6
// packet from a peer's interface and no transit between peers, and selects no path: servers do
// that.
package asbr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/linkstate"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rtr"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/nic"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Options is what an ASBR is made of.
type Options struct {
	Config Config
	// Keep leaves routes, rules and SIDs in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

// ASBR is a running border router.
type ASBR struct {
	config Config
	log    *slog.Logger
	daemon *daemon.Daemon
	peers  []*peer
	// neighbors are the sessions, with their export policies while the ASBR is in service.
	neighbors []bgp.Neighbor
	// retired are the filters of interfaces whose peers a reload has removed.
	retired []filter
	drain   drain
	running context.Context // ends with Run

	// core decides, and advertised says, whether the common prefixes are advertised to egress
	// peers.
	core       core
	advertised bool
	// exporter exports SIDs to controllers; nil without any.
	exporter *linkstate.Exporter
	loads    loads
	nics     *nic.Conn
	// stale: interfaces or routes changed since core and networks were read.
	stale    bool
	networks networks
	// rpki is the client of the RPKI caches, nil without any; vrps are the VRPs, from it or from
	// the one before.
	rpki *validation
	vrps *policy.VRPs

	validating sync.WaitGroup // clients of RPKI caches

	// policies serializes changes of policies, which take a while with a full table, and reloads.
	policies sync.Mutex
	// reloading: a reload is in progress, so that no drain may start.
	reloading bool
}

// New checks that this host can be an ASBR, connects to the kernel and listens. It does not change
// the kernel yet. A host without SRv6, forwarding or privilege is an error with the remedy.
func New(ctx context.Context, o Options) (*ASBR, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if err := o.Config.checkHost(); err != nil {
		return nil, err
	}
	on, err := readNetworks()
	if err != nil {
		return nil, fmt.Errorf("read addresses of interfaces: %w", err)
	}
	exporter, err := o.Config.newExporter(o.Log)
	if err != nil {
		return nil, err
	}
	a := &ASBR{exporter: exporter, config: o.Config, log: o.Log, networks: on, stale: true}
	a.core.links = map[string]bool{}
	a.setCore()
	a.neighbors = slices.Concat(a.config.reflectors(), a.config.egress(on, nil))
	d, err := daemon.New(ctx, daemon.Options{
		Protocol:  route.ASBR,
		Speaker:   bgp.Options{ASN: o.Config.ASN, RouterID: o.Config.RouterID, Port: o.Config.Port, Report: bgp.ReportAdjIn},
		Neighbors: a.neighbors,
		Keep:      o.Keep,
		Log:       o.Log,
	})
	if err != nil {
		return nil, err
	}
	a.daemon = d
	for i := range a.config.Peers {
		p, err := a.newPeer(&a.config.Peers[i])
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		a.peers = append(a.peers, p)
	}
	if a.nics, err = nic.Open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return a, nil
}

// checkHost returns an error with what to do if this host cannot forward packets of the peers.
func (c *Config) checkHost() error {
	if err := condition.Require(c.conditions(nil)); err != nil {
		return err
	}
	if slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.behavior() == EndDT4 }) {
		return route.SupportsMark()
	}
	return nil
}

// conditions returns what the ASBR needs of the host. core are the links to the reflectors.
func (c *Config) conditions(core []string) []condition.Condition {
	var all, ipv4 []string
	for i := range c.Peers {
		p := &c.Peers[i]
		all = append(all, p.Interface)
		if p.family() == bgp.IPv4 {
			ipv4 = append(ipv4, p.Interface)
		}
	}
	// SRv6 is IPv6, whatever the peers' packets are.
	list := []condition.Condition{condition.IPv6(slices.Concat(all, core)...)}
	for _, v := range c.versions() {
		list = append(list, condition.Forwarding(v, slices.Concat(ipv4, core)...))
	}
	if m := c.marked(); len(m.Marks) > 0 {
		list = append(list, condition.Marks(m))
	}
	return append(list, condition.ReversePath(ipv4...), condition.Forwarded(c.versions(), slices.Concat(all, core)...),
		condition.Unique(slices.Concat(all, core)...), condition.Tracked())
}

// Conditions implements daemon.Conditioned.
func (a *ASBR) Conditions() []condition.Condition { return a.config.conditions(a.core.interfaces()) }

// newPeer returns an egress peer whose session, link and routes are not known yet.
func (a *ASBR) newPeer(conf *Peer) (*peer, error) {
	p, err := newPeer(&a.config, conf)
	if err != nil {
		return nil, err
	}
	p.kernel, p.announcer = a.daemon.Kernel, a.daemon.Speaker
	return p, nil
}

// setCore applies the configuration to the decision whether the core is reachable. What the kernel
// reported of links and reflectors stays.
func (a *ASBR) setCore() {
	a.core.peers = nil
	for _, p := range a.config.Peers {
		a.core.peers = append(a.core.peers, p.Interface)
	}
	for _, f := range a.retired {
		a.core.peers = append(a.core.peers, f.link)
	}
	via := map[netip.Addr]string{}
	for _, r := range a.config.Reflectors {
		via[r.Address] = a.core.via[r.Address]
	}
	a.core.via = via
}

// reflectors are the sessions with the route reflectors, with their policies while the ASBR is in
// service.
func (c *Config) reflectors() []bgp.Neighbor {
	neighbors := make([]bgp.Neighbor, len(c.Reflectors))
	for i, r := range c.Reflectors {
		neighbors[i] = bgp.Neighbor{
			Name: "reflector " + r.Address.String(), Address: r.Address, Port: r.Port, LocalAddress: c.Address, ASN: c.ASN,
			Families: c.families(), Password: r.Password, NextHopSelf: true, BFD: r.BFD,
			// Our prefixes are reached directly, not by a detour through another ASBR. EPE Routes
			// of other ASBRs are for servers.
			Import: bgp.ImportPolicy{Reject: bgp.Within(bgp.RejectOwnPrefix, c.Prefixes...), RejectVPN: true},
			Export: bgp.ExportPolicy{Reject: c.alone(nil)},
		}
	}
	return neighbors
}

// families are those of the sessions with the reflectors.
func (c *Config) families() []bgp.Family {
	var families []bgp.Family
	for _, v := range c.versions() {
		families = append(families, v.Unicast(), v.VPN())
	}
	return families
}

// egress are the sessions with the egress peers, with their policies while the ASBR is in service.
// The configuration was checked.
func (c *Config) egress(on networks, vrps *policy.VRPs) []bgp.Neighbor {
	rules := c.policies().Compiler(vrps)
	neighbors := make([]bgp.Neighbor, len(c.Peers))
	for i := range c.Peers {
		p := &c.Peers[i]
		sid, err := c.Locator.srv6().SID(p.ID)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		neighbors[i] = bgp.Neighbor{
			Name: p.Name, Address: p.Address, ASN: p.ASN, Families: []bgp.Family{p.family().Unicast()}, Password: p.Password,
			LocalPref: p.LocalPref, ExportLocalOnly: true, BFD: p.BFD, Locators: []netip.Prefix{host(sid)},
			Import: c.importPolicy(p, on),
			Export: bgp.ExportPolicy{Reject: c.alone(p)},
		}
		if p.Address.IsLinkLocalUnicast() {
			neighbors[i].Interface = p.Interface
		}
		rules.Apply(&p.Keys, &neighbors[i])
	}
	return neighbors
}

// Run runs the ASBR until ctx ends. It always closes what New opened.
func (a *ASBR) Run(ctx context.Context) error { return errors.Join(a.run(ctx), a.nics.Close()) }

func (a *ASBR) run(ctx context.Context) error {
	for _, o := range a.config.guards(nil) {
		a.daemon.Kernel.Set(o)
	}
	if err := a.daemon.Speaker.Originate(a.config.locatorRoute()); err != nil {
		return errors.Join(err, a.daemon.Close())
	}
	if a.exporter != nil {
		if err := a.exporter.Start(); err != nil {
			return errors.Join(err, a.daemon.Close())
		}
		defer a.exporter.Stop()
	}
	// The controllers lose the SIDs before the kernel does.
	daemonCtx, stopDaemon := context.WithCancel(context.WithoutCancel(ctx))
	defer stopDaemon()
	defer context.AfterFunc(ctx, func() {
		defer stopDaemon()
		if a.exporter != nil {
			a.exporter.Stop()
		}
	})()
	ctx, cancel := context.WithCancel(ctx)
	a.running = ctx
	a.startValidation(a.config.RPKI)
	measured := make(chan struct{})
	contain.Go(contain.Reconcile, a.log, func() { defer close(measured); a.measureLoads(ctx) })
	err := a.daemon.Run(daemonCtx, a)
	cancel()
	a.validating.Wait()
	<-measured
	if a.drain.done != nil {
		<-a.drain.done
	}
	return err
}

// locatorRoute is for servers; egress peers must not receive it.
func (c *Config) locatorRoute() bgp.UnicastRoute {
	return bgp.UnicastRoute{
		Prefix: c.Locator.Prefix, NextHop: c.Address, Attributes: bgp.Attributes{Communities: []uint32{bgp.NoExport}},
	}
}

// advertise originates or withdraws the prefixes for egress peers: they are advertised while the
// core is reachable and no drain has withdrawn them.
func (a *ASBR) advertise() {
	want := a.core.reachable() && (a.drain.stage == Serving || a.drain.stage == Moving)
	if want == a.advertised {
		return
	}
	var err error
	if want {
		err = a.originate(a.config.announced())
	} else {
		err = a.daemon.Speaker.Withdraw(a.config.announced()...)
	}
	if err != nil {
		a.log.Error("advertise own prefixes", "err", err)
		return
	}
	a.advertised = want
	if a.drain.stage == Serving {
		a.log.Info("own prefixes "+map[bool]string{true: "advertised", false: "withdrawn: core unreachable"}[want],
			"prefixes", len(a.config.announced()))
	}
}

// originate advertises prefixes to egress peers.
func (a *ASBR) originate(prefixes []netip.Prefix) error {
	routes := make([]bgp.UnicastRoute, len(prefixes))
	for i, p := range prefixes {
		routes[i] = bgp.UnicastRoute{Prefix: p, NextHop: a.config.Address}
	}
	return a.daemon.Speaker.Originate(routes...)
}

// BGP implements daemon.Machine.
func (a *ASBR) BGP(events []bgp.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case bgp.Session:
			if p := a.peer(e.Neighbor); p != nil {
				p.session = e.Up
				a.identify(p)
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

// reread reads the networks of this host and the links to the reflectors again.
func (a *ASBR) reread() {
	a.core.resolve(a.daemon.NexthopTo)
	on, err := readNetworks()
	if err != nil {
		a.log.Error("read addresses of interfaces", "err", err)
		return
	}
	if on.equal(a.networks) {
		return
	}
	a.networks = on
	contain.Go(contain.Reconcile, a.log, a.setImports)
}

// setImports replaces the import policies of all egress peers, outside of the daemon's loop.
func (a *ASBR) setImports() {
	a.policies.Lock()
	defer a.policies.Unlock()
	var neighbors []bgp.Neighbor
	a.daemon.Do(a.running, func() { neighbors = a.config.egress(a.networks, a.vrps) })
	for _, n := range neighbors {
		if err := a.daemon.Speaker.SetImport(n.Name, n.Import); err != nil {
			a.log.Error("replace import policy", "peer", n.Name, "err", err)
		}
	}
}

// withdraw precedes the removal from the kernel, so that packets in flight find their route as long
// as possible.
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

// Link implements daemon.Machine: a link that goes down closes the session at once, without waiting
// for the hold timer. Withdrawals to the reflectors come first: with a full table the end of a
// session takes seconds.
func (a *ASBR) Link(name string, up bool) {
	a.stale = true
	a.core.links[name] = up
	if !up {
		a.advertise()
	}
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

// Settled implements daemon.Machine: a SID that is installed is advertised, one without routes is
// removed.
func (a *ASBR) Settled() (again bool) {
	if a.stale {
		a.stale = false
		a.reread()
	}
	a.advertise()
	for _, p := range a.peers {
		if !a.daemon.Busy() {
			again = p.step() || again
		}
	}
	a.withdraw()
	for _, p := range a.peers {
		more, err := p.announce()
		if err != nil {
			a.log.Error("advertise routes of egress peer", "peer", p.Name, "err", err)
		}
		again = p.retire() || more || again
	}
	a.exportSIDs()
	return again
}

// Status is what /status shows.
type Status struct {
	Role string `json:"role"`
	health.Status
	ASN uint32 `json:"asn"`
	// Drain is the stage of a drain; empty while in service.
	Drain   Stage        `json:"drain,omitempty"`
	Locator netip.Prefix `json:"locator"`
	// Core: the core is reachable, so that the own prefixes are advertised to egress peers.
	Core    bool `json:"core"`
	Pending int  `json:"pending"`
	// Unresolved is the number of best paths that are not installed because their next hop has no
	// route.
	Unresolved int `json:"unresolved"`
	// Control is the path of the socket for commands.
	Control  string              `json:"control"`
	Sessions []bgp.SessionStatus `json:"sessions"`
	Peers    []PeerStatus        `json:"peers"`
	// Filtered are interfaces that are filtered until a restart, although they have no egress peer
	// since a reload.
	Filtered []string `json:"filtered,omitempty"`
	// Controllers are the sessions with controllers.
	Controllers []linkstate.Status `json:"controllers,omitempty"`
	// RPKI are the RPKI caches, the most preferred first.
	RPKI []rtr.CacheStatus `json:"rpki_caches,omitempty"`
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
	// Load is that of the link.
	Load LoadStatus `json:"load"`
	// Rejected counts UPDATEs of routes that were not accepted, by reason, and Refused all of them.
	Rejected map[bgp.RejectReason]uint64 `json:"rejected,omitempty"`
	Refused  uint64                      `json:"refused"`
}

// Status returns the state of the ASBR; before and after Run, only its configuration.
func (a *ASBR) Status() any {
	s := Status{Role: "asbr", Status: daemon.NotRunning, ASN: a.config.ASN, Locator: a.config.Locator.Prefix, Control: control.Path(a.config.Control, "asbr")}
	a.daemon.Do(context.Background(), func() {
		var report health.Report
		s.Pending, s.Sessions = a.daemon.Health(&report)
		s.Unresolved = a.daemon.Unresolved()
		s.Drain, s.Core = a.drain.stage, a.core.reachable()
		for _, f := range a.retired {
			s.Filtered = append(s.Filtered, f.link)
		}
		for _, p := range a.peers {
			s.Peers = append(s.Peers, p.status(&a.loads))
		}
		a.report(&report, s.Sessions)
		if a.exporter != nil {
			s.Controllers = a.exporter.Status()
			for _, c := range s.Controllers {
				if !c.Up {
					report.Degrade("session with controller %s is down", c.Address)
				}
			}
		}
		if a.rpki != nil {
			s.RPKI = a.rpki.client.Status()
			for _, problem := range rpkiProblems(s.RPKI) {
				report.Degrade("%s", problem)
			}
		}
		s.Status = report.Status()
	})
	return s
}

// report adds what keeps the ASBR from its work: it needs to be in service, the core, a reflector,
// and an egress peer with routes.
func (a *ASBR) report(r *health.Report, sessions []bgp.SessionStatus) {
	if a.drain.stage != Serving {
		r.Fail("out of service: %s", a.drain.stage)
	}
	if !a.core.reachable() {
		r.Fail("core is unreachable")
	}
	var reflectors, peers []string
	for _, s := range sessions {
		switch p := a.peer(s.Neighbor); {
		case p == nil && !s.Up:
			reflectors = append(reflectors, s.Problem())
		case p != nil && !p.link:
			peers = append(peers, fmt.Sprintf("link %s to egress peer %s is down", p.Interface, p.Name))
		case p != nil && !s.Up:
			peers = append(peers, s.Problem())
		case p != nil && p.routes.Len() == 0:
			peers = append(peers, fmt.Sprintf("egress peer %s has no accepted routes", p.Name))
		}
	}
	r.NeedOne(len(a.config.Reflectors), reflectors)
	r.NeedOne(len(a.peers), peers)
}

// Speaker returns the BGP speaker, for its tables and sessions. The caller changes no
// configuration.
func (a *ASBR) Speaker() *bgp.Speaker { return a.daemon.Speaker }
