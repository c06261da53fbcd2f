package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/repair"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// repairs has the packets of auto that were sent on a path, to be sent again when they are lost.
type repairs struct {
	keys  *keys // that counters are of
	kept  repair.Kept[*queued]
	count uint64 // of packets sent again
}

// keepLocked keeps a packet that is about to be sealed for a path.
func (r *peer) keepLocked(b *batch, i int, q *queued, now time.Duration) {
	l := &r.links[i]
	a := &l.repairs
	if a.keys != q.keys {
		a.clear()
		a.keys = q.keys
	}
	if !q.repair {
		return
	}
	q.refs.Add(1)
	if old, full := a.kept.Put(now, q.keys.counters[i], q); full {
		b.queued = append(b.queued, old)
	}
}

// clear forgets all packets.
func (a *repairs) clear() {
	a.kept.Clear((*queued).release)
	a.keys = nil
}

// retransmitLocked retransmits packets that a path has lost on the path where they arrive first. If
// a full queue on the path has dropped them, the rate of the path is lowered until the queue is in
// front of it, where the senders of the packets notice it; where it cannot be lowered they have to
// notice the losses.
func (r *peer) retransmitLocked(k *keys, v tunnel.Request, now time.Duration, b *batch) {
	l := &r.links[v.Path]
	if v.Attempt > repair.Attempts || len(v.Counters) > repair.MaxCounters {
		r.plane.counts.drop(dropUnexpected, 1)
		return
	}
	if l.repairs.keys != k || l.rates.capacity.Exhausted() && quality.Congested(l.reports.last.Standing, l.reports.last.Jitter) {
		return
	}
	for _, c := range v.Counters {
		q, found := l.repairs.kept.Take(now, c, v.Attempt)
		if !found || c >= tunnel.MaxOrigin {
			continue
		}
		buf, stamp, ok := b.openAgain(k, q)
		if !ok {
			continue
		}
		size := len(buf) + tunnel.TagLen + inet.UDP4Len
		i := r.scheduling.queues.First(r.scheduling.paths, now, size, -1)
		if i < 0 || !r.links[i].ready() {
			return
		}
		stamp.Origin = tunnel.Origin{Path: v.Path, Counter: c}
		if r.links[i].shaped {
			// Many at once would overflow the queue of a modem.
			if !r.pacing.enqueue(b, i, &queued{keys: k, lane: q.lane, seq: q.seq, class: q.class, repair: true, again: &stamp}, buf, now) {
				continue
			}
		} else {
			r.sealLocked(b, k, i, buf, tunnel.Retransmission, stamp, q.class, now)
		}
		l.repairs.count++
	}
}

// openAgain returns a copy of a packet that was sealed, with room for the tunnel.
func (b *batch) openAgain(k *keys, q *queued) (buf []byte, stamp tunnel.Stamp, ok bool) {
	m := q.message()
	sealed := b.slot(len(m) - tunnel.Overhead)[:len(m)]
	copy(sealed, m)
	stamp, _, err := k.send.Open(sealed)
	return sealed[:len(q.buf)], stamp, err == nil
}

// rescueLocked sends packets of auto that are under way on a path that has died, or wait in front
// of it, over another one. A message that was sent as it was would show the peer that the path now
// leads elsewhere, so packets get counters of the other path.
func (r *peer) rescueLocked(b *batch, i int, now time.Duration) {
	l, k := &r.links[i], r.session.sending
	to := r.scheduling.queues.First(r.scheduling.paths, now, sched.FullSize, i)
	if k == nil || to < 0 || !r.links[to].shaped || !r.links[to].ready() {
		return
	}
	if l.repairs.keys == k {
		for c := max(l.reports.last.Next, k.counters[i]-min(k.counters[i], repair.MostKept)); c < k.counters[i]; c++ {
			q, ok := l.repairs.kept.Take(now, c, repair.Attempts)
			if !ok {
				continue
			}
			if buf, _, ok := b.openAgain(k, q); ok {
				r.pacing.enqueue(b, to, q, buf, now)
				l.repairs.count++
			}
		}
	}
	if l.queue == nil {
		return
	}
	l.queue.Clear(func(q *queued) {
		if q.repair && q.keys == k {
			r.pacing.enqueue(b, to, q, q.buf, now)
		} else {
			r.plane.counts.drop(dropNoPath, 1)
		}
		queuedPool.Put(q)
	})
}
