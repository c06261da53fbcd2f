package scenario

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// Routes is what an experiment of KindRoutes changes and observes: a router that advertises a
// prefix to one neighbor or withdraws it, and the server's egress peer that gains or loses the
// route. BGP has to prefer that peer, so that the server's best path changes too.
type Routes struct {
	// Router is the node whose advertisement changes.
	Router string `yaml:"router"`
	// Neighbor is the name of the router's neighbor that the change is advertised to.
	Neighbor string `yaml:"neighbor"`
	// Prefix is the prefix that is advertised or withdrawn.
	Prefix netip.Prefix `yaml:"prefix"`
	// Peer is the egress peer, by its name in the server's edge section.
	Peer string `yaml:"peer"`
}

// The changes in cases of an experiment of KindRoutes.
const (
	ChangeAnnounce = "announce"
	ChangeWithdraw = "withdraw"
)

var routeChanges = []string{ChangeAnnounce, ChangeWithdraw}

// The kinds of routers: what the routers and reflectors of a network run.
const (
	// RoutersEmbedded are the product's own daemons.
	RoutersEmbedded = "embedded"
	// RoutersFRR are FRR's zebra and bgpd.
	RoutersFRR = "frr"
)

var routerKinds = []string{RoutersEmbedded, RoutersFRR}

// WithRouters returns the scenario with only those transports that use one of these kinds of
// routers or no particular one, and without expectations of the others.
func (s *Spec) WithRouters(kinds []string) *Spec {
	return s.without(func(t *Transport) bool { return t.Routers != "" && !slices.Contains(kinds, t.Routers) })
}

// ForLab returns the scenario without transports that only the simulator has, and without
// expectations of them.
func (s *Spec) ForLab() *Spec {
	return s.without(func(t *Transport) bool { return t.Model != nil })
}

// ForSimulator returns the scenario without transports that only a lab has, and without
// expectations of them.
func (s *Spec) ForSimulator() *Spec {
	return s.without(func(t *Transport) bool {
		return t.HTTP3 || !t.Delivery.IsZero() || t.Congestion != "" && !slices.Contains(cc.Names(), t.Congestion) || t.Pace != nil && !*t.Pace
	})
}

// without returns the scenario without the transports that leave selects, without expectations of
// them, and without them in figures.
func (s *Spec) without(leave func(*Transport) bool) *Spec {
	if s.Experiment == nil {
		return s
	}
	e := *s.Experiment
	e.Transports = maps.Clone(e.Transports)
	maps.DeleteFunc(e.Transports, func(_ string, t *Transport) bool { return t != nil && leave(t) })
	gone := func(name string) bool {
		_, there := e.Transports[name]
		return name != "" && !there
	}
	e.Expect = slices.DeleteFunc(slices.Clone(e.Expect), func(x Expectation) bool {
		other, relative := strings.CutPrefix(x.Relative, relativeTransport)
		return gone(x.Transport) || relative && gone(other)
	})
	e.Figures = slices.Clone(e.Figures)
	for i := range e.Figures {
		// If all of its transports are left out, the list is empty and the figure shows
		// those that remain.
		e.Figures[i].Transports = slices.DeleteFunc(slices.Clone(e.Figures[i].Transports), gone)
	}
	if gone(e.Baseline) {
		e.Baseline = ""
	}
	with := *s
	with.Experiment = &e
	return &with
}

// EgressPeer returns the server's egress peer that an experiment of KindRoutes observes, and the
// node and the peer of its ASBR.
func (s *Spec) EgressPeer() (server edge.Peer, node string, border asbr.Peer, ok bool) {
	e := s.Experiment
	if e == nil || e.Routes == nil || s.Nodes[e.Server] == nil || s.Nodes[e.Server].Edge == nil {
		return server, "", border, false
	}
	peers := s.Nodes[e.Server].Edge.Peers
	i := slices.IndexFunc(peers, func(p edge.Peer) bool { return p.Name == e.Routes.Peer })
	if i < 0 {
		return server, "", border, false
	}
	server = peers[i]
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		n := s.Nodes[name]
		if n == nil || n.ASBR == nil {
			continue
		}
		for _, p := range n.ASBR.Peers {
			if p.RT == server.RT {
				return server, name, p, true
			}
		}
	}
	return server, "", border, false
}

// routesOnly adds a fault for each key that only an experiment of KindRoutes can have.
func (c *checker) routesOnly(path string, e *Experiment) {
	if e.Routes != nil {
		c.Add(path+".routes", "is for experiments of kind %s", KindRoutes)
	}
	for i, k := range e.Cases {
		if k.Change != "" {
			c.Add(index(path+".cases", i)+".change", "is for experiments of kind %s", KindRoutes)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Transports)) {
		if t := e.Transports[name]; t != nil && t.Routers != "" {
			c.Add(at(path+".transports", name)+".routers", "is for experiments of kind %s", KindRoutes)
		}
	}
}

// routesExperiment checks the keys of an experiment of KindRoutes, and those that it must not have.
func (c *checker) routesExperiment(path string, e *Experiment) {
	for i, k := range e.Cases {
		path := index(path+".cases", i)
		if !slices.Contains(routeChanges, k.Change) {
			c.Add(path+".change", "must be one of %s, got %q", strings.Join(routeChanges, ", "), k.Change)
		}
		if len(k.Events) > 0 {
			c.Add(path+".events", "is for experiments of kind %s: here the change is the event", KindDelivery)
		}
		if k.Duration != 0 {
			c.Add(path+".duration", "is for experiments of kind %s: here a trial lasts until routes have settled", KindDelivery)
		}
		if k.Trials != 0 {
			c.Add(path+".trials", "is for experiments of kind %s: here cases take turns", KindDelivery)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Traffic)) {
		if t := e.Traffic[name]; t != nil && t.Rate == 0 {
			c.Add(at(path+".traffic", name), "must be a constant bit rate, which shows when a path is used")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Transports)) {
		t, path := e.Transports[name], at(path+".transports", name)
		if t == nil {
			continue
		}
		if !slices.Contains(routerKinds, t.Routers) {
			c.Add(path+".routers", "must be one of %s, got %q", strings.Join(routerKinds, ", "), t.Routers)
		}
		if !t.MPTCP {
			c.Add(path+".mptcp", "must be true: the server uses an egress peer by MPTCP alone")
		}
	}
	r := e.Routes
	if r == nil {
		c.Add(path+".routes", "must say which route changes, and at which peer")
		return
	}
	path += ".routes"
	if !r.Prefix.IsValid() || !r.Prefix.Addr().Is6() || r.Prefix != r.Prefix.Masked() {
		c.Add(path+".prefix", "must be an IPv6 prefix without host bits, got %v", r.Prefix)
	}
	if c.knownNode(path+".router", r.Router) {
		n := c.spec.Nodes[r.Router]
		if n == nil || n.Router == nil {
			c.Add(path+".router", "node %q has no router section", r.Router)
		} else if i := slices.IndexFunc(n.Router.Neighbors, func(b router.Neighbor) bool { return b.Name == r.Neighbor }); i < 0 {
			c.Add(path+".neighbor", "%q is not a neighbor of router %q", r.Neighbor, r.Router)
		} else if slices.Contains(n.Router.Neighbors[i].Deny, r.Prefix) {
			c.Add(path+".prefix", "is in deny of neighbor %q: the network starts with the prefix announced", r.Neighbor)
		}
	}
	if _, _, _, ok := c.spec.EgressPeer(); !ok {
		c.Add(path+".peer", "must be a peer of the server's edge whose rt an asbr has, got %q", r.Peer)
	}
}
