package asbr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/kernel/route"
)

// changes are the difference between two configurations that a running ASBR can apply.
type changes struct {
	peers daemon.Difference
	// originate and withdraw are prefixes that egress peers are sent.
	originate, withdraw []netip.Prefix
	// neighbors are the changes of sessions, without those of replaced peers.
	neighbors bgp.Changes
	rpki      bool
	// capacities describes those that change.
	capacities []string
	retired    []filter // interfaces without an egress peer from now on
}

// difference returns the changes from one configuration to another, or the faults of what cannot
// change while the ASBR runs.
func difference(old, now *Config, on networks, vrps *policy.VRPs) (changes, fault.List) {
	var faults fault.List
	fault.Fixed(&faults, "asn", old.ASN, now.ASN)
	fault.Fixed(&faults, "router_id", old.RouterID, now.RouterID)
	fault.Fixed(&faults, "address", old.Address, now.Address)
	fault.Fixed(&faults, "locator.prefix", old.Locator.Prefix, now.Locator.Prefix)
	fault.Fixed(&faults, "locator.block", old.Locator.srv6().Block, now.Locator.srv6().Block)
	fault.Fixed(&faults, "locator.function", old.Locator.srv6().Function, now.Locator.srv6().Function)
	fault.Fixed(&faults, "sid_format", old.SIDFormat, now.SIDFormat)
	fault.Fixed(&faults, "port", old.Port, now.Port)
	if !slices.Equal(old.Controllers, now.Controllers) {
		faults.Add("controllers", "cannot change while the daemon runs, from those at %v to those at %v; a restart is needed",
			controllerAddresses(old.Controllers), controllerAddresses(now.Controllers))
	}
	fault.Fixed(&faults, "control", old.Control, now.Control)
	fault.Fixed(&faults, "status", old.Status, now.Status)
	before, after := old.egress(on, vrps), now.egress(on, vrps)
	bgp.CheckRenamed(&faults, "peers", before, after)
	if len(faults) > 0 {
		return changes{}, faults
	}
	same := func(a, b Peer) bool { return reflect.DeepEqual(a.state(), b.state()) }
	return changes{
		peers:     daemon.Compare(old.Peers, now.Peers, func(p Peer) string { return p.Name }, same),
		originate: without(now.announced(), old.announced()), withdraw: without(old.announced(), now.announced()),
		neighbors:  bgp.Compare(slices.Concat(old.reflectors(), before), slices.Concat(now.reflectors(), after)),
		rpki:       !reflect.DeepEqual(old.RPKI, now.RPKI),
		capacities: changedCapacities(old.Peers, now.Peers),
		retired:    now.retired(old.filters()),
	}, nil
}

// controllerAddresses are what may be said of controllers, which have passwords.
func controllerAddresses(list []Controller) (all []netip.Addr) {
	for _, c := range list {
		all = append(all, c.Address)
	}
	return all
}

// state is the part of a peer that its session, SID and table depend on: all but its policies
// and the capacity of its link.
func (p Peer) state() Peer {
	p.Prefixes, p.ThirdParty, p.Capacity = nil, false, 0
	p.MaxPrefixes, p.ImportRules, p.ExportRules = bgp.PrefixLimit{}, nil, nil
	return p
}

func without(list, other []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return slices.Contains(other, p) })
}

// lines describes the changes, one in each line.
func (c changes) lines() []string {
	lines := c.peers.Lines("egress peer")
	for _, f := range c.retired {
		lines = append(lines, fmt.Sprintf("interface %q stays filtered until a restart", f.link))
	}
	isPeer := func(name string) bool {
		return slices.Contains(c.peers.Remove, name) || slices.Contains(c.peers.Add, name)
	}
	for _, p := range c.withdraw {
		lines = append(lines, fmt.Sprintf("prefix %s removed", p))
	}
	for _, p := range c.originate {
		lines = append(lines, fmt.Sprintf("prefix %s added", p))
	}
	if c.rpki {
		lines = append(lines, "rpki changed")
	}
	lines = append(lines, c.capacities...)
	others := c.neighbors
	listed := func(n bgp.Neighbor) bool { return isPeer(n.Name) }
	others.Remove = slices.DeleteFunc(slices.Clone(others.Remove), isPeer)
	others.Add = slices.DeleteFunc(slices.Clone(others.Add), listed)
	others.Reset = slices.DeleteFunc(slices.Clone(others.Reset), listed)
	others.Policy = slices.DeleteFunc(slices.Clone(others.Policy), listed)
	return append(lines, others.Lines()...)
}

var (
	errReloading = errors.New("a reload is in progress")
	errDraining  = errors.New("draining or drained: revert that first (tabane asbr drain --undo), or restart")
)

