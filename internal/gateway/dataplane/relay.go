package dataplane

import (
	"net/netip"

	"github.com/tabane/tabane/internal/base/unit"
)

// Relays has the kernel relay the open messages of leaders, as a member does. Its methods are safe
// for concurrent use, and are called in the network namespace of the interfaces.
type Relays interface {
	// Relay begins to relay for a leader, or changes where and how much. After an error nothing is
	// relayed for it, and what was stays counted until End.
	Relay(leader string, r OpenRelay) error
	// Relayed returns what was relayed for a leader since Relay began it.
	Relayed(leader string) OpenRelayed
	// End ends it, and returns the same.
	End(leader string) OpenRelayed
}

// OpenRelay is what a member relays for a leader without the sealed plane.
type OpenRelay struct {
	// Short is the end on the short link, towards the leader, Line that towards its home agent. The
	// addresses of both are of one IP version.
	Short, Line RelayEnd
	// Up is the rate from the leader, 0 if nothing is relayed yet, Down that to it, in bit/s of
	// whole IP packets. What the sealed plane relays is part of it.
	Up, Down unit.Bandwidth
	// Mark is that of relayed messages in the kernel.
	Mark uint32
}

// RelayEnd is where messages leave with the source Local and the destination Remote, and those that
// come back arrive.
type RelayEnd struct {
	Interface     string
	Index         int // of the interface
	Local, Remote netip.AddrPort
}

// OpenRelayed are messages as on the wire, each segment of a super-packet as one.
type OpenRelayed struct {
	// Up are from the leader, Down to it.
	Up, Down Count
	// Dropped messages exceeded the rate, or had no hops left; sealed ones are among them.
	Dropped uint64
}
