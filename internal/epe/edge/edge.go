// Package edge is the control plane of a content server that uses every egress path. It configures
// an EPE address, a policy rule and a routing table for each egress peer, installs the EPE Routes
// of the reflectors in these tables, and announces the EPE addresses to clients by MPTCP
// (docs/papers.md, paper A, sections 4.1.3, 4.2 and 4.3: Endpoint Manager and BGP).
//
// Packets from the default addresses, of any protocol, follow the best path or are delivered
// through the egress peers that the configuration has for their network, by routes.
//
// It does not distribute the packets of a connection: the MPTCP scheduler selects a subflow for
// each packet. No packet is sent to an egress peer that has no route to its destination.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/mptcp"
)

// Options configure an Edge.
type Options struct {
	Config Config
	// Keep retains addresses, routes, rules and endpoints in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

// Edge is the control plane of a content server.
type Edge struct {
	config Config
	keep   bool
	log    *slog.Logger
	daemon *daemon.Daemon
	egress *egress
	announcing
	routeReports
	observing

	// counters are the kernel's at the start.
	counters mptcp.Counters
	// paths is the path manager; nil if the kernel's is used.
	paths *pathmanager.Manager
	// memory keeps what connections learned of paths; nil without paths.
	memory *memory
	// restarted is set if a previous instance left objects in the kernel.
	restarted  bool
	quietTimer *time.Timer
	hashing    hashing
	canMark    func() bool
	sprayer    *spray.Sprayer // nil: no mode needs it, or this host cannot do it
	// unheard are connections that are not sprayed because their acknowledgments are not seen.
	unheard counted
	// keepsSprayer: a new configuration is about to need the sprayer.
	keepsSprayer bool
	// sharer shares what is measured; nil unless the delivery has a store.
	sharer atomic.Pointer[sharer]
	// afterLoop is for what runs instead of in the daemon's loop once that has ended.
	afterLoop sync.Mutex

	reloading sync.Mutex
	// updated are the routes for which an update was received while the routes of added peers
	// are being read; nil otherwise.
	updated map[pathKey]bool
}

// announcing is what the kernel's path manager has of the EPE addresses.
type announcing struct {
	mptcp *mptcp.Conn
	// owned are the EPE addresses, including those of a previous instance; their endpoints may
	// be removed.
	owned map[netip.Addr]bool
	// announced is set while the endpoints in offered are configured, or with the path manager of
	// the edge, once the addresses can be announced.
	announced bool
	offered   []mptcp.Endpoint
}

// routeReports are the routes of egress peers, as far as the path manager is not informed of them.
type routeReports struct {
	// pending are routes not yet known to be in the kernel; their addresses are not announced.
	pending map[peerPrefix]pathmanager.Route
	// examinedVersion is the version of the kernel's state in which pending was examined.
	examinedVersion uint64
	// inherited are routes that a previous instance left in the kernel. They remain until all
	// reflectors have advertised their routes.
	inherited prefixSet
	// reports are collected for the path manager.
	reports []pathmanager.Change
}

// observing is what the connections of networks are observed with.
type observing struct {
	observer  *observer     // nil unless a mode needs it
	namespace *netns.Handle // of the edge
	groups    *os.File      // the root of control groups; nil if there is none
}

type peerPrefix struct {
	peer   int
	prefix netip.Prefix
}

// A prefixSet holds prefixes of peers, of which there may be a million.
type prefixSet map[int]*hashtable.Prefixes[struct{}]

func (s prefixSet) add(at peerPrefix) {
	if s[at.peer] == nil {
		s[at.peer] = &hashtable.Prefixes[struct{}]{}
	}
	s[at.peer].Add(at.prefix)
}

func (s prefixSet) remove(at peerPrefix) {
	if t := s[at.peer]; t != nil {
		if n, ok := t.Find(at.prefix); ok {
			t.Remove(n)
		}
	}
}

func (s prefixSet) each(f func(peerPrefix)) {
	for peer, t := range s {
		for n := range t.All() {
			f(peerPrefix{peer, t.Key(n).Netip()})
		}
	}
}

const (
	// routesQuiet is how long all sessions must have been up before all routes are considered
	// known; after routesLatest they are, even if some sessions are down. Both are longer than
	// the daemon's delays before it sweeps the kernel.
	routesQuiet  = 11 * time.Second
	routesLatest = 61 * time.Second
)

// New checks the prerequisites of an edge on this host and opens its kernel connections. It changes
// nothing in the kernel, except that it removes objects that a previous instance with other tables
// left. It returns a *feature.Error when the kernel lacks MPTCP or SRv6, and other errors when the
// interface or a privilege is missing.
func New(ctx context.Context, o Options) (*Edge, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if err := errors.Join(mptcp.Supported(), route.SupportsSEG6(), condition.Require(o.Config.conditions())); err != nil {
		return nil, err
	}
	endpoints, err := mptcp.Dial()
	if err != nil {
		return nil, err
	}
	d, err := daemon.New(ctx, daemon.Options{
		Protocol:  route.Edge,
		Speaker:   bgp.Options{ASN: o.Config.ASN, RouterID: o.Config.RouterID, NoListen: true, Report: bgp.ReportVPN},
		Neighbors: o.Config.neighbors(),
		Installs:  o.Config.installs,
		Keep:      o.Keep,
		Log:       o.Log,
	})
	if err != nil {
		return nil, errors.Join(err, endpoints.Close())
	}
	e := &Edge{
		config: o.Config, keep: o.Keep, log: o.Log, daemon: d, canMark: sync.OnceValue(func() bool { return markable(o.Log) }),
		announcing:   announcing{mptcp: endpoints, owned: map[netip.Addr]bool{}},
		routeReports: routeReports{pending: map[peerPrefix]pathmanager.Route{}, inherited: prefixSet{}},
	}
	// A daemon drops the capability that this may need, and a reload may turn auto on.
	if e.groups, err = bpf.Groups(); err != nil {
		e.log.Debug("no control groups", "err", err)
	}
	if e.counters, err = mptcp.ReadCounters(); err != nil {
		return nil, errors.Join(err, d.Close(), e.close())
	}
	if err := e.prepare(); err != nil {
		return nil, errors.Join(err, d.Close(), e.close())
	}
	return e, nil
}

// neighbors returns the sessions with the reflectors.
func (c *Config) neighbors() []bgp.Neighbor {
	var neighbors []bgp.Neighbor
	for _, r := range c.Reflectors {
		neighbors = append(neighbors, bgp.Neighbor{
			Name: "reflector " + r.Address.String(), Address: r.Address, Port: r.Port, LocalAddress: c.local(r.Address), ASN: c.ASN,
			Families: c.families(), Password: r.Password, BFD: r.BFD, Retain: retainRoutes,
			// Reject on-link prefixes: a route to one would divert replies to hosts on
			// the link.
			Import: bgp.ImportPolicy{Reject: bgp.Within(bgp.RejectConnected, c.onLink()...), Services: c.services()},
		})
	}
	return neighbors
}

// services are the VPN routes that this server uses.
func (c *Config) services() *bgp.Services {
	s := &bgp.Services{Locators: c.Locators}
	for _, p := range c.Peers {
		s.Targets = append(s.Targets, bgp.Target{RT: p.RT, IP: bgp.IPOf(p.Address)})
	}
	s.Targets = append(s.Targets, bgp.Target{RT: bgp.LoadTarget(c.ASN), IP: bgp.IPv6})
	return s
}

// families are those of the sessions with the reflectors.
func (c *Config) families() []bgp.Family {
	var families []bgp.Family
	for _, v := range c.versions() {
		families = append(families, v.Unicast(), v.VPN())
	}
	return families
}

// prepare sets the desired state that does not depend on routes.
func (e *Edge) prepare() error {
	link, err := e.daemon.Link(e.config.Interface)
	if err != nil {
		return fmt.Errorf("%w; edge.interface must name the NIC with the addresses", err)
	}
	found, err := e.takeOver()
	if err != nil {
		return err
	}
	e.egress = newEgress(&e.config, link.MTU, e.daemon.Kernel)
	readNetworks(e.config.NetworksFile(), time.Now(), e.egress.auto.table, e.log)
	e.egress.auto.multipath = e.config.MPTCP.manager() == UserPathManager
	// Failed objects remain pending, and the daemon's next flush logs the error.
	e.egress.flushNow = func(routes int) { _, _ = e.daemon.Kernel.FlushPart(routes) }
	e.egress.after = func(d time.Duration, f func()) {
		time.AfterFunc(d, func() {
			// A daemon that has ended changes nothing more; a panic is logged.
			_ = contain.Do(contain.Reconcile, e.log, nil, func() { e.daemon.Change(context.Background(), f) })
		})
	}
	if e.config.Delivery.leads() && e.canMark() {
		e.egress.startMarking()
	}
	if e.config.Delivery.sprays() {
		e.startSpraying(spray.New(e.config.links()))
	}
	e.ownAddresses(found)
	if err := e.preparePaths(); err != nil {
		return err
	}
	for _, a := range e.config.defaults() {
		address := route.Address{Link: a.Interface, Prefix: a.Address}
		if slices.Contains(found, route.Object(address)) || !hasAddress(a.Interface, a.Address.Addr()) {
			e.daemon.Kernel.Set(address)
		}
	}
	return nil
}

// epeRouteOf returns an object as a route that may be an EPE Route.
func epeRouteOf(o route.Object) (route.Route, bool) {
	r, ok := o.(route.Route)
	return r, ok && r.Kind == route.Unicast
}

// takeOver takes over the EPE Routes of a previous instance, and removes its objects that would
// route EPE addresses through the wrong peer. It returns the other objects of that instance.
func (e *Edge) takeOver() (found []route.Object, err error) {
	// EPE Routes are not collected: there may be a million.
	if err := e.daemon.Found(func(o route.Object) {
		if _, ok := epeRouteOf(o); !ok {
			found = append(found, o)
		}
	}); err != nil {
		return nil, err
	}
	stale, old := staleRules(&e.config, found)
	tables := map[fib]int{}
	for i, p := range e.config.Peers {
		tables[p.fib()] = i
		if len(stale) > 0 {
			e.daemon.Kernel.Set(unreachableRule(p.Address, i))
		}
	}
	for _, r := range stale {
		e.daemon.Kernel.Delete(r.Key())
	}
	e.restarted = len(found) > len(stale)
	if err := e.daemon.Found(func(o route.Object) {
		r, ok := epeRouteOf(o)
		if !ok {
			return
		}
		at := fib{r.Table, bgp.IPOf(r.Dst.Addr())}
		if old[at] {
			e.daemon.Kernel.Delete(r.Key())
			return
		}
		e.restarted = true
		if i, mine := tables[at]; mine {
			e.inherited.add(peerPrefix{i, r.Dst})
		}
	}); err != nil {
		return nil, err
	}
	if len(stale) == 0 {
		return found, nil
	}
	// They are deleted before the new rules take effect, and the guards are installed first, so that
	// no packet follows the best path in between.
	e.log.Info("tables of EPE addresses have changed, removing the old rules and routes", "rules", len(stale))
	return found, e.daemon.Kernel.Flush()
}

// ownAddresses sets which addresses are EPE addresses: those of the configuration, and those that a
// previous instance left.
func (e *Edge) ownAddresses(found []route.Object) {
	for _, p := range e.config.Peers {
		e.owned[p.Address] = true
	}
	for _, o := range found {
		if a, ok := o.(route.Address); ok {
			e.owned[a.Prefix.Addr()] = true
		}
	}
	for _, a := range e.config.defaults() {
		delete(e.owned, a.Address.Addr())
	}
}

// hasAddress reports whether the interface has the address.
func hasAddress(name string, address netip.Addr) bool {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addrs, err := link.Addrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == address
	})
}

