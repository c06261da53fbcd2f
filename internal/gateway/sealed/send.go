package sealed

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tun"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// random is the system's source of randomness.
type random struct{}

func (random) Read(b []byte) (int, error) { return rand.Read(b) }

const (
	// slabLen is the room for the packets of a batch, batchLen from when on it is sent although
	// there are more to read.
	slabLen  = 1 << 20
	batchLen = 192 << 10
	// maxQueued is that for packets of shaped paths.
	maxQueued = 128
)

// cacheLine is the alignment of packets in bytes.
const cacheLine = 64

// batch collects sealed messages for each path. It belongs to one goroutine.
type batch struct {
	plane *Plane
	slab  []byte
	next  int
	out   [tunnel.MaxPaths]outgoing
	// queued are packets of shaped paths, whose buffers are needed until they have been sent.
	queued []*queued
}

// outgoing are the messages of a line.
type outgoing struct {
	line *line
	all  []udp.Datagram
}

func newBatch(p *Plane, length int) *batch { return &batch{plane: p, slab: make([]byte, length)} }

// slot returns a buffer for a packet, of n bytes with room for the tunnel around it. What was
// sealed before is sent if there is none left.
func (b *batch) slot(n int) []byte {
	all := (n + tunnel.Overhead + cacheLine - 1) &^ (cacheLine - 1)
	if b.next+all > len(b.slab) {
		b.flush()
	}
	at := b.next
	b.next += all
	return b.slab[at : at+tunnel.Offset+n : at+all]
}

// add adds a sealed message to those of a line.
func (b *batch) add(l *line, d udp.Datagram) {
	for i := range b.out {
		o := &b.out[i]
		if o.line == l || o.line == nil {
			o.line = l
			o.all = append(o.all, d)
			return
		}
	}
	l.send([]udp.Datagram{d}) // a message of each line waits already
}

// empty reports whether there is nothing to be sent.
func (b *batch) empty() bool { return b.next == 0 && len(b.queued) == 0 }

// flush sends all messages.
func (b *batch) flush() {
	for i := range b.out {
		o := &b.out[i]
		if o.line == nil {
			break
		}
		o.line.send(o.all)
		o.line, o.all = nil, o.all[:0]
	}
	for _, q := range b.queued {
		q.release()
	}
	b.queued = b.queued[:0]
	b.next = 0
}

// discard drops all messages after a panic. Buffers of queued packets, which may have been released
// before it, are not used again.
func (b *batch) discard() {
	b.out, b.queued, b.next = [tunnel.MaxPaths]outgoing{}, nil, 0
}

// send carries packets from the device until it is closed.
func (p *Plane) send() error {
	icmp := make([]byte, 0, 1500)
	for wait := true; ; wait = !p.unsent.Load() {
		f, err := p.device.Read(wait)
		switch {
		case errors.Is(err, tun.ErrMalformed):
			p.counts.drop(dropMalformed, 1)
			continue
		case err != nil:
			p.flushOut()
			return err
		case f == nil:
			p.flushOut()
			continue
		}
		p.forwardSafely(f, icmp)
	}
}

// flushOut sends the packets from the device that are sealed.
func (p *Plane) flushOut() {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	p.out.flush()
	p.unsent.Store(false)
}

