package sealed

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// place is where a message came from.
type place struct {
	line *line
	from netip.AddrPort
}

// links are the paths to a peer by their numbers.
type links [tunnel.MaxPaths]link

// link is a path to a peer.
type link struct {
	number int
	line   *line // nil: the path is not known yet
	// removed: the peer that numbers the path has ended it, and not added it again.
	removed bool
	// spare: it is metered and carries no packets (uses).
	spare bool
	// more: its number is that of no line, because the line has another path.
	more bool
	name string // as the gateway that numbers it has it
	cost int
	sent count

	address      linkAddress
	nat          natAddress
	probing      probing
	compatible   compatible
	search       mtuSearch
	rates        rates
	reports      reports
	repairs      repairs
	registration registration

	// queue holds packets in front of the path, if shaped.
	queue  *pacer.Queue[*queued]
	shaped bool
	// paced: packets wait there for the path's rate, so that the wait is that of the path.
	paced bool
}

// anyAlive reports whether any path answers.
func (x *links) anyAlive() bool {
	for i := range x {
		if x[i].probing.alive.Alive() {
			return true
		}
	}
	return false
}

// anyRegular reports whether any path answers that is not spare.
func (x *links) anyRegular() bool {
	for i := range x {
		if l := &x[i]; l.probing.alive.Alive() && !l.spare {
			return true
		}
	}
	return false
}

// linkAddress is where the peer is on a path.
type linkAddress struct {
	remote     netip.AddrPort // where packets are sent: the peer has answered a probe there, or invalid
	own        ownAddress
	candidates []netip.AddrPort // that are configured
	unproved   unproved
	probed     time.Duration    // when the last probe to unproved was sent
	waiting    *tunnel.Register // a request that waits until an address is proved
}

// ownAddress is the address of this gateway, on a line, that the newest message of a path was sent
// to. A peer without endpoints gets messages from there: its NAT or firewall may drop those from
// another address. For others it is not kept.
type ownAddress struct {
	line *line
	addr netip.Addr
}

// natAddress is where the peer sees this gateway on a path.
type natAddress struct {
	seen netip.AddrPort
	// reported is where this gateway sees the peer, as last sent to it at reportedAt.
	reported   netip.AddrPort
	reportedAt time.Duration
}

// rates are the rates towards the peer on a path.
type rates struct {
	up     dataplane.Rate // as configured at this gateway
	down   unit.Bandwidth // as configured at the peer
	known  bool           // down is
	strict bool           // down is never to be exceeded
	// capacity estimates the rate, which is at most limit unless that is 0.
	capacity quality.CapacityMeter
	limit    unit.Bandwidth
}

// mtu returns the largest packet to send on a path, without the tunnel.
func (l *link) mtu() int {
	if l.line == nil {
		return 0
	}
	return l.search.limit(int(l.line.mtu.Load()), l.address.remote.Addr().Is4())
}

// exceeds reports whether a message is too long for the path.
func (l *link) exceeds(message []byte) bool { return len(message)-tunnel.Overhead > l.mtu() }

// ready reports whether the path has a socket and an address.
func (l *link) ready() bool {
	return l.line != nil && l.line.socket.Load() != nil && l.address.remote.IsValid()
}

// configuredRate returns the rate towards the peer that is configured on either side, 0 if none is.
func (l *link) configuredRate() unit.Bandwidth {
	down := l.rates.known && l.rates.down != tunnel.UnknownRate
	switch {
	case !l.rates.up.Estimated && down:
		return min(l.rates.up.Bandwidth, l.rates.down)
	case !l.rates.up.Estimated:
		return l.rates.up.Bandwidth
	case down:
		return l.rates.down
	}
	return 0
}