// preparePaths creates the path manager of the configuration.
func (e *Edge) preparePaths() error {
	if e.config.MPTCP.manager() == KernelPathManager {
		if e.restarted {
			return nil // a previous instance may have selected the user-space one; Run selects the kernel's
		}
		return mptcp.CheckKernelManager()
	}
	o := pathmanager.Options{
		Retired: slices.Collect(maps.Keys(e.owned)), Restarted: e.restarted, ShareDefault: e.config.MPTCP.BestPath == SharingBestPath,
		Overflow: e.config.MPTCP.Use == UseOverflow, Rules: e.config.rules(), Keep: e.keep, Log: e.log,
	}
	for _, p := range e.config.Peers {
		o.Peers = append(o.Peers, pathmanager.Peer{Address: p.Address, Backup: p.Backup})
	}
	e.memory = newMemory(e.config.memoryFile(), e.log)
	o.Remember = e.memory.remember
	if e.config.MPTCP.Chooses() {
		o.Memory = e.memory.read(time.Now())
	}
	paths, err := pathmanager.New(o)
	if err != nil {
		return err
	}
	e.paths, e.egress.routeChanged, e.egress.walkStarted = paths, e.routeChanged, e.moveClients
	e.inherited.each(func(at peerPrefix) { e.report(at, pathmanager.Route{State: pathmanager.RoutePresent}) })
	e.sendReports()
	return nil
}

