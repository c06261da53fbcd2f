// Package pacer keeps the queue in front of a path: it paces packets a little below the path's
// rate, so that the queue is here and not in a modem, shares the path among flows, and keeps the
// standing queue short. It sends nothing, has no clock and does not look into packets.
package pacer

import (
	"errors"
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/base/codel"
	"github.com/tabane/tabane/internal/base/unit"
)

// Options configure a Queue. Zero values are the defaults.
type Options[P any] struct {
	// Mark marks a packet as Congestion Experienced (RFC 3168), and reports whether it is
	// ECN-capable. nil: no packet is.
	Mark func(P) bool
	// Drop is called for each packet that Push accepted and that is dropped later.
	Drop func(P)
	// Target is the acceptable standing delay, and Interval a usual round-trip time. Default: 20
	// ms and 100 ms.
	Target, Interval time.Duration
	// Quantum is how many bytes a flow sends in its turn, usually the size of a full packet.
	// Default: 1514.
	Quantum int
	// Flows is the number of flow queues. Default: 256, the number of lanes of a tunnel, so that
	// the packets of a lane stay in order.
	Flows int
	// Limit and MaxBytes bound the queue, in packets and in bytes, and MaxWait in time at the
	// pacing rate, of which at least 40 quanta and a round-trip time are allowed. Default: 8192, 8
	// MiB and 100 ms.
	Limit, MaxBytes int
	MaxWait         time.Duration
	// Signals are shared with the queues of other paths that the same flows use. nil: the queue has
	// its own.
	Signals *Signals
	// Burst is how late a packet may be sent without the rate being lost: the granularity of the
	// caller's timer. Default: 2 ms. A packet that waited for its time may be later (maxLate).
	Burst time.Duration
}

const (
	defaultInterval = 100 * time.Millisecond
	defaultQuantum  = 1514
	defaultFlows    = 256
	defaultLimit    = 8192
	defaultBytes    = 8 << 20
	// maxLate is how late a packet that waited for its time may be sent without the rate being
	// lost. On a busy machine the caller gets a processor so late at times; what follows is a burst
	// of as much, which the queue of any modem holds.
	maxLate = 10 * time.Millisecond
)

// The constants of the queue's law, which only Constants lets an experiment change.
var (
	defaultTarget  = 20 * time.Millisecond
	defaultMaxWait = 100 * time.Millisecond
	defaultBurst   = 2 * time.Millisecond
	// mostLag is by how much later packets arrive at most on another path of the same rate that is
	// used too.
	mostLag = 150 * time.Millisecond
	// minQuanta is how many quanta a queue holds at any rate, standingQuanta how many may stay in
	// it. From signalQuanta on, congestion is signaled at once.
	minQuanta, signalQuanta, standingQuanta = 40, 15, 12
	// signalQuarters: on faster paths congestion is signaled at once from as many quarters of
	// MaxWait on.
	signalQuarters time.Duration = 3
	// pacingPercent is the share of the path's rate that packets are paced to. What a modem's queue
	// holds when shaping begins drains with the rest.
	pacingPercent unit.Bandwidth = 97
	// maxStanding bounds the time of standing packets.
	maxStanding = 400 * time.Millisecond
	// maxStops bounds how often the time to the next signal doubles: a path of 60 ms is idle for 2
	// % of the time.
	maxStops = 4
)

// MostLag is the bound of sched.Lag for the queues of a gateway.
func MostLag() time.Duration { return mostLag }

// Constants returns the constants of the queue's law, each with the value that removes it.
func Constants() []ablation.Constant {
	return []ablation.Constant{
		ablation.Duration("target", &defaultTarget, 0),
		ablation.Duration("maxWait", &defaultMaxWait, 0),
		ablation.Duration("pacingBurst", &defaultBurst, 0),
		ablation.Duration("mostLag", &mostLag, 0),
		ablation.Integer("minQuanta", &minQuanta, 0),
		ablation.Integer("signalQuanta", &signalQuanta, 0),
		ablation.Integer("standingQuanta", &standingQuanta, 0),
		ablation.Integer("signalQuarters", &signalQuarters, 4),
		ablation.Integer("pacingPercent", &pacingPercent, 100),
		ablation.Duration("maxStanding", &maxStanding, 0),
		ablation.Integer("maxStops", &maxStops, 0),
	}
}

