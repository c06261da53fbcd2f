// Package choice has the decisions of a proxy: the order in which addresses are tried, which of
// several upstreams a connection goes to, and which destinations have no MPTCP.
//
// It opens no connections and reads no clock.
package choice

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Interleave orders the addresses of a name for connection attempts: the families alternate, from
// that of the first address on, and each keeps its order (RFC 8305 section 4, with a First Address
// Family Count of 1).
func Interleave(addresses []netip.Addr) []netip.Addr {
	if len(addresses) == 0 {
		return nil
	}
	first := addresses[0].Is4()
	var own, other []netip.Addr
	for _, a := range addresses {
		if a.Is4() == first {
			own = append(own, a)
		} else {
			other = append(other, a)
		}
	}
	ordered := make([]netip.Addr, 0, len(addresses))
	for len(own) > 0 || len(other) > 0 {
		for _, list := range []*[]netip.Addr{&own, &other} {
			if len(*list) > 0 {
				ordered, *list = append(ordered, (*list)[0]), (*list)[1:]
			}
		}
	}
	return ordered
}

const (
	// downAfter is the number of failures in a row after which an upstream is down: one may be
	// chance.
	downAfter = 2
	// downFor is how long an upstream stays down before connections try it again, unless a probe
	// succeeds earlier.
	downFor = 10 * time.Second
)

// Upstream is the state of one upstream.
type Upstream struct {
	// Active is the number of connections to it, those being opened included.
	Active int
	// Failures is the number of failures since the last success.
	Failures int
	// Until is when a failed upstream is tried again.
	Until time.Time
}

// Down reports whether the upstream does not answer, as far as is known.
func (u *Upstream) Down() bool { return u.Failures >= downAfter }

// Up reports whether the upstream takes connections at now: one that is down is tried again after a
// while.
func (u *Upstream) Up(now time.Time) bool { return !u.Down() || !now.Before(u.Until) }

// Succeeded records a connection or a probe that was answered.
func (u *Upstream) Succeeded() { u.Failures = 0 }

// Failed records a connection or a probe that failed at now; it reports whether the upstream is
// down since.
func (u *Upstream) Failed(now time.Time) (down bool) {
	was := u.Down()
	u.Failures++
	if u.Down() {
		u.Until = now.Add(downFor)
	}
	return !was && u.Down()
}

// Order returns the indices of the upstreams in the order in which a connection tries them: those
// that are up before those that are down, and among them the one with the fewest connections first.
// Equal ones keep their order.
func Order(list []Upstream, now time.Time) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if up := list[a].Up(now); up != list[b].Up(now) {
			if up {
				return -1
			}
			return 1
		}
		return cmp.Compare(list[a].Active, list[b].Active)
	})
	return order
}

const (
	// Remembered is how long a destination without MPTCP is connected by TCP alone.
	Remembered = 10 * time.Minute
	// Late is how long an address that failed or did not answer in time is tried after the others of a
	// name.
	Late = time.Minute
	// maxRemembered bounds the destinations of a Memory. The one that ends first makes room.
	maxRemembered = 4096
)

// Memory has destinations of which something is known for a time: that they answered without MPTCP,
// late, or not at all. It is not safe for concurrent use.
type Memory struct {
	until map[netip.AddrPort]time.Time
}

// Remember records a destination at now, for a time; it reports whether that is new.
func (m *Memory) Remember(d netip.AddrPort, now time.Time, keep time.Duration) (fresh bool) {
	if m.until == nil {
		m.until = map[netip.AddrPort]time.Time{}
	}
	fresh = !m.Has(d, now)
	if _, ok := m.until[d]; !ok && len(m.until) >= maxRemembered {
		m.makeRoom(now)
	}
	m.until[d] = now.Add(keep)
	return fresh
}

// makeRoom forgets the destinations that have ended, or else the one that ends first.
func (m *Memory) makeRoom(now time.Time) {
	var first netip.AddrPort
	for d, until := range m.until {
		if !now.Before(until) {
			delete(m.until, d)
		} else if !first.IsValid() || until.Before(m.until[first]) {
			first = d
		}
	}
	if len(m.until) >= maxRemembered {
		delete(m.until, first)
	}
}

// Forget forgets a destination.
func (m *Memory) Forget(d netip.AddrPort) { delete(m.until, d) }

// Has reports whether a destination is remembered at now.
func (m *Memory) Has(d netip.AddrPort, now time.Time) bool {
	until, ok := m.until[d]
	if ok && !now.Before(until) {
		delete(m.until, d)
		return false
	}
	return ok
}

// Each calls f with each destination that is remembered at now and the time that remains.
func (m *Memory) Each(now time.Time, f func(d netip.AddrPort, left time.Duration)) {
	for d, until := range m.until {
		if now.Before(until) {
			f(d, until.Sub(now))
		}
	}
}