// close closes the resources that New opened. It changes nothing in the kernel.
func (e *Edge) close() error {
	err := e.mptcp.Close()
	if e.groups != nil {
		err = errors.Join(err, e.groups.Close())
	}
	if e.sprayer != nil {
		err = errors.Join(err, e.sprayer.Close())
	}
	if e.memory != nil {
		e.memory.close()
	}
	if e.paths != nil {
		err = errors.Join(err, e.paths.Close())
	}
	return err
}

// Run runs the edge until ctx ends, and closes the resources that New opened.
func (e *Edge) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, e.close()) }()
	if e.namespace, err = netns.Current(); err != nil {
		return errors.Join(err, e.daemon.Close())
	}
	defer func() { err = errors.Join(err, e.stopObserver(), e.namespace.Close()) }()
	if !e.restarted {
		if err := route.LeaveInitialNumber(); err != nil {
			e.log.Warn("connections may stall for seconds when routes change", "err", err)
		}
	}
	balancing, stopBalancing := context.WithCancel(ctx)
	balanced := make(chan struct{})
	defer func() {
		stopBalancing()
		<-balanced
	}()
	contain.Go(contain.Reconcile, e.log, func() { defer close(balanced); e.balanceLinks(balancing) })
	e.hashFlows()
	defer func() {
		if !e.keep {
			err = errors.Join(err, e.hashing.restore())
		}
	}()
	if e.paths == nil {
		err := mptcp.SetManager(mptcp.KernelManager)
		if err != nil {
			return errors.Join(err, e.daemon.Close())
		}
		e.egress.auto.reason = e.startObserver()
		err = e.daemon.Run(ctx, e)
		if !e.keep {
			err = errors.Join(err, e.setEndpoints(nil))
		}
		return err
	}
	return e.runPaths(ctx)
}

