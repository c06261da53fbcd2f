package daemon

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/route"
)

// unicastMetric is worse than that of connected (256) and static routes and of routes from router
// advertisements (1024): these always win over BGP, so that no neighbor can replace them.
const unicastMetric = 4096

// desired is the desired state of the kernel.
type desired interface {
	Set(route.Object)
	Delete(route.Key)
}

// resolver resolves BGP next hops; a route.Conn is one.
type resolver interface {
	NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error)
}

// unicast installs best unicast paths in the main table. An IPv4 path may have an IPv6 next hop (RFC
// 8950).
type unicast struct {
	kernel   desired
	resolver resolver
	best     map[netip.Prefix]netip.Addr // next hops
	via      map[netip.Addr]via          // what the next hops resolve to
	// unsure is why some next hop could not be resolved. Its last known route holds until resolve
	// succeeds.
	unsure error
}

// via is the route to a next hop; zero if there is none.
type via struct {
	gateway netip.Addr
	link    string
}

func newUnicast(kernel desired, r resolver) *unicast {
	return &unicast{kernel: kernel, resolver: r, best: map[netip.Prefix]netip.Addr{}, via: map[netip.Addr]via{}}
}

func (u *unicast) update(events []bgp.Event) {
	for _, e := range events {
		p, ok := e.(bgp.UnicastPath)
		if !ok {
			continue
		}
		if p.Withdrawn || p.Rejected != nil || p.Local || slices.Contains(p.Communities, bgp.Blackhole) {
			delete(u.best, p.Prefix)
		} else {
			u.best[p.Prefix] = p.NextHop
		}
		u.install(p.Prefix)
	}
}

// resolve resolves each next hop again and updates the routes of those that changed. The error is
// why some next hop could not be resolved.
func (u *unicast) resolve() error {
	u.unsure = nil
	used := map[netip.Addr]bool{}
	changed := map[netip.Addr]bool{}
	for _, hop := range u.best {
		if used[hop] {
			continue
		}
		used[hop] = true
		was, asked := u.via[hop]
		if now, known := u.ask(hop); known && (!asked || now != was) {
			u.via[hop], changed[hop] = now, true
		}
	}
	for hop := range u.via {
		if !used[hop] {
			delete(u.via, hop)
		}
	}
	for prefix, hop := range u.best {
		if changed[hop] {
			u.install(prefix)
		}
	}
	return u.unsure
}

// ask returns false if the lookup failed, other than by the absence of a route.
func (u *unicast) ask(hop netip.Addr) (way via, known bool) {
	if hop.Zone() != "" {
		return via{hop.WithZone(""), hop.Zone()}, true
	}
	gateway, link, err := u.resolver.NexthopTo(hop)
	switch {
	case errors.Is(err, route.ErrNoRoute):
		return via{}, true // resolve asks again
	case err != nil:
		u.unsure = err
		return via{}, false
	}
	if !gateway.IsValid() {
		gateway = hop
	}
	return via{gateway, link}, true
}

// install sets or deletes the route of one prefix.
func (u *unicast) install(prefix netip.Prefix) {
	r := route.Route{Table: route.MainTable, Dst: prefix, Metric: unicastMetric, Kind: route.Unicast}
	hop, ok := u.best[prefix]
	if ok && !(hop.Is4() && prefix.Addr().Is6()) {
		way, asked := u.via[hop]
		if !asked {
			var known bool
			if way, known = u.ask(hop); !known {
				return // keep what is installed until resolve succeeds
			}
			u.via[hop] = way
		}
		r.Gateway, r.Link = way.gateway, way.link
	}
	if r.Link == "" {
		u.kernel.Delete(r.Key())
		return
	}
	u.kernel.Set(r)
}
