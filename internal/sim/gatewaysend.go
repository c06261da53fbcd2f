package sim

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/acks"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// send sends a packet through the tunnel.
func (t *carrier) send(s *Sim, p *packet, size int32) {
	size += int32(t.Overhead)
	from, number := t.passengerOf(p)
	lane := uint8(laneOf(number, from.datagrams))
	t.pathSelection.sent(p, from)
	if len(t.passengers) > 1 {
		for i := range t.lines {
			if l := &t.lines[i]; l.paced {
				t.queues.Set(i, s.now, l.queue.WaitOf(s.now, uint32(lane)))
			}
		}
	}
	set := t.schedule.Next(t.paths, sched.Segment{Now: s.now, Size: int(size), Flow: uint32(number), Kind: kindOf(p.kind), Version: t.version})
	if set == 0 {
		t.result.Unsent++
		return
	}
	if p.kind == ack && set.Len() == 1 && t.replace(s, set.First(), p, size, lane) {
		return
	}
	seq := t.number.Peek(lane)
	t.inner[lane][seq%inners] = *p
	taken := false
	for left := set; left != 0; left &= left - 1 {
		i := left.First()
		e := &queued{sent: sent{lane: lane, seq: seq, size: size, copied: set.Len() > 1}}
		taken = t.enqueue(s, i, e, uint32(lane)) || taken
	}
	if taken {
		t.number.Assign(lane)
		t.wake(s)
	}
}

// replace has an acknowledgment take the place of one that it supersedes in the queue of a path. It
// reports false if there is none.
func (t *carrier) replace(s *Sim, i int, p *packet, size int32, lane uint8) bool {
	l := &t.lines[i]
	if l.queue == nil {
		return false
	}
	e, ok := l.queue.Beside(uint32(lane))
	if !ok || e.copied {
		return false
	}
	old := &t.inner[lane][e.seq%inners]
	if old.kind != ack || old.flow != p.flow || old.duplicate || s.senders[p.flow].c.MPTCP {
		return false
	}
	a, b := acknowledgment(p), acknowledgment(old)
	if !a.Supersedes(&b) {
		return false
	}
	*old, e.size = *p, size
	l.queue.Replace(e, int(size), uint32(lane))
	return true
}

// acknowledgment returns an acknowledgment as gateways read it.
func acknowledgment(p *packet) acks.Ack {
	a := acks.Ack{Number: p.seq, Timed: true, Echo: uint32(p.at / time.Millisecond), Count: int(p.blocks)}
	for i, b := range p.sack[:p.blocks] {
		a.Blocks[i] = acks.Block{Start: b.start, End: b.end}
	}
	return a
}

// kindOf returns what matters to a packet of a passenger.
func kindOf(k kind) sched.Kind {
	switch k {
	case data, synACK, established:
		return sched.Bulk
	case ack:
		return sched.Acks
	case syn, probe, reply, cross, tunneled, tunnelProbe, tunnelReply, tunnelRequest:
	}
	return sched.Prompt
}

// enqueue sends a packet on a path, through its queue if it has one. It reports false if the queue
// refuses it.
func (t *carrier) enqueue(s *Sim, i int, e *queued, flow uint32) bool {
	l := &t.lines[i]
	if l.queue == nil {
		t.transmit(s, i, e, t.queues.Wait(i, s.now))
		return true
	}
	if !l.queue.Push(s.now, *e, int(e.size), flow) {
		t.result.Refused++
		return false
	}
	t.drain(s, i)
	if l.paced {
		t.queues.Set(i, s.now, l.queue.Wait(s.now))
	}
	return true
}

// drain sends the packets of a path's queue that are due.
func (t *carrier) drain(s *Sim, i int) {
	for q := t.lines[i].queue; q.Next() <= s.now; {
		e, _, ok := q.Pop(s.now)
		if !ok {
			return
		}
		t.transmit(s, i, &e, q.Line(int(e.size)))
	}
}

// transmit sends a packet on a path.
func (t *carrier) transmit(s *Sim, i int, e *queued, wait time.Duration) {
	l := &t.lines[i]
	l.number++
	stamp := tunnel.Stamp{Distance: e.distance, Copied: e.copied}
	if e.of.end == 0 {
		stamp = t.number.Stamp(e.lane, e.seq, uint8(i), e.copied)
	}
	q := packet{
		kind: tunneled, flow: t.id, hop: t.routes[i], at: s.now, data: uint64(wait), seq: uint32(e.seq),
		length: stamp.Distance, duplicate: stamp.Copied, blocks: uint8(i), window: l.number, dsack: uint16(e.size),
		sack: [maxBlocks]span{laneSpan: {start: uint32(e.lane)}},
	}
	t.count(i, e.size)
	if e.of.end > 0 {
		q.sack[0] = e.of
	} else if l.queue != nil && t.pathSelection.auto {
		l.kept.Put(s.now, uint64(l.number), sent{e.lane, stamp.Copied, stamp.Distance, e.seq, e.size})
	}
	s.launch(&q, e.size)
}

// count counts a packet that is sent on a path.
func (t *carrier) count(i int, size int32) {
	t.result.Sent[i]++
	t.result.SentBytes[i] += uint64(size)
}

// requested retransmits packets that a path has lost, on the path where they arrive first.
func (t *carrier) requested(s *Sim, p *packet) {
	l := &t.lines[p.blocks]
	if l.congested {
		return
	}
	for _, b := range p.sack {
		if b.end == 0 {
			break
		}
		again, ok := l.kept.Take(s.now, uint64(b.start), uint8(p.length))
		if !ok {
			continue
		}
		i := t.queues.First(t.paths, s.now, int(again.size), -1)
		if i < 0 {
			return
		}
		e := &queued{again, span{uint32(p.blocks), b.start}}
		if t.enqueue(s, i, e, retransmissions) {
			t.result.Repaired++
		}
	}
	t.wake(s)
}

// rescue sends what is under way on a path that has died, or waits in front of it, over another
// one.
func (t *carrier) rescue(s *Sim, i int) {
	l := &t.lines[i]
	to := t.queues.First(t.paths, s.now, sched.FullSize, i)
	if to < 0 || !t.pathSelection.auto || l.queue == nil || t.lines[to].queue == nil {
		return
	}
	move := func(e queued) {
		if !t.lines[to].queue.Push(s.now, e, int(e.size), uint32(e.lane)) {
			t.result.Refused++
		}
	}
	for c := l.reported + 1; c <= l.number; c++ {
		if m, ok := l.kept.Take(s.now, uint64(c), 1); ok {
			t.result.Repaired++
			move(queued{sent: sent{lane: m.lane, seq: m.seq, size: m.size}})
		}
	}
	l.queue.Clear(move)
	t.drain(s, to)
}
