package daemon

import (
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/route"
)

// unicastMetric is better than that of routes from router advertisements and static routes (1024), as a router expects of
// BGP, and worse than what an operator sets by hand to win.
const unicastMetric = 20

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
		if p.Withdrawn || p.Rejected != nil || p.Local {
			delete(u.best, p.Prefix)
		} else {
			u.best[p.Prefix] = p.NextHop
		}
		u.install(p.Prefix)
	}
}

// resolve asks the kernel again how to reach each next hop, and moves the routes whose answer changed.
func (u *unicast) resolve() {
	used := map[netip.Addr]bool{}
	changed := map[netip.Addr]bool{}
	for _, hop := range u.best {
		if used[hop] {
			continue
		}
		used[hop] = true
		if now := u.ask(hop); now != u.via[hop] {
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
}

func (u *unicast) ask(hop netip.Addr) via {
	if hop.Zone() != "" {
		return via{hop.WithZone(""), hop.Zone()}
	}
	gateway, link, err := u.resolver.NexthopTo(hop)
	if err != nil {
		return via{} // resolve asks again
	}
	if !gateway.IsValid() {
		gateway = hop
	}
	return via{gateway, link}
}

// install brings one prefix to the kernel's table, or takes it away.
func (u *unicast) install(prefix netip.Prefix) {
	r := route.Route{Table: route.MainTable, Dst: prefix, Metric: unicastMetric, Kind: route.Unicast}
	hop, ok := u.best[prefix]
	if ok {
		way, known := u.via[hop]
		if !known {
			way = u.ask(hop)
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
