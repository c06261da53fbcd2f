package scenario

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// defaultQuick is the default of Traffic.Quick.
const defaultQuick = 10 * time.Second

// Complete fills in what a file leaves out and the rest of it determines: names of interfaces,
// addresses of links, static routes, what the kernel's path manager advertises, the links of
// transports, trials, and the time of a quick pass. It changes nothing that the file has. It comes
// before Translate and Check.
func (s *Spec) Complete() {
	c := completer{s, s.LinkNames()}
	c.addresses()
	c.routes()
	e := s.Experiment
	if e == nil {
		return
	}
	if e.Trials == 0 {
		e.Trials = 1
	}
	for _, t := range e.Traffic {
		switch {
		case t == nil || t.Quick != 0:
		case t.Duration > 0:
			t.Quick = min(t.Duration, defaultQuick)
		default:
			t.Quick = defaultQuick
		}
	}
	c.transports(e)
}

// completer has the names of the links in the order of the file.
type completer struct {
	*Spec
	links []string
}

// assigned returns the address of an end of a link that has no addresses: 2001:db8:ff:LINK::END,
// which has an IPv4 counterpart, 10.255.LINK.END.
func assigned(link, end int) netip.Addr {
	a := documentation.Addr().As16()
	a[5], a[7], a[15] = 0xff, byte(link), byte(end)
	return netip.AddrFrom16(a)
}

// maxAssigned bounds the links that are assigned addresses, and the ends of each: both are a byte.
const maxAssigned = 254

// addresses gives interfaces without a name that of their link, and the links without any address a
// prefix each.
func (c *completer) addresses() {
	var taken []netip.Prefix
	for _, name := range c.links {
		if l := c.Links[name]; l != nil {
			for i := range l.Ends {
				if l.Ends[i].Interface == "" {
					l.Ends[i].Interface = name
				}
				for _, p := range l.Ends[i].Addresses {
					taken = append(taken, p.Masked())
				}
			}
		}
	}
	n := 0
	for _, name := range c.links {
		l := c.Links[name]
		if l == nil || len(l.Ends) > maxAssigned || slices.ContainsFunc(l.Ends, func(e End) bool { return len(e.Addresses) > 0 }) {
			continue
		}
		for n++; slices.ContainsFunc(taken, netip.PrefixFrom(assigned(n, 0), 64).Overlaps); n++ {
		}
		if n > maxAssigned {
			return // Check reports what is not connected
		}
		for i := range l.Ends {
			l.Ends[i].Addresses = []netip.Prefix{netip.PrefixFrom(assigned(n, i+1), 64)}
		}
	}
}

// static reports whether all routes of the network are those of the file: no node runs what adds
// others.
func (s *Spec) static() bool {
	for _, n := range s.Nodes {
		if n != nil && (n.ASBR != nil || n.Edge != nil || n.Reflector != nil || n.Router != nil || n.Gateway != nil || n.Exec != "") {
			return false
		}
	}
	return true
}

// routes gives each node a route to each network on which it is not, over the fewest links, if no
// node has routes.
func (c *completer) routes() {
	if !c.static() {
		return
	}
	for _, n := range c.Nodes {
		if n != nil && len(n.Routes) > 0 {
			return
		}
	}
	for _, node := range slices.Sorted(maps.Keys(c.Nodes)) {
		if c.Nodes[node] == nil {
			continue
		}
		for _, link := range c.links {
			if c.Links[link] == nil || c.on(node, link) {
				continue
			}
			way := c.way(node, nil, func(at string) bool { return c.forwards(at) && c.on(at, link) })
			if len(way) == 0 {
				continue
			}
			for _, network := range c.networks(link) {
				for _, p := range way[0].to.Addresses {
					if p.Addr().Is4() == network.Addr().Is4() {
						c.Nodes[node].Routes = append(c.Nodes[node].Routes, StaticRoute{Dst: network, Via: p.Addr()})
						break
					}
				}
			}
		}
	}
}

// networks returns the prefixes of a link.
func (c *completer) networks(link string) (list []netip.Prefix) {
	for _, e := range c.Links[link].Ends {
		for _, p := range e.Addresses {
			if !slices.Contains(list, p.Masked()) {
				list = append(list, p.Masked())
			}
		}
	}
	return list
}

func (s *Spec) on(node, link string) bool {
	return s.Links[link] != nil && slices.ContainsFunc(s.Links[link].Ends, func(e End) bool { return e.Node == node })
}

func (s *Spec) forwards(node string) bool { return s.Nodes[node] != nil && s.Nodes[node].Forwarding }

// hop is a link and its end at the next node.
type hop struct {
	link string
	to   End
}

// way returns the hops of a shortest way from a node, over links that are not closed and nodes that
// forward, to one that arrived accepts. Of ways of equal length the one over the links that come
// first in the file is taken. nil: there is none.
func (c *completer) way(from string, closed map[string]bool, arrived func(node string) bool) []hop {
	ways := map[string][]hop{from: {}}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at != from {
			if arrived(at) {
				return ways[at]
			}
			if !c.forwards(at) {
				continue
			}
		}
		for _, link := range c.links {
			if closed[link] || !c.on(at, link) {
				continue
			}
			for _, e := range c.Links[link].Ends {
				if _, seen := ways[e.Node]; !seen {
					ways[e.Node] = append(slices.Clone(ways[at]), hop{link, e})
					queue = append(queue, e.Node)
				}
			}
		}
	}
	return nil
}

// transports gives transports without links the slowest link of each way between server and client,
// without MPTCP and gateway that of the shortest. If no MPTCP transport has links, the server
// advertises its further addresses.
func (c *completer) transports(e *Experiment) {
	var links []string
	closed := map[string]bool{}
	for {
		way := c.way(e.Server, closed, func(at string) bool { return at == e.Client })
		if len(way) == 0 {
			break
		}
		slowest := way[0].link
		for _, h := range way {
			closed[h.link] = true
			if rate := c.Links[h.link].Rate; rate > 0 && (c.Links[slowest].Rate == 0 || rate < c.Links[slowest].Rate) {
				slowest = h.link
			}
		}
		links = append(links, slowest)
	}
	if len(links) == 0 {
		return
	}
	given, mptcp := false, false
	for _, t := range e.Transports {
		switch {
		case t == nil:
		case len(t.Links) > 0:
			given = given || t.MPTCP
		case t.MPTCP || t.Gateway != nil:
			t.Links, mptcp = slices.Clone(links), mptcp || t.MPTCP
		default:
			t.Links = links[:1:1]
		}
	}
	server, client := c.Nodes[e.Server], c.Nodes[e.Client]
	if !mptcp || given || !c.static() || server == nil || client == nil || server.MPTCP != nil || client.MPTCP != nil {
		return
	}
	server.MPTCP, client.MPTCP = &MPTCP{}, &MPTCP{}
	main := c.AddressOf(e.Server)
	for _, link := range c.links {
		if c.Links[link] == nil {
			continue
		}
		for _, end := range c.Links[link].Ends {
			for _, p := range end.Addresses {
				if a := p.Addr(); end.Node == e.Server && a != main && a.Is4() == main.Is4() && len(server.MPTCP.Announce) < maxEndpoints {
					server.MPTCP.Announce = append(server.MPTCP.Announce, a)
				}
			}
		}
	}
}
