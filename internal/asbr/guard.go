package asbr

import (
	"slices"

	"github.com/tabane/tabane/internal/route"
)

// Priorities of the policy rules for packets that arrive from egress peers: after the local table
// (0), before the rules of servers and the main table (32766).
const (
	transitRule = 900 + iota // to our prefixes
	guardRule                // all others
)

// guards are the routes and rules that an ASBR has whatever its sessions are. A packet from an
// egress peer is forwarded to our own prefixes only: neither SRv6 packets (RFC 8402 section 8.2,
// RFC 8754 section 5.1) nor transit from peer to peer is accepted there.
func (c *Config) guards() []route.Object {
	unreachable := func(r route.Route) route.Route {
		r.Metric, r.Kind = worstMetric, route.Unreachable
		return r
	}
	// SIDs that are not assigned, and those of a border router that is down, end here instead of
	// following a default route to a peer.
	objects := []route.Object{unreachable(route.Route{Table: route.MainTable, Dst: c.Locator.Prefix})}
	if block := c.Locator.blockPrefix(); block != c.Locator.Prefix {
		objects = append(objects, unreachable(route.Route{Table: route.MainTable, Dst: block}))
	}
	for _, p := range c.Prefixes {
		// Unused addresses of what we advertise must not follow a default route back to a peer.
		objects = append(objects, unreachable(route.Route{Table: route.MainTable, Dst: p}))
	}
	var guarded []string // interfaces; at an exchange peers share one
	for i := range c.Peers {
		p := &c.Peers[i]
		// A default route of the peer covers neither our own space nor our SIDs.
		objects = append(objects, unreachable(route.Route{Table: p.Table, Dst: anywhere}),
			unreachable(route.Route{Table: p.Table, Dst: c.Locator.blockPrefix()}))
		for _, own := range c.Prefixes {
			objects = append(objects, unreachable(route.Route{Table: p.Table, Dst: own}))
		}
		if slices.Contains(guarded, p.Interface) {
			continue
		}
		guarded = append(guarded, p.Interface)
		for _, own := range c.Prefixes {
			objects = append(objects, route.Rule{Priority: transitRule, To: own, Iif: p.Interface, Table: route.MainTable})
		}
		objects = append(objects, route.Rule{Priority: guardRule, Iif: p.Interface, Unreachable: true})
	}
	return objects
}
