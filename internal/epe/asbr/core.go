package asbr

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/kernel/route"
)

// core decides whether the core, where the servers are, can be reached: then at least one route
// reflector has a route in the kernel over a link that is up and is not an egress peer's. A route
// counts, not a session, so that the failure of all reflectors, which carry no packets, does not
// withdraw the prefixes of all border routers.
type core struct {
	peers []string              // interfaces of egress peers
	links map[string]bool       // up, by interface
	via   map[netip.Addr]string // interface to each reflector, as last resolved; empty without a route
}

// reachable reports whether the core can be reached.
func (c *core) reachable() bool {
	for _, link := range c.via {
		if c.links[link] && !slices.Contains(c.peers, link) {
			return true
		}
	}
	return false
}

// interfaces returns the links to the reflectors, sorted.
func (c *core) interfaces() []string {
	var list []string
	for _, link := range c.via {
		if link != "" {
			list = append(list, link)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// resolve looks up the link to each reflector in the kernel again. After an error the link stays as
// it was.
func (c *core) resolve(nexthopTo func(netip.Addr) (netip.Addr, string, error)) {
	for reflector := range c.via {
		_, link, err := nexthopTo(reflector)
		switch {
		case err == nil:
			c.via[reflector] = link
		case errors.Is(err, route.ErrNoRoute):
			c.via[reflector] = ""
		}
	}
}

// readNetworks reads addresses and connected networks of this host.
func readNetworks() (networks, error) {
	links, err := net.Interfaces()
	if err != nil {
		return networks{}, err
	}
	n := networks{byLink: map[string][]netip.Prefix{}}
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			return networks{}, err
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() || p.Addr().IsLoopback() {
				continue
			}
			n.own = append(n.own, p.Addr())
			n.byLink[l.Name] = append(n.byLink[l.Name], p.Masked())
			n.connected = append(n.connected, p.Masked())
		}
	}
	slices.SortFunc(n.connected, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	n.connected = slices.Compact(n.connected)
	slices.SortFunc(n.own, netip.Addr.Compare)
	return n, nil
}