// hashFlows sets how flows are spread, if they are. The condition reports what cannot be set.
func (e *Edge) hashFlows() {
	change := e.hashing.restore
	if e.config.Delivery.spreads() {
		change = e.hashing.set
	}
	if err := change(); err != nil {
		e.log.Warn("set how flows are spread over egress peers", "err", err)
	}
}

// runPaths runs the path manager beside the daemon. It ends before the daemon removes the EPE
// addresses, so that no subflow is on them by then.
func (e *Edge) runPaths(ctx context.Context) error {
	// With endpoints, the kernel's path manager would continue to announce on the connections that
	// it manages.
	err := e.setEndpoints(nil)
	if err == nil {
		err = e.paths.Start()
	}
	if err != nil {
		return errors.Join(err, e.daemon.Close())
	}
	e.egress.auto.reason = e.startObserver()
	after := func(d time.Duration, f func()) *time.Timer {
		return time.AfterFunc(d, func() {
			_ = contain.Do(contain.Reconcile, e.log, nil, func() { e.daemon.Do(ctx, f) }) // it is logged
		})
	}
	e.quietTimer = after(routesQuiet, func() {
		if e.daemon.AllUp() {
			e.routesComplete()
		}
	})
	defer e.quietTimer.Stop()
	latest := after(routesLatest, e.routesComplete)
	defer latest.Stop()

	pathsCtx, stopPaths := context.WithCancel(ctx)
	defer stopPaths()
	daemonCtx, stopDaemon := context.WithCancel(context.WithoutCancel(ctx))
	defer stopDaemon()
	run := []func(context.Context) error{e.paths.Run}
	if e.config.Routes == KernelRoutes {
		run = append(run, newTables(e).run)
	}
	ended := make(chan error, len(run))
	for _, f := range run {
		go func() {
			defer stopDaemon()
			ended <- f(pathsCtx)
		}()
	}
	err = e.daemon.Run(daemonCtx, e)
	stopPaths()
	for range run {
		err = errors.Join(err, <-ended)
	}
	// The daemon has stopped: an examination of the host would select the path manager of the edge
	// again.
	return errors.Join(err, e.paths.Restore())
}