// Reload applies another configuration to the running ASBR, and returns what changed. Sessions of
// unchanged peers and reflectors stay up. The routes of a removed or replaced peer are withdrawn a
// moment before its SID is removed, so that packets in flight are delivered. An invalid
// configuration, or one that needs a restart, is rejected as a whole, and so is any while the ASBR
// is drained.
func (a *ASBR) Reload(now Config) ([]string, error) {
	if err := now.Check().Err(); err != nil {
		return nil, err
	}
	a.policies.Lock()
	defer a.policies.Unlock()
	var (
		old  Config
		on   networks
		vrps *policy.VRPs
		err  error
	)
	if !a.daemon.Do(context.Background(), func() {
		if a.drain.stage != Serving {
			err = errDraining
			return
		}
		old, on, vrps, a.reloading = a.config, a.networks, a.vrps, true
		if now.RPKI == nil {
			vrps = nil
		}
	}) {
		return nil, errors.New("not running")
	}
	if err != nil {
		return nil, err
	}
	defer a.daemon.Do(context.Background(), func() { a.reloading = false })
	c, faults := difference(&old, &now, on, vrps)
	if err := faults.Err(); err != nil {
		return nil, err
	}
	neighbors := slices.Concat(now.reflectors(), now.egress(on, vrps))
	if err := bgp.CheckNeighbors(now.ASN, neighbors); err != nil {
		return nil, err
	}
	if err := a.apply(c, &now, neighbors); err != nil {
		return nil, fmt.Errorf("configuration applied partially: %w; restart the daemon", err)
	}
	return c.lines(), nil
}

// apply applies changes whose configuration was checked.
func (a *ASBR) apply(c changes, now *Config, neighbors []bgp.Neighbor) error {
	before := a.neighbors
	remaining := slices.DeleteFunc(slices.Clone(before), func(n bgp.Neighbor) bool { return slices.Contains(c.peers.Remove, n.Name) })
	if len(c.peers.Remove) > 0 {
		a.daemon.Change(a.running, func() { a.each(c.peers.Remove, func(p *peer) { p.hide(true) }); a.withdraw() })
		if !a.walked(a.running) || !pause(a.running, withdrawnFor) {
			return a.running.Err()
		}
		a.daemon.Change(a.running, func() { a.each(c.peers.Remove, func(p *peer) { p.close(true) }) })
		if !a.walked(a.running) {
			return a.running.Err()
		}
		a.daemon.Change(a.running, func() { a.removePeers(c.peers.Remove) })
		if err := a.daemon.ChangeNeighbors(a.running, before, remaining); err != nil {
			return err
		}
	}
	var err error
	a.daemon.Change(a.running, func() { err = a.configure(c, now, neighbors) })
	if err != nil {
		return err
	}
	if err := a.daemon.ChangeNeighbors(a.running, remaining, neighbors); err != nil {
		return err
	}
	a.daemon.Do(a.running, func() {
		if a.advertised { // after the policies, which keep some of them from some peers
			err = a.originate(c.originate)
		}
		// There is no event for a link that has not changed.
		a.each(c.peers.Add, func(p *peer) {
			if !p.link {
				a.daemon.FollowLink(p.Name, p.Interface, false)
			}
		})
	})
	return err
}

// each calls f for the egress peers with these names.
func (a *ASBR) each(names []string, f func(*peer)) {
	for _, p := range slices.Clone(a.peers) {
		if slices.Contains(names, p.Name) {
			f(p)
		}
	}
}

// removePeers removes closed egress peers.
func (a *ASBR) removePeers(names []string) {
	a.each(names, func(p *peer) {
		if err := a.daemon.Speaker.SetBlackhole(false, p.host()); err != nil {
			a.log.Error("withdraw SID of egress peer", "peer", p.Name, "err", err)
		}
		a.peers = slices.DeleteFunc(a.peers, func(q *peer) bool { return q == p })
	})
}

// configure applies the changes that precede those of sessions, in the daemon's loop.
func (a *ASBR) configure(c changes, now *Config, neighbors []bgp.Neighbor) error {
	wanted, before := map[route.Key]bool{}, a.config.guards(a.retired)
	a.retired = now.retired(slices.Concat(a.retired, c.retired))
	for _, o := range now.guards(a.retired) {
		wanted[o.Key()] = true
		a.daemon.Kernel.Set(o)
	}
	for _, o := range before {
		if !wanted[o.Key()] {
			a.daemon.Kernel.Delete(o.Key())
		}
	}
	a.config.Prefixes, a.config.Reflectors, a.config.Peers, a.config.Import = now.Prefixes, now.Reflectors, now.Peers, now.Import
	a.config.PrefixLists = now.PrefixLists
	if !reflect.DeepEqual(a.config.RPKI, now.RPKI) {
		a.config.RPKI = now.RPKI
		a.startValidation(now.RPKI)
	}
	a.neighbors = neighbors
	var peers []*peer // in the order of the file
	for i := range a.config.Peers {
		conf := &a.config.Peers[i]
		p := a.peer(conf.Name)
		if p == nil {
			var err error
			if p, err = a.newPeer(conf); err != nil {
				return err
			}
			p.link = a.core.links[p.Interface]
		}
		p.Peer, p.rts = *conf, []vpn.ID{conf.RT}
		peers = append(peers, p)
	}
	a.peers = peers
	a.setCore()
	a.stale = true
	if !a.advertised {
		return nil
	}
	return a.daemon.Speaker.Withdraw(c.withdraw...)
}
