package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Hop is a link in the direction from one node to another. Without To it is a port of a switch,
// which shapes all frames from its node, whatever their destination.
type Hop struct {
	Link     string
	From, To string
}

// Back returns the hop in the other direction.
func (h Hop) Back() Hop { return Hop{h.Link, h.To, h.From} }

// Path is the path of a subflow over one of the links of its transport.
type Path struct {
	Link string
	Hops []Hop
	// Err says why there is no path.
	Err error
}

// Back returns the hops in the other direction.
func (p Path) Back() []Hop {
	var back []Hop
	for _, h := range slices.Backward(p.Hops) {
		back = append(back, h.Back())
	}
	return back
}

// network is the graph of nodes and links, for path search.
type network struct {
	spec *scenario.Spec
	// hops maps each node to its outgoing hops, in the order of the links in the file, which
	// decides between paths of equal length.
	hops map[string][]Hop
}

func newNetwork(spec *scenario.Spec) *network {
	n := &network{spec: spec, hops: map[string][]Hop{}}
	for _, name := range spec.LinkNames() {
		for _, a := range spec.Links[name].Ends {
			for _, b := range spec.Links[name].Ends {
				if a.Node != b.Node {
					n.hops[a.Node] = append(n.hops[a.Node], Hop{name, a.Node, b.Node})
				}
			}
		}
	}
	return n
}

// over returns the shortest path between two nodes over the link and over none of the links in
// avoid. All intermediate nodes must have forwarding enabled.
func (n *network) over(from, to, link string, avoid []string) ([]Hop, error) {
	if _, ok := n.spec.Links[link]; !ok {
		return nil, fmt.Errorf("link %q is not in links", link)
	}
	var best []Hop
	for _, h := range n.across(link) {
		closed := map[string]bool{link: true}
		for _, l := range avoid {
			closed[l] = true
		}
		// The two halves of the path must have no node in common. The half that is searched
		// first may use nodes that the other half needs, so both orders are tried.
		for _, firstHalfFirst := range []bool{true, false} {
			var a, b []Hop
			var okA, okB bool
			if firstHalfFirst {
				a, okA = n.shortest(from, h.From, closed, map[string]bool{h.To: true, to: true})
				b, okB = n.shortest(h.To, to, closed, nodes(a, from, h.From))
			} else {
				b, okB = n.shortest(h.To, to, closed, map[string]bool{h.From: true, from: true})
				a, okA = n.shortest(from, h.From, closed, nodes(b, h.To, to))
			}
			if !okA || !okB || !n.forwards(h.From, from, to) || !n.forwards(h.To, from, to) {
				continue
			}
			if way := slices.Concat(a, []Hop{h}, b); best == nil || len(way) < len(best) {
				best = way
			}
		}
	}
	if best == nil {
		text := fmt.Sprintf("there is no way from %s to %s over link %q", from, to, link)
		if len(avoid) > 0 {
			text += " without " + strings.Join(avoid, ", ")
		}
		return nil, fmt.Errorf("%s: nodes on the way need forwarding", text)
	}
	return best, nil
}

// across returns the hops over a link, in all directions.
func (n *network) across(link string) []Hop {
	var list []Hop
	for _, node := range slices.Sorted(maps.Keys(n.hops)) {
		for _, h := range n.hops[node] {
			if h.Link == link {
				list = append(list, h)
			}
		}
	}
	return list
}

func (n *network) forwards(node, from, to string) bool {
	return node == from || node == to || n.spec.Nodes[node] != nil && n.spec.Nodes[node].Forwarding
}

// shortest finds a shortest path by breadth-first search.
func (n *network) shortest(from, to string, closedLinks, closedNodes map[string]bool) ([]Hop, bool) {
	if closedNodes[from] || closedNodes[to] {
		return nil, false
	}
	reached := map[string]Hop{from: {}}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		node := queue[0]
		if node == to {
			var way []Hop
			for at := to; at != from; at = reached[at].From {
				way = append(way, reached[at])
			}
			slices.Reverse(way)
			return way, true
		}
		if !n.forwards(node, from, to) {
			continue
		}
		for _, h := range n.hops[node] {
			if _, seen := reached[h.To]; !seen && !closedLinks[h.Link] && !closedNodes[h.To] {
				reached[h.To] = h
				queue = append(queue, h.To)
			}
		}
	}
	return nil, false
}

// nodes returns the set of nodes on a path from from to to, which includes both even if way is
// empty.
func nodes(way []Hop, from, to string) map[string]bool {
	set := map[string]bool{from: true, to: true}
	for _, h := range way {
		set[h.To] = true
	}
	return set
}
