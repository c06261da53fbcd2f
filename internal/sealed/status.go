package sealed

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// Status is what a Plane does now.
type Status struct {
	// Interface is the name of the TUN device, MTU its MTU.
	Interface string
	MTU       int
	Peers     []PeerStatus
	// Drops count packets and messages that were not forwarded, by reason.
	Drops map[string]uint64
}

// PeerStatus is the state of a peer.
type PeerStatus struct {
	Name string
	// Established: there is a key to send with. Since is when the session was made, Suite its
	// encryption.
	Established bool
	Since       time.Time
	Suite       string
	// Handshakes counts completed handshakes.
	Handshakes uint64
	Paths      []PathStatus
}

// PathStatus is the state of a path to a peer. Counts are of packets and of their bytes on the wire.
type PathStatus struct {
	// Number is the path's number in messages, Name the name of the gateway that began the session.
	Number int
	Name   string
	// Local and Remote are the addresses in use.
	Local, Remote netip.AddrPort
	// Alive: the peer was heard over the path. Usable: packets are sent on it. Reason says why not.
	Alive, Usable bool
	Reason        string
	// Up is the rate that packets are scheduled by, Received the rate of what arrives.
	Up, Received unit.Bandwidth
	// RTT is the round-trip time of probes, Delay the one-way delay towards the peer relative to the
	// fastest path, Jitter its variation.
	RTT, Delay, Jitter time.Duration
	// Loss is the share of messages towards this gateway that were lost.
	Loss float64
	// MTU is the largest packet that the path carries, without the tunnel.
	MTU int
	// SentPackets to ReceivedBytes count data and control messages.
	SentPackets, SentBytes, ReceivedPackets, ReceivedBytes uint64
	// Lost counts messages that the path lost, towards this gateway.
	Lost uint64
}
