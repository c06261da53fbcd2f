package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/route"
)

// movingFor is how long the routes of a removed peer are draining. closingFor is the time for its
// subflows to close before its address and rules are removed.
const (
	movingFor  = time.Second
	closingFor = time.Second
)

// changes are the difference between two configurations that a running edge can apply.
type changes struct {
	peers     daemon.Difference
	neighbors bgp.Changes
	use       Use // "": the same
	policies  bool
	delivery  bool
	// origins: rules of the delivery are for other ASes, which paths are to be looked up for.
	origins bool
}

// difference returns the changes from one configuration to another, or faults for keys that cannot
// change while the edge runs.
func difference(old, now *Config) (changes, fault.List) {
	var faults fault.List
	fault.Fixed(&faults, "asn", old.ASN, now.ASN)
	fault.Fixed(&faults, "router_id", old.RouterID, now.RouterID)
	fault.Fixed(&faults, "interface", old.Interface, now.Interface)
	fault.Fixed(&faults, "address", old.Address, now.Address)
	fault.Fixed(&faults, "prefix", old.Prefix, now.Prefix)
	fault.Fixed(&faults, "addresses", fmt.Sprint(old.Addresses), fmt.Sprint(now.Addresses))
	fault.Fixed(&faults, "routes", cmp.Or(old.Routes, BGPRoutes), cmp.Or(now.Routes, BGPRoutes))
	if now.Routes == KernelRoutes {
		fault.Fixed(&faults, "peers", fmt.Sprintf("%+v", old.Peers), fmt.Sprintf("%+v", now.Peers))
	}
	fault.Fixed(&faults, "best_paths", cmp.Or(old.BestPaths, InstallBestPaths), cmp.Or(now.BestPaths, InstallBestPaths))
	fault.Fixed(&faults, "locators", fmt.Sprint(old.Locators), fmt.Sprint(now.Locators))
	fault.Fixed(&faults, "encap", old.encap(), now.encap())
	was, use := old.MPTCP, now.MPTCP.use()
	was.Use, was.Policies = now.MPTCP.Use, now.MPTCP.Policies
	fault.Fixed(&faults, "mptcp", fmt.Sprintf("%+v", was), fmt.Sprintf("%+v", now.MPTCP))
	fault.Fixed(&faults, "control", old.Control, now.Control)
	fault.Fixed(&faults, "status", old.Status, now.Status)
	if len(faults) > 0 {
		return changes{}, faults
	}
	same := func(a, b Peer) bool { return reflect.DeepEqual(a, b) }
	if use == old.MPTCP.use() {
		use = ""
	}
	return changes{
		use:       use,
		policies:  !reflect.DeepEqual(old.rules(), now.rules()),
		delivery:  !reflect.DeepEqual(old.Delivery, now.Delivery),
		origins:   !slices.Equal(old.Delivery.origins(), now.Delivery.origins()) || old.Delivery.learns() != now.Delivery.learns(),
		peers:     daemon.Compare(old.Peers, now.Peers, func(p Peer) string { return p.Name }, same),
		neighbors: bgp.Compare(withoutServices(old.neighbors()), withoutServices(now.neighbors())),
	}, nil
}

// withoutServices returns the neighbors without what follows from the egress peers.
func withoutServices(neighbors []bgp.Neighbor) []bgp.Neighbor {
	for i := range neighbors {
		neighbors[i].Import.Services = nil
	}
	return neighbors
}

// between returns the neighbors of now that accept the routes of the egress peers of old too, where
// they differ. Each change of what is accepted has all routes imported again.
func between(old, now *Config, peers daemon.Difference) []bgp.Neighbor {
	neighbors := now.neighbors()
	if len(peers.Remove) == 0 && len(peers.Add) == 0 {
		return neighbors
	}
	for i := range neighbors {
		s := neighbors[i].Import.Services
		s.Targets = append(s.Targets, old.services().Targets...)
	}
	return neighbors
}

