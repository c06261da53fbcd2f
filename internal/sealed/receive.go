package sealed

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/contain"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/repair"
	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
)

// receiving is the receiving side of a peer.
type receiving struct {
	// reach is which destinations packets of the peer may have (plane.Peer.Reach).
	reach atomic.Pointer[bart.Table[bool]]
	// clamp is scheduling.mtu, to which the MSS of connections is lowered.
	clamp atomic.Int32
	// timeout is when packets are held for too long or to be requested, 0 if none are.
	timeout  atomic.Int64
	requests requests

	sync.Mutex // guards the following
	links      [tunnel.MaxPaths]receivedLink
	order      order
	delays     delays
	delivery   delivery
	// reportFirst is the path of the first report of a message.
	reportFirst int
}

// order puts packets in order.
type order struct {
	// keys are the last ones that a packet was sealed with. Packets under them are put in order by
	// receiver; those under the ones before, of which few come, are delivered at once.
	keys, before *keys
	receiver     *reseq.Receiver[held]
	live         uint16 // paths that packets arrive over
}

// delays compares the delays of paths.
type delays struct {
	clock quality.Clock
	// latest is sched.Latest of the paths, in the time of clock, as of the time compared.
	latest   time.Duration
	compared time.Duration
}

// requests is when missing messages are requested.
type requests struct {
	due atomic.Int64 // 0 if nothing is to be requested
	// roundTrip is how long the answer to a request takes at most, minRTT at least.
	roundTrip atomic.Int64
	minRTT    atomic.Int64
	counters  []uint64 // of requests; guarded by the mutex of receiving
}

// delivery has the packets that are delivered together.
type delivery struct {
	held    []held
	packets [][]byte
}

// held is a packet in a buffer, which it keeps from being used again.
type held struct {
	packet []byte
	buffer *buffer
}

// buffer is what one message of a socket, or a single packet, is in.
type buffer struct {
	data []byte
	refs atomic.Int32
}

const (
	// smallLen is the room of a buffer for a packet that is copied, because the kernel has merged few
	// with it: a large buffer for each would take much memory while packets wait.
	smallLen = 2048
	fewHeld  = 4
)

var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{data: make([]byte, smallLen)} }}
	largeBuffers = sync.Pool{New: func() any { return &buffer{data: make([]byte, udp.BufferLen)} }}
)

// release drops a reference.
func (b *buffer) release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	if len(b.data) == smallLen {
		smallBuffers.Put(b)
	} else {
		largeBuffers.Put(b)
	}
}

// hold returns a packet with a reference to its buffer, or copied to a small one.
func hold(o *opened) held {
	if o.merged >= fewHeld || len(o.packet) > smallLen {
		o.buffer.refs.Add(1)
		return held{o.packet, o.buffer}
	}
	b := smallBuffers.Get().(*buffer)
	b.refs.Store(1)
	return held{b.data[:copy(b.data, o.packet)], b}
}

// receivedLink is what was received over a path under the current keys.
type receivedLink struct {
	packets, bytes uint64
	next, lost     uint64 // for the sender: counters under its current keys
	missed         uint64 // lost, under earlier keys as well; late messages count as well
	keys           *keys
	heard          time.Duration
	silence        time.Duration // how long after its last message the path is not waited for
	delay          quality.OneWayEstimator
	gaps           repair.Gaps
}

// opened is a packet from a peer.
type opened struct {
	keys     *keys
	path     uint8
	over     uint8 // the path that it arrived over, another one if it was sent again
	class    uint8
	stamp    tunnel.Stamp
	packet   []byte
	wire     int // length of the message
	counter  uint64
	requests uint8         // how often it was requested
	lag      time.Duration // reseq.Arrival.Lag
	missing  int           // messages before it that have not arrived, -1 if it was one of them
	buffer   *buffer
	merged   int // number of messages in the buffer
}

const receiveBuffers = 8

