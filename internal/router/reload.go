package router

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/tabane/tabane/internal/fault"
)

// changes are the difference between two configurations that a running router can apply.
type changes struct {
	originate, withdraw []netip.Prefix
	remove              []string
	add                 []Neighbor
	// policy are neighbors of which only Deny changed: their sessions stay up.
	policy []Neighbor
}

func (c changes) none() bool {
	return len(c.originate)+len(c.withdraw)+len(c.remove)+len(c.add)+len(c.policy) == 0
}

// difference returns what has to change, or the faults of what cannot change while the router runs.
// A neighbor that differs in more than its export policy gets a new session.
func difference(old, now Config) (changes, fault.List) {
	var (
		c      changes
		faults fault.List
	)
	if now.ASN != old.ASN {
		faults.Add("asn", "cannot change while the router runs, from %d to %d", old.ASN, now.ASN)
	}
	if now.RouterID != old.RouterID {
		faults.Add("router_id", "cannot change while the router runs, from %s to %s", old.RouterID, now.RouterID)
	}
	if now.Status != old.Status {
		faults.Add("status", "cannot change while the router runs")
	}
	c.originate, c.withdraw = without(now.Networks, old.Networks), without(old.Networks, now.Networks)
	before := map[string]Neighbor{}
	owner := map[netip.Addr]string{}
	for _, n := range old.Neighbors {
		before[n.Name], owner[n.Address] = n, n.Name
	}
	for i, n := range now.Neighbors {
		if name, taken := owner[n.Address]; taken && name != n.Name {
			faults.Add(fmt.Sprintf("neighbors[%d].name", i),
				"%q takes the address of %q, whose session has to end first: reload once without it", n.Name, name)
		}
		was, known := before[n.Name]
		delete(before, n.Name)
		if known && reflect.DeepEqual(was.session(), n.session()) {
			if !slices.Equal(was.Deny, n.Deny) {
				c.policy = append(c.policy, n)
			}
			continue
		}
		if known {
			c.remove = append(c.remove, n.Name)
		}
		c.add = append(c.add, n)
	}
	for _, n := range old.Neighbors {
		if _, gone := before[n.Name]; gone {
			c.remove = append(c.remove, n.Name)
		}
	}
	return c, faults
}

// session is the part of the neighbor that a session depends on.
func (n Neighbor) session() Neighbor {
	n.Deny = nil
	return n
}

func without(list, other []netip.Prefix) []netip.Prefix {
	there := make(map[netip.Prefix]bool, len(other)) // both may be full tables
	for _, p := range other {
		there[p] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return there[p] })
}

// Reload applies another configuration to the running router: networks, neighbors and their export
// policies. Sessions of unchanged neighbors stay up. An invalid configuration, or one that needs a
// restart, is rejected as a whole.
func (r *Router) Reload(now Config) error {
	if err := now.Check().Err(); err != nil {
		return err
	}
	var err error
	ran := r.daemon.Do(context.Background(), func() {
		var (
			c      changes
			faults fault.List
		)
		if c, faults = difference(r.config, now); len(faults) > 0 {
			err = faults.Err()
			return
		}
		err = r.apply(c)
		r.config = now
	})
	if !ran {
		return errors.New("not running")
	}
	return err
}

// apply applies as much as possible; the error has what failed.
func (r *Router) apply(c changes) error {
	if c.none() {
		r.log.Info("configuration reloaded, no changes")
		return nil
	}
	var errs []error
	try := func(err error) { errs = append(errs, err) }
	for _, n := range c.policy {
		try(r.daemon.Speaker.SetExport(context.Background(), n.Name, n.speaker(r.config.ASN).Export))
	}
	if len(c.originate) > 0 {
		try(r.originate(c.originate))
	}
	if len(c.withdraw) > 0 {
		try(r.daemon.Speaker.Withdraw(c.withdraw...))
	}
	for _, name := range c.remove {
		try(r.daemon.RemoveNeighbor(name))
		delete(r.links, name)
	}
	for _, n := range c.add {
		if err := r.daemon.AddNeighbor(n.speaker(r.config.ASN)); err != nil {
			try(err)
			continue
		}
		// There is no event for a link that has not changed.
		if l, err := r.daemon.Link(n.Interface); err == nil {
			if r.links[n.Name] = l.Up; !l.Up {
				r.daemon.FollowLink(n.Name, n.Interface, false)
			}
		}
	}
	r.log.Info("configuration reloaded", "networks added", len(c.originate), "networks removed", len(c.withdraw),
		"neighbors added", len(c.add), "neighbors removed", len(c.remove), "policies changed", len(c.policy))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configuration applied partially: %w; restart the router", err)
	}
	return nil
}