// Never is later than all times.
const Never = time.Duration(math.MaxInt64)

// Counters count packets.
type Counters struct {
	// Pushed were accepted and Sent were returned by Pop.
	Pushed, Sent uint64
	// Refused were not accepted because of congestion, Full because their flow filled the queue.
	Refused, Full uint64
	// Evicted were dropped to make room for packets of other flows.
	Evicted uint64
	// Marked were marked as Congestion Experienced.
	Marked uint64
	// Replaced were replaced by another packet.
	Replaced uint64
}

// Queue is the queue of a path: flow queues served by deficit round robin, flows that send little
// first, and CoDel for each (FQ-CoDel, RFC 8290).
//
// It differs from RFC 8290 in what is dropped. The packets of a tunnel have their sequence numbers
// when they are queued, and a missing number holds the following packets at the receiver until it
// is given up. So where CoDel would drop a packet that is not ECN-capable, the packet is sent and
// the next one of its flow is refused, before it has a number. The signal is late by the standing
// queue, which is about the target. A flow that fills the whole queue is refused further packets,
// too; packets are evicted only to make room for another flow.
//
// Nor does it wait for an interval where the queue of a flow is so long that it would be full by
// then: on a slow path, a packet has waited for the target when many more have arrived, and TCP
// that loses them all at once recovers for seconds. One packet is refused at once, or marked.
//
// A signal shows its effect a round trip later, and TCP takes another one for its reduction. In
// this time no further packet of the flow is signaled, on no path that it uses (Signals): TCP would
// reduce its rate for each.
//
// Nor are all signals of use. A sender that is limited by its send buffer or by the receive window,
// as BBR is at high rates, stops at a loss until it is repaired, and then sends as much as before:
// a signal leaves the path idle for a round trip, and the queue as long as it was. Each that does
// so doubles the time to the next one of that flow.
//
// It is not safe for concurrent use. In steady state it does not allocate.
type Queue[P any] struct {
	o        Options[P]
	law      codel.Law
	lag      time.Duration  // what the target is longer by
	rtt      time.Duration  // of the path
	rate     unit.Bandwidth // that is paced to; 0: not at all
	last     transmission
	maxBytes int           // bytes
	early    int           // bytes of a flow from which on congestion is signaled at once
	free     time.Duration // when the next packet may be sent
	flows    []flow
	fresh    turn // flows that send little
	old      turn
	serving  *flow // by codel
	// servingAt is the number of that flow, now the time of the call.
	servingAt int32
	now       time.Duration
	nodes     []node[P]
	unused    int32 // first of the list of unused nodes
	packets   int
	bytes     int
	busy      int // flows that have packets
	large     int // packets of half a quantum or more
	counted   Counters
}

// transmission is how long the last packet takes at the pacing rate: the next one usually has the
// same size, and each would cost a division.
type transmission struct {
	size int
	time time.Duration
}

// node is a queued packet; next is the following one of its flow, or of the unused ones.
type node[P any] struct {
	packet  P
	arrived time.Duration
	size    int32
	next    int32
}

// flow is a flow queue.
type flow struct {
	first, last int32 // nodes
	packets     int32
	deficit     int32
	bytes       int
	next        int32 // of the turn
	queued      bool  // in a turn
	owed        int   // packets to be refused
	control     codel.State
}

const noIndex = -1

// turn is a list of flows.
type turn struct{ first, last int32 }

