package router

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/fault"
)

// changes are the difference between two configurations that a running router can apply.
type changes struct {
	originate, withdraw []netip.Prefix
	neighbors           bgp.Changes
}

// lines describes the changes, one in each line.
func (c changes) lines() []string {
	var lines []string
	for _, p := range c.withdraw {
		lines = append(lines, fmt.Sprintf("network %s removed", p))
	}
	for _, p := range c.originate {
		lines = append(lines, fmt.Sprintf("network %s added", p))
	}
	return append(lines, c.neighbors.Lines()...)
}

// difference returns the changes from one configuration to another, or the faults of what cannot
// change while the router runs.
func difference(old, now Config) (changes, fault.List) {
	var faults fault.List
	fault.Fixed(&faults, "asn", old.ASN, now.ASN)
	fault.Fixed(&faults, "router_id", old.RouterID, now.RouterID)
	fault.Fixed(&faults, "control", old.Control, now.Control)
	fault.Fixed(&faults, "status", old.Status, now.Status)
	before, after := old.speakers(), now.speakers()
	bgp.CheckRenamed(&faults, "neighbors", before, after)
	return changes{
		originate: without(now.Networks, old.Networks), withdraw: without(old.Networks, now.Networks),
		neighbors: bgp.Compare(before, after),
	}, faults
}

func without(list, other []netip.Prefix) []netip.Prefix {
	there := make(map[netip.Prefix]bool, len(other)) // both may be full tables
	for _, p := range other {
		there[p] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return there[p] })
}

// Reload applies another configuration to the running router, networks and neighbors with their
// policies, and returns what changed. Sessions of unchanged neighbors stay up. An invalid
// configuration, or one that needs a restart, is rejected as a whole.
func (r *Router) Reload(now Config) ([]string, error) {
	if err := now.Check().Err(); err != nil {
		return nil, err
	}
	r.reloading.Lock()
	defer r.reloading.Unlock()
	ctx := context.Background()
	var old Config
	if !r.daemon.Do(ctx, func() { old = r.config }) {
		return nil, errors.New("not running")
	}
	c, faults := difference(old, now)
	if err := faults.Err(); err != nil {
		return nil, err
	}
	if err := r.daemon.ChangeNeighbors(ctx, old.speakers(), now.speakers()); err != nil {
		return nil, err
	}
	r.daemon.Change(ctx, func() {
		r.config.Networks, r.config.Neighbors = now.Networks, now.Neighbors
		for _, name := range c.neighbors.Remove {
			delete(r.links, name)
		}
		r.followLinks()
	})
	var err error
	if len(c.originate) > 0 {
		err = r.originate(c.originate)
	}
	if len(c.withdraw) > 0 {
		err = errors.Join(err, r.daemon.Speaker.Withdraw(c.withdraw...))
	}
	return c.lines(), err
}

// followLinks makes new sessions follow their links: there is no event of a link that has not changed.
func (r *Router) followLinks() {
	for _, n := range r.config.Neighbors {
		if _, known := r.links[n.Name]; known {
			continue
		}
		if l, err := r.daemon.Link(n.Interface); err == nil {
			if r.links[n.Name] = l.Up; !l.Up {
				r.daemon.FollowLink(n.Name, n.Interface, false)
			}
		}
	}
}
