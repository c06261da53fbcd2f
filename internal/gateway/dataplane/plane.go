// Package dataplane is what a gateway and its data plane agree on: the State that the gateway
// wants, and the Status that the plane reports. The gateway decides what it wants and knows no
// packet; a plane carries packets and knows no file.
//
// There are two planes. The sealed one (package sealed) carries packets in an encrypted tunnel, in
// user space, and measures the paths. The open one (package openplane) has eBPF programs send the
// packets of open peers, those whose Mode is not Tunnel, without encryption, and leaves to the
// sealed one what the programs cannot send.
//
// It is values only: it opens no socket and has no plane of its own.
package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/handshake"
)

// MaxPaths is the number of paths of a gateway.
const MaxPaths = 16

// Carrier is a data plane: it carries packets between the LAN and peers. It creates the tunnel's
// interface while it runs. Its methods are safe for concurrent use.
type Carrier interface {
	// Apply replaces the whole desired state, before or while the plane runs. After an error the
	// state before is in force.
	Apply(State) error
	// Status is what the plane does now.
	Status() Status
	// Run carries packets until ctx ends.
	Run(ctx context.Context) error
}

// State is what a plane is to do. It is applied as a whole; the parts are matched by name. The
// plane keeps it unchanged.
type State struct {
	// Key is the gateway's private key.
	Key handshake.PrivateKey
	// Port is the UDP port that each path listens at.
	Port uint16
	// Mark is that of the tunnel's datagrams in the kernel, 0 for none.
	Mark uint32
	// MTU is the largest packet inside the tunnel, in bytes.
	MTU int
	LAN LAN
	// Local are networks that are connected to this host, but by its paths, and its addresses.
	Local  []netip.Prefix
	Paths  []Path
	Peers  []Peer
	Policy Policy
	Probes Probes
}

// LAN is the network behind the gateway.
type LAN struct {
	Interfaces []string
	Prefixes   []netip.Prefix
}

// Probes are how paths are measured.
type Probes struct {
	// Compatible: delay and jitter are measured by the open probes of paper D alone.
	Compatible bool
	// Idle and Busy are the times between probes of a path, without and with traffic. Busy of 0 is
	// 50 ms, Idle of 0 is 1 s.
	Idle, Busy time.Duration
}

// Path is a line of the gateway. Its index in State.Paths is its number in the tunnel.
type Path struct {
	Name, Interface string
	// Down and Up are the rates in bit/s of whole IP packets, tunnel included.
	Down, Up Rate
	// Strict: the rates are never exceeded.
	Strict bool
	// Cost orders paths by price: lower ones are preferred where the discipline regards it.
	Cost int
	// Use is when packets are sent on it.
	Use   Use
	Limit Limit
	// Via are the routers on the line that the configuration names, at most one of each IP version.
	Via []netip.Addr
	// Usable: the interface is up with carrier. Nothing is sent on a path that is not.
	Usable bool
	// Member is the name of the peer that relays messages on the path to the home agent; empty if
	// the path is a line of this gateway. Its rates are at most those that the member offers.
	Member string
	// Short: leaders reach this gateway over the path, a member. It has no other destinations.
	Short bool
}

// Limit is what a path carries before the gateway looks at it. The zero value is no limit.
type Limit struct {
	// Carried is the value of PathStatus.Carried at which Reached is sent to, if it can be.
	Carried uint64
	Reached chan<- struct{}
}

// Rate is the rate of a path in one direction.
type Rate struct {
	// Estimated: the plane measures the rate; Bandwidth has no effect.
	Estimated bool
	// Bandwidth of 0 carries nothing in this direction.
	Bandwidth unit.Bandwidth
}

// Peer is another gateway.
type Peer struct {
	Name      string
	Public    handshake.PublicKey
	Preshared handshake.PresharedKey
	// Endpoints are where the peer is reached, those of the configuration, resolved. A path uses
	// the first one that answers through its interface. None: the peer begins.
	Endpoints []netip.AddrPort
	// Prefixes are behind the peer. Packets to them are sent to it, and only packets from them are
	// accepted from it. Of two peers, one with a default route alone may have those around the
	// other's.
	Prefixes []netip.Prefix
	// Allow are the destinations that its packets may have. None: all that are behind this gateway.
	Allow []netip.Prefix
	// Mode is how packets to the peer are carried.
	Mode Mode
	// Alliance is what the peer is in an alliance.
	Alliance Alliance
}

// Status is what a plane reports. Counters only grow while the plane runs.
type Status struct {
	Paths []PathStatus `json:"paths"`
	Peers []PeerStatus `json:"peers"`
	// Received are packets from the LAN, Delivered packets to it.
	Received  Count `json:"received"`
	Delivered Count `json:"delivered"`
	// Relays are what this gateway relays for leaders, as a member.
	Relays []RelayStatus `json:"relays,omitempty"`
	// Dropped are packets that were not carried, by reason, such as "replayed" or "no route".
	Dropped map[string]uint64 `json:"dropped,omitempty"`
	// Unpinned is why the open plane's program would go with this process if it were killed.
	Unpinned string `json:"unpinned,omitempty"`
	// Left are packets to open peers that the open plane left to the sealed one, by reason.
	Left map[string]uint64 `json:"left,omitempty"`
	// Held is how many bytes of packets are held: in queues, and for their order.
	Held unit.Size `json:"held_bytes"`
}