// forward schedules and seals the packets of a frame. All have the same flow.
func (p *Plane) forward(b *batch, f *tun.Frame, icmp []byte) {
	head := f.Head()
	p.counts.received.add(f.Len(), len(head))
	var h inet.Header
	if !h.Parse(head) {
		p.counts.drop(dropMalformed, uint64(f.Len()))
		return
	}
	routes := p.routing.Load()
	r, _ := routes.table.Lookup(h.Dst)
	if r == nil {
		if h.Dst.IsMulticast() || h.Dst.IsLinkLocalUnicast() {
			return // the kernel's own, for the device
		}
		p.counts.drop(dropNoRoute, uint64(f.Len()))
		return
	}
	index := routes.policy.First(&h.Packet)
	now := p.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	p.outMu.Lock()
	defer p.outMu.Unlock()
	if before := r.active.Swap(int64(now)); now-time.Duration(before) > busyWindow {
		r.prober.probeNow(now)
	}
	if r.session.sending == nil {
		p.counts.drop(dropNoSession, uint64(f.Len()))
		if r.numbering.owner && !r.session.assoc.Wanted() {
			r.session.assoc.Want(now)
			r.wakeControlLocked()
		}
		return
	}
	u := &r.policy.fallback
	if index >= 0 && index < len(r.policy.rules) {
		u = &r.policy.rules[index]
	}
	if u.discipline.Name == dataplane.Ratio {
		for i := range r.scheduling.paths {
			r.scheduling.paths[i].Ratio = 0
			if i < len(u.discipline.Ratio) {
				r.scheduling.paths[i].Ratio = u.discipline.Ratio[i]
			}
		}
	}
	ack := inet.IsAcknowledgment(head)
	lane := laneOf(h.Flow, ack)
	length := 0
	for i := range f.Len() {
		length += f.PacketLen(i)
	}
	r.selection.sent(&h, head, f.Len(), length)
	kind := kindOf(&h, head, ack, f.Len(), length)
	for i := range f.Len() {
		n := f.PacketLen(i)
		if n > r.scheduling.mtu {
			r.oversizedLocked(b, f, i, &h, u, icmp, now)
			continue
		}
		buf := b.slot(n)
		f.Packet(i, buf[tunnel.Offset:])
		if i == 0 {
			inet.ClampMSS(buf[tunnel.Offset:], &h, r.scheduling.mtu)
		}
		r.transmitLocked(b, buf, lane, kind, &h, u, now)
	}
	if b.next >= batchLen || len(b.queued) >= maxQueued {
		b.flush()
	}
	p.unsent.Store(!b.empty())
}

// laneOf returns the lane of a packet. Segments that only acknowledge are not held for their order,
// so they have another lane than the data of their connection.
func laneOf(flow uint32, ack bool) uint8 {
	if ack {
		return ^uint8(flow)
	}
	return uint8(flow)
}

// oversizedLocked handles a packet that does not fit all paths: it is split if it may be. If IPv6
// hosts do not send shorter ones, it takes a path that carries it, or its message is split (RFC
// 2473, section 7.1). Else its sender gets an ICMP error.
func (r *peer) oversizedLocked(b *batch, f *tun.Frame, i int, h *inet.Header, u *rule, icmp []byte, now time.Duration) {
	p := r.plane
	packet := make([]byte, f.PacketLen(i))
	f.Packet(i, packet)
	if h.Src.Is6() && len(packet) <= inet.MinMTU6 {
		buf := b.slot(len(packet))
		copy(buf[tunnel.Offset:], packet)
		r.transmitLocked(b, buf, laneOf(h.Flow, inet.IsAcknowledgment(packet)), sched.Prompt, h, u, now)
		return
	}
	if !h.DontFragment {
		inet.Fragments(packet, make([]byte, len(packet)), r.scheduling.mtu, func(part []byte) {
			buf := b.slot(len(part))
			copy(buf[tunnel.Offset:], part)
			r.transmitLocked(b, buf, uint8(h.Flow), sched.Prompt, h, u, now)
		})
		return
	}
	p.counts.drop(dropTooBig, 1)
	if i == 0 { // one message for all segments
		if m := inet.TooBig(icmp[:0], packet, h, r.scheduling.mtu); len(m) > 0 {
			p.deliver([][]byte{m})
		}
	}
}

