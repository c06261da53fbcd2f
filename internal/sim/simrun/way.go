package simrun

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/experiment/scenario"
)

// hop is a link in the direction from one node to another.
type hop struct {
	link     string
	from, to string
}

func (h hop) back() hop { return hop{h.link, h.to, h.from} }

// reversed returns the way back.
func reversed(way []hop) []hop {
	var back []hop
	for _, h := range slices.Backward(way) {
		back = append(back, h.back())
	}
	return back
}

// network is the graph of nodes and links, for path search.
type network struct {
	spec *scenario.Spec
	// hops maps each node to its outgoing hops, in the order of the links in the file, which decides
	// between paths of equal length.
	hops map[string][]hop
}

func newNetwork(spec *scenario.Spec) *network {
	n := &network{spec: spec, hops: map[string][]hop{}}
	for _, name := range spec.LinkNames() {
		for _, a := range spec.Links[name].Ends {
			for _, b := range spec.Links[name].Ends {
				if a.Node != b.Node {
					n.hops[a.Node] = append(n.hops[a.Node], hop{name, a.Node, b.Node})
				}
			}
		}
	}
	return n
}

// over returns the shortest path between two nodes over the link and over none of the links in
// avoid. All intermediate nodes must have forwarding enabled.
func (n *network) over(from, to, link string, avoid []string) ([]hop, error) {
	if _, ok := n.spec.Links[link]; !ok {
		return nil, fmt.Errorf("link %q is not in links", link)
	}
	var best []hop
	for _, h := range n.across(link) {
		closed := map[string]bool{link: true}
		for _, l := range avoid {
			closed[l] = true
		}
		// The two halves of the path must have no node in common. The half that is searched
		// first may use nodes that the other half needs, so both orders are tried.
		for _, firstHalfFirst := range []bool{true, false} {
			var a, b []hop
			var okA, okB bool
			if firstHalfFirst {
				a, okA = n.shortest(from, h.from, closed, map[string]bool{h.to: true, to: true})
				b, okB = n.shortest(h.to, to, closed, nodes(a, from, h.from))
			} else {
				b, okB = n.shortest(h.to, to, closed, map[string]bool{h.from: true, from: true})
				a, okA = n.shortest(from, h.from, closed, nodes(b, h.to, to))
			}
			if !okA || !okB || !n.forwards(h.from, from, to) || !n.forwards(h.to, from, to) {
				continue
			}
			if way := slices.Concat(a, []hop{h}, b); best == nil || len(way) < len(best) {
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
func (n *network) across(link string) []hop {
	var list []hop
	for _, node := range slices.Sorted(maps.Keys(n.hops)) {
		for _, h := range n.hops[node] {
			if h.link == link {
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
func (n *network) shortest(from, to string, closedLinks, closedNodes map[string]bool) ([]hop, bool) {
	if closedNodes[from] || closedNodes[to] {
		return nil, false
	}
	reached := map[string]hop{from: {}}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		node := queue[0]
		if node == to {
			var way []hop
			for at := to; at != from; at = reached[at].from {
				way = append(way, reached[at])
			}
			slices.Reverse(way)
			return way, true
		}
		if !n.forwards(node, from, to) {
			continue
		}
		for _, h := range n.hops[node] {
			if _, seen := reached[h.to]; !seen && !closedLinks[h.link] && !closedNodes[h.to] {
				reached[h.to] = h
				queue = append(queue, h.to)
			}
		}
	}
	return nil, false
}

// nodes returns the set of nodes on a path from from to to, which includes both even if way is
// empty.
func nodes(way []hop, from, to string) map[string]bool {
	set := map[string]bool{from: true, to: true}
	for _, h := range way {
		set[h.to] = true
	}
	return set
}