// lines returns a description of the changes, one per line.
func (c changes) lines() []string {
	lines := append(c.peers.Lines("egress peer"), c.neighbors.Lines()...)
	if c.use != "" {
		lines = append(lines, fmt.Sprintf("mptcp.use changed to %s", c.use))
	}
	if c.policies {
		lines = append(lines, "mptcp.policies changed")
	}
	if c.delivery {
		lines = append(lines, "delivery changed")
	}
	return lines
}

// Reload applies another configuration to the running edge, and returns what changed. Sessions of
// unchanged reflectors and subflows of unchanged peers stay. The traffic of a removed or replaced
// peer moves to other paths before its routes and address are removed. An invalid configuration, or
// one that needs a restart, is rejected as a whole.
func (e *Edge) Reload(now Config) ([]string, error) {
	if err := now.Check().Err(); err != nil {
		return nil, err
	}
	e.reloading.Lock()
	defer e.reloading.Unlock()
	ctx := context.Background()
	var old Config
	if !e.daemon.Do(ctx, func() { old = e.config }) {
		return nil, errors.New("not running")
	}
	c, faults := difference(&old, &now)
	if err := faults.Err(); err != nil {
		return nil, err
	}
	if err := bgp.CheckNeighbors(now.ASN, now.neighbors()); err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	for _, p := range now.Peers {
		addresses = append(addresses, p.Address)
	}
	if e.paths != nil && !e.paths.Fits(addresses) {
		return nil, errors.New("too many EPE addresses since the start; a restart is needed")
	}
	// Import policies must reject on-link prefixes before the peers of these prefixes are
	// added.
	both := between(&old, &now, c.peers)
	if err := e.daemon.ChangeNeighbors(ctx, old.neighbors(), both); err != nil {
		return nil, err
	}
	if c.delivery {
		marks := func() {}
		if now.Delivery.leads() {
			marks = e.addMarks(ctx)
		}
		sprays := e.loadSprayer(ctx, &now)
		// Before peers are removed, which the new rules do not name.
		e.daemon.Change(ctx, func() {
			e.config.Delivery = now.Delivery
			marks()
			sprays()
			e.egress.setDelivery(&now.Delivery)
			e.limitQUIC()
			e.hashFlows()
		})
		if e.observer == nil { // else there may be another reason by now
			reason := e.startObserver()
			e.daemon.Do(ctx, func() { e.egress.auto.reason = reason })
		} else if old.Delivery.Store != now.Delivery.Store {
			e.stopSharing()
			e.startSharing()
		}
	}
	e.removePeers(ctx, c.peers.Remove)
	e.addPeers(ctx, c.peers.Add, &now)
	if c.origins {
		e.learn(ctx, func(bgp.VPNPath) bool { return true })
	}
	if err := e.daemon.ChangeNeighbors(ctx, both, now.neighbors()); err != nil {
		return nil, err
	}
	if c.use != "" || c.policies {
		e.daemon.Do(ctx, func() { e.config.MPTCP = now.MPTCP })
		if e.paths != nil {
			e.paths.SetUse(now.MPTCP.use() == UseOverflow, now.rules())
		}
	}
	return c.lines(), nil
}

// removePeers removes egress peers in steps, so that no data is in flight on their paths when they
// are removed.
func (e *Edge) removePeers(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	var peers []*peer
	e.daemon.Change(ctx, func() {
		for _, p := range e.egress.peers {
			if slices.Contains(names, p.Name) {
				peers = append(peers, p)
				p.leaving = true // Settled sets the priority of the endpoint
			}
		}
	})
	for _, p := range peers {
		if e.paths != nil {
			next := hashtable.Ref(0)
			e.inSteps(ctx, func() (more bool) { next, more = e.moveAway(p, next, daemon.Step); return more })
		}
	}
	time.Sleep(movingFor)
	e.daemon.Change(ctx, func() {
		for _, p := range peers {
			e.egress.removePeer(p)
		}
	})
	for _, p := range peers {
		e.inSteps(ctx, func() bool { return e.egress.removeRoutes(p, daemon.Step) })
	}
	e.daemon.Change(ctx, func() {
		for _, p := range peers {
			if e.paths != nil {
				e.paths.RemovePeer(p.index)
			}
		}
	})
	time.Sleep(closingFor)
	e.daemon.Change(ctx, func() {
		for _, p := range peers {
			for _, o := range e.egress.fixed(p) {
				e.egress.kernel.Delete(o.Key())
			}
			e.egress.free(p)
		}
	})
}

