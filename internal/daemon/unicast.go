package daemon

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/route"
)

// unicastMetric is worse than that of connected (256) and static routes and of routes from router advertisements
// (1024): these always win over BGP, so that no neighbor can replace them.
const unicastMetric = 4096

// desired is where decisions about kernel objects go.
type desired interface {
	Set(route.Object)
	Delete(route.Key)
}

// resolver says how the kernel reaches a BGP next hop.
type resolver interface {
	NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error)
}

// unicast mirrors best IPv6 unicast paths into the main table.
type unicast struct {
	kernel   desired
	resolver resolver
	best     map[netip.Prefix]netip.Addr // next hops
	via      map[netip.Addr]via          // what the next hops resolve to
	// unsure says why the way to some next hop is unknown. What was known of it holds until resolve finds out.
	unsure error
}

// via is how to send to a next hop; the zero via is not at all.
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

// resolve asks the kernel again how to reach each next hop, and moves the routes whose answer changed. The error says that
// some way is still unknown.
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

// ask reports false when the kernel did not tell, which is another thing than that there is no way.
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

// install brings one prefix to the kernel's table, or takes it away.
func (u *unicast) install(prefix netip.Prefix) {
	r := route.Route{Table: route.MainTable, Dst: prefix, Metric: unicastMetric, Kind: route.Unicast}
	hop, ok := u.best[prefix]
	if ok {
		way, asked := u.via[hop]
		if !asked {
			var known bool
			if way, known = u.ask(hop); !known {
				return // what the kernel has is better than nothing, until resolve finds out
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