// routeChanged handles a change of a peer's route to a prefix. The address of a withdrawn route is
// withdrawn from clients at once; that of a new route is announced once the route is in the kernel.
func (e *Edge) routeChanged(peer int, prefix netip.Prefix, r pathmanager.Route) {
	at := peerPrefix{peer, prefix}
	e.inherited.remove(at)
	if r.State == pathmanager.RoutePresent {
		e.pending[at] = r
		e.examinedVersion = 0
		return
	}
	delete(e.pending, at)
	e.report(at, r)
}

// report collects a change of a route for the path manager.
func (e *Edge) report(at peerPrefix, r pathmanager.Route) {
	e.reports = append(e.reports, pathmanager.Change{Peer: at.peer, Prefix: at.prefix, Route: r})
}

// sendReports passes the collected changes on to the path manager.
func (e *Edge) sendReports() {
	if len(e.reports) > 0 {
		e.paths.SetRoutes(e.reports)
		e.reports = nil
	}
}

// announce reports the pending routes that are in the kernel now.
func (e *Edge) announce() {
	if v := e.daemon.Kernel.Version(); len(e.pending) > 0 && v != e.examinedVersion {
		e.examinedVersion = v
		e.reports = slices.Grow(e.reports, len(e.pending))
		for at, r := range e.pending {
			if e.egress.installed(at.peer, at.prefix) {
				e.report(at, r)
				delete(e.pending, at)
			}
		}
		if len(e.pending) == 0 {
			e.pending = map[peerPrefix]pathmanager.Route{} // a full table leaves a large one
		}
	}
	e.sendReports()
}

// moveClients applies a change of reachability to the routes to the clients of the current
// connections, before the walk arrives there.
func (e *Edge) moveClients() {
	contain.Go(contain.Reconcile, e.log, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		list, _, err := e.paths.List(ctx, math.MaxInt)
		if err != nil {
			return // the path manager ends
		}
		clients := map[netip.Addr]bool{}
		for _, s := range list {
			clients[s.Remote.Addr()] = true
		}
		e.daemon.Change(ctx, func() {
			for a := range clients {
				e.egress.applyTo(a)
			}
		})
	})
}

// routesComplete removes the routes of a previous instance that no reflector has advertised since.
func (e *Edge) routesComplete() {
	e.inherited.each(func(at peerPrefix) { e.report(at, pathmanager.Route{}) })
	e.inherited = prefixSet{}
	e.sendReports()
	e.paths.RoutesComplete()
}

// BGP implements daemon.Machine.
func (e *Edge) BGP(events []bgp.Event) {
	for _, event := range events {
		if _, ok := event.(bgp.Session); ok && e.quietTimer != nil {
			e.quietTimer.Reset(routesQuiet)
		}
		switch p := event.(type) {
		case bgp.UnicastPath:
			e.egress.locator(p)
		case bgp.VPNPath:
			if e.updated != nil {
				e.updated[pathKey{p.RD, p.Prefix}] = true
			}
			e.egress.updateLoad(p)
			if err := e.egress.update(p); err != nil {
				e.log.Warn("EPE Route not installed", "rd", p.RD, "prefix", p.Prefix, "neighbor", p.Neighbor, "err", err)
			}
		}
	}
}

// Link implements daemon.Machine: routes follow the MTU of the interface. An edge does not track
// the links of its sessions.
func (e *Edge) Link(string, bool) { e.followMTU() }

// followMTU applies the MTU of the interface, or the smaller one of another interface that packets
// to border routers leave through.
func (e *Edge) followMTU() {
	mtu := e.daemon.MTU(e.config.Interface)
	if least := e.daemon.NexthopMTU(); mtu > 0 && least > 0 {
		mtu = min(mtu, least)
	}
	if mtu > 0 && mtu != e.egress.mtu {
		e.log.Info("MTU toward border routers changed", "interface", e.config.Interface, "mtu", mtu)
		e.egress.setMTU(mtu)
		e.limitQUIC()
	}
}

