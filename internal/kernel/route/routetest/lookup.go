package routetest

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/kernel/route"
)

// A Packet contains the fields of a packet that a route lookup depends on.
type Packet struct {
	Src, Dst netip.Addr
	Iif      string // "" for a locally generated packet
	Oif      string // interface that the sending socket is bound to
	Mark     uint32
}

// Lookup returns the route that a packet takes among objects: the longest match in the table of the
// first rule that matches and whose table has a match. The main table follows all rules. An error
// of a route counts also for packets of a socket that is bound to an interface, as in the kernel.
// It returns false for a packet that is dropped.
func Lookup(objects iter.Seq[route.Object], p Packet) (route.Route, bool) {
	isIPv4 := p.Dst.Is4()
	rules := []route.Rule{{Priority: 32766, Table: route.MainTable}}
	for o := range objects {
		if r, ok := o.(route.Rule); ok && isIPv4 == (r.From.Addr().Is4() || r.To.Addr().Is4()) {
			rules = append(rules, r)
		}
	}
	slices.SortFunc(rules, func(a, b route.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	matches := func(prefix netip.Prefix, a netip.Addr) bool { return !prefix.IsValid() || prefix.Contains(a) }
	for _, r := range rules {
		if !matches(r.From, p.Src) || !matches(r.To, p.Dst) || r.Iif != "" && r.Iif != p.Iif || r.Oif != "" && r.Oif != p.Oif || r.Mark != 0 && r.Mark != p.Mark || r.NotMark != 0 && r.NotMark == p.Mark {
			continue
		}
		if r.Unreachable {
			return route.Route{}, false
		}
		found, ok := longest(objects, r.Table, p)
		if !ok || found.Kind == route.Throw || r.Specific && found.Kind == route.Unicast && found.Dst.Bits() == 0 {
			continue
		}
		return found, found.Kind == route.Unicast
	}
	return route.Route{}, false
}

// Decapsulate returns the route that a packet inside one for a SID takes. It returns false for a
// packet that is dropped.
func Decapsulate(objects iter.Seq[route.Object], sid, dst netip.Addr) (route.Route, bool) {
	r, ok := LookupTable(objects, route.MainTable, sid)
	switch {
	case !ok:
		return route.Route{}, false
	case r.Local.Behavior == route.EndDT6:
		return LookupTable(objects, r.Local.Table, dst)
	}
	if r, ok = LookupTable(objects, route.MainTable, r.Local.Nexthop); !ok || r.Mark == 0 {
		return r, ok
	}
	return Lookup(objects, Packet{Src: netip.IPv4Unspecified(), Dst: dst, Iif: r.Link, Mark: r.Mark})
}

// LookupTable returns the route to an address in one table. It returns false if there is none or
// the packet is dropped.
func LookupTable(objects iter.Seq[route.Object], table uint32, dst netip.Addr) (route.Route, bool) {
	r, ok := longest(objects, table, Packet{Dst: dst})
	return r, ok && r.Kind == route.Unicast
}

func longest(objects iter.Seq[route.Object], table uint32, p Packet) (best route.Route, found bool) {
	for o := range objects {
		r, ok := o.Normal().(route.Route)
		if !ok || r.Table != table || !r.Dst.Contains(p.Dst) || p.Oif != "" && r.Kind == route.Unicast && r.Link != p.Oif {
			continue
		}
		if !found || cmp.Or(cmp.Compare(best.Dst.Bits(), r.Dst.Bits()), cmp.Compare(r.Metric, best.Metric)) < 0 {
			best, found = r, true
		}
	}
	return best, found
}
