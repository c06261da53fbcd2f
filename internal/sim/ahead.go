package sim

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// Linux' scheduler assigns data to a subflow before the subflow's window has room for it. It is
// sent by that subflow, in the order of assignment, unless the subflow fails.

// assigned is data assigned to a subflow that has not been sent.
type assigned struct {
	data   uint64
	length int
}

// backlog is the data assigned to a subflow that its window does not allow yet.
type backlog struct {
	list  []assigned
	first int
	bytes int
	most  int // size of the send buffer, which never shrinks
	lowat int // bound of bytes for new data; 0: none
}

// add appends data, or prepends it when it is a reinjection.
func (b *backlog) add(data uint64, length int, front bool) {
	b.bytes += length
	if front {
		if b.first == 0 {
			b.list = append(b.list, assigned{})
			copy(b.list[1:], b.list)
		} else {
			b.first--
		}
		b.list[b.first] = assigned{data, length}
		return
	}
	if n := len(b.list); n > b.first && b.list[n-1].data+uint64(b.list[n-1].length) == data {
		b.list[n-1].length += length
		return
	}
	if b.first > 0 && len(b.list) == cap(b.list) {
		b.list, b.first = b.list[:copy(b.list, b.list[b.first:])], 0
	}
	b.list = append(b.list, assigned{data, length})
}

// take removes a segment of at most that many bytes from the front. The backlog must not be empty.
func (b *backlog) take(most int) (data uint64, length int) {
	g := &b.list[b.first]
	data, length = g.data, min(g.length, most)
	g.data += uint64(length)
	g.length -= length
	b.bytes -= length
	if g.length == 0 {
		b.first++
	}
	if b.first == len(b.list) {
		b.list, b.first = b.list[:0], 0
	}
	return data, length
}

// pieces returns the number of buffers of up to 64 KiB.
func (b *backlog) pieces() int { return len(b.list) - b.first + b.bytes>>16 }

// take accepts data from the scheduler, and sends it as soon as the window allows. The caller has
// checked that the window has room, or the send buffer where data is assigned ahead. front: the
// data is a reinjection.
func (f *sender) take(s *Sim, data uint64, length int, front bool) {
	if !f.c.ahead {
		f.sendNew(s, data, length)
		return
	}
	f.backlog.add(data, length, front)
	f.sendBacklog(s)
	if f.c.buffered() {
		f.account(s)
	} else {
		f.path.Room -= length
	}
}

// buffered reports whether send buffers limit what is assigned ahead.
func (c *connection) buffered() bool { return c.ahead && !c.Uncounted }

// sendBacklog sends as much of the backlog as the window allows.
func (f *sender) sendBacklog(s *Sim) {
	for f.backlog.bytes > 0 && f.state != caClosed && f.canSendNew() && !f.early(s) {
		data, length := f.backlog.take(f.c.Segment)
		f.sendNew(s, data, length)
		f.buffers.count(s.now)
	}
	f.pacing.flush()
}

// uncount sets Path.Room as Connection.Uncounted requires. During recovery each acknowledgement of
// any subflow counts the room of selectively acknowledged segments again, although no new data can
// be sent before the gap is filled.
func (c *connection) uncount(s *Sim) {
	for i := range c.flows {
		if f := &s.senders[int(c.first)+i]; f.state != caClosed {
			inFlight := int(f.board.next-f.board.una) - int(f.board.sacked)
			f.path.Room = max(int(min(f.cc.Cwnd, float64(f.window)))-inFlight, 0) * c.Segment
		}
	}
}

// account sets the memory that the scheduler sees: what the backlog and outstanding segments use,
// and the room in the send buffer. A piece is accepted whole while there is any
// (sk_stream_memory_free).
func (f *sender) account(s *Sim) {
	p := f.path
	flight := int(f.board.next - f.board.una)
	queue := flight*f.c.Segment + f.backlog.bytes + (int(math.Ceil(float64(flight)/max(f.buffers.average, 1)))+f.backlog.pieces())*segmentBuffer
	p.Cwnd, p.Room, p.Queued = int(f.clamped())*f.c.Segment, 0, queue-p.InFlight
	b := &f.backlog
	if f.c.Lowat {
		// What the window has room for only waits to be paced.
		next := cc.Lowat(f.clamped(), f.c.Segment, p.SRTT, f.lead(s)) + max(int(f.cc.Cwnd)-flight, 0)*f.c.Segment
		if cc.LowatChanged(b.lowat, next) {
			b.lowat = next
		}
	}
	if free := f.sndbuf() - queue; f.state != caClosed && free > 0 && (b.lowat == 0 || b.bytes < b.lowat) {
		p.Room = max(free, f.c.Segment)
	}
}

