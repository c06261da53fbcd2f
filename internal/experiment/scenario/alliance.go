package scenario

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// gatewayRole returns the role in an alliance of the gateway on a node, empty if it has none.
func (s *Spec) gatewayRole(node string) string {
	if n := s.Nodes[node]; n != nil && n.Gateway != nil {
		return n.Gateway.Role
	}
	return ""
}

// overMember reports whether a path of a node's gateway is one over a member: the path of a leader
// with the name of a node that is a member.
func (s *Spec) overMember(node string, p gateway.Path) bool {
	return s.gatewayRole(node) == gateway.RoleLeader && s.gatewayRole(p.Name) == gateway.RoleMember
}

// fillAlliance sets what a scenario may leave out for members and leaders: their keys, the
// endpoints of a member, which are at the other end of the path's link, and the rate of a leader,
// which is that of the path that the member relays over.
func (s *Spec) fillAlliance(node string, g *gateway.Config) {
	for i := range g.Paths {
		p := &g.Paths[i]
		if !s.overMember(node, *p) {
			continue
		}
		if p.Member.PublicKey == "" {
			p.Member.PublicKey = GatewayKey(p.Name).Public().String()
		}
		if len(p.Member.Endpoints) == 0 {
			p.Member.Endpoints = s.endpoints(node, p.Name, g.Paths[i:i+1])
		}
	}
	g.Leaders = slices.Clone(g.Leaders)
	for i := range g.Leaders {
		l := &g.Leaders[i]
		if s.gatewayRole(l.Name) != gateway.RoleLeader {
			continue
		}
		if l.PublicKey == "" {
			l.PublicKey = GatewayKey(l.Name).Public().String()
		}
		if p := relayPath(g, l.Name); p != nil && l.Rate == (gateway.Rates{}) {
			l.Rate = p.Rate
		}
		if len(l.HomeAgents) > 0 {
			continue
		}
		for _, home := range s.Nodes[l.Name].Gateway.Peers {
			l.HomeAgents = append(l.HomeAgents, s.peerEndpoints(l.Name, home, nil)...)
		}
	}
}

// relayPath returns the path over which a member relays for a leader, nil if there is none.
func relayPath(g *gateway.Config, leader string) *gateway.Path {
	i := slices.IndexFunc(g.Leaders, func(l gateway.Leader) bool { return l.Name == leader })
	if i < 0 || len(g.Paths) == 0 {
		return nil
	}
	name := cmp.Or(g.Leaders[i].Path, g.Paths[0].Name)
	if i = slices.IndexFunc(g.Paths, func(p gateway.Path) bool { return p.Name == name }); i < 0 {
		return nil
	}
	return &g.Paths[i]
}

// lineOf returns the link that the packets of a path leave the site by: that of its interface, or
// of the member that relays them. It is empty if there is none.
func (s *Spec) lineOf(node string, p gateway.Path) string {
	if s.overMember(node, p) {
		relay := relayPath(s.Nodes[p.Name].Gateway, node)
		if relay == nil {
			return ""
		}
		node, p = p.Name, *relay
	}
	link, _ := s.linkAt(Port{Node: node, Interface: p.Interface})
	return link
}

// peerEndpoints returns where a node's gateway reaches a peer that is the gateway of another node:
// as configured; a leader's home agent at the addresses of its paths; else at the other ends of the
// links of paths. A home agent does not know where its leaders are.
func (s *Spec) peerEndpoints(node string, p gateway.Peer, paths []gateway.Path) []gateway.Endpoint {
	switch {
	case len(p.Endpoints) > 0:
		return p.Endpoints
	case s.gatewayRole(node) == gateway.RoleHomeAgent && s.gatewayRole(p.Name) == gateway.RoleLeader:
		return nil
	case s.gatewayRole(node) != gateway.RoleLeader || s.gatewayRole(p.Name) != gateway.RoleHomeAgent:
		return s.endpoints(node, p.Name, paths)
	}
	var list []gateway.Endpoint
	home := s.Nodes[p.Name].Gateway
	for _, path := range home.Paths {
		link, end := s.linkAt(Port{Node: p.Name, Interface: path.Interface})
		if link == "" {
			continue
		}
		for _, a := range s.Links[link].Ends[end].Addresses {
			list = append(list, gateway.Endpoint(netip.AddrPortFrom(a.Addr(), home.Port()).String()))
		}
	}
	return list
}

// lines returns the links that leaders' paths use, directly or over members.
func (s *Spec) lines() map[string]bool {
	all := map[string]bool{}
	for _, node := range s.Gateways() {
		if s.gatewayRole(node) != gateway.RoleLeader {
			continue
		}
		for _, p := range s.Nodes[node].Gateway.Paths {
			if link := s.lineOf(node, p); link != "" {
				all[link] = true
			}
		}
	}
	return all
}

// checkAlliance adds the faults of a transport whose links are lines of an alliance.
func (g *Gateway) checkAlliance(faults *fault.List, path string) {
	for _, f := range []struct {
		given    bool
		key, why string
	}{
		{g.Discipline == sched.ParameterRatio, "discipline", "ratio needs the number of paths, which at a home agent is that of the registrations"},
		{len(g.Rates) > 0, "rates", "members offer rates, which are not configured at the leader"},
		{g.Mode == dataplane.Plain.String(), "mode", "members relay messages of the tunnel only"},
		{g.Probes, "probes", "members do not relay them"},
	} {
		if f.given {
			faults.Add(path+"."+f.key, "is not possible with lines of an alliance: %s", f.why)
		}
	}
}
