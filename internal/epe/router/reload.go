package router

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
)

// changes are the difference between two configurations that a running router can apply.
type changes struct {
	originate, withdraw []netip.Prefix
	leak, end           []Leak
	generate            bool // another table, or none
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
	for _, l := range c.end {
		lines = append(lines, fmt.Sprintf("leak %s removed", l.Prefix))
	}
	for _, l := range c.leak {
		lines = append(lines, fmt.Sprintf("leak %s added", l.Prefix))
	}
	if c.generate {
		lines = append(lines, "generated table changed")
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
		leak: withoutLeaks(now.Leaks, old.Leaks), end: withoutLeaks(old.Leaks, now.Leaks),
		generate: old.Generate != now.Generate, neighbors: bgp.Compare(before, after),
	}, faults
}

func without(list, other []netip.Prefix) []netip.Prefix {
	there := make(map[netip.Prefix]bool, len(other)) // both may be full tables
	for _, p := range other {
		there[p] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return there[p] })
}

func withoutLeaks(list, other []Leak) []Leak {
	return slices.DeleteFunc(slices.Clone(list), func(l Leak) bool { return slices.ContainsFunc(other, l.Equal) })
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
		r.config.Networks, r.config.Leaks, r.config.Neighbors, r.config.Generate = now.Networks, now.Leaks, now.Neighbors, now.Generate
		for _, name := range c.neighbors.Remove {
			delete(r.links, name)
		}
		r.followLinks()
	})
	// Withdrawals first: a prefix may become a leak, or a leak get another path.
	var err error
	withdrawn := c.withdraw
	for _, l := range c.end {
		withdrawn = append(withdrawn, l.Prefix)
	}
	if len(withdrawn) > 0 {
		err = r.daemon.Speaker.Withdraw(withdrawn...)
	}
	if c.generate {
		err = errors.Join(err, r.withdrawGenerated(old.Generate))
	}
	if len(c.originate)+len(c.leak) > 0 {
		err = errors.Join(err, r.originate(c.originate, c.leak))
	}
	if c.generate {
		err = errors.Join(err, r.generate(now.Generate))
	}
	return c.lines(), err
}

// followLinks makes new sessions follow their links: there is no event of a link that has not
// changed.
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
