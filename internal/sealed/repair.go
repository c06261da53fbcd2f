package sealed

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/repair"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
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
	if !q.repair || q.copied {
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

// resendLocked sends packets again that a path has lost, as they were, on the path where they
// arrive first. If a full queue on the path has dropped them, the rate of the path is lowered until
// the queue is in front of it, where the senders of the packets notice it; where it cannot be
// lowered they have to notice the losses.
func (r *peer) resendLocked(k *keys, v tunnel.Request, now time.Duration, b *batch) {
	l := &r.links[v.Path]
	if v.Attempt > repair.Attempts || len(v.Counters) > repair.MaxCounters {
		r.plane.counts.drop(dropUnexpected, 1)
		return
	}
	if l.repairs.keys != k || l.rates.capacity.Exhausted() && quality.Congested(l.reports.last.Standing, l.reports.last.Jitter) {
		return
	}
	for _, c := range v.Counters {
		q, ok := l.repairs.kept.Take(now, c, v.Attempt)
		if !ok {
			continue
		}
		i := sched.First(r.scheduling.paths, -1)
		if i < 0 || !r.links[i].ready() {
			return
		}
		to := &r.links[i]
		m := q.message()
		q.refs.Add(1) // it may be displaced before the batch is sent
		b.queued = append(b.queued, q)
		b.add(to.line, udp.Datagram{Data: m, To: to.address.remote, Class: q.class, Fragment: to.exceeds(m)})
		to.sent.add(1, len(m)+ipUDP4)
		if to.shaped {
			to.queue.Charge(now, len(m)+ipUDP4)
			r.scheduling.queues.Set(i, now, to.queue.Wait(now))
		}
		l.repairs.count++
	}
}

// rescueLocked sends packets of auto that are under way on a path that has died, or wait in front
// of it, over another one. A message that was sent as it was would show the peer that the path now
// leads elsewhere, so packets get counters of the other path.
func (r *peer) rescueLocked(b *batch, i int, now time.Duration) {
	l, k := &r.links[i], r.session.sending
	to := sched.First(r.scheduling.paths, i)
	if k == nil || to < 0 || !r.links[to].shaped || !r.links[to].ready() {
		return
	}
	if l.repairs.keys == k {
		for c := max(l.reports.last.Next, k.counters[i]-min(k.counters[i], repair.MostKept)); c < k.counters[i]; c++ {
			q, ok := l.repairs.kept.Take(now, c, repair.Attempts)
			if !ok {
				continue
			}
			m := q.message()
			buf := b.slot(len(m) - tunnel.Overhead)[:len(m)]
			copy(buf, m)
			if _, _, err := k.send.Open(buf); err == nil {
				r.pacing.enqueue(b, to, q, buf[:len(q.buf)], now)
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

// roundTrips returns how long the answer to a request takes at most, and at least.
func (x *links) roundTrips() (most, least time.Duration) {
	most, least = math.MaxInt64, math.MaxInt64
	for i := range x {
		if l := &x[i]; l.probing.alive.Alive() {
			most, least = min(most, l.probing.rtt.RTO(leastAnswer)), min(least, l.probing.rtt.MinRTT)
		}
	}
	return most, least
}

// leastAnswer is the variation that a request allows for at least.
const leastAnswer = 10 * time.Millisecond

// nextRequestLocked returns when a message is to be requested.
func (x *receiving) nextRequestLocked() (at time.Duration, any bool) {
	for i := range x.links {
		if due, missing := x.links[i].gaps.Next(time.Duration(x.requests.roundTrip.Load())); missing && (!any || due < at) {
			at, any = due, true
		}
	}
	return at, any
}

// request asks for the messages that paths have lost, over the two paths with the shortest round trips,
// because requests are lost too.
func (r *peer) request(b *batch, now time.Duration) {
	x := &r.rx
	if at := x.requests.due.Load(); at == 0 || time.Duration(at) > now {
		return
	}
	for i := range x.links {
		for {
			x.Lock()
			l := &x.links[i]
			k := l.keys
			q, any := l.gaps.Due(now, time.Duration(x.requests.roundTrip.Load()), x.requests.counters)
			x.requests.counters = q.Counters
			var body []byte
			if any {
				body = tunnel.AppendRecord(nil, tunnel.Request{Path: uint8(i), Attempt: q.Attempt, Counters: q.Counters})
			}
			x.Unlock()
			if !any {
				break
			}
			r.ask(b, k, body, now)
		}
	}
}

// ask sends a request.
func (r *peer) ask(b *batch, k *keys, body []byte, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k != r.session.sending {
		return
	}
	first, second := -1, -1
	for i := range r.links {
		l := &r.links[i]
		switch {
		case !l.ready() || !l.probing.alive.Alive():
		case first < 0 || l.probing.rtt.SRTT < r.links[first].probing.rtt.SRTT:
			first, second = i, first
		case second < 0 || l.probing.rtt.SRTT < r.links[second].probing.rtt.SRTT:
			second = i
		}
	}
	for _, i := range [...]int{first, second} {
		if i >= 0 {
			r.messages.sendRecords(b, k, i, body, 0, now)
		}
	}
	b.flush()
}