// ceiling returns the rate towards the peer that is never to be exceeded, 0 if there is none.
func (l *link) ceiling() unit.Bandwidth {
	lowest := unit.Bandwidth(math.MaxInt64)
	if l.line != nil && l.line.strict() > 0 {
		lowest = l.line.strict()
	}
	if l.rates.strict && l.rates.known && l.rates.down != tunnel.UnknownRate {
		lowest = min(lowest, l.rates.down)
	}
	if lowest == math.MaxInt64 {
		return 0
	}
	return lowest
}

// upRate returns the rate towards the peer.
func (l *link) upRate() unit.Bandwidth {
	configured := l.configuredRate()
	if configured == 0 && (!l.rates.up.Estimated || l.rates.known && l.rates.down == 0) {
		return 0 // nothing is carried
	}
	if configured > 0 && configured != l.rates.limit {
		return configured
	}
	return l.rates.capacity.Value()
}

// knownRate returns the rate towards the peer, 0 before one is configured or measured.
func (l *link) knownRate() unit.Bandwidth {
	if l.configuredRate() == 0 && !l.rates.capacity.Known() {
		return 0
	}
	return l.upRate()
}

// pace returns the rate that packets to the peer are paced to.
func (l *link) pace() unit.Bandwidth {
	if l.configuredRate() != l.rates.limit {
		return l.upRate()
	}
	return l.rates.capacity.Pace()
}

// beginRate has the estimate of the rate begin again.
func (l *link) beginRate() { l.rates.capacity.Capacity = quality.LimitCapacity(l.rates.limit) }

// title returns the name of a path: as the peer that numbers it has it, else that of its line, else
// its number.
func (l *link) title() string {
	switch {
	case l.name != "":
		return l.name
	case l.line != nil:
		return l.line.name
	}
	return strconv.Itoa(l.number)
}

// names returns the names of the paths, which are distinct: a peer may give several the same name.
func (x *links) names() []string {
	names := make([]string, len(x))
	for i := range x {
		if x[i].line == nil {
			continue
		}
		name := x[i].title()
		names[i] = name
		for n := i; slices.Contains(names[:i], names[i]); n++ {
			names[i] = fmt.Sprintf("%s-%d", name, n)
		}
	}
	return names
}

// roundTrips returns how long the answer to a request takes at most, and usually, over a path that
// carries packets.
func (x *links) roundTrips() (longest, usual time.Duration) {
	longest, usual = math.MaxInt64, math.MaxInt64
	for i := range x {
		if l := &x[i]; l.probing.alive.Alive() && !l.spare {
			longest, usual = min(longest, l.probing.rtt.RTO(minAnswerVariation)), min(usual, l.probing.rtt.SRTT)
		}
	}
	return longest, usual
}

// minAnswerVariation is the variation that a request allows for at least.
const minAnswerVariation = 10 * time.Millisecond

// source returns the source of messages of a path that are sent on a line to an address, none for
// the kernel's choice.
func (l *link) source(on *line, to netip.AddrPort) netip.Addr {
	own := l.address.own
	if own.line == on && own.addr.Is4() == to.Addr().Unmap().Is4() {
		return own.addr
	}
	if varied := on.source.Load(); varied != nil && !to.Addr().Unmap().Is4() {
		return *varied
	}
	return netip.Addr{}
}

// place returns where the packets of a path are sent.
func (l *link) place() place { return place{l.line, l.address.remote} }

// addressesToTry returns the addresses to try after that many attempts without an answer.
func (l *link) addressesToTry(times int) []netip.AddrPort {
	all := l.addresses()
	return all[:min(len(all), firstAddresses<<min(times, 8))]
}

// addresses returns where the peer may be on a path: where it was last found, then the configured
// ones.
func (l *link) addresses() []netip.AddrPort {
	if !l.address.remote.IsValid() || slices.Contains(l.address.candidates, l.address.remote) {
		return l.address.candidates
	}
	return append([]netip.AddrPort{l.address.remote}, l.address.candidates...)
}

// rotate returns the list from element i on, so that gateways with equally many lines use pairs.
func rotate(list []netip.AddrPort, i int) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	i %= len(list)
	return slices.Concat(list[i:], list[:i])
}