// Settled implements daemon.Machine: an address is announced to clients only once its route is in
// the kernel.
func (e *Edge) Settled() bool {
	again := false
	if !e.daemon.Busy() {
		e.followMTU()
		again = e.egress.step(daemon.Step)
		again = e.stopSpraying() || again
		again = e.egress.stopMarking() || again
	}
	if !e.egress.fixedSettled() {
		return again
	}
	if e.paths != nil {
		e.announce()
		e.announced = true
		return again
	}
	want := e.endpoints()
	if e.announced && slices.Equal(want, e.offered) {
		return again
	}
	if err := e.setEndpoints(want); err != nil {
		e.log.Error("announce EPE addresses to clients failed", "err", err)
		return again
	}
	e.announced, e.offered = true, want
	return again
}

// setEndpoints configures the desired MPTCP endpoints and does not change those of other programs.
func (e *Edge) setEndpoints(want []mptcp.Endpoint) error {
	changes, limits, err := e.endpointChanges(want)
	if err != nil {
		return err
	}
	if limits {
		if err := e.mptcp.SetLimits(e.config.limits()); err != nil {
			return err
		}
	}
	for _, id := range changes.Remove {
		if err := e.mptcp.Delete(id); err != nil {
			return err
		}
	}
	for _, endpoint := range changes.Flags {
		if err := e.mptcp.SetFlags(endpoint); err != nil {
			return err
		}
	}
	for _, endpoint := range changes.Add {
		if err := e.mptcp.Add(endpoint); err != nil {
			return err
		}
	}
	return nil
}

// endpointChanges returns what differs from the desired MPTCP endpoints in the kernel, and whether
// its limits do, which have no effect without endpoints.
func (e *Edge) endpointChanges(want []mptcp.Endpoint) (changes mptcp.Changes, limits bool, err error) {
	have, err := e.mptcp.Endpoints()
	if err != nil {
		return changes, false, err
	}
	changes = mptcp.Plan(want, have, func(a netip.Addr) bool { return e.owned[a] })
	if want == nil {
		return changes, false, nil
	}
	now, err := e.mptcp.Limits()
	return changes, now != e.config.limits(), err
}

// conditions returns what the edge needs of the host before it starts.
func (c *Config) conditions() []condition.Condition {
	links := []string{c.Interface}
	for _, p := range c.Peers {
		if p.Interface != "" {
			links = append(links, p.Interface)
		}
	}
	// SRv6 is IPv6, whatever the packets of clients are.
	return []condition.Condition{condition.IPv6(links...), condition.Unique(links...), condition.Unclaimed(links...), condition.Tracked()}
}

// Conditions implements daemon.Conditioned. The path manager and the endpoints are the edge's own.
func (e *Edge) Conditions() []condition.Condition {
	manager := mptcp.KernelManager
	if e.paths != nil {
		manager = mptcp.UserManager
	}
	list := append(e.config.conditions(), condition.Multipath(), condition.PathManager(manager))
	if e.config.Delivery.spreads() {
		list = append(list, e.hashing.condition())
	}
	if e.egress.marksPackets() {
		list = append(list, condition.Marks(e.egress.marked()))
	}
	if s := e.sprayer; s != nil {
		list = append(list, acknowledgments(s, &e.unheard)...)
	}
	if o := e.observer; o != nil {
		list = append(list, o.conditions()...)
	}
	ctx := context.Background()
	return append(list, condition.Condition{
		Name: "MPTCP endpoints", Good: "EPE addresses are endpoints of the kernel's path manager as configured",
		Examine: func() (problems []health.Problem, err error) {
			e.daemon.Do(ctx, func() { problems, err = e.examineEndpoints() })
			return problems, err
		},
		Restore: func() (err error) {
			e.daemon.Do(ctx, func() { err = e.setEndpoints(e.offered) })
			return err
		},
	})
}

// examineEndpoints returns a problem if the kernel's endpoints or limits are not as they were set.
func (e *Edge) examineEndpoints() ([]health.Problem, error) {
	if !e.announced && e.paths == nil {
		return nil, nil // not set yet
	}
	changes, limits, err := e.endpointChanges(e.offered)
	if err != nil || !limits && changes.Empty() {
		return nil, err
	}
	return []health.Problem{{
		Text:   "another program changed the MPTCP endpoints of EPE addresses, or the limits",
		Remedy: "stop that program, and delete its endpoints with EPE addresses: ip mptcp endpoint delete id ID",
	}}, nil
}

