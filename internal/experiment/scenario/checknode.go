package scenario

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/role"
)

// usable reports whether a is a unicast address that an interface can have, and adds a fault if
// not.
func (c *checker) usable(path string, a netip.Addr) bool {
	switch {
	case !a.IsValid():
		c.Add(path, "must be an address")
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a.Is4In6(), a.Zone() != "":
		c.Add(path, "must be a unicast address of one host, got %s", a)
	default:
		return true
	}
	return false
}

func (c *checker) knownNode(path, name string) bool {
	if name == "" {
		c.Add(path, "must name a node")
		return false
	}
	if _, ok := c.spec.Nodes[name]; !ok {
		c.Add(path, "node %q is not in nodes", name)
		return false
	}
	return true
}

func (c *checker) node(path, name string, n *Node) {
	switch {
	case !label.MatchString(name):
		c.Add(path, "name "+wantLabel, name)
	case name == "localhost":
		c.Add(path, "name must not be %q, which resolves to the loopback address on every node", name)
	}
	if n == nil {
		c.Add(path, "is empty: write {} for a host without settings")
		return
	}
	if len(c.interfaces[name]) == 0 {
		c.Add(path, "is not connected to a link")
	}
	if n.Address.IsValid() && !c.has(name, n.Address) && !n.onTunnel(n.Address) {
		c.Add(fault.Join(path, "address"), "%s is not on an interface of this node", n.Address)
	}
	if n.Masquerade != "" {
		where := fault.Join(path, "masquerade")
		c.onInterface(where, name, n.Masquerade)
		if !n.Forwarding {
			c.Add(where, "needs forwarding: true")
		}
	}
	c.sysctls(fault.Join(path, "sysctls"), n.Sysctls)
	c.routes(fault.Join(path, "routes"), name, n.Routes)
	if n.MPTCP != nil {
		c.mptcp(fault.Join(path, "mptcp"), name, n)
	}
	c.exec(path, n)
	if n.Gateway != nil {
		c.site(fault.Join(path, role.Gateway), n)
	}
	sections := c.spec.SectionsIn(Case{}, name)
	c.Merge(path, sections.Check())
	for _, d := range n.Sections.Present() {
		for _, u := range d.Host(&n.Sections).Uses {
			path := fault.Join(fault.Join(path, d.Name), u.Path)
			c.ownAddress(path, name, u.Address)
			c.onInterface(path, name, u.Interface)
		}
	}
}

// maxFile is the largest file of a node, in bytes.
const maxFile = 1 << 20

var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// exec checks a node's exec, files and ready.
func (c *checker) exec(path string, n *Node) {
	if strings.ContainsAny(n.Exec, "\n\x00") || n.Exec != "" && strings.TrimSpace(n.Exec) == "" {
		c.Add(fault.Join(path, "exec"), "must be a command on one line, got %q", n.Exec)
	}
	if n.Exec == "" && len(n.Files) > 0 {
		c.Add(fault.Join(path, "files"), "has no effect without exec")
	}
	for _, name := range slices.Sorted(maps.Keys(n.Files)) {
		switch {
		case !fileName.MatchString(name):
			c.Add(at(fault.Join(path, "files"), name), "name must be 1 to 64 letters, digits, dots, underscores and hyphens and start with a letter or digit, got %q", name)
		case len(n.Files[name]) > maxFile:
			c.Add(at(fault.Join(path, "files"), name), "must have at most %d bytes, got %d", maxFile, len(n.Files[name]))
		}
	}
	if n.Ready != nil && !*n.Ready && n.Exec == "" && len(n.Sections.Present()) == 0 {
		c.Add(fault.Join(path, "ready"), "has no effect: the node runs nothing that a lab waits for")
	}
}

// onTunnel reports whether an address is that of the node's gateway on its tunnel.
func (n *Node) onTunnel(a netip.Addr) bool {
	return n.Gateway != nil && slices.ContainsFunc(n.Gateway.Tunnel.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

func (c *checker) has(node string, a netip.Addr) bool {
	return slices.ContainsFunc(c.networks[node], func(p netip.Prefix) bool { return p.Addr() == a })
}

// ownAddress adds a fault if a daemon's address is not on its node. A missing address is left to
// the check of the daemon's section.
func (c *checker) ownAddress(path, node string, a netip.Addr) {
	if a.IsValid() && !c.has(node, a) {
		c.Add(path, "%s is not on an interface of node %q", a, node)
	}
}

// onInterface adds a fault if a daemon's interface is not on its node. A missing name is left to
// the check of the daemon's section.
func (c *checker) onInterface(path, node, name string) {
	if name != "" && name != "lo" && !c.interfaces[node][name] {
		c.Add(path, "node %q has no link at interface %q", node, name)
	}
}

func (c *checker) routes(path, node string, routes []StaticRoute) {
	unique := fault.Seen{}
	for i, r := range routes {
		path := index(path, i)
		switch {
		case !r.Dst.IsValid():
			c.Add(fault.Join(path, "dst"), "must be a prefix")
		case r.Dst != r.Dst.Masked():
			c.Add(fault.Join(path, "dst"), "has host bits set: write %s for %s", r.Dst.Masked(), r.Dst)
		default:
			unique.Check(&c.List, path, "dst", r.Dst)
		}
		c.Merge(path, r.RouteMetrics.check())
		via := fault.Join(path, "via")
		if !c.usable(via, r.Via) {
			continue
		}
		switch {
		case r.Dst.Addr().Is6() && r.Via.Is4():
			c.Add(via, "must be IPv6 for %s, got %s", r.Dst, r.Via)
		case !slices.ContainsFunc(c.networks[node], func(p netip.Prefix) bool { return p.Masked().Contains(r.Via) }):
			c.Add(via, "%s is on no network of this node", r.Via)
		case c.has(node, r.Via):
			c.Add(via, "%s is this node itself", r.Via)
		}
	}
}
