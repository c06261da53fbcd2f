package simrun

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim"
)

// choose gives a connection a policy of the server's edge.
func (p *plan) choose(c *sim.Connection, policy *edge.Policy, ways []cell.Path) {
	c.Overflow = true
	c.Policy, _ = selection.PolicyNamed(string(policy.Policy))
	for i, w := range ways {
		peer := p.peerOf(w)
		if at := slices.IndexFunc(policy.Paths, func(path edge.PolicyPath) bool { return path.Peer == peer }); at >= 0 && i < len(c.Paths) {
			of := policy.Paths[at]
			c.Paths[i].Listed, c.Paths[i].Rank, c.Paths[i].Commit, c.Paths[i].Share = true, at, of.Commit, of.Share
		}
	}
}

// peerOf returns the egress peer of the server's edge that a way leaves through, "" if it is none
// of them: the link to the neighbor of a border router whose routes have the peer's route target.
func (p *plan) peerOf(w cell.Path) string {
	for _, peer := range p.spec.Nodes[p.spec.Experiment.Server].Edge.Peers {
		for name, n := range p.spec.Nodes {
			if n == nil || n.ASBR == nil {
				continue
			}
			for _, neighbor := range n.ASBR.Peers {
				if neighbor.RT != peer.RT {
					continue
				}
				if link := p.linkBetween(name, neighbor.Address); slices.ContainsFunc(w.Hops, func(h cell.Hop) bool { return h.Link == link }) {
					return peer.Name
				}
			}
		}
	}
	return ""
}

// linkBetween returns the link of a node to the address of a neighbor, or "".
func (p *plan) linkBetween(node string, neighbor netip.Addr) string {
	for _, name := range sortedLinks(p.spec) {
		ends := p.spec.Links[name].Ends
		here := slices.ContainsFunc(ends, func(e scenario.End) bool { return e.Node == node })
		there := func(e scenario.End) bool {
			return slices.ContainsFunc(e.Addresses, func(a netip.Prefix) bool { return a.Addr() == neighbor })
		}
		if here && slices.ContainsFunc(ends, there) {
			return name
		}
	}
	return ""
}

// putFirstLink adds the share of the first path in what arrived over all.
func putFirstLink(metrics map[string]float64, paths []sim.PathResult) {
	if len(paths) < 2 {
		return
	}
	first, all := unit.Size(0), unit.Size(0)
	for i, path := range paths {
		for _, n := range path.Series {
			if all += n; i == 0 {
				first += n
			}
		}
	}
	if all > 0 {
		metrics[result.FirstLink] = float64(first) / float64(all)
	}
}

// uses explains what a connection recalled of its paths, and its decisions on them.
func uses(links []string, config *sim.Connection, c *sim.ConnectionResult, began time.Duration) []result.Note {
	var list []result.Note
	for i, p := range config.Past {
		text := fmt.Sprintf("%s: recalled as %s, %.1f ms, %s", links[i], unit.Bandwidth(8*p.Rate), milliseconds(p.MinRTT), p.Verdict)
		if p.Rest > 0 {
			text += " for " + p.Rest.Round(time.Millisecond).String()
		}
		list = append(list, result.Note{Text: text})
	}
	if config.Past != nil {
		list = append(list, result.Note{Text: links[config.Begin] + ": begins"})
	}
	for _, u := range c.Uses {
		list = append(list, result.Note{At: u.At - began, Text: fmt.Sprintf("%s: %s, %s, %.1f ms", links[u.Path], u.Reason, u.Rate, milliseconds(u.Delay))})
	}
	return list
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
