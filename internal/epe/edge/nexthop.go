package edge

import (
	"encoding/binary"
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
	// objects are those of EPE Routes by number of the SID, delivering those of deliveries: when a
	// SID is lost, the kernel deletes the routes through the latter first.
	objects    map[uint32]route.Nexthop
	delivering map[lead]delivering
	ids        map[uint32]bool // of nexthop objects, and of groups
	// discarded are the SIDs with a discard route.
	discarded map[netip.Addr]bool
}

func newNexthops() nexthops {
	return nexthops{objects: map[uint32]route.Nexthop{}, delivering: map[lead]delivering{}, ids: map[uint32]bool{}, discarded: map[netip.Addr]bool{}}
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

// lead is where a nexthop object of deliveries leads: to a SID, by its number, with the mark of an
// egress peer. Without a mark, peers may have a SID in common.
type lead struct{ sid, mark uint32 }

// lead returns that of packets that are sent to the SID of a peer.
func (e *egress) lead(p *peer, sid uint32) lead {
	if !e.marking {
		return lead{sid: sid}
	}
	return lead{sid, p.mark()}
}

// delivering is a nexthop object for deliveries, and how many groups use it.
type delivering struct {
	route.Nexthop
	groups int
}

// useDelivering counts the use of a peer's SID by a group.
func (e *egress) useDelivering(p *peer, sid netip.Addr) lead {
	to := e.lead(p, e.useSID(sid))
	d, ok := e.delivering[to]
	if !ok {
		d.Nexthop = e.objects[to.sid]
		name := append([]byte("delivery "), sid.AsSlice()...)
		if to.mark != 0 {
			name = binary.BigEndian.AppendUint32(name, to.mark)
			d.Nexthop = route.Nexthop{Link: d.Link, Mark: to.mark}
		}
		d.ID = e.newID(name)
		e.kernel.Set(d.Nexthop)
	}
	d.groups++
	e.delivering[to] = d
	return to
}

// releaseDelivering ends the use of a SID by a group.
func (e *egress) releaseDelivering(to lead) {
	d := e.delivering[to]
	d.groups--
	e.delivering[to] = d
	if d.groups == 0 {
		e.kernel.Delete(d.Key())
		delete(e.ids, d.ID)
		delete(e.delivering, to)
		if to.mark != 0 && !e.config.Delivery.leads() {
			e.unmarked = append(e.unmarked, d.Key())
		}
	}
	e.releaseSID(to.sid)
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
