package edge

import (
	"hash/fnv"
	"net/netip"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/kernel/route"
)

// nexthopBase is the first nexthop object ID, above IDs that operators assign.
const nexthopBase = 1 << 30

// nexthops are the SIDs of routes, and the nexthop objects with the encapsulation to each.
type nexthops struct {
	sids hashtable.Interner[netip.Addr]
	// objects are those of EPE Routes, delivering those of deliveries, by number of the SID: when a
	// SID is lost, the kernel deletes the routes through the latter first.
	objects    map[uint32]route.Nexthop
	delivering map[uint32]delivering
	ids        map[uint32]bool // of nexthop objects, and of groups
	// discarded are the SIDs with a discard route.
	discarded map[netip.Addr]bool
}

func newNexthops() nexthops {
	return nexthops{objects: map[uint32]route.Nexthop{}, delivering: map[uint32]delivering{}, ids: map[uint32]bool{}, discarded: map[netip.Addr]bool{}}
}

// useSID counts a route through a SID and returns the SID's number; the first one sets its nexthop
// object.
func (e *egress) useSID(addr netip.Addr) uint32 {
	n := e.sids.Use(addr)
	if e.sids.Uses(n) == 1 {
		e.objects[n] = route.Nexthop{ID: e.newID(addr.AsSlice()), Link: e.config.Interface, SID: addr, Encap: e.config.encap()}
		e.kernel.Set(e.objects[n])
	}
	return n
}

// releaseSID ends the use of a SID by a route. The reconciler deletes routes before nexthop
// objects, so the object can be deleted in the same flush.
func (e *egress) releaseSID(n uint32) {
	if n == 0 {
		return
	}
	addr := e.sids.Value(n)
	if e.sids.Release(n); e.sids.Uses(n) > 0 {
		return
	}
	e.kernel.Delete(e.objects[n].Key())
	if e.discarded[addr] {
		e.kernel.Delete(discard(addr).Key())
		delete(e.discarded, addr)
	}
	delete(e.ids, e.objects[n].ID)
	delete(e.objects, n)
}

// delivering is the nexthop object of a SID for deliveries, and how many groups use it.
type delivering struct {
	route.Nexthop
	groups int
}

// useDelivering counts the use of a SID by a group, and returns the SID's number.
func (e *egress) useDelivering(sid netip.Addr) uint32 {
	n := e.useSID(sid)
	d, ok := e.delivering[n]
	if !ok {
		d.Nexthop = e.objects[n]
		d.ID = e.newID(append([]byte("delivery "), sid.AsSlice()...))
		e.kernel.Set(d.Nexthop)
	}
	d.groups++
	e.delivering[n] = d
	return n
}

// releaseDelivering ends the use of a SID by a group.
func (e *egress) releaseDelivering(n uint32) {
	d := e.delivering[n]
	d.groups--
	e.delivering[n] = d
	if d.groups == 0 {
		e.kernel.Delete(d.Key())
		delete(e.ids, d.ID)
		delete(e.delivering, n)
	}
	e.releaseSID(n)
}

// discardMetric is that of the route that discards packets to an unreachable SID, better than that
// of any other.
const discardMetric = 1

// discard is a route that discards packets to a SID. It takes effect at once for all routes through
// the SID, however many there are.
func discard(sid netip.Addr) route.Route {
	return route.Route{Table: route.MainTable, Dst: host(sid), Metric: discardMetric, Kind: route.Unreachable}
}

// newID derives an object's ID from what it leads to, so that IDs are the same after a restart.
func (n *nexthops) newID(of []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(of)
	id := nexthopBase | h.Sum32()%nexthopBase
	for n.ids[id] {
		id = nexthopBase | (id+1)%nexthopBase
	}
	n.ids[id] = true
	return id
}
