package route

import (
	"errors"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// leavesCached reports whether sockets may go on sending along an IPv6 route that the operation
// deletes, or to a member that it takes from a group. A socket caches its route, and the kernel
// validates a cached route with a nexthop object by a number that it changes only when an IPv6
// route is added, in any table (Linux 5.7 and later).
func leavesCached(op Op) bool {
	if !op.Delete {
		_, group := op.Object.(NexthopGroup)
		return group && op.Old != nil
	}
	key := op.Object.Key()
	return key.class == ClassNexthop || key.class == ClassRoute && key.prefix.Addr().Is6()
}

// discarded is of the discard-only prefix (RFC 6666).
var discarded = netip.MustParsePrefix("100::/128")

// expireCached has the kernel look up again all routes that sockets have cached: it adds an IPv6
// route that no packet takes and deletes it in the same request.
func (c *Conn) expireCached() {
	// An error concerns the request as a whole, as does that of the next one.
	_ = c.renumber(1)
}

// renumber changes the number so many times by which the kernel validates cached routes.
func (c *Conn) renumber(times int) error {
	r := Route{Table: MainTable, Dst: discarded, Metric: math.MaxUint32, Kind: Unreachable}
	add := putRoute(nil, r, unix.RTPROT_BOOT, 0, 0, false)
	remove := putRoute(nil, r, unix.RTPROT_BOOT, 0, 0, true)
	steps := slices.Repeat([]step{{msg: message(unix.RTM_NEWROUTE, netlink.Create|netlink.Replace, add)}}, times)
	steps = append(steps, step{msg: message(unix.RTM_DELROUTE, 0, remove), gone: true})
	errs := make([]error, 1)
	c.send([]Op{{Object: r}}, steps, errs)
	return errs[0]
}

// renumberings is how far the number of a namespace is moved from that of the initial one. Both grow
// by one with each IPv6 route that is added, and begin near 1.
const renumberings = 4096

// LeaveInitialNumber keeps sockets from sending along IPv6 routes with a nexthop object that the
// kernel has discarded, where the calling thread is not in the initial network namespace. Once it
// has discarded a cached route, the kernel compares its number with that of the initial namespace
// (rt6_is_valid, Linux 6.18; the route leads to blackhole_netdev). If they are the same, it drops
// what the socket sends, in TCP until the fourth retransmission, some 5 s.
func LeaveInitialNumber() error {
	// Only the initial namespace has it.
	_, err := os.Stat("/proc/sys/net/core/netdev_max_backlog")
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c, err := Dial()
	if err != nil {
		return err
	}
	return errors.Join(c.renumber(renumberings), c.Close())
}
