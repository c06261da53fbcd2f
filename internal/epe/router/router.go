// Package router is a plain BGP router, such as a transit provider or an access network has: it
// originates its networks, advertises routes between its neighbors and forwards along best paths.
//
// It has nothing that tabane adds to a network: no SIDs, no VPN routes, no per-peer tables.
package router

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Options describe a Router.
type Options struct {
	Config Config
	// Keep leaves the routes in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

// Router is a running router.
type Router struct {
	config Config
	log    *slog.Logger
	daemon *daemon.Daemon
	links  map[string]bool

	reloading sync.Mutex
}

// New connects to the kernel and listens. It does not change the kernel yet.
func New(ctx context.Context, o Options) (*Router, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if err := condition.Require(o.Config.conditions()); err != nil {
		return nil, err
	}
	d, err := daemon.New(ctx, daemon.Options{
		Protocol:  route.Router,
		Speaker:   bgp.Options{ASN: o.Config.ASN, RouterID: o.Config.RouterID},
		Neighbors: o.Config.speakers(),
		Keep:      o.Keep,
		Log:       o.Log,
	})
	if err != nil {
		return nil, err
	}
	return &Router{config: o.Config, log: o.Log, daemon: d, links: map[string]bool{}}, nil
}

// speakers are the neighbors as the BGP speaker has them.
func (c *Config) speakers() []bgp.Neighbor {
	var neighbors []bgp.Neighbor
	rules := c.policies().Compiler(nil)
	for _, n := range c.Neighbors {
		s := n.speaker(c.ASN)
		rules.Apply(&n.Keys, &s)
		neighbors = append(neighbors, s)
	}
	return neighbors
}

// speaker is the neighbor as the BGP speaker is configured with it. Of two routers the one with the
// higher AS number is passive: if both open connections at the same moment, the collision may take
// the speaker's watchdog some seconds to resolve.
func (n Neighbor) speaker(own uint32) bgp.Neighbor {
	return bgp.Neighbor{
		Passive: own > n.ASN,
		Name:    n.Name, Address: n.Address, ASN: n.ASN, Families: []bgp.Family{n.Version().Unicast()}, Password: n.Password,
		LocalPref: n.LocalPref, BFD: n.BFD, Export: bgp.ExportPolicy{Reject: n.Deny},
	}
}

// Run routes until ctx ends. It always closes what New opened.
func (r *Router) Run(ctx context.Context) error {
	err := r.originate(r.config.Networks, r.config.Leaks)
	if err == nil {
		err = r.generate(r.config.Generate)
	}
	if err != nil {
		return errors.Join(err, r.daemon.Close())
	}
	return r.daemon.Run(ctx, r)
}

func (r *Router) originate(networks []netip.Prefix, leaks []Leak) error {
	routes := make([]bgp.UnicastRoute, len(networks))
	for i, p := range networks {
		routes[i] = bgp.UnicastRoute{Prefix: p}
	}
	for _, l := range leaks {
		routes = append(routes, bgp.UnicastRoute{Prefix: l.Prefix, Attributes: bgp.Attributes{ASPath: message.MakeASPath(l.ASPath...)}})
	}
	return r.daemon.Speaker.Originate(routes...)
}

// atOnce is the number of generated routes that are originated or withdrawn together.
const atOnce = 1024

// generate originates a generated table.
func (r *Router) generate(g Generate) error {
	routes := make([]bgp.UnicastRoute, 0, atOnce)
	var err error
	for route := range g.routes() {
		if routes = append(routes, route); len(routes) == atOnce {
			err = errors.Join(err, r.daemon.Speaker.Originate(routes...))
			routes = routes[:0]
		}
	}
	return errors.Join(err, r.daemon.Speaker.Originate(routes...))
}

// withdrawGenerated withdraws a generated table.
func (r *Router) withdrawGenerated(g Generate) error {
	prefixes := make([]netip.Prefix, 0, atOnce)
	var err error
	for route := range g.routes() {
		if prefixes = append(prefixes, route.Prefix); len(prefixes) == atOnce {
			err = errors.Join(err, r.daemon.Speaker.Withdraw(prefixes...))
			prefixes = prefixes[:0]
		}
	}
	return errors.Join(err, r.daemon.Speaker.Withdraw(prefixes...))
}

// conditions returns what the router needs of the host.
func (c *Config) conditions() []condition.Condition {
	var links []string
	for _, n := range c.Neighbors {
		links = append(links, n.Interface)
	}
	var list []condition.Condition
	for _, v := range c.versions() {
		if v == bgp.IPv6 {
			list = append(list, condition.IPv6(links...))
		}
		list = append(list, condition.Forwarding(v, links...))
	}
	return append(list, condition.Forwarded(c.versions(), links...), condition.Unique(links...), condition.Tracked())
}

// Conditions implements daemon.Conditioned.
func (r *Router) Conditions() []condition.Condition { return r.config.conditions() }

// BGP implements daemon.Machine. The daemon installs the best paths; there is nothing else to do.
func (r *Router) BGP([]bgp.Event) {}

// Link implements daemon.Machine: sessions follow their link.
func (r *Router) Link(name string, up bool) {
	for _, n := range r.config.Neighbors {
		if n.Interface == name && r.links[n.Name] != up {
			r.links[n.Name] = up
			r.daemon.FollowLink(n.Name, name, up)
		}
	}
}

// Settled implements daemon.Machine.
func (r *Router) Settled() bool { return false }

// Status is what /status shows.
type Status struct {
	Role string `json:"role"`
	health.Status
	ASN     uint32 `json:"asn"`
	Pending int    `json:"pending"`
	// Unresolved is the number of best paths that are not installed because their next hop has no
	// route.
	Unresolved int `json:"unresolved"`
	// Control is the path of the socket for commands.
	Control  string              `json:"control"`
	Sessions []bgp.SessionStatus `json:"sessions"`
}

// Status returns the state of the router. It is ready when one of its sessions is up, and degraded
// until all are.
func (r *Router) Status() any {
	s := Status{Role: "router", Status: daemon.NotRunning, ASN: r.config.ASN, Control: control.Path(r.config.Control, "router")}
	r.daemon.Do(context.Background(), func() {
		var report health.Report
		s.Pending, s.Sessions = r.daemon.Health(&report)
		s.Unresolved = r.daemon.Unresolved()
		report.NeedOne(len(s.Sessions), bgp.Problems(s.Sessions))
		s.Status = report.Status()
	})
	return s
}

// Speaker returns the BGP speaker, for its tables and sessions. The caller changes no
// configuration.
func (r *Router) Speaker() *bgp.Speaker { return r.daemon.Speaker }
