package scenario

import (
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/base/fault"
)

// Crossing returns why no packet gets from the experiment's client to its server, or back, by the
// addresses and static routes of the file. It finds nothing where daemons or other programs add
// routes.
func (s *Spec) Crossing() fault.List {
	var faults fault.List
	if s.Experiment == nil || !s.static() {
		return nil
	}
	client, server := s.Experiment.Client, s.Experiment.Server
	to := s.AddressOf(server)
	if !to.IsValid() {
		faults.Add(at("nodes", server), "has no address, so no packet reaches it: give its first link addresses, or leave out those of all ends")
		return faults
	}
	source, where, err := s.forward(client, to)
	if err == nil && source.IsValid() {
		_, where, err = s.forward(server, source)
	}
	if err != nil {
		faults.Add(at("nodes", where), "%v", err)
	}
	return faults
}

// forward follows a packet from a node to an address. It returns the source address that the node
// gives it, no address if it has none of that family; or the node at which it is dropped, and why.
func (s *Spec) forward(from string, to netip.Addr) (source netip.Addr, where string, err error) {
	node := from
	for range len(s.Nodes) + 1 {
		if node != from && !s.forwards(node) {
			return source, node, fmt.Errorf("drops packets from %s to %s: it needs forwarding: true", from, to)
		}
		next, own, ok := s.nextHop(node, to)
		if !ok {
			return source, node, fmt.Errorf("has no route to %s, where packets from %s go: give it one in routes", to, from)
		}
		if node == from {
			source = own
		}
		if s.has(next, to) {
			return source, "", nil
		}
		node = next
	}
	return source, node, fmt.Errorf("forwards packets from %s to %s in a loop", from, to)
}

// nextHop returns the node to which a node sends packets to an address, and its own address on that
// link. The longest prefix decides, a connected network before a route of the same length.
func (s *Spec) nextHop(node string, to netip.Addr) (next string, own netip.Addr, ok bool) {
	longest := -1
	try := func(p netip.Prefix, via netip.Addr) {
		if p.Contains(to) && p.Bits() > longest {
			if n, a, found := s.neighbor(node, via, to.Is4()); found {
				next, own, longest = n, a, p.Bits()
			}
		}
	}
	for _, name := range s.LinkNames() {
		if !s.on(node, name) {
			continue
		}
		for _, e := range s.Links[name].Ends {
			for _, p := range e.Addresses {
				if e.Node == node {
					try(p, to)
				}
			}
		}
	}
	if n := s.Nodes[node]; n != nil {
		for _, r := range n.Routes {
			try(r.Dst, r.Via)
		}
	}
	return next, own, longest >= 0
}

// neighbor returns the node that has an address on a link of a node, and the node's own address
// there of that family.
func (s *Spec) neighbor(node string, a netip.Addr, ipv4 bool) (name string, own netip.Addr, ok bool) {
	for _, link := range s.LinkNames() {
		if !s.on(node, link) {
			continue
		}
		name, own, ok = "", netip.Addr{}, false
		for _, e := range s.Links[link].Ends {
			for _, p := range e.Addresses {
				switch {
				case e.Node == node && p.Addr().Is4() == ipv4 && !own.IsValid():
					own = p.Addr()
				case e.Node != node && p.Addr() == a:
					name, ok = e.Node, true
				}
			}
		}
		if ok {
			return name, own, true
		}
	}
	return "", netip.Addr{}, false
}

// has reports whether a node has an address on a link.
func (s *Spec) has(node string, a netip.Addr) bool {
	for _, l := range s.Links {
		if l == nil {
			continue
		}
		for _, e := range l.Ends {
			for _, p := range e.Addresses {
				if e.Node == node && p.Addr() == a {
					return true
				}
			}
		}
	}
	return false
}
