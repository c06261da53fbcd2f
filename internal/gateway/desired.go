package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/route"
)

const (
	// ethernetMTU is assumed of interfaces that do not exist yet.
	ethernetMTU = 1500
	// outerIPv4 and outerIPv6 are the lengths of the headers before a message: IP and UDP.
	outerIPv4, outerIPv6 = 20 + 8, 40 + 8
)

// mtuOver returns the MTU inside the tunnel over that of an interface, 0 if none exists. It is at
// least that of IPv6: over smaller ones the plane sends fragments.
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
	for _, e := range c.endpoints() {
		host, _, err := e.split()
		if err != nil {
			continue
		}
		if _, err := netip.ParseAddr(host); err != nil {
			names = append(names, host)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// local returns the networks and addresses of this host that no peer may send from. A stranger may
// assign the address of a path's interface, so its network may still be a peer's.
func (c *Config) local(connected []route.Address) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range connected {
		host := a.Prefix.Addr().Unmap().WithZone("")
		list = append(list, netip.PrefixFrom(host, host.BitLen()))
		if a.Link != c.tunnelName() && !slices.Contains(c.interfaces(), a.Link) && a.Prefix.Bits() > 0 {
			list = append(list, a.Prefix.Masked())
		}
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(list)
}

// planeState returns the desired state of the plane. links are the interfaces that are up,
// addresses those of endpoints' names, connected those of the host. The section has passed its
// checks.
func planeState(c *Config, k keys, mtu int, links map[string]bool, addresses map[string][]netip.Addr, connected []route.Address) dataplane.State {
	s := dataplane.State{Key: k.own, Port: c.Port(), Mark: SocketMark, MTU: mtu, Policy: policyOf(c), Probes: c.Probes.plane(), LAN: dataplane.LAN{Interfaces: c.LAN.Interfaces, Prefixes: c.LAN.Prefixes}, Local: c.local(connected)}
	for _, p := range c.Paths {
		s.Paths = append(s.Paths, dataplane.Path{
			Name: p.Name, Interface: p.Interface, Down: p.Rate.Down.plane(), Up: p.Rate.Up.plane(), Cost: p.Cost, Usable: links[p.Interface],
			Via: p.Via, Strict: p.Strict,
		})
		if last := &s.Paths[len(s.Paths)-1]; p.overMember() {
			last.Member = p.Name
			if p.Rate == (Rates{}) {
				last.Down, last.Up = RateAuto.plane(), RateAuto.plane()
			}
		}
	}
	for _, name := range c.ShortLinks {
		s.Paths = append(s.Paths, dataplane.Path{Name: name, Interface: name, Down: RateAuto.plane(), Up: RateAuto.plane(), Usable: links[name], Short: true})
	}
	for _, p := range c.Peers {
		public, err := handshake.ParsePublicKey(p.PublicKey)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		s.Peers = append(s.Peers, dataplane.Peer{
			Name: p.Name, Public: public, Preshared: k.preshared[p.Name], Endpoints: resolved(p.Endpoints, addresses), Prefixes: p.Prefixes, Allow: p.Allow,
			Alliance: c.allianceOf(&p), Mode: p.mode(),
		})
	}
	s.Peers = append(s.Peers, c.allies(k, func(list []Endpoint) []netip.AddrPort { return resolved(list, addresses) })...)
	return s
}

// resolved returns the addresses of endpoints, as far as their names are resolved.
func resolved(list []Endpoint, addresses map[string][]netip.Addr) []netip.AddrPort {
	var all []netip.AddrPort
	for _, e := range list {
		host, port, err := e.split()
		if err != nil {
			panic("BUG: " + err.Error())
		}
		found := addresses[host]
		if a, err := netip.ParseAddr(host); err == nil {
			found = []netip.Addr{a}
		}
		for _, a := range found {
			if at := netip.AddrPortFrom(a, port); !slices.Contains(all, at) {
				all = append(all, at)
			}
		}
	}
	return all
}

// policyOf returns the policy, or the default one.
func policyOf(c *Config) dataplane.Policy {
	if len(c.Policy) == 0 {
		return dataplane.Policy{{Discipline: dataplane.Discipline{Name: dataplane.Auto}}}
	}
	var policy dataplane.Policy
	for _, r := range c.Policy {
		d, _ := r.Discipline.plane(len(c.Paths))
		d.CopyCostlier = r.CopyCostlier
		policy = append(policy, dataplane.Rule{
			Match: dataplane.Match{
				Protocols: r.Match.Protocol.numbers(), Port: r.Match.Port, HasDSCP: r.Match.DSCP.given, DSCP: r.Match.DSCP.value,
				Prefix: r.Match.Prefix, Mark: r.Match.Mark.value, MarkMask: r.Match.Mark.mask,
			},
			Discipline: d, Resequence: r.Resequence.plane(),
		})
	}
	return policy
}

// resolver resolves names of hosts.
type resolver interface {
	resolve(ctx context.Context, name string) ([]netip.Addr, error)
}

// systemNames resolves names as the host does.
type systemNames struct{}

// tunnelBypass queries name servers outside the tunnel, because the tunnel may need the answer to
// come up.
var tunnelBypass = net.Resolver{
	PreferGo: true,
	Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			// Without CAP_NET_ADMIN there is no tunnel either.
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, SocketMark) })
		}}
		return d.DialContext(ctx, network, address)
	},
}

// maxAddresses bounds the addresses of a name in each IP version: packets that begin a session go
// to all.
const maxAddresses = 4

// resolve returns the addresses of a name, sorted, those of IPv4 first: the tunnel's overhead is
// smaller then. Each path uses the first one that answers.
func (systemNames) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	var errs error
	var all []netip.Addr
	for _, network := range []string{"ip4", "ip6"} {
		list, err := tunnelBypass.LookupNetIP(ctx, network, name)
		errs = cmp.Or(errs, err)
		all = append(all, firstAddresses(list)...)
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf("resolve %q: %w", name, cmp.Or(errs, error(&net.DNSError{Err: "no address", Name: name, IsNotFound: true})))
}

// firstAddresses returns the first usable addresses of a list, sorted: the order of the DNS changes
// with each answer.
func firstAddresses(list []netip.Addr) []netip.Addr {
	var usable []netip.Addr
	for _, a := range list {
		if a = a.Unmap().WithZone(""); a.IsGlobalUnicast() || a.IsLoopback() {
			usable = append(usable, a)
		}
	}
	slices.SortFunc(usable, netip.Addr.Compare)
	usable = slices.Compact(usable)
	return usable[:min(len(usable), maxAddresses)]
}