// New returns an empty queue that does not pace: see Set.
func New[P any](o Options[P]) (*Queue[P], error) {
	for _, d := range []struct {
		value *time.Duration
		none  time.Duration
	}{{&o.Target, defaultTarget}, {&o.Interval, defaultInterval}, {&o.MaxWait, defaultMaxWait}, {&o.Burst, defaultBurst}} {
		if *d.value == 0 {
			*d.value = d.none
		}
	}
	for _, d := range []struct {
		value *int
		none  int
	}{{&o.Quantum, defaultQuantum}, {&o.Flows, defaultFlows}, {&o.Limit, defaultLimit}, {&o.MaxBytes, defaultBytes}} {
		if *d.value == 0 {
			*d.value = d.none
		}
	}
	if o.Target < 0 || o.Interval <= o.Target || o.MaxWait < 0 || o.Burst < 0 {
		return nil, errors.New("make queue: times must be positive, and target less than interval")
	}
	if o.Quantum < 0 || o.Quantum > math.MaxInt16 || o.Flows < 0 || o.Flows > math.MaxInt16 || o.Limit < 0 || o.Limit > math.MaxInt32 || o.MaxBytes < 0 {
		return nil, errors.New("make queue: quantum, flows, limit and bytes must be positive, quantum and flows at most 32767")
	}
	if o.Signals == nil {
		o.Signals = new(Signals)
	}
	if len(o.Signals.flows) < o.Flows {
		o.Signals.flows = make([]signaled, o.Flows)
	}
	q := &Queue[P]{o: o, law: codel.Law{Target: o.Target, Interval: o.Interval, Frame: o.Quantum}, flows: make([]flow, o.Flows), unused: noIndex}
	q.fresh, q.old = turn{noIndex, noIndex}, turn{noIndex, noIndex}
	q.Set(0)
	return q, nil
}

// Set sets the rate of the path, in bytes as Push has them. Packets are paced to 0.97 of it; 0 does
// not pace.
func (q *Queue[P]) Set(rate unit.Bandwidth) {
	q.rate, q.last = rate/100*pacingPercent, transmission{}
	q.setLaw()
}

// bound sets the largest number of bytes.
func (q *Queue[P]) bound() {
	q.maxBytes, q.early = q.o.MaxBytes, q.o.MaxBytes
	if q.rate > 0 {
		wait := max(q.o.MaxWait, q.rtt)
		q.maxBytes = int(min(unit.Size(q.maxBytes), max(q.rate.SizeIn(wait+q.law.Target-q.o.Target), unit.Size(minQuanta*q.o.Quantum))))
		q.early = int(min(unit.Size(q.maxBytes), max(q.rate.SizeIn(wait/4*signalQuarters), unit.Size(signalQuanta*q.o.Quantum))+q.rate.SizeIn(q.lag)))
	}
}

// SetLag sets by how much later packets arrive on the latest other path in use, as sched.Lag bounds
// it. This one has to be busy for longer before the other is used, so the target and MaxWait are
// one and a half times that longer: TCP fills the queue to the target at its peaks only. The
// interval is at least twice the target.
func (q *Queue[P]) SetLag(lag time.Duration) {
	q.lag = max(lag, 0) * 3 / 2
	q.setLaw()
}

// SetRTT sets the round-trip time of the path, of which a second counts at most. A signal shows its
// effect only after it: the interval is at least as long (RFC 8289, section 4.3), and the target a
// tenth of that (section 4.4: 5 to 10 % of the interval), or the queue of a path of half a second
// would run dry.
func (q *Queue[P]) SetRTT(rtt time.Duration) {
	q.rtt = min(max(rtt, 0), maxRTT)
	q.setLaw()
}

// maxRTT bounds Queue.rtt: what is longer is a queue.
const maxRTT = time.Second

// setLaw sets target and interval. On a slow path the target is the time of standing packets, at
// most maxStanding: one TCP connection does not fill a path with fewer.
func (q *Queue[P]) setLaw() {
	interval := max(q.o.Interval, q.rtt)
	q.law.Target = max(q.o.Target, q.rtt/10, min(q.Line(standingQuanta*q.o.Quantum), maxStanding)) + q.lag
	q.law.Interval = max(interval, 2*q.law.Target)
	q.bound()
}

