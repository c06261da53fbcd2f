package sealed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/acks"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// MaxShaped is the rate up to which a path is shaped. Beyond it no modem's queue is in front of it,
// and copying packets into a queue would limit it.
const MaxShaped = 2 * unit.GbitPerSecond

// queued is a packet in the queue of a path. It has its number in the lane, but no counter yet.
type queued struct {
	keys   *keys
	lane   uint8
	seq    tunnel.Seq
	copied bool
	class  uint8
	// repair: the packet is sent again if it is lost.
	repair bool
	// again is the stamp of a retransmission, nil of others: that of what was lost, with its Origin.
	again *tunnel.Stamp
	// buf is the packet with room for the tunnel, in data.
	buf, data []byte
	// refs counts the batch and the store that the packet is in after it has been sealed.
	refs atomic.Int32
}

// message returns the sealed message.
func (q *queued) message() []byte { return q.data[:len(q.buf)+tunnel.TagLen] }

// release drops a reference.
func (q *queued) release() {
	if q.refs.Add(-1) == 0 {
		queuedPool.Put(q)
	}
}

var queuedPool = sync.Pool{New: func() any { return new(queued) }}

// retransmissions is the flow of retransmissions in the queue of a path: they do not wait behind
// what their own flow has there. Lanes have lower numbers.
const retransmissions = tunnel.Lanes

// enqueue puts a copy of a packet, whose buffer begins with room for the tunnel, into the queue of
// a path. It reports false if the queue refuses it.
func (x *pacing) enqueue(b *batch, i int, like *queued, buf []byte, now time.Duration) bool {
	l := &x.peer.links[i]
	q := queuedPool.Get().(*queued)
	data := q.data
	if n := len(buf) + tunnel.TagLen; cap(data) < n {
		data = make([]byte, max(n, smallBufferLen))
	}
	q.keys, q.lane, q.seq, q.copied, q.class, q.repair, q.again = like.keys, like.lane, like.seq, like.copied, like.class, like.repair, like.again
	q.data, q.buf = data, data[:copy(data[:cap(data)], buf)]
	q.refs.Store(1)
	flow := uint32(q.lane)
	if q.again != nil {
		flow = retransmissions
	}
	if !l.queue.Push(now, q, len(buf)+tunnel.TagLen+inet.UDP4Len, flow) {
		queuedPool.Put(q)
		x.peer.plane.counts.drop(dropQueue, 1)
		return false
	}
	x.drain(b, i, now)
	if l.paced {
		x.peer.scheduling.queues.Set(i, now, l.queue.Wait(now))
	}
	x.peer.plane.paces.set(x.due)
	return true
}

// replace has an acknowledgment, in a buffer as of enqueue, take the place and the number of one
// that it supersedes in the queue of a path. It reports false if there is none.
func (x *pacing) replace(i int, lane uint8, buf []byte) bool {
	l := &x.peer.links[i]
	if !l.shaped {
		return false
	}
	q, ok := l.queue.Beside(uint32(lane))
	if !ok || q.copied || !acks.Supersedes(buf[tunnel.Offset:], q.buf[tunnel.Offset:]) {
		return false
	}
	if n := len(buf) + tunnel.TagLen; cap(q.data) < n {
		q.data = make([]byte, n)
	}
	q.buf = q.data[:copy(q.data[:cap(q.data)], buf)]
	l.queue.Replace(q, len(buf)+tunnel.TagLen+inet.UDP4Len, uint32(lane))
	x.peer.plane.counts.drop(dropSuperseded, 1)
	return true
}

// newShaper returns the queue of a path.
func newShaper(p *Plane, signals *pacer.Signals) *pacer.Queue[*queued] {
	q, err := pacer.New(pacer.Options[*queued]{
		Signals: signals,
		Flows:   retransmissions + 1,
		Mark: func(q *queued) bool {
			class, ok := mark(q.buf[tunnel.Offset:])
			q.class = class
			return ok
		},
		Drop: func(q *queued) {
			p.counts.drop(dropQueue, 1)
			queuedPool.Put(q)
		},
	})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return q
}

// mark marks an ECN-capable packet as Congestion Experienced, and returns its traffic class.
func mark(b []byte) (class uint8, ok bool) {
	var h inet.Header
	if !h.Parse(b) || h.Class&inet.ECNMask == inet.NotECT {
		return h.Class, false
	}
	inet.Decapsulate(inet.CE, b)
	return h.Class | inet.CE, true
}

// drain seals the packets of a path's queue that are due.
func (x *pacing) drain(b *batch, i int, now time.Duration) {
	l := &x.peer.links[i]
	blocked := time.Duration(0)
	for l.queue.Len() > 0 {
		if blocked = l.line.free(); blocked > now {
			break
		}
		q, _, ok := l.queue.Pop(now)
		if !ok {
			break
		}
		k := q.keys
		if x.peer.session.sending == nil || !l.ready() {
			x.peer.plane.counts.drop(dropNoPath, 1)
			queuedPool.Put(q)
			continue
		}
		if q.again != nil {
			x.peer.sealLocked(b, k, i, q.buf, tunnel.Retransmission, *q.again, q.class, now)
		} else {
			stamp := k.number.Stamp(q.lane, q.seq, uint8(i), q.copied)
			x.peer.keepLocked(b, i, q, now)
			x.peer.sealLocked(b, k, i, q.buf, tunnel.Data, stamp, q.class, now)
		}
		b.queued = append(b.queued, q)
	}
	x.due = min(x.due, max(l.queue.Next(), blocked))
}

// pace sends what is due in the queues of the peer, and returns when there is more.
func (r *peer) pace(b *batch, now time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pacing.due > now {
		return r.pacing.due
	}
	r.pacing.due = pacer.Never
	for i := range r.links {
		if q := r.links[i].queue; q != nil && q.Len() > 0 {
			r.pacing.drain(b, i, now)
		}
	}
	b.flush()
	return r.pacing.due
}

// paceStep is the granularity of pacing.
const paceStep = 500 * time.Microsecond

// pace sends the packets of all queues that are due, and returns when there is more.
func (p *Plane) pace(b *batch, now time.Duration) time.Duration {
	next := now + time.Hour
	peers := p.routing.Load().peers
	p.paced++
	for i := range peers { // in turns, because a line with a strict rate is used by the first one
		r := peers[(i+p.paced)%len(peers)]
		r.contain(contain.GatewayTimer, nil, func() { next = min(next, r.pace(b, now)) })
	}
	return max(next, now+paceStep)
}

// pacing is the pace of the queues in front of paths.
type pacing struct {
	peer    *peer
	due     time.Duration // of the next queued packet
	signals pacer.Signals
}
