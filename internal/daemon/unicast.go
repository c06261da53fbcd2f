package daemon

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
)

// unicastMetric is worse than that of connected (256) and static routes and of routes from router
// advertisements (1024): these always win over BGP, so that no neighbor can replace them.
const unicastMetric = 4096

// desired is the desired state of the kernel.
type desired interface {
	SetRoute(route.Route)
	Delete(route.Key)
}

// resolver resolves BGP next hops; a route.Conn is one.
type resolver interface {
	NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error)
}

// unicast installs best unicast paths in the main table. An IPv4 path may have an IPv6 next hop
// (RFC 8950).
type unicast struct {
	kernel   desired
	resolver resolver
	// installs, unless nil, selects the prefixes.
	installs func(netip.Prefix) bool
	best     [2]array // the best paths of IPv6 and IPv4, by number of the prefix
	hops     hashtable.Interner[netip.Addr]
	via      map[uint32]via // what the next hops resolve to
	// changed are the next hops whose routes are to be installed again, from the one at next on.
	changed map[uint32]bool
	next    int
	// unsure is why some next hop could not be resolved. Its last known route holds until resolve
	// succeeds.
	unsure error
	// unreachable: some next hop had no route when it was last resolved.
	unreachable bool
}

// bestPath is a prefix with the number of its next hop; zero: there is none.
type bestPath struct {
	prefix hashtable.Prefix
	hop    uint32
}

// array is a list of best paths that grows without being copied.
type array struct{ pages []*[arrayPage]bestPath }

const arrayPage = 4096

func (a *array) size() int { return len(a.pages) * arrayPage }

func (a *array) at(n uint32) *bestPath {
	for int(n) >= a.size() {
		a.pages = append(a.pages, new([arrayPage]bestPath))
	}
	return &a.pages[n/arrayPage][n%arrayPage]
}

// via is the route to a next hop; zero if there is none.
type via struct {
	gateway netip.Addr
	link    string
}

func newUnicast(kernel desired, r resolver) *unicast {
	return &unicast{kernel: kernel, resolver: r, via: map[uint32]via{}, changed: map[uint32]bool{}}
}

func (u *unicast) update(events []bgp.Event) {
	for _, e := range events {
		p, ok := e.(bgp.UnicastPath)
		if !ok || u.installs != nil && !u.installs(p.Prefix) {
			continue
		}
		if p.Withdrawn || p.Rejected != nil || p.Local || slices.Contains(p.Communities, bgp.Blackhole) {
			u.remove(p)
		} else {
			u.set(p)
		}
	}
}

// at returns the place of a path.
func (u *unicast) at(p bgp.UnicastPath) *bestPath {
	if p.Prefix.Addr().Is4() {
		return u.best[1].at(p.Number)
	}
	return u.best[0].at(p.Number)
}

func (u *unicast) remove(p bgp.UnicastPath) {
	if b := u.at(p); b.hop != 0 {
		u.release(b.hop)
		*b = bestPath{}
		u.kernel.Delete(mainRoute(p.Prefix).Key())
	}
}

func (u *unicast) set(p bgp.UnicastPath) {
	b := u.at(p)
	was := b.hop
	*b = bestPath{hashtable.Compact(p.Prefix), u.hops.Use(p.NextHop)}
	u.release(was)
	u.install(b)
}

// release ends the use of a next hop by a prefix.
func (u *unicast) release(hop uint32) {
	if hop == 0 {
		return
	}
	if u.hops.Release(hop); u.hops.Uses(hop) == 0 {
		delete(u.via, hop)
		delete(u.changed, hop)
	}
}

// resolve resolves each next hop again. The routes of those that changed are updated by step. The
// error is why some next hop could not be resolved.
func (u *unicast) resolve() error {
	u.unsure, u.unreachable = nil, false
	for n := range uint32(u.hops.Len()) {
		if n == 0 || u.hops.Uses(n) == 0 {
			continue
		}
		was, asked := u.via[n]
		if now, known := u.ask(u.hops.Value(n)); known && (!asked || now != was) {
			u.via[n], u.changed[n], u.next = now, true, 0
		}
	}
	return u.unsure
}

// unresolved returns the number of best paths that are not installed because their next hop has no
// route.
func (u *unicast) unresolved() (n int) {
	for hop, way := range u.via {
		if way.link == "" {
			n += int(u.hops.Uses(hop))
		}
	}
	return n
}

// step updates at most so many routes of next hops that changed; it reports whether there may be
// more.
func (u *unicast) step(most int) (more bool) {
	if len(u.changed) == 0 {
		return false
	}
	for size := u.best[0].size(); u.next < size+u.best[1].size(); u.next++ {
		if most == 0 {
			return true
		}
		list, n := &u.best[0], u.next
		if n >= size {
			list, n = &u.best[1], n-size
		}
		if b := list.at(uint32(n)); u.changed[b.hop] {
			u.install(b)
			most--
		}
	}
	clear(u.changed)
	return false
}

// ask returns false if the lookup failed, other than by the absence of a route.
func (u *unicast) ask(hop netip.Addr) (way via, known bool) {
	if hop.Zone() != "" {
		return via{hop.WithZone(""), hop.Zone()}, true
	}
	gateway, link, err := u.resolver.NexthopTo(hop)
	switch {
	case errors.Is(err, route.ErrNoRoute):
		u.unreachable = true
		return via{}, true
	case err != nil:
		u.unsure = err
		return via{}, false
	}
	if !gateway.IsValid() {
		gateway = hop
	}
	return via{gateway, link}, true
}

func mainRoute(prefix netip.Prefix) route.Route {
	return route.Route{Table: route.MainTable, Dst: prefix, Metric: unicastMetric, Kind: route.Unicast}
}

// install sets or deletes the route of a prefix.
func (u *unicast) install(b *bestPath) {
	r, hop := mainRoute(b.prefix.Netip()), b.hop
	address := u.hops.Value(hop)
	way, asked := u.via[hop]
	if !asked {
		var known bool
		if way, known = u.ask(address); !known {
			return // keep what is installed until resolve succeeds
		}
		u.via[hop] = way
	}
	if r.Gateway, r.Link = way.gateway, way.link; r.Link == "" || address.Is4() && r.Dst.Addr().Is6() {
		u.kernel.Delete(r.Key())
		return
	}
	u.kernel.SetRoute(r)
}