// Counted returns the counters.
func (q *Queue[P]) Counted() Counters { return q.counted }

// Len returns the number of packets in the queue, Bytes their size.
func (q *Queue[P]) Len() int   { return q.packets }
func (q *Queue[P]) Bytes() int { return q.bytes }

// Wait returns the time until all packets in the queue have been sent at the pacing rate, which is
// 0 without one. It is what a packet of a busy flow waits that is pushed now (sched.Queues.Set).
func (q *Queue[P]) Wait(now time.Duration) time.Duration {
	if q.rate == 0 {
		return 0
	}
	return max(0, q.free-now) + q.rate.TimeFor(unit.Size(q.bytes))
}

// WaitOf returns the time until a packet of a flow has left the queue that is pushed now. Flows are
// served in turn, so each that has packets sends as much meanwhile as this one has in the queue.
func (q *Queue[P]) WaitOf(now time.Duration, flow uint32) time.Duration {
	if q.rate == 0 {
		return 0
	}
	own := q.flows[flow%uint32(len(q.flows))].bytes * q.busy
	return max(0, q.free-now) + q.rate.TimeFor(unit.Size(min(own, q.bytes)))
}

// Waits reports whether packets of a flow are in the queue.
func (q *Queue[P]) Waits(flow uint32) bool { return q.flows[flow%uint32(len(q.flows))].packets > 0 }

// Line returns the transmission time of size bytes at the pacing rate, 0 without one.
func (q *Queue[P]) Line(size int) time.Duration {
	if q.rate == 0 {
		return 0
	}
	if size != q.last.size {
		q.last = transmission{size, q.rate.TimeFor(unit.Size(size))}
	}
	return q.last.time
}

// Push queues a packet of size bytes, or returns false: the packet is to be dropped, because its
// flow sends too much. flow is any number; packets with the same one stay in order.
func (q *Queue[P]) Push(now time.Duration, p P, size int, flow uint32) bool {
	at := int32(flow % uint32(len(q.flows)))
	f := &q.flows[at]
	if f.owed > 0 {
		f.owed--
		q.counted.Refused++
		return false
	}
	size = max(size, 0)
	if f.bytes+size > q.early && q.signal(now, at) {
		if q.o.Mark == nil || !q.o.Mark(p) {
			q.counted.Refused++
			return false
		}
		q.counted.Marked++
	}
	for q.packets >= q.o.Limit || q.bytes+size > q.maxBytes {
		fattest := q.fattest()
		if fattest == noIndex || fattest == at || f.bytes >= q.flows[fattest].bytes {
			q.counted.Full++
			return false
		}
		q.evict(fattest)
	}
	if q.packets == 0 {
		// What an empty queue could have sent before would come at once, and a modem may have room
		// for ten packets.
		q.free = max(q.free, now)
	}
	i := q.node()
	n := &q.nodes[i]
	n.packet, n.arrived, n.size, n.next = p, now, int32(size), noIndex
	if f.packets == 0 {
		f.first = i
		q.busy++
	} else {
		q.nodes[f.last].next = i
	}
	f.last = i
	f.packets++
	f.bytes += size
	q.packets++
	q.bytes += size
	q.large += q.isLarge(size)
	q.o.Signals.flows[at].packets++
	q.counted.Pushed++
	if !f.queued {
		f.queued, f.deficit = true, int32(q.o.Quantum)
		q.enqueue(&q.fresh, at)
	}
	return true
}

// Beside returns the last packet of a flow in the queue if packets of half a quantum or more wait
// there too: what it takes of the path is taken from data.
func (q *Queue[P]) Beside(flow uint32) (p P, ok bool) {
	f := &q.flows[flow%uint32(len(q.flows))]
	if f.packets == 0 || q.large == 0 {
		return p, false
	}
	return q.nodes[f.last].packet, true
}

