package flows

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/mptcp"
)

// Snapshot is the state of all flows at the end of an interval.
type Snapshot struct {
	Time time.Time
	// Elapsed is the time since the previous snapshot.
	Elapsed time.Duration
	// Flows are all known flows: those with packets in the interval, idle ones, and for the
	// last time those that have Ended.
	Flows []*Flow
	// Unparsed counts the packets since the start that belong to no flow, by reason; the count
	// of reason Counted is 0.
	Unparsed [flowcount.NumReasons]flowcount.Count
	// Use is what the path manager reports of a subflow, by its local address and its remote end.
	// The sink may set it; nil: nothing is known.
	Use func(local netip.Addr, remote netip.AddrPort) Use
}

// Use is why a subflow carries data or rests, and the policy of its connection; "": it has none.
type Use struct{ Policy, Reason string }

// use returns what is known of the subflow of a flow.
func (s *Snapshot) use(f *Flow) Use {
	if socket, _ := f.Socket(); s.Use == nil || socket == nil || socket.Token == 0 {
		return Use{}
	}
	u := s.Use(f.Local.Addr(), f.Remote)
	words := strings.Fields(u.Reason)
	for i := range words {
		words[i] = plainName(words[i])
	}
	return Use{plainName(u.Policy), strings.Join(words, " ")}
}

