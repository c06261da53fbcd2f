package flows

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bpf/flowcount"
	"github.com/tabane/tabane/internal/mptcp"
)

// Snapshot is the state of all flows at the end of an interval.
type Snapshot struct {
	Time time.Time
	// Elapsed is the time since the last one.
	Elapsed time.Duration
	// Flows are all that are known: those that carried something in the interval, those that are
	// quiet, and once more those that have Ended.
	Flows []*Flow
	// Unparsed are the packets that belong to no flow, since the start, by the reason; that for
	// Counted is 0.
	Unparsed [flowcount.NumReasons]flowcount.Count
}

// Flow is one direction of a connection, on one interface and to one SID.
type Flow struct {
	// ID is unique as long as the process runs.
	ID        uint64
	Interface string
	// Sent: the interface sends the packets, otherwise it receives them. Local is this host's end,
	// or that on this side of a host which forwards: the source of what is sent, the destination of
	// what is received.
	Sent          bool
	Protocol      string
	Local, Remote netip.AddrPort
	// SID is where the packets are encapsulated to; the zero Addr when they are not.
	SID netip.Addr
	// Peer is the egress peer that the local address stands for, empty when it is not known.
	Peer string
	// Delta is the count of the interval, Total that since the flow was first seen.
	Delta, Total flowcount.Count
	// Ended: this is the flow's last snapshot.
	Ended bool

	key   flowcount.Key
	slot  int
	last  flowcount.Count
	moved time.Time
	// left is when the flow was removed from the kernel, zero before.
	left time.Time
	pair *pair
	sum  *Aggregate
	// What writers keep with a flow.
	drawn uint64
	fixed []byte
}

// BitsPerSecond is the flow's rate on the wire over the interval.
func (f *Flow) BitsPerSecond(over time.Duration) float64 { return rate(f.Delta.Bytes, over) }

func rate(bytes uint64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return float64(bytes) * 8 / over.Seconds()
}

// Socket is the TCP socket of the flow and when it was read, or nil when this host has none.
func (f *Flow) Socket() (*mptcp.Socket, time.Time) {
	if f.pair == nil || !f.pair.open() {
		return nil, time.Time{}
	}
	return &f.pair.socket, f.pair.at()
}

// Share is the part of its MPTCP connection's bytes, in this direction and interval, that the flow
// carried; 1 for the only flow of a connection, 0 when there were none.
func (f *Flow) Share() float64 {
	if f.Delta.Bytes == 0 {
		return 0
	}
	if f.pair == nil || f.pair.connection == nil {
		return 1
	}
	return float64(f.Delta.Bytes) / float64(f.pair.connection.bytes[f.key.Direction])
}

// Token is the local token of the MPTCP connection, 0 when the flow does not belong to one or that
// is not known yet.
func (f *Flow) Token() uint32 {
	if f.pair == nil || f.pair.connection == nil {
		return 0
	}
	return f.pair.connection.token
}

// joinTimeout is how long a client may take to join an address that was announced to it.
const joinTimeout = time.Second

// Unjoined reports whether the other end of the flow's MPTCP connection has for a while had fewer
// subflows than addresses were announced to it, and how many it has. How many were announced is not
// known: repetitions count.
func (f *Flow) Unjoined() (joined int, unjoined bool) {
	if f.pair == nil || f.pair.connection == nil || !f.pair.open() {
		return 0, false
	}
	c := f.pair.connection
	if c.fewer.IsZero() || f.pair.all.dumped.Sub(c.fewer) < joinTimeout {
		return 0, false
	}
	return int(c.info.Subflows), true
}

// Routing reports whether the flow belongs to a routing protocol's session: BGP (RFC 4271) or BFD
// (RFC 5881, RFC 5883).
func (f *Flow) Routing() bool {
	for _, port := range [...]uint16{f.Local.Port(), f.Remote.Port()} {
		if f.Protocol == "tcp" && port == 179 || f.Protocol == "udp" && (port == 3784 || port == 4784) {
			return true
		}
	}
	return false
}

// Ends are the two of a TCP connection, seen from this host.
type ends struct{ local, remote netip.AddrPort }

// pair is a TCP connection: its flows and its socket.
type pair struct {
	ends   ends
	flows  int
	sender *Flow // the sent flow that moved last
	socket mptcp.Socket
	// dump is the number of the reading of sockets that the socket was last in, 0 when in none.
	dump       uint64
	all        *tracker
	connection *connection
}

// open reports whether the socket existed when sockets were last read.
func (p *pair) open() bool { return p.dump != 0 && p.dump == p.all.dump }

// at is when the socket was read.
func (p *pair) at() time.Time { return p.all.dumped }