// moveAway makes the subflows of a peer backups, to at most so many of its routes from one on. It
// returns the next one, and whether there is one.
func (e *Edge) moveAway(p *peer, from hashtable.Ref, most int) (next hashtable.Ref, more bool) {
	n, ok := p.routes.Next(from)
	for ; ok && most > 0; n, ok = p.routes.Next(n + 1) {
		most--
		prefix := p.routes.Key(n).Netip()
		delete(e.pending, peerPrefix{p.index, prefix})
		e.report(peerPrefix{p.index, prefix}, pathmanager.Route{State: pathmanager.RouteDraining})
	}
	e.sendReports()
	return n, ok
}

// addPeers adds egress peers with the routes that the reflectors have advertised already, and makes
// the configuration the current one.
func (e *Edge) addPeers(ctx context.Context, names []string, now *Config) {
	e.daemon.Change(ctx, func() {
		wanted := map[route.Key]bool{}
		before := e.egress.onLink()
		e.config.Peers, e.config.Reflectors = now.Peers, now.Reflectors
		for _, o := range e.egress.onLink() {
			wanted[o.Key()] = true
			e.egress.kernel.Set(o)
		}
		for _, o := range before {
			if !wanted[o.Key()] {
				e.egress.kernel.Delete(o.Key())
			}
		}
		for _, p := range now.Peers {
			if slices.Contains(names, p.Name) {
				e.owned[p.Address] = true
				e.egress.addPeer(p, e.newIndex(p))
			}
		}
		order := map[string]int{}
		for i, p := range now.Peers {
			order[p.Name] = i
		}
		slices.SortFunc(e.egress.peers, func(a, b *peer) int { return order[a.Name] - order[b.Name] })
	})
	if len(names) == 0 {
		return
	}
	rts := map[vpn.ID]bool{}
	for _, p := range now.Peers {
		if slices.Contains(names, p.Name) {
			rts[p.RT] = true
		}
	}
	e.learn(ctx, func(p bgp.VPNPath) bool {
		return slices.ContainsFunc(p.RTs, func(rt vpn.ID) bool { return rts[rt] })
	})
}

// learn applies again the routes that the reflectors have advertised already and that are wanted.
func (e *Edge) learn(ctx context.Context, wanted func(bgp.VPNPath) bool) {
	e.daemon.Do(ctx, func() { e.updated = map[pathKey]bool{} })
	defer e.daemon.Do(ctx, func() { e.updated = nil })
	var known []bgp.VPNPath
	e.daemon.Speaker.BestVPN(func(p bgp.VPNPath) {
		if wanted(p) {
			known = append(known, p)
		}
	})
	e.inSteps(ctx, func() bool {
		part := known[:min(daemon.Step, len(known))]
		known = known[len(part):]
		events := make([]bgp.Event, 0, len(part))
		for _, p := range part {
			if !e.updated[pathKey{p.RD, p.Prefix}] { // else a newer one was received
				events = append(events, p)
			}
		}
		e.BGP(events)
		return len(known) > 0
	})
}

// inSteps has the loop make a large change in steps, each once the kernel has what is desired, and
// follow events in between.
func (e *Edge) inSteps(ctx context.Context, step func() (more bool)) {
	for more := true; more && e.daemon.Change(ctx, func() { more = e.daemon.Busy() || step() }); {
	}
}

// newIndex returns the index of a new peer, assigned by the user-space path manager if it is used.
func (e *Edge) newIndex(p Peer) int {
	if e.paths != nil {
		return e.paths.AddPeer(pathmanager.Peer{Address: p.Address, Backup: p.Backup})
	}
	index := 0
	for e.egress.byIndex[index] != nil {
		index++
	}
	return index
}