// Flow is one direction of a connection, on one interface and to one SID.
type Flow struct {
	// ID is unique as long as the process runs.
	ID        uint64
	Interface string
	// Sent is set if the interface sends the packets; otherwise it receives them. Local is the
	// source of sent packets and the destination of received packets, also on a host that
	// forwards them.
	Sent          bool
	Protocol      string
	Local, Remote netip.AddrPort
	// SID is the destination of the encapsulation; the zero Addr if packets are not
	// encapsulated.
	SID netip.Addr
	// Peer is the egress peer of the local address; empty if unknown.
	Peer string
	// Path is that of a gateway whose interface it is; empty if it is none.
	Path string
	// Delta is the count in the interval, Total the count since the flow was first seen.
	Delta, Total flowcount.Count
	// Ended is set in the flow's last snapshot.
	Ended bool

	key   flowcount.Key
	slot  int
	last  flowcount.Count
	moved time.Time
	// left is the time at which the flow was removed from the kernel; zero before.
	left time.Time
	pair *pair
	nat  *translation
	sum  *Aggregate
	// State of the writers.
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

// Socket returns the TCP socket of the flow and the time at which it was read, or nil if this host
// has none.
func (f *Flow) Socket() (*mptcp.Socket, time.Time) {
	if f.pair == nil || !f.pair.open() {
		return nil, time.Time{}
	}
	return &f.pair.socket, f.pair.at()
}

// Share returns the flow's fraction of the bytes of its MPTCP connection, or of its NAT session on
// all paths, in this direction and interval: 1 for the only flow of a connection, 0 if there were
// no bytes.
func (f *Flow) Share() float64 {
	if f.Delta.Bytes == 0 {
		return 0
	}
	if f.nat != nil && f.Path != "" {
		return float64(f.Delta.Bytes) / float64(f.nat.whole().bytes[f.key.Direction])
	}
	if f.pair == nil || f.pair.connection == nil {
		return 1
	}
	return float64(f.Delta.Bytes) / float64(f.pair.connection.bytes[f.key.Direction])
}

// Token returns the local token of the MPTCP connection; 0 if the flow belongs to none or it is not
// known yet.
func (f *Flow) Token() uint32 {
	if f.pair == nil || f.pair.connection == nil {
		return 0
	}
	return f.pair.connection.token
}

// NAT returns the ends of the connection of hosts that the flow belongs to by NAT sessions of this
// gateway: in the LAN, and behind the peer. One that no packet has shown has no address. It reports
// false if it belongs to none.
func (f *Flow) NAT() (host, far netip.AddrPort, ok bool) {
	if f.nat == nil {
		return host, far, false
	}
	n := f.nat.whole()
	return n.host, n.far, true
}

// joinTimeout is the time after which an announced address that the client has not joined is
// reported.
const joinTimeout = time.Second

// Unjoined reports whether the flow's MPTCP connection has had fewer subflows than announced
// addresses for joinTimeout, and the number of subflows. The number of addresses is unknown,
// because the kernel also counts repeated announcements.
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

// Reset returns why this host resets subflows of the flow's MPTCP connection, which it accepts if
// it returns "".
func (f *Flow) Reset() string {
	if f.pair == nil || f.pair.all.listeners == nil {
		return ""
	}
	t, local := f.pair.all, f.Local
	addresses := []netip.Addr{local.Addr()}
	if len(t.peers) > 0 {
		addresses = slices.SortedFunc(maps.Keys(t.peers), netip.Addr.Compare)
	}
	for _, a := range addresses {
		if a.Is4() != local.Addr().Is4() {
			continue
		}
		at := netip.AddrPortFrom(a, local.Port())
		if text, _ := mptcp.AnswerTo(t.listeners, at).Problem(at); text != "" {
			return text
		}
	}
	return ""
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

// ends are the local and remote address and port of a TCP connection.
type ends struct{ local, remote netip.AddrPort }

// pair is a TCP connection: its flows and its socket.
type pair struct {
	ends   ends
	flows  int
	sender *Flow // the sent flow that carried packets last
	socket mptcp.Socket
	// dump is the number of the last socket dump that included the socket; 0 if none did.
	dump       uint64
	all        *tracker
	connection *connection
}

// open reports whether the last socket dump included the socket.
func (p *pair) open() bool { return p.dump != 0 && p.dump == p.all.dump }

// at returns the time at which the socket was read.
func (p *pair) at() time.Time { return p.all.dumped }

// closed reports whether the socket existed and was closed.
func (p *pair) closed() bool { return p.dump != 0 && p.dump != p.all.dump }

// connection is an MPTCP connection with the received and sent bytes of its flows in the interval.
type connection struct {
	token uint32
	pairs int
	round uint64
	bytes [2]uint64
	// info is the kernel's last state of the connection; fewer is the time since which it has
	// had fewer subflows than announced addresses, zero if it has not.
	info  mptcp.Connection
	fewer time.Time
}

const (
	// late is how long a flow keeps its slot after its removal, so that a packet that another
	// CPU is counting at that time is attributed to the flow. This takes less than a
	// microsecond, unless a hypervisor preempts the CPU.
	late = time.Second
	// maxRemoved is the maximum number of flows removed in one interval.
	maxRemoved = 1024
)

// tracker maintains flows from counts. It does no I/O.
type tracker struct {
	interfaces map[uint32]string
	peers      map[netip.Addr]string
	gateway    *Gateway
	idle       time.Duration

	round  uint64
	lastID uint64
	// slots are the flows by slot in the kernel, one element for each slot; flows are those of
	// the last read.
	slots, flows []*Flow
	quiet        []*Flow
	// leaving are the removed flows that still have their slot, in order of removal.
	leaving     []*Flow
	pairs       map[ends]*pair
	connections map[uint32]*connection
	aggregates  map[aggregateKey]*Aggregate
	// translations are connections by each of their directions.
	translations map[translationKey]*translation
	tcp          [2]int // flows of IPv4 and IPv6

	dump     uint64
	dumped   time.Time
	snapshot Snapshot
	// listeners are the host's listening sockets while a connection lacks subflows.
	listeners []mptcp.Listener
}

func newTracker(interfaces map[uint32]string, peers map[netip.Addr]string, idle time.Duration, room int) *tracker {
	return &tracker{
		interfaces: interfaces, peers: peers, idle: idle, slots: make([]*Flow, room),
		pairs: map[ends]*pair{}, connections: map[uint32]*connection{}, aggregates: map[aggregateKey]*Aggregate{},
		translations: map[translationKey]*translation{},
	}
}

// read applies all counts of the kernel.
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

// count updates a flow to its total count in the kernel.
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

// carry adds the flow's delta to the sums.
func (t *tracker) carry(f *Flow) {
	f.Total = plus(f.Total, f.Delta)
	f.sum.Count = plus(f.sum.Count, f.Delta)
	t.carryTranslation(f)
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

// add adds a flow that is seen for the first time.
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
	t.translate(f)
	f.sum = t.aggregate(f)
	f.sum.Flows++
	t.slots[slot] = f
	return f
}

const protocolTCP = 6

// family returns the index of a flow's address family in tracker.tcp.
func family(key *flowcount.Key) int {
	if key.Family == 4 {
		return 0
	}
	return 1
}

// remove removes a flow from the tracker.
func (t *tracker) remove(f *Flow) {
	t.slots[f.slot] = nil
	f.sum.Flows--
	t.untranslate(f)
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

// leave removes a pair from its MPTCP connection.
func (t *tracker) leave(p *pair) {
	c := p.connection
	if c == nil {
		return
	}
	if c.pairs--; c.pairs == 0 {
		delete(t.connections, c.token)
	}
	// Token may still be called on the flows.
	p.connection = &connection{token: c.token, round: c.round, bytes: c.bytes}
}

// families returns the address families of sockets that may belong to flows. An IPv6 socket may
// have IPv4 flows.
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

// socket applies one socket of a dump.
func (t *tracker) socket(s *mptcp.Socket) {
	p := t.pairs[ends{s.Local, s.Remote}]
	if p == nil {
		return
	}
	// Retransmissions before the socket was first read may precede the start of the watcher.
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

// describe applies the kernel's state of an MPTCP connection.
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

// lacking reports whether a connection has fewer subflows than announced addresses.
func (t *tracker) lacking() bool {
	for _, c := range t.connections {
		if !c.fewer.IsZero() {
			return true
		}
	}
	return false
}

// endSockets recomputes the sums of connections that gained pairs in this dump, because flows were
// read before the dump.
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

// over reports whether a flow has ended because it is idle.
func (t *tracker) over(f *Flow, now time.Time) bool {
	switch {
	case f.pair != nil && f.pair.open():
		return false
	case f.pair != nil && f.pair.closed():
		return now.Sub(f.moved) >= min(grace, t.idle)
	}
	return now.Sub(f.moved) >= t.idle
}

// finish ends the flows that are over and completes the snapshot. A slot is reused only once no
// packet can be counted in it any more; packets counted until then are in the flow's last delta.
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
	// If less than a quarter of the slots is free, the flows idle for longest are evicted,
	// whether they are over or not.
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
