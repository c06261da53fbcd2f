package scenario

import (
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/role"
)

// GatewayKey returns the private key of the gateway on a node of a lab. It is no secret.
func GatewayKey(node string) handshake.PrivateKey {
	k := handshake.PrivateKey(sha256.Sum256([]byte("gateway of a lab, node " + node)))
	// As handshake.GenerateKey: equal keys have equal text.
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

// gatewayKeyFile stands for the file that a lab makes.
const gatewayKeyFile = "key"

// SectionsIn returns the sections of a node's daemons in a case, with what a scenario may leave out
// for a gateway: its key, and its peers' public keys, which a lab makes; rates of paths, which are
// those of the link in the case; endpoints of a peer, which are the other ends of the paths' links;
// and what fillAlliance sets.
func (s *Spec) SectionsIn(c Case, node string) role.Sections {
	sections := s.Nodes[node].Sections
	if sections.Gateway == nil {
		return sections
	}
	g := *sections.Gateway
	if g.Key == "" {
		g.Key = gatewayKeyFile
	}
	g.Paths, g.Peers = slices.Clone(g.Paths), slices.Clone(g.Peers)
	for i := range g.Paths {
		p := &g.Paths[i]
		if p.Rate == (gateway.Rates{}) && !s.overMember(node, *p) {
			p.Rate = s.rates(c, Port{Node: node, Interface: p.Interface})
		}
	}
	for i := range g.Peers {
		p := &g.Peers[i]
		other := s.Nodes[p.Name]
		if other == nil || other.Gateway == nil {
			continue
		}
		if p.PublicKey == "" {
			p.PublicKey = GatewayKey(p.Name).Public().String()
		}
		p.Endpoints = s.peerEndpoints(node, *p, g.Paths)
	}
	s.fillAlliance(node, &g)
	sections.Gateway = &g
	return sections
}

// linkAt returns the name of the link at an interface, empty if there is none, and the number of
// its end.
func (s *Spec) linkAt(at Port) (name string, end int) {
	for _, name := range sortedKeys(s.Links) {
		if s.Links[name] == nil {
			continue
		}
		for i, e := range s.Links[name].Ends {
			if e.Node == at.Node && e.Interface == at.Interface {
				return name, i
			}
		}
	}
	return "", 0
}

// rates returns the rates of the link at an interface in whole IP packets of its MTU, auto where it
// has no limit.
func (s *Spec) rates(c Case, at Port) gateway.Rates {
	link, end := s.linkAt(at)
	if link == "" {
		return gateway.Rates{Down: gateway.RateAuto, Up: gateway.RateAuto}
	}
	rate := func(frames unit.Bandwidth) gateway.Rate {
		const ethernet = 14
		if frames == 0 {
			return gateway.RateAuto
		}
		mtu := unit.Bandwidth(s.MTU(link))
		return gateway.Rate(frames / (mtu + ethernet) * mtu)
	}
	forward, backward := s.ShapeIn(c, link).Profiles()
	if end == 0 {
		forward, backward = backward, forward
	}
	return gateway.Rates{Down: rate(forward.Rate), Up: rate(backward.Rate)}
}

// endpoints returns the addresses of a peer on the links that lead from these paths of a node to
// it.
func (s *Spec) endpoints(node, peer string, paths []gateway.Path) []gateway.Endpoint {
	var list []gateway.Endpoint
	port := s.Nodes[peer].Gateway.Port()
	for _, p := range paths {
		link, _ := s.linkAt(Port{Node: node, Interface: p.Interface})
		if link == "" {
			continue
		}
		for _, e := range s.Links[link].Ends {
			if e.Node == peer && len(e.Addresses) > 0 {
				list = append(list, gateway.Endpoint(netip.AddrPortFrom(e.Addresses[0].Addr(), port).String()))
			}
		}
	}
	return list
}

// Gateways returns the nodes with gateways, sorted.
func (s *Spec) Gateways() []string {
	return slices.DeleteFunc(sortedKeys(s.Nodes), func(n string) bool { return s.Nodes[n] == nil || s.Nodes[n].Gateway == nil })
}

// GatewayIn returns the section of the gateway on a node in a cell. With a transport over gateways
// it uses only the paths over the transport's links, in their order, and the transport's discipline
// for all packets. In an alliance the leader does so; the home agent uses what it registers, and a
// member relays as always.
func (s *Spec) GatewayIn(k result.CellKey, node string) *gateway.Config {
	c, t := s.Experiment.Case(k.Case), s.Experiment.Transports[k.Transport]
	g := *s.SectionsIn(c, node).Gateway
	if t.Gateway == nil || g.Role == gateway.RoleMember {
		return &g
	}
	if g.Role != gateway.RoleHomeAgent {
		s.usePaths(&g, node, t)
	}
	rule := gateway.Rule{Discipline: s.Experiment.GatewayOf(k).discipline(t.Links, s.behind(node, s.Experiment.Client))}
	if t.Gateway.Resequence != "" {
		// The text has passed the transport's check.
		_ = rule.Resequence.UnmarshalText([]byte(t.Gateway.Resequence))
	}
	g.Policy = []gateway.Rule{rule}
	g.Peers = slices.Clone(g.Peers)
	for i := range g.Peers {
		g.Peers[i].Mode, g.Peers[i].Seal = t.Gateway.Mode, t.Gateway.Seal
	}
	if t.Gateway.Probes {
		g.Probes = gateway.Probes{Format: gateway.ProbesCompatible, Busy: time.Second}
	}
	return &g
}

// usePaths leaves a gateway the paths over the transport's links, in their order.
func (s *Spec) usePaths(g *gateway.Config, node string, t *Transport) {
	number := func(p gateway.Path) int { return slices.Index(t.Links, s.lineOf(node, p)) }
	g.Paths = slices.DeleteFunc(slices.Clone(g.Paths), func(p gateway.Path) bool { return number(p) < 0 })
	slices.SortStableFunc(g.Paths, func(a, b gateway.Path) int { return number(a) - number(b) })
	for i := range g.Paths {
		r := &g.Paths[i].Rate
		for _, v := range []*gateway.Rate{&r.Down, &r.Up} {
			if *v != gateway.RateAuto {
				*v = gateway.Rate(t.Gateway.Configured(number(g.Paths[i]), unit.Bandwidth(*v)))
			}
		}
	}
	g.Peers = slices.Clone(g.Peers)
	for i, p := range s.Nodes[node].Gateway.Peers {
		if other := s.Nodes[p.Name]; other != nil && other.Gateway != nil {
			g.Peers[i].Endpoints = s.peerEndpoints(node, p, g.Paths)
		}
	}
}

// RoutesAround returns the routes that replace the gateways in a cell whose transport does not use
// them, by node: to the prefixes of a peer, over the transport's link, or the first one of proxies.
// They are nil if the transport uses gateways, or a link that is no path of two.
func (s *Spec) RoutesAround(k result.CellKey) map[string][]StaticRoute {
	t := s.Experiment.Transports[k.Transport]
	if t.Gateway != nil || len(t.Links) != 1 && !t.Proxies {
		return nil
	}
	link := t.Links[0]
	if s.gatewaysOn(link) != 2 {
		return nil
	}
	routes := map[string][]StaticRoute{}
	for _, end := range s.Links[link].Ends {
		for _, p := range s.Nodes[end.Node].Gateway.Peers {
			for _, other := range s.Links[link].Ends {
				if other.Node != p.Name {
					continue
				}
				for _, dst := range p.Prefixes {
					i := slices.IndexFunc(other.Addresses, func(a netip.Prefix) bool { return a.Addr().Is4() == dst.Addr().Is4() })
					if i >= 0 {
						routes[end.Node] = append(routes[end.Node], StaticRoute{Dst: dst, Via: other.Addresses[i].Addr()})
					}
				}
			}
		}
	}
	return routes
}

// gatewaysOn returns how many gateways have a path over the link.
func (s *Spec) gatewaysOn(link string) (n int) {
	for _, node := range s.Gateways() {
		if slices.ContainsFunc(s.Nodes[node].Gateway.Paths, func(p gateway.Path) bool {
			on, _ := s.linkAt(Port{Node: node, Interface: p.Interface})
			return on == link
		}) {
			n++
		}
	}
	return n
}

// behind reports whether a host is behind the gateway of a node.
func (s *Spec) behind(node, host string) bool {
	a := s.AddressOf(host)
	return slices.ContainsFunc(s.Nodes[node].Gateway.LAN.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// discipline returns the discipline of a gateway. At the receiver of the data it sends on the link
// for replies, if there is one.
func (g *Gateway) discipline(links []string, receiver bool) gateway.Discipline {
	ratio := func(number func(link string) string) gateway.Discipline {
		parts := make([]string, len(links))
		for i, link := range links {
			parts[i] = number(link)
		}
		return gateway.Discipline{Ratio: strings.Join(parts, ":")}
	}
	switch {
	case receiver && g.Replies != "":
		return ratio(func(link string) string {
			if link == g.Replies {
				return "1"
			}
			return "0"
		})
	case g.Ratio != "":
		return gateway.Discipline{Ratio: g.Ratio}
	case g.Discipline == sched.ParameterRatio:
		return ratio(func(string) string { return "1" })
	}
	return gateway.Discipline{Name: g.Discipline}
}

// site checks the gateway of a node.
func (c *checker) site(path string, n *Node) {
	if n.Gateway.Key != "" {
		c.Add(fault.Join(path, "key"), "must be left out: a lab makes keys")
	}
	for i, p := range n.Gateway.Peers {
		if p.PresharedKey != "" {
			c.Add(index(fault.Join(path, "peers"), i)+".preshared_key", "must be left out: a lab makes keys")
		}
		if (p.Mode != "" || p.Seal != "") && c.spec.Experiment.overGateways() {
			c.Add(index(fault.Join(path, "peers"), i)+".mode", "must be left out, and seal: the experiment's transports have them")
		}
	}
	for i, p := range n.Gateway.Paths {
		if p.Member.PresharedKey != "" {
			c.Add(index(fault.Join(path, "paths"), i)+".member.preshared_key", "must be left out: a lab makes keys")
		}
	}
	for i, l := range n.Gateway.Leaders {
		if l.PresharedKey != "" {
			c.Add(index(fault.Join(path, "leaders"), i)+".preshared_key", "must be left out: a lab makes keys")
		}
	}
	if !n.Forwarding {
		c.Add(path, "needs forwarding: true on its node")
	}
}

// overGateways reports whether gateways carry some transport.
func (e *Experiment) overGateways() bool {
	if e == nil {
		return false
	}
	for _, t := range e.Transports {
		if t != nil && t.Gateway != nil {
			return true
		}
	}
	return false
}

// CheckGateways returns the faults of transports over gateways that the network has no gateways
// for: each of their links must be a path of two gateways, or a line of an alliance. Without
// gateways, packets use one path.
func (s *Spec) CheckGateways() fault.List {
	var faults fault.List
	if s.Experiment == nil {
		return nil
	}
	lines := s.lines()
	for _, name := range s.Experiment.TransportNames() {
		t := s.Experiment.Transports[name]
		path := at("experiment.transports", name)
		shared := slices.IndexFunc(t.Links, func(link string) bool { return lines[link] })
		if t.Gateway == nil {
			if shared >= 0 {
				faults.Add(index(path+".links", shared), "link %q is a line of an alliance: the transport must have gateway", t.Links[shared])
				continue
			}
			if i := slices.IndexFunc(t.Links, func(link string) bool { return s.gatewaysOn(link) > 0 }); i >= 0 && len(t.Links) > 1 && !t.Proxies {
				faults.Add(index(path+".links", i), "link %q is a path of gateways: a transport without gateway and proxies uses one such link alone", t.Links[i])
			}
			continue
		}
		if shared >= 0 {
			t.Gateway.checkAlliance(&faults, path+".gateway")
		}
		for i, link := range t.Links {
			if n := s.gatewaysOn(link); n != 2 && !lines[link] {
				faults.Add(index(path+".links", i), "link %q must be a path of two gateways, and is one of %d", link, n)
			}
		}
	}
	return faults
}
