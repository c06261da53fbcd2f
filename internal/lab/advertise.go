package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"syscall"

	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

// PrepareAdvertise prepares a change of a router's export policy: whether it advertises the prefix
// to one neighbor. The session is not reset. All slow steps are done before it returns; apply only
// makes the change, as a command of an operator does.
func (l *Lab) PrepareAdvertise(node, neighbor string, prefix netip.Prefix, on bool) (apply func() error, err error) {
	n, err := l.plan.node(node)
	if err != nil {
		return nil, err
	}
	i := -1
	if n.spec.Router != nil {
		i = slices.IndexFunc(n.spec.Router.Neighbors, func(b router.Neighbor) bool { return b.Name == neighbor })
	}
	if i < 0 {
		return nil, fmt.Errorf("node %q has no router with a neighbor %q", node, neighbor)
	}
	old := n.sections.Router.Neighbors[i].Deny
	now := slices.DeleteFunc(slices.Clone(old), func(p netip.Prefix) bool { return p == prefix })
	if !on {
		now = append(now, prefix)
	}
	c := *n.sections.Router
	c.Neighbors = slices.Clone(c.Neighbors)
	c.Neighbors[i].Deny = now
	n.sections.Router = &c
	if l.routers == RoutersFRR {
		return l.commandFRR(n, frrChange(c.Neighbors[i].Address, c.Neighbors[i].Version(), old, now))
	}
	return l.prepareReload(n)
}

// SetUse has the edge of a node choose otherwise which subflows carry data, and forget what it
// learned of paths. "" is that of the scenario.
func (l *Lab) SetUse(ctx context.Context, node string, use edge.Use) error {
	n, err := l.plan.node(node)
	if err != nil {
		return err
	}
	if n.sections.Edge == nil {
		return fmt.Errorf("node %q runs no edge", node)
	}
	use = cmp.Or(use, n.spec.Edge.MPTCP.Use, edge.UseAll)
	// Both are switched off and on, because it forgets nothing otherwise.
	off, on := n.spec.Edge.MPTCP, n.spec.Edge.MPTCP
	off.Use, off.Policies, on.Use = edge.UseAll, nil, use
	for _, next := range []edge.Paths{off, on} {
		if now := n.sections.Edge.MPTCP; cmp.Or(now.Use, edge.UseAll) == next.Use && len(now.Policies) == len(next.Policies) {
			continue
		}
		c := *n.sections.Edge
		c.MPTCP = next
		n.sections.Edge = &c
		if err := l.writeConfig(n); err != nil {
			return err
		}
		if err := l.daemons.Command(ctx, scenario.Daemon{Node: node, Role: role.Edge}, http.MethodPost, "/reload"); err != nil {
			return err
		}
	}
	return nil
}

// writeConfig writes the configuration of a node's daemons.
func (l *Lab) writeConfig(n *node) error {
	b, err := n.config()
	if err != nil {
		return err
	}
	return writeFile(configFile(dirOf(l.name), n.name), b)
}

// prepareReload writes the configuration of a node's router; calling apply makes the router load
// it.
func (l *Lab) prepareReload(n *node) (apply func() error, err error) {
	if err := l.writeConfig(n); err != nil {
		return nil, err
	}
	at := scenario.Daemon{Node: n.name, Role: role.Router}
	if !l.daemons.Running(at) {
		return nil, fmt.Errorf("node %q runs no daemon %q of this process", n.name, role.Router)
	}
	return func() error { return l.daemons.Signal(at, syscall.SIGHUP) }, nil
}

// Originate makes a router originate the prefixes of an event in addition to those of its
// configuration, or withdraws them. It has no effect if they are already originated or withdrawn.
func (l *Lab) Originate(e scenario.Advertise, on bool) error {
	n, err := l.plan.node(e.Node)
	if err != nil {
		return err
	}
	if n.spec.Router == nil {
		return fmt.Errorf("node %q runs no router", e.Node)
	}
	c := *n.sections.Router
	concerned := func(p netip.Prefix) bool { return slices.Contains(e.Prefixes, p) }
	c.Networks = slices.DeleteFunc(slices.Clone(c.Networks), concerned)
	c.Leaks = slices.DeleteFunc(slices.Clone(c.Leaks), func(leak router.Leak) bool { return concerned(leak.Prefix) })
	for _, p := range e.Prefixes {
		switch {
		case !on:
		case len(e.ASPath) > 0:
			c.Leaks = append(c.Leaks, router.Leak{Prefix: p, ASPath: e.ASPath})
		default:
			c.Networks = append(c.Networks, p)
		}
	}
	if on == n.originates(e.Prefixes) {
		return nil
	}
	n.sections.Router = &c
	var apply func() error
	if l.routers == RoutersFRR {
		apply, err = l.commandFRR(n, frrOriginate(c.ASN, e, on))
	} else {
		apply, err = l.prepareReload(n)
	}
	if err != nil {
		return err
	}
	return apply()
}

// originates reports whether the node's router originates the first prefix. The prefixes of an
// event are originated and withdrawn together.
func (n *node) originates(prefixes []netip.Prefix) bool {
	r := n.sections.Router
	return slices.Contains(r.Networks, prefixes[0]) || slices.ContainsFunc(r.Leaks, func(l router.Leak) bool { return l.Prefix == prefixes[0] })
}

// commandFRR connects to a node's bgpd; apply sends the commands.
func (l *Lab) commandFRR(n *node, commands []string) (apply func() error, err error) {
	v, err := dialVTY(frrSocket(dirOf(l.name), n.name, RoleBGPD+".vty"))
	if err != nil {
		return nil, err
	}
	return func() error {
		defer v.close()
		for _, c := range commands {
			if _, err := v.do(c); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