// closed reports whether there was a socket that is gone.
func (p *pair) closed() bool { return p.dump != 0 && p.dump != p.all.dump }

// connection is an MPTCP connection: what its flows carried in the interval, received and sent.
type connection struct {
	token uint32
	pairs int
	round uint64
	bytes [2]uint64
	// info is what the kernel said of the connection last, fewer since when it has had fewer
	// subflows than announced addresses, the zero Time when it has not.
	info  mptcp.Connection
	fewer time.Time
}

const (
	// late is how long a flow keeps its slot after its removal, so that a packet which another
	// processor was just then counting is the flow's. That takes less than a microsecond, unless
	// the host of a virtual machine stops it.
	late = time.Second
	// maxRemoved bounds how many flows are removed at one interval.
	maxRemoved = 1024
)

// tracker turns counts into flows. It does no I/O of its own.
type tracker struct {
	interfaces map[uint32]string
	peers      map[netip.Addr]string
	idle       time.Duration

	round  uint64
	lastID uint64
	// slots are the flows by their slot in the kernel, as many as there is room for, flows those
	// that were read last.
	slots, flows []*Flow
	quiet        []*Flow
	// leaving are those that were removed and still have their slot, in this order.
	leaving     []*Flow
	pairs       map[ends]*pair
	connections map[uint32]*connection
	aggregates  map[aggregateKey]*Aggregate
	tcp         [2]int // flows of IPv4 and IPv6

	dump     uint64
	dumped   time.Time
	snapshot Snapshot
}

func newTracker(interfaces map[uint32]string, peers map[netip.Addr]string, idle time.Duration, room int) *tracker {
	return &tracker{
		interfaces: interfaces, peers: peers, idle: idle, slots: make([]*Flow, room),
		pairs: map[ends]*pair{}, connections: map[uint32]*connection{}, aggregates: map[aggregateKey]*Aggregate{},
	}
}

// read takes all counts.
func (t *tracker) read(c counter, now time.Time, elapsed time.Duration) error {
	t.round++
	t.snapshot.Time, t.snapshot.Elapsed = now, elapsed
	reasons, err := c.Reasons()
	if err != nil {
		return err
	}
	t.flows, t.quiet = t.flows[:0], t.quiet[:0]
	c.Each(func(slot int, key *flowcount.Key, count flowcount.Count) {
		f := t.slots[slot]
		if f == nil {
			f = t.add(slot, key, now)
		}
		t.flows = append(t.flows, f)
		t.count(f, count, now)
	})
	t.snapshot.Unparsed = reasons
	return nil
}

// count notes what has been counted of a flow so far.
func (t *tracker) count(f *Flow, count flowcount.Count, now time.Time) {
	f.Delta = minus(count, f.last)
	if f.Delta == (flowcount.Count{}) {
		if f.left.IsZero() && now.Sub(f.moved) >= min(grace, t.idle) {
			t.quiet = append(t.quiet, f)
		}
		return
	}
	f.last, f.moved = count, now
	t.carry(f)
}

// carry adds what a flow carried to the sums.
func (t *tracker) carry(f *Flow) {
	f.Total = plus(f.Total, f.Delta)
	f.sum.Count = plus(f.sum.Count, f.Delta)
	if f.pair == nil {
		return
	}
	if f.Sent {
		f.pair.sender = f
	}
	t.carryConnection(f)
}

func (t *tracker) carryConnection(f *Flow) {
	c := f.pair.connection
	if c == nil {
		return
	}
	if c.round != t.round {
		c.round, c.bytes = t.round, [2]uint64{}
	}
	c.bytes[f.key.Direction] += f.Delta.Bytes
}

// add makes a flow that is seen for the first time.
func (t *tracker) add(slot int, key *flowcount.Key, now time.Time) *Flow {
	t.lastID++
	f := &Flow{ID: t.lastID, Interface: t.interfaces[key.Ifindex], Sent: key.Sent(), SID: key.SID(), key: *key, slot: slot, moved: now}
	f.Local, f.Remote = key.Src(), key.Dst()
	if !f.Sent {
		f.Local, f.Remote = f.Remote, f.Local
	}
	f.Peer = t.peers[f.Local.Addr()]
	f.Protocol = "udp"
	if key.Protocol == protocolTCP {
		f.Protocol = "tcp"
		at := ends{f.Local, f.Remote}
		p := t.pairs[at]
		if p == nil {
			p = &pair{ends: at, all: t}
			t.pairs[at] = p
		}
		p.flows++
		f.pair = p
		t.tcp[family(key)]++
	}
	f.sum = t.aggregate(f)
	f.sum.Flows++
	t.slots[slot] = f
	return f
}

const protocolTCP = 6