// transmitLocked schedules a packet, whose buffer has room for the tunnel, and seals it for each
// path.
func (r *peer) transmitLocked(b *batch, buf []byte, lane uint8, kind sched.Kind, h *inet.Header, u *rule, now time.Duration) {
	wire := len(buf) + tunnel.TagLen + inet.UDP4Len
	for i := range r.scheduling.paths {
		if l := &r.links[i]; l.paced {
			r.scheduling.queues.Set(i, now, l.queue.WaitOf(now, uint32(lane)))
		}
	}
	set := u.scheduler.Next(r.scheduling.paths, sched.Segment{Now: now, Size: wire, Window: 1 << 30, Flow: h.Flow, Kind: kind, Version: r.selection.version})
	if set == 0 {
		r.plane.counts.drop(dropNoPath, 1)
		return
	}
	if n := len(buf) - tunnel.Offset; n > r.scheduling.mtu {
		set = r.scheduling.carrying(set, n, now)
	}
	if kind == sched.Acks && set.Len() == 1 && r.pacing.replace(set.First(), lane, buf) {
		return
	}
	k := r.session.sending
	// The number is used only if a queue takes the packet: a missing one would have the receiver
	// wait.
	seq := k.number.Peek(lane)
	taken := 0
	copies := set.Len() > 1
	for set != 0 {
		i := set.First()
		set &^= sched.One(i)
		if l := &r.links[i]; l.shaped {
			if !r.pacing.enqueue(b, i, &queued{keys: k, lane: lane, seq: seq, copied: copies, class: h.Class, repair: u.discipline.Name == dataplane.Auto}, buf, now) {
				continue
			}
		} else {
			one := buf
			if set != 0 {
				// The packet itself is needed again.
				one = b.slot(len(buf) - tunnel.Offset)
				copy(one[tunnel.Offset:], buf[tunnel.Offset:])
			}
			r.sealLocked(b, k, i, one, tunnel.Data, k.number.Stamp(lane, seq, uint8(i), copies), h.Class, now)
		}
		if taken++; taken > 1 {
			u.copies++
			r.selection.copied += uint64(wire)
		}
		u.used |= sched.One(i)
	}
	if taken == 0 {
		return
	}
	k.number.Assign(lane)
	k.lanes.used[lane] = now
	u.sent.Packets++
	u.sent.Bytes += uint64(len(buf) - tunnel.Offset)
}

// counterReserve is how many counters of a path are left when the keys are replaced. It is out of
// reach: keys are replaced after far fewer messages (session.Association).
const counterReserve = 1 << 20

// sealLocked seals a message for a path and adds it to the batch, as sealTo does.
func (r *peer) sealLocked(b *batch, k *keys, i int, buf []byte, kind tunnel.Type, stamp tunnel.Stamp, class uint8, now time.Duration) {
	r.sealToLocked(b, k, i, buf, kind, stamp, class, now, r.links[i].place())
}

// sealToLocked seals a message for a path and adds it to the batch, to be sent to a place. Without
// a counter that was not used, the message is dropped: a nonce would be used twice.
func (r *peer) sealToLocked(b *batch, k *keys, i int, buf []byte, kind tunnel.Type, stamp tunnel.Stamp, class uint8, now time.Duration, to place) {
	l := &r.links[i]
	if p := r.plane; b != p.out && p.unsent.Load() {
		p.flushOut()
	}
	if left := tunnel.MaxCounter - k.counters[i]; left <= counterReserve {
		r.session.assoc.Exhaust()
		r.wakeControlLocked()
		if left == 0 {
			r.plane.counts.drop(dropExhausted, 1)
			return
		}
	}
	stamp.Sent = uint32(now / time.Microsecond)
	if r.plane.opened != nil && r.conf.Mode.Open() {
		r.scheduling.queues.Set(i, now, r.plane.opened.Wait(r.conf.Name, i))
	}
	if l.shaped { // it has waited
		stamp.Wait = l.queue.Line(len(buf) + tunnel.TagLen + inet.UDP4Len)
	} else {
		stamp.Wait = r.scheduling.queues.Wait(i, now)
	}
	h := tunnel.Header{Type: kind, Path: uint8(i), Receiver: k.Remote, Counter: k.counters[i]}
	k.counters[i]++
	m := k.send.Seal(buf, h, stamp)
	r.session.assoc.Sent(1)
	l.sent.add(1, len(m)+inet.UDP4Len)
	b.add(to.line, udp.Datagram{Data: m, To: to.from, From: l.source(to.line, to.from), Class: class, Fragment: kind != tunnel.Control && l.exceeds(m)})
}