// Status is the content of /status.
type Status struct {
	Role string `json:"role"`
	health.Status
	ASN     uint32     `json:"asn"`
	Address netip.Addr `json:"address"`
	// BestPaths is what happens to the best paths of unicast routes.
	BestPaths BestPaths `json:"best_paths"`
	Pending   int       `json:"pending"`
	// Unresolved is the number of best paths that are not installed because their next hop has no
	// route.
	Unresolved int `json:"unresolved"`
	// Control is the path of the socket for commands.
	Control  string              `json:"control"`
	Sessions []bgp.SessionStatus `json:"sessions"`
	Peers    []PeerStatus        `json:"peers"`
	// Refused and Unused are the routes of all reflectors that are not accepted, by reason.
	Refused map[bgp.RejectReason]int `json:"refused"`
	Unused  map[bgp.RejectReason]int `json:"unused"`
	Paths   PathStatus               `json:"paths"`
	// Delivery counts the client networks that packets do not reach by the best path alone.
	Delivery DeliveryStatus `json:"delivery"`
	// Links are the egress links whose border routers report their loads.
	Links []LinkStatus `json:"links"`
	// MPTCP counts the connections that clients requested with MPTCP in this network namespace.
	MPTCP mptcp.Counters `json:"mptcp"`
}

// PathStatus is the path manager in a Status; the kernel's has no counters.
type PathStatus struct {
	Manager PathManager `json:"manager"`
	pathmanager.Status
}

// PeerStatus is an egress peer in a Status.
type PeerStatus struct {
	Name    string     `json:"name"`
	RT      vpn.ID     `json:"rt"`
	Address netip.Addr `json:"address"`
	Table   uint32     `json:"table"`
	Routes  int        `json:"routes"`
	// Unreachable is the number of further prefixes whose SIDs cannot be reached.
	Unreachable int          `json:"unreachable"`
	SIDs        []netip.Addr `json:"sids"`
}

// Status returns a Status. The edge is ready when it announces the addresses of an egress peer with
// routes and has a session with a reflector.
func (e *Edge) Status() any {
	s := Status{
		Role: "edge", Status: daemon.NotRunning, ASN: e.config.ASN, Address: e.config.Address,
		BestPaths: cmp.Or(e.config.BestPaths, InstallBestPaths), Control: control.Path(e.config.Control, "edge"),
		Paths: PathStatus{Manager: e.config.MPTCP.manager()},
	}
	if e.config.Routes == KernelRoutes {
		s.BestPaths = LeaveBestPaths
	}
	if e.paths != nil {
		s.Paths.Status = e.paths.Status()
	}
	if c, err := mptcp.ReadCounters(); err == nil {
		s.MPTCP = c.Since(e.counters)
	}
	e.daemon.Do(context.Background(), func() {
		var report health.Report
		s.Pending, s.Sessions = e.daemon.Health(&report)
		s.Unresolved = e.daemon.Unresolved()
		report.NeedOne(len(s.Sessions), bgp.Problems(s.Sessions))
		if !e.announced {
			report.Fail("EPE addresses are not announced yet")
		}
		s.Delivery = e.egress.deliveryStatus()
		if e.sprayer != nil {
			if volumes, err := e.sprayer.UDP(); err != nil {
				report.Degrade("%v", err)
			} else {
				s.Delivery.SprayedUDP = e.egress.sprayedUDP(volumes)
			}
		}
		if shared := e.sharer.Load(); shared != nil {
			if s.Delivery.Store = shared.Status(); s.Delivery.Store.Reason != "" {
				report.Degrade("store %s: %s", s.Delivery.Store.Name, s.Delivery.Store.Reason)
			}
		}
		s.Links = e.egress.linkStatus(&report)
		s.Refused, s.Unused = bgp.NotAccepted(s.Sessions)
		var peers []string
		for _, p := range e.egress.peers {
			s.Peers = append(s.Peers, e.egress.status(p))
			if p.reachable() == 0 {
				reason := fmt.Sprintf("egress peer %s has no EPE Route", p.Name)
				if e.config.Routes == KernelRoutes {
					reason += fmt.Sprintf(": add one to table %d", p.Table)
				}
				peers = append(peers, reason)
			}
		}
		report.NeedOne(len(e.egress.peers), peers)
		s.Status = report.Status()
	})
	return s
}

// Speaker returns the BGP speaker, for its tables and sessions. The caller changes no
// configuration.
func (e *Edge) Speaker() *bgp.Speaker { return e.daemon.Speaker }