// family is the index of a flow's family in tracker.tcp.
func family(key *flowcount.Key) int {
	if key.Family == 4 {
		return 0
	}
	return 1
}

// remove forgets a flow.
func (t *tracker) remove(f *Flow) {
	t.slots[f.slot] = nil
	f.sum.Flows--
	p := f.pair
	if p == nil {
		return
	}
	t.tcp[family(&f.key)]--
	if p.sender == f {
		p.sender = nil
	}
	if p.flows--; p.flows == 0 {
		delete(t.pairs, p.ends)
		t.leave(p)
	}
}

// leave takes a pair out of its MPTCP connection.
func (t *tracker) leave(p *pair) {
	c := p.connection
	if c == nil {
		return
	}
	if c.pairs--; c.pairs == 0 {
		delete(t.connections, c.token)
	}
	// The flows may still be asked for their token.
	p.connection = &connection{token: c.token, round: c.round, bytes: c.bytes}
}

// families are those whose sockets could be those of flows. A socket of IPv6 may speak IPv4.
func (t *tracker) families() []mptcp.Family {
	switch {
	case t.tcp[0] > 0:
		return []mptcp.Family{mptcp.IPv4, mptcp.IPv6}
	case t.tcp[1] > 0:
		return []mptcp.Family{mptcp.IPv6}
	}
	return nil
}

func (t *tracker) startSockets(now time.Time) {
	t.dump++
	t.dumped = now
}

// socket takes one socket of a reading.
func (t *tracker) socket(s *mptcp.Socket) {
	p := t.pairs[ends{s.Local, s.Remote}]
	if p == nil {
		return
	}
	// What was sent again before the socket was first read may be older than the watch.
	if again := s.Retransmitted - p.socket.Retransmitted; p.dump != 0 && p.sender != nil && int32(again) > 0 {
		p.sender.sum.Retransmitted += uint64(again)
	}
	p.socket, p.dump = *s, t.dump
	if s.Token == 0 || p.connection != nil && p.connection.token == s.Token {
		return
	}
	t.leave(p)
	c := t.connections[s.Token]
	if c == nil {
		c = &connection{token: s.Token}
		t.connections[s.Token] = c
	}
	c.pairs++
	p.connection = c
}

// describe notes what the kernel says of an MPTCP connection.
func (t *tracker) describe(info mptcp.Connection) {
	c := t.connections[info.Token]
	if c == nil {
		return
	}
	c.info = info
	switch {
	case info.Subflows >= info.Announced:
		c.fewer = time.Time{}
	case c.fewer.IsZero():
		c.fewer = t.dumped
	}
}

// endSockets adds up connections that pairs have joined in this reading, which the flows were read
// before.
func (t *tracker) endSockets() {
	for _, c := range t.connections {
		c.round, c.bytes = t.round, [2]uint64{}
	}
	for _, f := range t.flows {
		if f.pair != nil && f.Delta.Bytes > 0 {
			t.carryConnection(f)
		}
	}
}

// over reports whether an idle flow has ended.
func (t *tracker) over(f *Flow, now time.Time) bool {
	switch {
	case f.pair != nil && f.pair.open():
		return false
	case f.pair != nil && f.pair.closed():
		return now.Sub(f.moved) >= min(grace, t.idle)
	}
	return now.Sub(f.moved) >= t.idle
}

// finish ends the flows that are over: their slots go to others when nothing can be counted in them
// any more, and what was counted until then is in their last delta. It completes the snapshot.
func (t *tracker) finish(s slots, now time.Time) error {
	t.snapshot.Flows = t.flows
	gone := 0
	for _, f := range t.leaving {
		if now.Sub(f.left) < late {
			break
		}
		if err := s.Reuse(f.slot); err != nil {
			return err
		}
		f.Ended = true
		t.remove(f)
		gone++
	}
	t.leaving = slices.Delete(t.leaving, 0, gone)
	// When a quarter is left, those that were quiet longest make room, whether they are over or
	// not.
	early := 0
	if room := len(t.slots); len(t.flows)-gone-len(t.leaving) > room-room/4 {
		slices.SortFunc(t.quiet, func(a, b *Flow) int { return a.moved.Compare(b.moved) })
		early = max(room/8, 1)
	}
	removed := 0
	for i, f := range t.quiet {
		if removed == maxRemoved {
			break
		}
		if i >= early && !t.over(f, now) {
			continue
		}
		if err := s.Remove(f.slot); err != nil {
			return err
		}
		f.left = now
		t.leaving = append(t.leaving, f)
		removed++
	}
	return nil
}

func plus(a, b flowcount.Count) flowcount.Count {
	return flowcount.Count{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}

func minus(a, b flowcount.Count) flowcount.Count {
	return flowcount.Count{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}