// receive carries packets from a socket until it is closed.
func (p *Plane) receive(l *line, s *udp.Socket) {
	var own [receiveBuffers]*buffer
	buffers := make([][]byte, receiveBuffers)
	got := make([]udp.Received, receiveBuffers)
	var all []opened
	b := newBatch(p, 1<<16)
	for {
		for i := range own {
			// A buffer whose packets have all been delivered is used again at once.
			if own[i] == nil || own[i].refs.Load() > 1 {
				if own[i] != nil {
					own[i].release()
				}
				own[i] = largeBuffers.Get().(*buffer)
				own[i].refs.Store(1)
				buffers[i] = own[i].data
			}
		}
		n, err := s.Receive(buffers, got)
		if errors.Is(err, fs.ErrClosed) {
			return
		}
		if err != nil {
			// An error of the network, or of a device that is gone: the control loop opens a new socket.
			l.failTransfer(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.heard.Store(int64(p.now()))
		all = all[:0]
		for i := range got[:n] {
			all = p.openSafely(l, &got[i], own[i], all, b)
		}
		now := p.now()
		for rest := all; len(rest) > 0; {
			same := 1
			for same < len(rest) && rest[same].keys.peer == rest[0].keys.peer {
				same++
			}
			rest[0].keys.peer.handleSafely(b, rest[:same], now)
			rest = rest[same:]
		}
		b.flush()
	}
}

// open authenticates the messages of a buffer and appends their packets to all. Messages of other
// types are processed.
func (p *Plane) open(l *line, g *udp.Received, in *buffer, all []opened, b *batch) []opened {
	var k *keys
	merged := (len(g.Data) + g.Size - 1) / max(g.Size, 1)
	for data := g.Data; len(data) > 0; {
		m := data[:min(g.Size, len(data))]
		data = data[len(m):]
		l.received.add(1, len(m))
		switch tunnel.Type(m[0]) {
		case tunnel.Initiation, tunnel.Response, tunnel.Cookie:
			if mine, why := p.checkHandshake(l, m, g.From); !mine {
				p.relayOrDrop(l, g, m, b, why)
			}
			continue
		case tunnel.Compatible:
			p.takeCompatible(l, m, g.From, b)
			continue
		case tunnel.OpenData:
			p.counts.drop(dropCookie, 1) // the open plane takes all others before
			continue
		case tunnel.Data, tunnel.Control:
		}
		h, err := tunnel.ParseHeader(m)
		if err != nil {
			p.counts.drop(dropTruncated, 1)
			continue
		}
		if k == nil || k.Local != h.Receiver {
			if k = p.find(h.Receiver); k == nil || h.Epoch != 0 {
				k = nil
				p.relayOrDrop(l, g, m, b, dropUnknownSession)
				continue
			}
		}
		o := opened{keys: k, path: h.Path, over: h.Path, class: g.Class, wire: len(m), counter: h.Counter, missing: -1, buffer: in, merged: merged}
		from := place{l, g.From}
		moved, why, ok := o.authenticate(m, from)
		if !ok {
			p.counts.drop(why, 1)
			continue
		}
		switch {
		case !moved:
		case o.missing < 0:
			o.over = k.over(h.Path, from)
		default: // only the newest message shows where the peer is
			k.peer.learn(k, int(h.Path), l, g.From)
		}
		if h.Type == tunnel.Control {
			body := o.packet
			o.packet = nil
			k.peer.contain(contain.GatewayMessage, body, func() { k.peer.records(k, &o, from, body, len(m), b) })
		}
		all = append(all, o)
	}
	return all
}

// authenticate opens a message, and notes its number. moved reports whether the path's last message
// came from another place; why is the reason of a message that is not ok.
func (o *opened) authenticate(m []byte, at place) (moved bool, why reason, ok bool) {
	replay := &o.keys.replay[o.path]
	replay.Lock()
	defer replay.Unlock()
	if !replay.Fresh(o.counter) {
		return false, dropReplayed, false
	}
	var err error
	if o.stamp, o.packet, err = o.keys.receive.Open(m); err != nil {
		return false, dropForged, false
	}
	moved = replay.at != at
	if replay.Behind(o.counter) {
		replay.Accept(o.counter)
		return moved, 0, true
	}
	o.missing = int(min(replay.Accept(o.counter), 1<<20))
	if moved {
		replay.at, replay.bytes = at, 0
	}
	replay.bytes += len(m) + ipUDP4
	return moved, 0, true
}

// over returns the path whose newest message came from there, or else the message's own one.
func (k *keys) over(own uint8, from place) uint8 {
	for i := range k.replay {
		r := &k.replay[i]
		r.Lock()
		same := r.at == from
		r.Unlock()
		if same {
			return uint8(i)
		}
	}
	return own
}

// handlePackets measures packets from the peer, puts them in order and delivers them.
func (r *peer) handlePackets(b *batch, all []opened, now time.Duration) {
	r.receivePackets(all, now)
	r.request(b, now)
}

// receivePackets is handlePackets without requests for missing packets.
func (r *peer) receivePackets(all []opened, now time.Duration) {
	p := r.plane
	routes := p.routing.Load()
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	out := x.delivery.held[:0]
	data := false
	x.compareDelaysLocked(now)
	for i := range all {
		o := &all[i]
		x.measureLocked(o, now)
		if o.packet == nil {
			continue
		}
		data = true
		b := o.packet
		if !lengthValid(b) {
			p.counts.drop(dropMalformed, 1)
			continue
		}
		// Only packets from the peer's own prefixes: else it could speak for others.
		if owner, ok := routes.table.Lookup(source(b)); !ok || owner != r {
			p.counts.drop(dropSource, 1)
			continue
		}
		if allowed, ok := r.rx.reach.Load().Lookup(destination(b)); !ok || !allowed {
			p.counts.drop(dropDestination, 1)
			continue
		}
		if !decapsulate(o.class, b) {
			p.counts.drop(dropCongestion, 1)
			continue
		}
		if isSYN(b) {
			var h parsed
			if h.parse(b) {
				clampMSS(b, &h, int(r.rx.clamp.Load()))
			}
		}
		fresh := false
		if out, fresh = x.pushLocked(now, o, routes.hold(b), out); !fresh {
			p.counts.drop(dropDuplicate, 1)
		}
	}
	if data {
		r.active.Store(int64(now))
	}
	if live := x.livePathsLocked(now); live != x.order.live && x.order.receiver != nil {
		x.order.live = live
		out = x.order.receiver.SetLive(now, live, out)
	}
	x.finishLocked(p, out)
}

// pushLocked puts a packet in order, and appends to out what is to be delivered. It returns false
// if the packet is a duplicate, or too old to tell.
func (x *receiving) pushLocked(now time.Duration, o *opened, wait reseq.Hold, out []held) ([]held, bool) {
	if x.order.keys == nil || o.keys != x.order.keys && o.keys.Born >= x.order.keys.Born {
		out = x.changeKeysLocked(o.keys, out)
	}
	if o.keys != x.order.keys {
		// Of a session before, whose packets are few.
		if o.keys != x.order.before || !x.order.receiver.Earlier(o.stamp.Lane, uint32(o.stamp.Seq)) {
			return out, false
		}
		return append(out, hold(o)), true
	}
	h := hold(o)
	out, fresh := x.order.receiver.Push(now, reseq.Arrival{
		Path: int(o.path), Lane: o.stamp.Lane, Seq: uint32(o.stamp.Seq), Distance: o.stamp.Distance, Copied: o.stamp.Copied,
		Unusual: o.requests > 1, Hold: wait, Lag: o.lag,
	}, h, out)
	if !fresh {
		h.buffer.release()
	}
	return out, fresh
}

// changeKeysLocked has the numbers begin again with new keys.
func (x *receiving) changeKeysLocked(k *keys, out []held) []held {
	if x.order.receiver == nil {
		x.order.receiver = reseq.NewReceiver[held](reseq.ReceiverOptions{})
	} else {
		out = x.order.receiver.Reset(out)
	}
	x.order.keys, x.order.before = k, x.order.keys
	return out
}

// silence is how long after its last message a path is not waited for, at least leastSilence: several
// probes.
const silence, leastSilence = 4, 200 * time.Millisecond

// livePathsLocked returns the paths that messages arrive over.
func (x *receiving) livePathsLocked(now time.Duration) (live uint16) {
	for i := range x.links {
		if l := &x.links[i]; l.packets > 0 && now-l.heard < max(l.silence, leastSilence) {
			live |= 1 << i
		}
	}
	return live
}

// comparePause is that between comparisons of paths.
const comparePause = 10 * time.Millisecond

// compareDelaysLocked compares the delays of the paths that messages arrive over.
func (x *receiving) compareDelaysLocked(now time.Duration) {
	if now-x.delays.compared < comparePause {
		return
	}
	x.delays.compared = now
	var paths [tunnel.MaxPaths]sched.Path
	live := x.livePathsLocked(now)
	for i := range paths {
		if v, ok := x.links[i].delay.Value(); ok {
			paths[i] = sched.Path{Usable: live>>i&1 != 0, Delay: v.Delay, Jitter: v.Jitter}
		}
	}
	if latest, any := sched.Latest(paths[:]); any {
		x.delays.latest = latest
	}
}

// finishLocked delivers packets, and has the expiry loop wait for those that are held. It keeps the
// mutex, so that packets of other paths do not overtake these.
func (x *receiving) finishLocked(p *Plane, out []held) {
	x.delivery.packets = x.delivery.packets[:0]
	for _, h := range out {
		x.delivery.packets = append(x.delivery.packets, h.packet)
	}
	p.deliver(x.delivery.packets)
	for i := range out {
		out[i].buffer.release()
	}
	clear(x.delivery.packets)
	clear(out)
	x.delivery.held = out[:0]
	var timeout time.Duration
	if x.order.receiver != nil {
		if at, waiting := x.order.receiver.Timeout(); waiting {
			timeout = max(at, 1)
		}
	}
	request := time.Duration(0)
	if at, any := x.nextRequestLocked(); any {
		request = max(at, 1)
		if timeout == 0 || request < timeout {
			timeout = request
		}
	}
	x.requests.due.Store(int64(request))
	x.timeout.Store(int64(timeout))
	if timeout != 0 {
		p.expires.set(timeout)
	}
}

// passed processes what a probe reports of a path: it holds no earlier packets of these lanes.
func (r *peer) passed(k *keys, path int, all tunnel.Progress, now time.Duration) {
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	if x.order.keys != k || x.order.receiver == nil {
		return
	}
	out := x.delivery.held[:0]
	for _, l := range all {
		out = x.order.receiver.Passed(now, path, l.Lane, uint32(l.Next), out)
	}
	x.finishLocked(r.plane, out)
}

// expireHeld delivers packets that have been held for too long.
func (r *peer) expireHeld(b *batch, now time.Duration) {
	r.request(b, now)
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	if x.order.receiver != nil {
		x.finishLocked(r.plane, x.order.receiver.Expire(now, x.delivery.held[:0]))
	}
}

// expiry delivers what is held for too long at all peers and requests what is missing, and returns when
// there is more.
func (p *Plane) expiry(b *batch, now time.Duration) time.Duration {
	next := now + time.Hour
	for _, r := range p.routing.Load().peers {
		if at := r.rx.timeout.Load(); at != 0 && time.Duration(at) <= now {
			r.contain(contain.GatewayTimer, nil, func() { r.expireHeld(b, now) })
		}
		if at := r.rx.timeout.Load(); at != 0 {
			next = min(next, time.Duration(at))
		}
	}
	b.flush()
	return max(next, now+leastHold)
}

// leastHold is the granularity of the time that packets are held.
const leastHold = 500 * time.Microsecond

// The flags of TCP (RFC 9293, section 3.1).
const (
	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagACK = 1 << 4
)

// tcpHeader returns the TCP header of an IP packet and what is behind it, or nil if it is not right
// behind the IP header.
func tcpHeader(b []byte) []byte {
	at := int(b[0]&15) * 4
	protocol := b[9]
	if b[0]>>4 == 6 {
		at, protocol = ipv6Len, b[6]
	}
	if protocol != unix.IPPROTO_TCP || len(b) < at+tcpLen {
		return nil
	}
	return b[at:]
}

// isSYN reports whether an IP packet may begin a TCP connection.
func isSYN(b []byte) bool {
	t := tcpHeader(b)
	return t != nil && t[13]&flagSYN != 0
}

// isAcknowledgment reports whether an IP packet is a TCP segment that only acknowledges.
func isAcknowledgment(b []byte) bool {
	t := tcpHeader(b)
	return t != nil && t[13]&(flagFIN|flagSYN|flagRST) == 0 && int(t[12]>>4)*4 == len(t)
}

// measureLocked updates what is known of the path that a message arrived over.
func (x *receiving) measureLocked(o *opened, now time.Duration) {
	l := &x.links[o.path]
	l.packets++
	l.heard = now
	if l.keys != o.keys {
		if l.keys != nil && l.keys.Born > o.keys.Born {
			return // of the session before
		}
		l.keys, l.next, l.lost = o.keys, 0, 0
		l.gaps.Reset()
	}
	if o.missing < 0 {
		o.requests = l.gaps.Arrived(now, time.Duration(x.requests.minRTT.Load()), o.counter)
	}
	x.links[o.over].bytes += uint64(o.wire + ipUDP4)
	if o.requests > 0 {
		return // lost for the sender, and its delay is not that of a path
	}
	l.next++
	switch {
	case o.missing > 0:
		l.next += uint64(o.missing)
		l.lost += uint64(o.missing)
		l.missed += uint64(o.missing)
		l.gaps.Missed(now, o.counter, uint64(o.missing))
	case o.missing < 0 && l.lost > 0:
		l.next--
		l.lost--
	}
	difference := x.delays.clock.Difference(o.stamp.Sent, now)
	if l.delay.Leaps(difference) {
		// A clock stood still, as that of a suspended host: delays of before cannot be compared
		// with later ones.
		x.delays.clock, x.delays.latest, x.delays.compared = quality.Clock{}, 0, 0
		difference = x.delays.clock.Difference(o.stamp.Sent, now)
		for i := range x.links {
			x.links[i].delay = quality.OneWayEstimator{}
		}
	}
	l.delay.Update(now, difference, o.stamp.Wait)
	o.lag = max(0, x.delays.latest-(difference-o.stamp.Wait))
}

// lengthValid reports whether an IP packet has the length that its header states.
func lengthValid(b []byte) bool {
	switch {
	case len(b) >= ipv4Len && b[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(b[2:])) == len(b)
	case len(b) >= ipv6Len && b[0]>>4 == 6:
		return int(binary.BigEndian.Uint16(b[4:]))+ipv6Len == len(b)
	}
	return false
}

func source(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.AddrFrom16([16]byte(b[8:24]))
}

func destination(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[16:20]))
	}
	return netip.AddrFrom16([16]byte(b[24:40]))
}

// write writes packets to the device, and returns how many it refused.
func (p *Plane) write(packets [][]byte) (refused int, err error) {
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	return p.device.Write(packets)
}

// deliver writes packets to the device.
func (p *Plane) deliver(packets [][]byte) {
	if len(packets) == 0 {
		return
	}
	bytes := 0
	for _, b := range packets {
		bytes += len(b)
	}
	refused, err := p.write(packets)
	if err != nil {
		p.counts.drop(dropDevice, uint64(len(packets)))
		return
	}
	p.counts.drop(dropDevice, uint64(refused))
	p.counts.delivered.add(len(packets)-refused, bytes)
}
