package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/tunnel"
)

const (
	// tunnelMetric is that of routes into the tunnel: better than those of the kernel and of DHCP.
	tunnelMetric = 16
	// guardMetric is that of routes that make the peers' prefixes unreachable while the tunnel is
	// missing, so that no packet to them leaves in clear: better than all other routes too.
	guardMetric = 17
	// viaMetric plus its number is that of the default route of a path, which only sockets bound to
	// the path's interface are to use: worse than all other routes.
	viaMetric = 1 << 30
)

var anyIPv4, anyIPv6 = netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")

// objects are what the kernel is to have: the tunnel's addresses, routes to the peers' prefixes into
// the tunnel, and the paths' default routes.
func objects(c *Config) []route.Object {
	var list []route.Object
	name := c.tunnelName()
	for _, a := range c.Tunnel.Addresses {
		list = append(list, route.Address{Link: name, Prefix: a})
	}
	for _, p := range c.Peers {
		for _, dst := range p.Prefixes {
			list = append(list,
				route.Route{Dst: dst, Link: name, Metric: tunnelMetric},
				route.Route{Dst: dst, Kind: route.Unreachable, Metric: guardMetric})
		}
	}
	for i, p := range c.Paths {
		for _, via := range p.Via {
			dst := anyIPv6
			if via.Is4() {
				dst = anyIPv4
			}
			list = append(list, route.Route{Dst: dst, Gateway: via, Link: p.Interface, Metric: viaMetric + uint32(i)})
		}
	}
	return list
}

const (
	// ethernetMTU is assumed of interfaces that do not exist yet.
	ethernetMTU = 1500
	// outerIPv4 and outerIPv6 are the lengths of the headers before a message: IP and UDP.
	outerIPv4, outerIPv6 = 20 + 8, 40 + 8
)

// mtuOver returns what the tunnel leaves of an MTU, 0 if no interface exists. It is at least that of
// IPv6: then the plane sends fragments.
func (c *Config) mtuOver(mtu int) int {
	outer := outerIPv4
	if slices.ContainsFunc(c.Peers, func(p Peer) bool {
		return len(p.Endpoints) == 0 || slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return !e.isIPv4() })
	}) {
		outer = outerIPv6
	}
	return max(cmp.Or(mtu, ethernetMTU)-outer-tunnel.Overhead, minMTU)
}

// isIPv4 reports whether the endpoint certainly is IPv4: the address of a name may be IPv6.
func (e Endpoint) isIPv4() bool {
	host, _, err := e.split()
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Is4()
}

// hostNames returns the names that the endpoints have instead of addresses, sorted.
func (c *Config) hostNames() []string {
	var names []string
	for _, p := range c.Peers {
		for _, e := range p.Endpoints {
			host, _, err := e.split()
			if err != nil {
				continue
			}
			if _, err := netip.ParseAddr(host); err != nil {
				names = append(names, host)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stateOf returns what the plane is to do. links are the interfaces that are up, addresses those of
// endpoints' names. The section has passed its checks.
func stateOf(c *Config, k keys, mtu int, links map[string]bool, addresses map[string]netip.Addr) plane.State {
	s := plane.State{Key: k.own, Port: c.Port(), MTU: mtu, Policy: policyOf(c)}
	for _, p := range c.Paths {
		s.Paths = append(s.Paths, plane.Path{
			Name: p.Name, Interface: p.Interface, Down: p.Rate.Down.plane(), Up: p.Rate.Up.plane(), Cost: p.Cost, Usable: links[p.Interface],
		})
	}
	for _, p := range c.Peers {
		public, err := session.ParsePublicKey(p.PublicKey)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		peer := plane.Peer{Name: p.Name, Public: public, Preshared: k.preshared[p.Name], Prefixes: p.Prefixes}
		for _, e := range p.Endpoints {
			host, port, err := e.split()
			if err != nil {
				panic("BUG: " + err.Error())
			}
			a, err := netip.ParseAddr(host)
			if err != nil {
				a = addresses[host]
			}
			if a.IsValid() {
				peer.Endpoints = append(peer.Endpoints, netip.AddrPortFrom(a, port))
			}
		}
		s.Peers = append(s.Peers, peer)
	}
	return s
}

// policyOf returns the policy, or the default one.
func policyOf(c *Config) plane.Policy {
	if len(c.Policy) == 0 {
		return plane.Policy{{Discipline: plane.Discipline{Name: plane.Auto}}}
	}
	var policy plane.Policy
	for _, r := range c.Policy {
		d, _ := r.Discipline.plane(len(c.Paths))
		policy = append(policy, plane.Rule{
			Match: plane.Match{
				Protocols: r.Match.Protocol.numbers(), Port: r.Match.Port, HasDSCP: r.Match.DSCP.given, DSCP: r.Match.DSCP.value,
				Prefix: r.Match.Prefix,
			},
			Discipline: d, Resequence: r.Resequence.plane(),
		})
	}
	return policy
}

// resolver resolves names of hosts.
type resolver interface {
	resolve(ctx context.Context, name string) (netip.Addr, error)
}

// systemNames are the names that the host knows.
type systemNames struct{}

// resolve returns the first address of a name, IPv4 if it has both: the tunnel's overhead is smaller
// then.
func (systemNames) resolve(ctx context.Context, name string) (netip.Addr, error) {
	var errs error
	for _, network := range []string{"ip4", "ip6"} {
		list, err := net.DefaultResolver.LookupNetIP(ctx, network, name)
		if err == nil && len(list) > 0 {
			return list[0].Unmap(), nil
		}
		errs = cmp.Or(errs, err)
	}
	return netip.Addr{}, fmt.Errorf("resolve %q: %w", name, errs)
}
