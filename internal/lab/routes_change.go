package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/router"
)

// announce prepares a change of what a router tells one neighbor: whether it announces the prefix, without touching
// the session. All that takes time besides the change itself is done before it returns; calling the function makes the
// change, as an operator's command would.
func (l *Lab) announce(node, neighbor string, prefix netip.Prefix, on bool) (change func() error, err error) {
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
		return l.tellFRR(n, frrChange(c.Neighbors[i].Address, old, now))
	}
	b, err := n.config()
	if err != nil {
		return nil, err
	}
	if err := writeFile(configFile(dirOf(l.name), n.name), b); err != nil {
		return nil, err
	}
	p, err := l.process(node, role.Router)
	if err != nil {
		return nil, err
	}
	return func() error { return p.signal(syscall.SIGHUP) }, nil
}

// tellFRR connects to a node's bgpd, which the function then gives the commands.
func (l *Lab) tellFRR(n *node, commands []string) (func() error, error) {
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

// process is the daemon of a role on a node.
func (l *Lab) process(node, role string) (process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.children, func(c *child) bool { return c.Node == node && c.Role == role })
	if i < 0 {
		return process{}, fmt.Errorf("node %q runs no daemon %q of this process", node, role)
	}
	return l.children[i].process, nil
}
