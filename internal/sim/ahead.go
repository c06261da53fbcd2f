package sim

import "math/bits"

// Linux' scheduler gives data to a subflow before the subflow's window has room for it. What is given so waits in the order in
// which it was given, and comes to be sent by no other subflow unless this one fails.

// given is data that waits at a subflow.
type given struct {
	data   uint64
	length int
}

// backlog is what was given to a subflow and waits for its window.
type backlog struct {
	list  []given
	first int
	bytes int
	most  int // that the send buffer has had room for: it never shrinks
}

// add puts data at the end, or at the front when it was missed already.
func (b *backlog) add(data uint64, length int, front bool) {
	b.bytes += length
	if front {
		if b.first == 0 {
			b.list = append(b.list, given{})
			copy(b.list[1:], b.list)
		} else {
			b.first--
		}
		b.list[b.first] = given{data, length}
		return
	}
	if n := len(b.list); n > b.first && b.list[n-1].data+uint64(b.list[n-1].length) == data {
		b.list[n-1].length += length
		return
	}
	if b.first > 0 && len(b.list) == cap(b.list) {
		b.list, b.first = b.list[:copy(b.list, b.list[b.first:])], 0
	}
	b.list = append(b.list, given{data, length})
}

// take takes a segment of at most that many bytes from the front; there is something.
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

// give has the subflow send data as soon as it can.
func (f *sender) give(s *Sim, data uint64, length int, front bool) {
	f.backlog.add(data, length, front)
	f.path.Queued += length
	f.path.Room -= length
	f.sendBacklog(s)
}

// sendBacklog sends what waits and the window lets through.
func (f *sender) sendBacklog(s *Sim) {
	for f.backlog.bytes > 0 && f.phase != closed && f.open() {
		data, length := f.backlog.take(f.c.Segment)
		f.path.Queued -= length
		f.sendNew(s, data, length)
	}
}

// uncount tells the scheduler of the room that Connection.Uncounted sees: in a recovery all that was acknowledged selectively makes some,
// again with each acknowledgement of any subflow, although nothing new can be sent before the gap is filled.
func (c *connection) uncount(s *Sim) {
	for i := range c.flows {
		if f := &s.senders[int(c.first)+i]; f.phase != closed {
			inFlight := int(f.next-f.una) - int(f.sacked)
			f.path.Room = max(int(min(f.cc.Cwnd, float64(f.window)))-inFlight, 0) * c.Segment
		}
	}
}

// sendBuffer is how much the subflow's send buffer holds, in flight or waiting: twice the congestion window, in what a segment takes of
// memory (Linux: tcp_sndbuf_expand).
func (f *sender) sendBuffer() int {
	memory := 1<<bits.Len(uint(f.c.Segment+segmentHead-1)) + segmentBody
	window := max(min(int(f.cc.Cwnd), int(f.window)), leastBuffer)
	f.backlog.most = max(f.backlog.most, 2*window*memory)
	return f.backlog.most
}

const (
	// segmentHead is MAX_TCP_HEADER and struct skb_shared_info, segmentBody is struct sk_buff.
	segmentHead, segmentBody = 320 + 320, 256
	leastBuffer              = 10 // TCP_INIT_CWND
)

// sendBuffers is what the connection may have sent or given and not seen acknowledged: its own buffer is as large as those of its subflows
// together (Linux: __mptcp_sync_sndbuf).
func (c *connection) sendBuffers(s *Sim) uint64 {
	all := 0
	for i := range c.flows {
		if f := &s.senders[int(c.first)+i]; f.phase != closed {
			all += f.sendBuffer()
		}
	}
	return uint64(all)
}

// abandon queues for the others what waits at a subflow that failed.
func (c *connection) abandon(s *Sim, f *sender) {
	for f.backlog.bytes > 0 {
		data, length := f.backlog.take(c.Segment)
		if data+uint64(length) > c.acked {
			c.requeue(s, reinjection{data: data, length: length, from: f.index})
		}
	}
	f.refresh()
}
