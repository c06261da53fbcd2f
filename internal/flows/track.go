package flows

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/bpf"
	"github.com/tabane/tabane/internal/mptcp"
)

// Snapshot is what was seen at one interval.
type Snapshot struct {
	Time time.Time
	// Elapsed is the time since the last one.
	Elapsed time.Duration
	// Flows are all that are known: those that carried something in the interval, those that are quiet, and once more
	// those that have Ended.
	Flows []*Flow
	// Unparsed are the packets that belong to no flow, since the start, by the reason; that for Counted is 0.
	Unparsed [bpf.NumReasons]bpf.Count
	// Evicted is how much was counted in flows that had to make room before they were read again, since the start. What
	// is between two reads may be missing in it.
	Evicted bpf.Count
}

// Flow is one direction of a connection, on one interface and to one SID.
type Flow struct {
	// ID is unique as long as the process runs.
	ID        uint64
	Interface string
	// Sent tells what the interface sends from what it receives. Local is this host's end, or that on this side of a host
	// which forwards: the source of what is sent, the destination of what is received.
	Sent          bool
	Protocol      string
	Local, Remote netip.AddrPort
	// SID is where the packets are encapsulated to; the zero Addr when they are not.
	SID netip.Addr
	// Peer is the egress peer that the local address stands for, empty when it is not known.
	Peer string
	// Delta is what it carried in the interval, Total since it was first seen.
	Delta, Total bpf.Count
	// Ended says that nothing will follow.
	Ended bool

	key   bpf.FlowKey
	last  bpf.FlowCount
	round uint64 // when it was last read
	place int    // in the order of the last read
	moved time.Time
	pair  *pair
	sum   *Aggregate
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

// Share is the part of its MPTCP connection's bytes, in this direction and interval, that the flow carried; 1 for the only
// flow of a connection, 0 when there were none.
func (f *Flow) Share() float64 {
	if f.Delta.Bytes == 0 {
		return 0
	}
	if f.pair == nil || f.pair.connection == nil {
		return 1
	}
	return float64(f.Delta.Bytes) / float64(f.pair.connection.bytes[f.key.Direction])
}

// Token is this host's name for the MPTCP connection, 0 when the flow is none of MPTCP or not known to be.
func (f *Flow) Token() uint32 {
	if f.pair == nil || f.pair.connection == nil {
		return 0
	}
	return f.pair.connection.token
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

// open tells whether the socket was there when sockets were last read.
func (p *pair) open() bool { return p.dump != 0 && p.dump == p.all.dump }

// at is when the socket was read.
func (p *pair) at() time.Time { return p.all.dumped }

// closed tells whether there was a socket which now is gone.
func (p *pair) closed() bool { return p.dump != 0 && p.dump != p.all.dump }

// connection is an MPTCP connection: what its flows carried in the interval, received and sent.
type connection struct {
	token uint32
	pairs int
	round uint64
	bytes [2]uint64
}

// maxTaken bounds how many flows that are over are taken from the kernel at one interval.
const maxTaken = 256

// tracker turns counts into flows. It is pure but for what it is given.
type tracker struct {
	interfaces map[uint32]string
	peers      map[netip.Addr]string
	idle       time.Duration

	round       uint64
	lastID      uint64
	flows       map[bpf.FlowKey]*Flow
	order, next []*Flow
	quiet       []*Flow
	absent      map[*Flow]struct{}
	pairs       map[ends]*pair
	connections map[uint32]*connection
	aggregates  map[aggregateKey]*Aggregate
	tcp         [2]int // flows of IPv4 and IPv6

	dump   uint64
	dumped time.Time
	// known is what is in flows of all that was counted.
	known    bpf.Count
	snapshot Snapshot
}

func newTracker(interfaces map[uint32]string, peers map[netip.Addr]string, idle time.Duration) *tracker {
	return &tracker{
		interfaces: interfaces, peers: peers, idle: idle,
		flows: map[bpf.FlowKey]*Flow{}, absent: map[*Flow]struct{}{}, pairs: map[ends]*pair{},
		connections: map[uint32]*connection{}, aggregates: map[aggregateKey]*Aggregate{},
	}
}

// read takes all counts.
func (t *tracker) read(c counter, now time.Time, elapsed time.Duration) error {
	t.round++
	t.snapshot.Time, t.snapshot.Elapsed = now, elapsed
	// Before the flows, so that nothing is missing in them that is in this.
	reasons, err := c.Reasons()
	if err != nil {
		return err
	}
	t.next, t.quiet = t.next[:0], t.quiet[:0]
	cursor := 0
	err = c.Each(func(key *bpf.FlowKey, count bpf.FlowCount) {
		// The kernel tells them in the same order as last time, with few exceptions.
		var f *Flow
		if cursor < len(t.order) && t.order[cursor].key == *key && !t.order[cursor].Ended {
			f = t.order[cursor]
		} else if f = t.flows[*key]; f == nil {
			f = t.add(key, now)
		}
		if f.round == t.round {
			return // told twice
		}
		if f.round == t.round-1 {
			cursor = f.place + 1
		}
		f.round, f.place = t.round, len(t.next)
		t.next = append(t.next, f)
		t.count(f, count, now)
	})
	if err != nil {
		return err
	}
	for _, f := range t.order {
		switch {
		case f.round == t.round:
		case f.Ended:
		default:
			// Thrown out to make room; it may come back.
			f.Delta = bpf.Count{}
			t.absent[f] = struct{}{}
		}
	}
	t.order, t.next = t.next, t.order
	t.snapshot.Unparsed = reasons
	t.snapshot.Unparsed[bpf.Counted] = bpf.Count{}
	if all := reasons[bpf.Counted]; all.Bytes > t.known.Bytes {
		t.snapshot.Evicted = minus(all, t.known)
	}
	return nil
}

// count notes what has been counted of a flow so far.
func (t *tracker) count(f *Flow, count bpf.FlowCount, now time.Time) {
	before := f.last.Count
	if count.Born != f.last.Born || count.Packets < before.Packets || count.Bytes < before.Bytes {
		// An entry that began at 0.
		before = bpf.Count{}
	}
	f.last = count
	f.Delta = minus(count.Count, before)
	if f.Delta.Packets == 0 {
		if now.Sub(f.moved) >= min(grace, t.idle) {
			t.quiet = append(t.quiet, f)
		}
		return
	}
	f.moved = now
	t.carry(f)
}

// carry adds what a flow carried to the sums.
func (t *tracker) carry(f *Flow) {
	f.Total = plus(f.Total, f.Delta)
	t.known = plus(t.known, f.Delta)
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
func (t *tracker) add(key *bpf.FlowKey, now time.Time) *Flow {
	t.lastID++
	f := &Flow{ID: t.lastID, Interface: t.interfaces[key.Ifindex], Sent: key.Sent(), SID: key.SegmentID(), key: *key, moved: now}
	f.Local, f.Remote = key.From(), key.To()
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
	t.flows[*key] = f
	return f
}

const protocolTCP = 6

// family is the index of a flow's family in tracker.tcp.
func family(key *bpf.FlowKey) int {
	if key.Family == 4 {
		return 0
	}
	return 1
}

// remove forgets a flow.
func (t *tracker) remove(f *Flow) {
	delete(t.flows, f.key)
	delete(t.absent, f)
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

// endSockets adds up connections that pairs have joined in this reading, which the flows were read before.
func (t *tracker) endSockets() {
	for _, c := range t.connections {
		c.round, c.bytes = t.round, [2]uint64{}
	}
	for _, f := range t.order {
		if f.pair != nil && f.Delta.Bytes > 0 {
			t.carryConnection(f)
		}
	}
}

// over tells whether nothing will follow on a quiet flow.
func (t *tracker) over(f *Flow, now time.Time) bool {
	switch {
	case f.pair != nil && f.pair.open():
		return false
	case f.pair != nil && f.pair.closed():
		return now.Sub(f.moved) >= min(grace, t.idle)
	}
	return now.Sub(f.moved) >= t.idle
}

// finish ends the flows that are over, with what the kernel counted of them last, and completes the snapshot.
func (t *tracker) finish(c counter, now time.Time) error {
	t.snapshot.Flows = append(t.snapshot.Flows[:0], t.order...)
	taken := 0
	for _, f := range t.quiet {
		if taken == maxTaken {
			break
		}
		if !t.over(f, now) {
			continue
		}
		taken++
		count, ok, err := c.Take(&f.key)
		if err != nil {
			return err
		}
		if ok && count.Born == f.last.Born && count.Packets >= f.last.Packets {
			f.Delta = minus(count.Count, f.last.Count)
			t.carry(f)
		}
		f.Ended = true
		t.remove(f)
	}
	for f := range t.absent {
		if f.round == t.round {
			delete(t.absent, f)
			continue
		}
		t.snapshot.Flows = append(t.snapshot.Flows, f)
		if t.over(f, now) {
			f.Ended = true
			t.remove(f)
		}
	}
	return nil
}

func plus(a, b bpf.Count) bpf.Count {
	return bpf.Count{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}

func minus(a, b bpf.Count) bpf.Count {
	return bpf.Count{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}