// Count counts packets and their bytes.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// PathStatus is a path as a whole.
type PathStatus struct {
	Name      string `json:"name"`
	Interface string `json:"interface"`
	Usable    bool   `json:"usable"`
	Sent      Count  `json:"sent"`
	Received  Count  `json:"received"`
	// Carried are bytes of IP packets on the line in both directions, with all headers.
	Carried uint64 `json:"carried"`
	// Error is why the path's socket could not be opened, or why it last failed to send.
	Error string `json:"error,omitempty"`
}

// PeerStatus is a peer with its session.
type PeerStatus struct {
	Name string `json:"name"`
	// Role is what the peer is in an alliance.
	Role Role `json:"-"`
	// Mode is how packets to the peer are carried.
	Mode Mode `json:"-"`
	// NAT are its NAT sessions, with mode NAT.
	NAT NATSessions `json:"-"`
	// Up: there is a session, with keys.
	Up bool `json:"up"`
	// Suite is the encryption. Since is the age of the session, Handshake that of its keys.
	Suite     string        `json:"suite,omitempty"`
	Since     time.Duration `json:"since_ns,omitempty"`
	Handshake time.Duration `json:"handshake_ns,omitempty"`
	// Epoch is the number of the keys.
	Epoch uint32 `json:"epoch"`
	// Reason is why there is no session, "no response from 192.0.2.1:4790", or none that lasts.
	Reason   string       `json:"reason,omitempty"`
	Links    []LinkStatus `json:"links"`
	Policies []RuleStatus `json:"policies"`
	// Held are packets that wait for their order; Skipped were taken for lost, Late came after
	// that, Duplicates came twice.
	Held       int    `json:"held"`
	Skipped    uint64 `json:"skipped"`
	Late       uint64 `json:"late"`
	Duplicates uint64 `json:"duplicates"`
}

// LinkStatus is a path to one peer, as measured.
type LinkStatus struct {
	Path string `json:"path"`
	// Line is the line of this gateway, Meets that of the peer; empty if it is not known.
	Line     string         `json:"line"`
	Meets    string         `json:"meets,omitempty"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// Seen is the address at which the peer sees this gateway, invalid if it has not said. Behind
	// NAT it is another one than that of the socket.
	Seen netip.AddrPort `json:"seen"`
	// State is up, dead (no answer to probes), down (the interface), unproven (no answer yet) or
	// unregistered (with a home agent, or at a member: Reason says why).
	State string `json:"state"`
	// Member is the member over which the path leads. CareOf is the registered address, Lifetime
	// how long the registration lasts, if it is not refreshed; Reason is why there is none.
	Member   string         `json:"member,omitempty"`
	CareOf   netip.AddrPort `json:"care_of"`
	Lifetime time.Duration  `json:"lifetime_ns,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	// Use is when packets are sent on the path, as its two lines are configured.
	Use Use `json:"use"`
	// Resting is why a path that is up is left out; empty if it is not.
	Resting  string `json:"resting,omitempty"`
	Sent     Count  `json:"sent"`
	Received Count  `json:"received"`
	// RTT is the smoothed round-trip time, Delay how much longer the path is than the shortest in
	// the direction of sending, Jitter that of RFC 3550, Spread the range of the delay.
	RTT    time.Duration `json:"rtt_ns"`
	Delay  time.Duration `json:"delay_ns"`
	Jitter time.Duration `json:"jitter_ns"`
	Spread time.Duration `json:"spread_ns"`
	// Loss is the share of packets lost in the direction of sending. Lost are those that the peer
	// misses, Missed those from the peer that have not arrived here.
	Loss   float64 `json:"loss"`
	Lost   uint64  `json:"lost"`
	Missed uint64  `json:"missed"`
	// Rate is the rate in the direction of sending, as configured or estimated; 0 before that.
	Rate unit.Bandwidth `json:"rate_bps"`
	// Queue is the standing queue that the plane keeps for the path.
	Queue time.Duration `json:"queue_ns"`
	MTU   int           `json:"mtu"`
}

// RuleStatus is what the discipline of a rule does for one peer.
type RuleStatus struct {
	Rule       int    `json:"rule"`
	Discipline string `json:"discipline"`
	// Using are the paths in use, Because the reason: that of the last decision of auto.
	Using   []string `json:"using"`
	Because string   `json:"because,omitempty"`
	Sent    Count    `json:"sent"`
	// Copies are packets that were sent on one more path.
	Copies uint64 `json:"copies"`
}