// lead returns cc.Lead of the subflow, of the others that may be given data.
func (f *sender) lead(s *Sim) (lead time.Duration) {
	rtt := f.retrans.rtt.SRTT
	for i := range f.c.flows {
		o := &s.senders[int(f.c.first)+i]
		if other := o.retrans.rtt; o != f && o.state != caClosed && !o.path.Backup && rtt > 0 && other.SRTT > 0 {
			lead = max(lead, cc.Lead(f.clamped()/float64(rtt), rtt, o.clamped()/float64(other.SRTT), other.MinRTT, o.cc.Cwnd < o.cc.Ssthresh))
		}
	}
	return lead
}

// buffers averages the number of segments that a subflow sends in one buffer. Linux defers a single
// segment until a second one follows, or for up to a millisecond (tcp_tso_should_defer,
// tcp_tso_autosize). The simulator sends segments at once, and uses the deferral only for this
// count.
type buffers struct {
	average float64
	waiting int
	sent    time.Duration // the last buffer
}

// count counts a segment.
func (b *buffers) count(now time.Duration) {
	if b.waiting++; b.waiting < 2 && now-b.sent < time.Millisecond {
		return
	}
	if b.average == 0 {
		b.average = float64(b.waiting)
	}
	b.average += (float64(b.waiting) - b.average) / 16
	b.waiting, b.sent = 0, now
}

// clamped returns the congestion window, limited by the window of the subflow (snd_cwnd_clamp).
func (f *sender) clamped() float64 { return min(f.cc.Cwnd, float64(f.window)) }

// sndbuf returns the size of the subflow's send buffer: some congestion windows, in the memory of a
// segment in a buffer of its own (sk_sndbuf, tcp_sndbuf_expand).
func (f *sender) sndbuf() int {
	windows := cc.SendBuffer
	if f.c.Lowat && !cc.Fast(f.clamped(), f.c.Segment, f.retrans.rtt.SRTT) {
		windows = cc.SendBufferLowat
	}
	f.backlog.most = max(f.backlog.most, cc.Buffer(windows, f.clamped(), f.c.Segment))
	return f.backlog.most
}

const (
	// The overhead of a buffer: MAX_TCP_HEADER, struct skb_shared_info and struct sk_buff.
	segmentHead, segmentShared, segmentBody = 256, 320, 256
	segmentBuffer                           = segmentHead + segmentShared + segmentBody
	leastMemory                             = 4 << 10 // net.ipv4.tcp_wmem, the first
)

// written reports whether the application has written n more bytes. It writes pieces until the data
// not acknowledged fills the connection's send buffer, which is the sum of those of the subflows
// (__mptcp_sync_sndbuf), and is woken when a third of it is free (sk_stream_is_writeable).
func (c *connection) written(s *Sim, n int) bool {
	if c.next+uint64(n) <= c.wrote {
		return true
	}
	all := c.sendBuffer(s)
	if c.waits(c.wrote, all) {
		return false
	}
	c.wrote = max((c.acked+all+sched.Piece-1)/sched.Piece*sched.Piece, c.next+uint64(n))
	return true
}

// sendBuffer returns the size of the connection's send buffer.
func (c *connection) sendBuffer(s *Sim) uint64 {
	all := uint64(leastMemory)
	for i := range c.flows {
		if f := &s.senders[int(c.first)+i]; f.state != caClosed {
			all += uint64(f.sndbuf())
		}
	}
	return all
}

// waits reports whether an application that has written so much waits for room in a send buffer of
// all bytes.
func (c *connection) waits(written, all uint64) bool { return written > c.acked+all/3*2 }

// source returns what the application has written, false without a send buffer. It writes what
// fits.
func (c *connection) source(s *Sim) (selection.Source, bool) {
	if !c.buffered() {
		return selection.Source{}, false
	}
	all := c.sendBuffer(s)
	written := min(c.made(s.now), c.acked+all)
	return selection.Source{Written: written, Full: c.waits(written, all)}, true
}

// abandon queues the backlog of a failed subflow for reinjection.
func (c *connection) abandon(s *Sim, f *sender) {
	for f.backlog.bytes > 0 {
		data, length := f.backlog.take(c.Segment)
		if data+uint64(length) > c.acked {
			c.requeue(s, reinjection{data: data, length: length, from: f.index, unsent: true})
		}
	}
}
