package scenario

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/result"
)

// sharesOfOthers are the metrics that relate a run to those of the transports in BestOf.
var sharesOfOthers = []string{result.ShareOfBest, result.ShareOfBound}

// relate adds to the runs their goodput relative to that of the transports in BestOf, each of which
// uses one path. The medians of their trials count; a cell of which one failed has no share.
//
// The bound is the largest over the sets S of paths of min(sum of r, W / max of D) (in order and
// with one window, all data of a set is as late as that of its slowest path), where r is what a
// path carries alone, D its round-trip time without a queue, and W the client's window. Paths that
// share a link carry no more than the limit of the run.
func (s *Spec) relate(runs []result.Run) error {
	e := s.Experiment
	if len(e.BestOf) == 0 {
		return nil
	}
	alone := map[result.CellKey][]float64{}
	for _, r := range runs {
		if slices.Contains(e.BestOf, r.Transport) && r.Err() == nil {
			alone[r.CellKey] = append(alone[r.CellKey], r.Metrics[result.Goodput])
		}
	}
	for _, r := range runs {
		if r.Err() != nil {
			continue
		}
		var paths []path
		for _, name := range e.BestOf {
			k := result.CellKey{Case: r.Case, Traffic: r.Traffic, Transport: name}
			if len(alone[k]) == 0 {
				paths = nil
				break
			}
			rate, err := stat.Quantile(0.5, alone[k])
			if err != nil {
				return err
			}
			paths = append(paths, path{rate, s.roundTrip(e.Case(r.Case), e.Transports[name].Links[0])})
		}
		best := 0.0
		for _, p := range paths {
			best = max(best, p.rate)
		}
		if best == 0 {
			continue
		}
		r.Metrics[result.ShareOfBest] = r.Metrics[result.Goodput] / best
		t := e.TrafficIn(e.Case(r.Case), r.Traffic)
		if transport := e.Transports[r.Transport]; transport.MPTCP && len(transport.Links) > 1 && t.Bytes > 0 && t.Objects == 0 {
			window := 8 * float64(e.Settings(r.CellKey).ReceiveBuffer)
			bound := result.Lesser(inOrder(paths, window), r.Metrics[result.LimitRate])
			r.Metrics[result.ShareOfBound] = r.Metrics[result.Goodput] / bound
		}
	}
	return nil
}

// path is a path alone: what it carries, in bit/s, and its round-trip time in seconds.
type path struct{ rate, roundTrip float64 }

// inOrder returns the most that a set of the paths carries in order with a window in bits; 0: none.
func inOrder(paths []path, window float64) float64 {
	most := 0.0
	for set := 1; set < 1<<len(paths); set++ {
		sum, slowest := 0.0, 0.0
		for i, p := range paths {
			if set&(1<<i) != 0 {
				sum += p.rate
				slowest = max(slowest, p.roundTrip)
			}
		}
		if window > 0 && slowest > 0 {
			sum = math.Min(sum, window/slowest)
		}
		most = max(most, sum)
	}
	return most
}

// roundTrip returns the delay of a link in both directions, in seconds.
func (s *Spec) roundTrip(c Case, link string) float64 {
	forward, backward := s.ShapeIn(c, link).Profiles()
	return (forward.Delay + backward.Delay).Seconds()
}

// maxBestOf bounds BestOf, over whose sets the bound is.
const maxBestOf = 8

func (c *checker) bestOf(path string, e *Experiment) {
	if len(e.BestOf) > maxBestOf {
		c.Add(path+".best_of", "must name at most %d transports, got %d", maxBestOf, len(e.BestOf))
	}
	for i, name := range e.BestOf {
		where := index(path+".best_of", i)
		switch t := e.Transports[name]; {
		case t == nil:
			c.Add(where, "transport %q is not in transports", name)
		case len(t.Links) != 1:
			c.Add(where, "must use one link, and transport %q uses %d", name, len(t.Links))
		case slices.Index(e.BestOf, name) < i:
			c.Add(where, "transport %q is named twice", name)
		}
	}
}

// via checks that a transport's egress peer is one of the server's.
func (c *checker) via(path string, t *Transport) {
	if t.Via == "" {
		return
	}
	if len(t.Links) > 1 || t.Gateway != nil {
		c.Add(path, "is for transports with one link and without gateway")
	}
	e := c.spec.Experiment
	if n := c.spec.Nodes[e.Client]; t.MPTCP && n != nil && n.MPTCP == nil {
		c.Add(path, "of a transport with mptcp needs mptcp on node %q, whose limit it sets", e.Client)
	}
	var names []string
	if n := c.spec.Nodes[e.Server]; n != nil && n.Edge != nil {
		for _, p := range n.Edge.Peers {
			names = append(names, p.Name)
		}
	}
	if !slices.Contains(names, t.Via) {
		c.Add(path, "must be an egress peer of the server's edge: %s, got %q", strings.Join(names, ", "), t.Via)
	}
}

// delivered checks that the server's edge can have the mode of a transport.
func (c *checker) delivered(path string, t *Transport) {
	if t.Delivery.IsZero() {
		return
	}
	server := c.spec.Experiment.Server
	n := c.spec.Nodes[server]
	if n == nil || n.Edge == nil {
		c.Add(path, "needs an edge on node %q", server)
		return
	}
	if t.Via != "" || t.Gateway != nil || t.Proxies {
		c.Add(path, "is for transports without via, gateway and proxies")
	}
	c.Merge(path, n.Edge.CheckMode(t.Delivery))
}

// port checks that the server serves on the port of a transport.
func (c *checker) port(path string, t *Transport) {
	if n := c.spec.Nodes[c.spec.Experiment.Server]; t.Port != 0 && (n == nil || n.Serve == nil || t.Port != n.Serve.Port && !slices.Contains(n.Serve.Ports, t.Port)) {
		c.Add(path, "must be a port of serve on node %q, got %d", c.spec.Experiment.Server, t.Port)
	}
}

// PolicyOf returns the policy of the server's edge for the connections of a transport, nil if there
// is none. Sockets of a scenario have no marks and no cgroups of their own.
func (s *Spec) PolicyOf(t *Transport) *edge.Policy {
	n := s.Nodes[s.Experiment.Server]
	if n == nil || n.Edge == nil || n.Serve == nil || !t.MPTCP {
		return nil
	}
	all := n.Edge.MPTCP.Policies
	port := cmp.Or(t.Port, n.Serve.Port)
	i := slices.IndexFunc(all, func(p edge.Policy) bool { return (p.Port == 0 || p.Port == port) && p.Mark == 0 && p.Cgroup == "" })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// objects checks a traffic of several objects.
func (c *checker) objects(path string, t *Traffic) {
	switch {
	case t.Objects < 0 || t.Objects > maxObjects:
		c.Add(path+".objects", "must be from 1 to %d, got %d", maxObjects, t.Objects)
	case t.Objects > 0 && (t.Bytes == 0 || t.Datagram != 0 || t.Upload):
		c.Add(path+".objects", "needs bytes, the size of each, and is downloaded")
	}
	if t.Live && (t.Rate == 0 || t.Datagram > 0 || t.Upload) {
		c.Add(path+".live", "is for a rate that is downloaded without datagram")
	}
	if t.Beside < 0 || t.Beside > MaxBeside {
		c.Add(path+".beside", "must be from 0 to %d, got %d", MaxBeside, t.Beside)
	}
	if t.NewConnections && t.Objects == 0 {
		c.Add(path+".new_connections", "needs objects")
	}
}

// maxObjects bounds the objects of a traffic.
const maxObjects = 10000