// Replace replaces the last packet of a flow, which Beside has returned, by one of size bytes. It
// takes its place, and Drop is not called.
func (q *Queue[P]) Replace(p P, size int, flow uint32) {
	f := &q.flows[flow%uint32(len(q.flows))]
	n := &q.nodes[f.last]
	f.bytes += size - int(n.size)
	q.bytes += size - int(n.size)
	q.large += q.isLarge(size) - q.isLarge(int(n.size))
	n.packet, n.size = p, int32(size)
	q.counted.Replaced++
}

// isLarge returns 1 for a size of half a quantum or more, else 0.
func (q *Queue[P]) isLarge(size int) int {
	if size >= q.o.Quantum/2 {
		return 1
	}
	return 0
}

// Charge accounts for a packet that is sent without having been in the queue: those in it are sent
// later.
func (q *Queue[P]) Charge(now time.Duration, size int) { q.charge(now, size, q.o.Burst) }

// charge is Charge for a packet that is sent late by at most a time that is not lost.
func (q *Queue[P]) charge(now time.Duration, size int, late time.Duration) {
	if q.rate != 0 {
		q.free = max(q.free, now-late) + q.Line(size)
	}
}

// Next returns the time from which Pop returns a packet: Never while the queue is empty.
func (q *Queue[P]) Next() time.Duration {
	if q.packets == 0 {
		return Never
	}
	return q.free
}

// Pop removes and returns the packet to be sent at the time now, with its size, and false if none
// may be sent yet.
func (q *Queue[P]) Pop(now time.Duration) (p P, size int, ok bool) {
	if q.packets == 0 || q.rate != 0 && q.free > now {
		return p, 0, false
	}
	for {
		list := &q.fresh
		if list.first == noIndex {
			list = &q.old
		}
		at := list.first
		if at == noIndex {
			return p, 0, false
		}
		f := &q.flows[at]
		if f.deficit <= 0 {
			f.deficit += int32(q.o.Quantum)
			q.dequeue(list)
			q.enqueue(&q.old, at)
			continue
		}
		q.serving, q.servingAt, q.now = f, at, now
		i, ok := codel.Dequeue(&f.control, q.law, now, (*served[P])(q))
		if !ok {
			// A flow that was served and became empty waits at the end of the old ones, so that
			// it cannot be first again with its next packet (RFC 8290, section 4.2).
			q.dequeue(list)
			if list == &q.fresh && q.old.first != noIndex {
				q.enqueue(&q.old, at)
			} else {
				f.queued = false
			}
			f.owed = 0
			continue
		}
		n := &q.nodes[i]
		f.deficit -= n.size
		if f.packets == 0 {
			f.owed = 0
		}
		late := q.o.Burst
		if n.arrived <= q.free {
			late = max(late, maxLate)
		}
		q.charge(now, int(n.size), late)
		q.o.Signals.flows[at].sent(now, now-n.arrived >= q.law.Target)
		q.counted.Sent++
		p, size = n.packet, int(n.size)
		q.release(i)
		return p, size, true
	}
}

// Clear removes all packets and passes them to use, those of a flow in order. They do not count as
// sent.
func (q *Queue[P]) Clear(use func(P)) {
	for i := range q.flows {
		for q.flows[i].packets > 0 {
			n := q.first(int32(i))
			p := q.nodes[n].packet
			q.release(n)
			use(p)
		}
	}
}

// served implements codel.Queue for the flow that is served. Its packets are their nodes.
type served[P any] Queue[P]

func (s *served[P]) Pop() (int32, time.Duration, bool) {
	if s.serving.packets == 0 {
		return noIndex, 0, false
	}
	i := (*Queue[P])(s).first(s.servingAt)
	return i, s.nodes[i].arrived, true
}

func (s *served[P]) Bytes() int { return s.serving.bytes }

