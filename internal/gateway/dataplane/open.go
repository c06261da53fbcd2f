package dataplane

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Mode is how packets to a peer are carried.
type Mode uint8

const (
	// Tunnel: the sealed plane sends them in UDP, encrypted.
	Tunnel Mode = iota
	// Plain: the open plane sends them as they are.
	Plain
	// Unsealed: the open plane sends them in UDP, not encrypted.
	Unsealed
	// NAT: as Plain, with this gateway's address on the path as source of each packet, which the
	// peer replaces by the original one.
	NAT
)

func (m Mode) String() string {
	switch m {
	case Tunnel:
		return "tunnel"
	case Plain:
		return "plain"
	case Unsealed:
		return "tunnel, seal none"
	case NAT:
		return "nat"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Open reports whether the open plane carries the packets.
func (m Mode) Open() bool { return m != Tunnel }

// Counted reports whether packets carry no sequence numbers, so that losses are found by counting:
// messages report how many packets were sent.
func (m Mode) Counted() bool { return m == Plain || m == NAT }

// Disciplines returns the names of the disciplines with which an open peer's packets can be
// carried: those that a sched.Planner knows.
func (m Mode) Disciplines() []string {
	all := sched.Disciplines()
	if m.Open() {
		all = sched.Planned()
	}
	return all
}

// SuperPacket is the length of the largest packet that offloads make, SuperPacketMost how long a
// path may be busy with one: as long as an interactive flow does not notice.
const SuperPacket, SuperPacketMost = 64 * unit.KiB, 10 * time.Millisecond

// Measured is a path to an open peer, as the sealed plane has measured it.
type Measured struct {
	sched.Path
	// Name is that of the path in LinkStatus, Interface that of this gateway, Remote where the peer
	// is reached over it.
	Name, Interface string
	Remote          netip.AddrPort
	// Local is the address of this gateway that messages of the path have, invalid if it is the one
	// that the kernel selects.
	Local netip.Addr
	// Port is the one on this host that messages of the path have.
	Port uint16
	// Seen is where the peer sees this gateway, if it has said.
	Seen netip.AddrPort
	// MTU is the largest IP packet that the path is known to carry.
	MTU int
}

// NATSessions are the NAT sessions with a peer.
type NATSessions struct {
	// Of flows to the peer: Sending are those that are open, Wanted and Ending those that the peer
	// has not answered yet, Denied those that it has refused lately.
	Sending, Wanted, Ending, Denied int
	// Receiving are those of flows from the peer.
	Receiving int
	// Refused are requests that the peer has refused, Declined those of the peer that this gateway
	// has refused, Evicted sessions that ended for want of room, since the start.
	Refused, Declined, Evicted uint64
	// Full are flows without a session for want of room, since the start.
	Full uint64
}

// NATFlow is a NAT session.
type NATFlow struct {
	Peer string
	// Received: the peer sends the flow.
	Received bool
	Flow     tunnel.Flow
	// State is wanted, open, ending or denied.
	State string
	// Idle is how long ago its last packet was, to a second.
	Idle time.Duration
}

// Arrived is what has arrived over a path of packets that are not encrypted.
type Arrived struct {
	Count
	// Lost packets are missing: between the first and the last one in a tunnel, before the last
	// Marked otherwise.
	Lost uint64
}

// Open is the open plane as the sealed plane sees it. Its methods return at once and call no method
// of the sealed plane.
type Open interface {
	// Measured replaces what is known of the paths to a peer, in the order of their numbers, and
	// the cookie that the peer accepts packets of the tunnel with, 0 if none. The slice belongs to
	// the callee.
	Measured(peer string, paths []Measured, cookie uint64)
	// Accept replaces the cookies that packets of a peer are accepted with.
	Accept(peer string, cookies []uint64) error
	// Arrived is what has arrived from a peer since it was configured, by path.
	Arrived(peer string) [MaxPaths]Arrived
	// Sent is how many packets the open plane has sent over a path to a peer.
	Sent(peer string, path int) uint64
	// Marked is called when a message has arrived over a path, before which a peer with NAT or mode
	// plain has sent so many packets over it.
	Marked(peer string, path int, sent uint64)
	// NATSession takes what a peer says of NAT sessions. The record belongs to the callee.
	NATSession(peer string, r tunnel.NATSession)
	// Wait is the virtual queue of a path to a peer: how long a packet waits that is sent now.
	Wait(peer string, path int) time.Duration
}