// Signal marks a packet, or has the next one of its flow refused. The packet is sent in any case.
func (s *served[P]) Signal(i int32) bool {
	q := (*Queue[P])(s)
	if !q.signal(q.now, q.servingAt) {
		return true
	}
	if s.o.Mark != nil && s.o.Mark(s.nodes[i].packet) {
		s.counted.Marked++
	} else {
		s.serving.owed++
	}
	return true
}

// first removes the first packet of a flow that has one. The caller releases its node.
func (q *Queue[P]) first(at int32) int32 {
	f := &q.flows[at]
	i := f.first
	n := &q.nodes[i]
	f.first = n.next
	if f.packets--; f.packets == 0 {
		q.busy--
	}
	f.bytes -= int(n.size)
	q.packets--
	q.bytes -= int(n.size)
	q.large -= q.isLarge(int(n.size))
	q.o.Signals.flows[at].packets--
	return i
}

// release makes a node unused.
func (q *Queue[P]) release(i int32) {
	q.nodes[i] = node[P]{next: q.unused}
	q.unused = i
}

// Signals is what signals do to the flows. It is shared by the queues of several paths, which have
// the same number of flows. The zero value has no signals.
type Signals struct{ flows []signaled }

// signaled is the last signal to a flow, and its effect.
type signaled struct {
	packets  int32         // in all queues
	stops    int           // how many signals in a row stopped the flow, at most mostStops
	stopped  bool          // the last one did
	over     time.Duration // when the next one may be
	effect   time.Duration // how long the last one took to show
	empty    time.Duration // when the queues were empty for the first time after it
	wasEmpty bool
}

// signal reports whether congestion is to be signaled to a flow, and takes it that it is.
func (q *Queue[P]) signal(now time.Duration, flow int32) bool {
	s := &q.o.Signals.flows[flow]
	if now < s.over {
		return false
	}
	if s.stopped {
		s.stops = min(s.stops+1, maxStops)
	} else {
		s.stops = 0
	}
	s.effect = 2 * (q.rtt + q.Wait(now))
	s.over = now + s.effect<<s.stops
	s.stopped, s.wasEmpty = false, false
	return true
}

// sent takes into account that a packet of a flow leaves a queue that has waited for the target or
// not. TCP that reduces its rate and leaves the queues empty takes ten round trips to fill them to
// the target again, which is that of standing packets at least.
func (s *signaled) sent(now time.Duration, late bool) {
	switch {
	case s.wasEmpty:
		s.stopped = s.stopped || late && now < s.empty+s.effect
	case s.packets == 0:
		s.wasEmpty, s.empty = true, now
	}
}

// node returns an unused node.
func (q *Queue[P]) node() int32 {
	if q.unused == noIndex {
		q.nodes = append(q.nodes, node[P]{})
		return int32(len(q.nodes) - 1)
	}
	i := q.unused
	q.unused = q.nodes[i].next
	return i
}

// fattest returns the flow with the most bytes, or noIndex.
func (q *Queue[P]) fattest() int32 {
	at, bytes := int32(noIndex), -1
	for i := range q.flows {
		if f := &q.flows[i]; f.packets > 0 && f.bytes > bytes {
			at, bytes = int32(i), f.bytes
		}
	}
	return at
}

// evict drops the first packet of a flow: the earlier the loss is noticed, the better.
func (q *Queue[P]) evict(at int32) {
	i := q.first(at)
	p := q.nodes[i].packet
	q.release(i)
	q.counted.Evicted++
	if q.o.Drop != nil {
		q.o.Drop(p)
	}
}

// enqueue adds a flow to the end of a turn.
func (q *Queue[P]) enqueue(t *turn, at int32) {
	q.flows[at].next = noIndex
	if t.first == noIndex {
		t.first = at
	} else {
		q.flows[t.last].next = at
	}
	t.last = at
}

// dequeue removes the first flow of a turn.
func (q *Queue[P]) dequeue(t *turn) { t.first = q.flows[t.first].next }
