package linkmodel

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/base/codel"
	"github.com/tabane/tabane/internal/base/unit"
)

// packet is a frame in the queue.
type packet[F any] struct {
	arrived time.Duration
	size    int32
	other   bool // of Profile.Load, without a frame
	frame   F
}

// Store counts references to frames. An arriving frame has one reference.
type Store[F any] interface {
	Retain(F)
	Release(F)
}

// Marker is a Store whose frames can be ECN-marked. With any other Store no frame is ECN-capable.
type Marker[F any] interface {
	// Mark marks a frame as Congestion Experienced (RFC 3168), and reports whether it is
	// ECN-capable.
	Mark(frame F) bool
}

// Counters are the counters of a pipe.
type Counters struct {
	Arrived, ArrivedBytes uint64
	Duplicated            uint64
	// Tail, RED and CoDel count drops by the queue, by cause.
	Tail, RED, CoDel uint64
	// Lost counts frames lost by the wire.
	Lost uint64
	// Marked counts frames that RED or CoDel marked instead of dropping.
	Marked uint64
}

// Pipe is one direction of a link in virtual time. It has no clock: times are relative to any
// origin, and a time earlier than the latest one is taken as the latest. F is the frame itself or a
// handle of it. A Pipe is not safe for concurrent use.
type Pipe[F any] struct {
	// plain: no loss, duplication, jitter or slots, and a drop-tail queue. Most pipes are plain, and
	// take a fast path, whose fields come first.
	plain bool
	now   time.Duration
	free  time.Duration // when the last frame has been sent at the rate; with a burst it is gone by depth sooner
	depth time.Duration // how long the burst of the profile takes at its rate
	last  time.Duration // latest delivery so far
	line  line
	// Frames on the wire: fly is ordered by time, loose are frames that overtake others.
	fly     ring[Arrival[F]]
	queue   fifo[F]
	counted Counters

	profile  Profile
	loose    flight[F]
	overtook Arrival[F] // last frame delivered from loose
	law      codel.Law  // of the profile's CoDel, with defaults filled in
	frame    unit.Size  // maximum frame size, for CoDel and for the average of RED
	store    Store[F]
	marker   Marker[F] // the store, or nil

	bad      bool // state of Gilbert-Elliott
	early    red
	others   others
	control  codel.State
	losses   *rand.Rand
	copies   *rand.Rand
	jitters  *rand.Rand
	sequence uint64 // number of the next frame in loose
}

// NewPipe returns a pipe. Seed and stream determine all random numbers. Loss, duplication, jitter
// and RED each have a generator, so that changing one does not affect the random numbers of the
// others.
func NewPipe[F any](p Profile, frame unit.Size, seed, stream uint64, s Store[F]) *Pipe[F] {
	generator := func(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream<<8|purpose)) }
	marker, _ := s.(Marker[F])
	return &Pipe[F]{
		plain: p.plain(), profile: p, law: p.Queue.CoDel.law(frame), frame: frame, store: s, marker: marker, line: line{rate: uint64(p.Rate)}, depth: p.depth(),
		losses: generator(1), copies: generator(2), jitters: generator(3),
		early: red{count: -1, random: generator(4)}, others: others{random: generator(5)},
	}
}

// Profile returns the current profile.
func (p *Pipe[F]) Profile() Profile { return p.profile }

// Counted returns the counters.
func (p *Pipe[F]) Counted() Counters { return p.counted }

// Waiting returns the length of the queue in frames and bytes, without the frame being sent.
func (p *Pipe[F]) Waiting() (int, unit.Size) { return p.queue.len(), p.queue.size }

// Least returns the minimum of the time from the arrival of a frame to its delivery.
func (p *Pipe[F]) Least() time.Duration { return p.profile.Least() }

// Overtakes reports whether frames may overtake each other.
func (p *Pipe[F]) Overtakes() bool { return !p.plain && p.profile.Jitter.Reorder }

// Flying returns the number of frames being sent or on the wire.
func (p *Pipe[F]) Flying() int { return p.fly.count + len(p.loose) }

// Set changes the profile at the time now. Frames being sent or on the wire are not affected;
// queued frames stay, even beyond a smaller limit.
func (p *Pipe[F]) Set(now time.Duration, profile Profile) {
	if p.loaded() {
		p.intrude(now)
	}
	p.advance(now)
	if profile.Queue != p.profile.Queue {
		p.law = profile.Queue.CoDel.law(p.frame)
		p.control = codel.State{}
		p.early = red{count: -1, random: p.early.random}
	}
	if profile.Rate != p.profile.Rate {
		p.line = line{rate: uint64(profile.Rate)}
	}
	p.profile, p.plain, p.depth = profile, profile.plain(), profile.depth()
}

// loaded reports whether frames of Profile.Load arrive.
func (p *Pipe[F]) loaded() bool { return !p.plain && p.profile.Load.Rate > 0 }

// plain reports whether the profile has only a rate, a delay and a drop-tail queue.
func (p *Profile) plain() bool {
	return p.Loss.Kind == "" && p.Jitter.Kind == "" && p.Slot == 0 && p.Duplicate == 0 && p.Load.Rate == 0 && (p.Queue.Discipline == "" || p.Queue.Discipline == DisciplineDropTail)
}

// depth returns how long the burst takes at the rate.
func (p *Profile) depth() time.Duration {
	if p.Rate == 0 {
		return 0
	}
	return p.Rate.TimeFor(p.Burst)
}

// starts returns when the next frame may be sent.
func (p *Pipe[F]) starts() time.Duration { return p.free - p.depth }

// Arrive enqueues a frame, or drops it. The frame is copied.
func (p *Pipe[F]) Arrive(at time.Duration, size int32, frame *F) {
	if p.loaded() {
		p.intrude(max(at, p.now))
	}
	if p.queue.len() > 0 {
		p.advance(at)
	}
	at = max(at, p.now)
	p.now = at
	p.counted.Arrived++
	p.counted.ArrivedBytes += uint64(size)
	busy := p.starts() > at || p.queue.len() > 0
	if p.plain && !busy {
		p.launch(size, frame, p.occupy(size, at)+p.profile.Delay)
		return
	}
	q := &p.profile.Queue
	switch {
	case q.Discipline == DisciplineRED && p.early.drop(&q.RED, p.length(q.RED.Min), p.idle()) && (busy && p.full(unit.Size(size)) || !p.mark(*frame)):
		p.counted.RED++
		p.store.Release(*frame)
	case busy && p.full(unit.Size(size)):
		p.counted.Tail++
		p.store.Release(*frame)
	case busy:
		p.queue.push(at, size, frame)
	case q.Discipline == DisciplineCoDel: // CoDel needs every frame to pass the queue
		p.queue.push(at, size, frame)
		p.advance(at)
	default:
		p.send(size, frame, at)
	}
}

// mark marks a frame, and reports whether the queue uses ECN and the frame is ECN-capable.
func (p *Pipe[F]) mark(frame F) bool {
	if !p.profile.Queue.ECN || p.marker == nil || !p.marker.Mark(frame) {
		return false
	}
	p.counted.Marked++
	return true
}

// full reports whether the queue has no room for a frame that arrives now.
func (p *Pipe[F]) full(frame unit.Size) bool {
	switch l := &p.profile.Queue.Limit; {
	case l.Bytes != 0:
		return p.queue.size+frame > l.Bytes
	case l.Packets != 0:
		return p.queue.len() >= l.Packets
	case l.Time != 0:
		return p.wait() > l.Time
	}
	return p.wait() > DefaultQueue
}

// wait returns the queueing delay of a frame that arrives now.
func (p *Pipe[F]) wait() time.Duration {
	w := max(0, p.starts()-p.now)
	if p.profile.Rate > 0 {
		w += p.profile.Rate.TimeFor(p.queue.size)
	}
	return w
}

// length returns the length of the queue in the unit of a limit.
func (p *Pipe[F]) length(in Limit) float64 {
	switch {
	case in.Bytes != 0:
		return float64(p.queue.size)
	case in.Packets != 0:
		return float64(p.queue.len())
	}
	return float64(p.wait())
}

// idle returns how many frames of maximum size could have been sent in the current idle time.
func (p *Pipe[F]) idle() float64 {
	if p.queue.len() > 0 || p.now <= p.free {
		return 0
	}
	if p.profile.Rate == 0 {
		return float64(p.now - p.free) // a frame takes no time: count one per nanosecond
	}
	return float64(p.now-p.free) / float64(p.profile.Rate.TimeFor(p.frame))
}

// advance dequeues and sends frames up to and at the time now.
func (p *Pipe[F]) advance(now time.Duration) {
	for p.queue.len() > 0 {
		t := max(p.starts(), p.queue.head().arrived)
		if t > now {
			break
		}
		if p.profile.Queue.Discipline == DisciplineCoDel {
			if f, ok := codel.Dequeue(&p.control, p.law, t, (*controlled[F])(p)); ok {
				p.sendQueued(&f, t)
			}
			continue
		}
		p.sendQueued(p.queue.drop(), t)
	}
	p.now = max(p.now, now)
}

// sendQueued transmits a frame that has left the queue.
func (p *Pipe[F]) sendQueued(f *packet[F], t time.Duration) {
	if f.other {
		p.occupy(f.size, t)
		return
	}
	p.send(f.size, &f.frame, t)
}

// others is the state of Profile.Load.
type others struct {
	random *rand.Rand
	// next is when the next frame arrives, until is the end of the time in which they are sent.
	next, until time.Duration
}

// intrude has the frames of Profile.Load arrive that do so before or at the time at. It is called
// before the pipe's time advances, so that each arrives at its own time.
func (p *Pipe[F]) intrude(at time.Duration) {
	o, l := &p.others, &p.profile.Load
	for o.next <= at {
		if l.On > 0 && o.next >= o.until {
			o.next += time.Duration(o.random.ExpFloat64() * float64(l.Off))
			o.until = o.next + time.Duration(o.random.ExpFloat64()*float64(l.On)) + 1
			continue
		}
		if p.queue.len() > 0 {
			p.advance(o.next)
		}
		p.now = max(p.now, o.next)
		switch busy := p.starts() > p.now || p.queue.len() > 0; {
		case busy && p.full(p.frame):
		case busy:
			p.queue.pushOther(p.now, int32(p.frame))
		default:
			p.occupy(int32(p.frame), p.now)
		}
		o.next += max(l.Rate.TimeFor(p.frame), 1)
	}
}

// controlled implements codel.Queue for a pipe.
type controlled[F any] Pipe[F]

func (c *controlled[F]) Pop() (packet[F], time.Duration, bool) {
	f, ok := c.queue.pop()
	return f, f.arrived, ok
}

func (c *controlled[F]) Bytes() int { return int(c.queue.size) }

func (c *controlled[F]) Signal(f packet[F]) bool {
	if f.other {
		return false
	}
	if (*Pipe[F])(c).mark(f.frame) {
		return true
	}
	c.counted.CoDel++
	c.store.Release(f.frame)
	return false
}

// send transmits a frame at the time t.
func (p *Pipe[F]) send(size int32, frame *F, t time.Duration) {
	sent := p.occupy(size, t)
	if p.plain {
		p.launch(size, frame, sent+p.profile.Delay)
		return
	}
	if p.lose() {
		p.counted.Lost++
		p.store.Release(*frame)
		return
	}
	p.deliver(size, frame, sent)
	if p.profile.Duplicate > 0 && p.copies.Float64() < p.profile.Duplicate {
		p.counted.Duplicated++
		p.store.Retain(*frame)
		p.deliver(size, frame, sent)
	}
}

// occupy advances free by the transmission time of a frame that starts at the time t, and returns when
// it has been sent.
func (p *Pipe[F]) occupy(size int32, t time.Duration) time.Duration {
	if t > p.free {
		p.line.rest = 0
		p.free = t
	}
	p.free += p.line.send(size)
	return max(t, p.starts())
}

// launch puts a frame on the wire, behind all others: not before these if they were sent before a
// change that shortened the delay.
func (p *Pipe[F]) launch(size int32, frame *F, at time.Duration) {
	if p.fly.full() {
		p.fly.grow()
	}
	p.last = max(p.last, at)
	a := p.fly.push()
	a.At, a.Size = p.last, size
	a.Frame = *frame // by itself, as an assignment of several values copies it twice
}

// lose reports whether the wire loses the next frame, by the random loss model.
func (p *Pipe[F]) lose() bool {
	l := &p.profile.Loss
	switch l.Kind {
	case Random:
		return p.losses.Float64() < l.P
	case GilbertElliott:
		chance, change := l.Good, l.P
		if p.bad {
			chance, change = l.Bad, l.R
		}
		lost := p.losses.Float64() < chance
		if p.losses.Float64() < change {
			p.bad = !p.bad
		}
		return lost
	}
	return false
}

// deliver puts a frame on the wire that has been sent at that time.
func (p *Pipe[F]) deliver(size int32, frame *F, sent time.Duration) {
	delay := p.profile.Delay
	switch amount := float64(p.profile.Jitter.Amount); p.profile.Jitter.Kind {
	case Uniform:
		delay += time.Duration((2*p.jitters.Float64() - 1) * amount)
	case Normal:
		delay = max(0, delay+time.Duration(p.jitters.NormFloat64()*amount))
	case Pareto:
		tail := math.Pow(1-p.jitters.Float64(), -1/paretoShape) - 1 // its mean is 1/(paretoShape-1)
		delay += time.Duration(min(tail*(paretoShape-1)*amount, float64(MaxDelay)))
	}
	at := sent + delay
	if slot := p.profile.Slot; slot > 0 {
		at = (at + slot - 1) / slot * slot
	}
	if !p.profile.Jitter.Reorder {
		at = max(at, p.last)
	}
	if at >= p.last {
		p.launch(size, frame, at)
	} else {
		p.sequence++
		p.loose.push(overtaker[F]{Arrival[F]{At: at, Size: size, Frame: *frame}, p.sequence})
	}
}

// Due returns the next frame to be delivered up to and at the time now, and false when there is
// none. The caller releases it.
func (p *Pipe[F]) Due(now time.Duration) (Arrival[F], bool) {
	if a := p.due(now); a != nil {
		return *a, true
	}
	return Arrival[F]{}, false
}

func (p *Pipe[F]) due(now time.Duration) *Arrival[F] {
	if p.loaded() {
		p.intrude(now)
	}
	if p.queue.len() > 0 {
		p.advance(now)
	} else if now > p.now {
		p.now = now
	}
	// At equal times the frame in fly was sent first: frames put into fly after a frame of
	// loose have a later time.
	if len(p.loose) > 0 && (p.fly.count == 0 || p.loose[0].At < p.fly.head().At) {
		if p.loose[0].At > now {
			return nil
		}
		p.overtook = p.loose.pop()
		return &p.overtook
	}
	if p.fly.count == 0 || p.fly.head().At > now {
		return nil
	}
	return p.fly.drop()
}

// Take calls Due and then Next, without copying the frame. The frame is nil if there is none, and
// valid until the next Arrive.
func (p *Pipe[F]) Take(now time.Duration) (*Arrival[F], time.Duration) {
	if p.loaded() || p.queue.len() > 0 || len(p.loose) > 0 || p.fly.count == 0 || p.fly.head().At > now {
		a := p.due(now)
		return a, p.Next()
	}
	p.now = max(p.now, now)
	a := p.fly.drop()
	if p.fly.count == 0 {
		return a, Never
	}
	return a, p.fly.head().At
}

// Next returns the time of the next delivery, or Never. With CoDel it may be earlier, because CoDel
// may still drop the frame.
func (p *Pipe[F]) Next() time.Duration {
	if p.plain && p.fly.count > 0 && len(p.loose) == 0 {
		return p.fly.head().At // queued frames are delivered after it
	}
	at := Never
	if p.fly.count > 0 {
		at = p.fly.head().At
	}
	if len(p.loose) > 0 {
		at = min(at, p.loose[0].At)
	}
	if p.queue.len() > p.queue.others {
		// Lower bound of the delivery of the first queued frame. CoDel may drop that frame,
		// and the next one may be shorter.
		first := p.starts() + p.profile.Least()
		if p.profile.Queue.Discipline != DisciplineCoDel {
			first += p.line.next(p.queue.head().size)
		}
		at = min(at, first)
	}
	return at
}

// Plain reports whether the pipe has only a rate, a delay and a drop-tail queue.
func (p *Pipe[F]) Plain() bool { return p.plain }

// NextOf is Next for a pipe into which all that another delivers is passed, and nothing else: it
// includes the frames that are still in the other one, and may be too early if these are queued.
// The pipe must be plain, and the other one must deliver frames in order.
func (p *Pipe[F]) NextOf(from *Pipe[F]) time.Duration {
	if at := p.Next(); at != Never {
		return at
	}
	at := from.Next()
	if at == Never {
		return Never
	}
	size := int32(0) // a queued frame may be lost, and the next one shorter
	if from.fly.count > 0 {
		size = from.fly.head().Size
	}
	free, l := p.free, p.line
	if at > free {
		free, l.rest = at, 0
	}
	return max(at, free+l.send(size)-p.depth) + p.profile.Delay
}

// Frames iterates over all frames queued or on the wire.
func (p *Pipe[F]) Frames(yield func(*F) bool) {
	for i := range p.queue.frames.count {
		if f := p.queue.frames.at(i); !f.other && !yield(&f.frame) {
			return
		}
	}
	for i := range p.fly.count {
		if !yield(&p.fly.at(i).Frame) {
			return
		}
	}
	for i := range p.loose {
		if !yield(&p.loose[i].Frame) {
			return
		}
	}
}

// Flush drops all frames queued or on the wire, and returns their number.
func (p *Pipe[F]) Flush() int {
	n := 0
	for f := range p.Frames {
		p.store.Release(*f)
		n++
	}
	p.queue, p.fly, p.loose = fifo[F]{frames: p.queue.frames.empty()}, p.fly.empty(), p.loose[:0]
	return n
}

// line is a transmitter with a rate in bit/s, 0 for unlimited. It carries fractions of a nanosecond
// over to the next frame, so that the mean rate is exact.
type line struct {
	rate uint64
	// rest is the fraction of a nanosecond by which the last frame ended later than returned,
	// in units of 1/rate ns.
	rest uint64
	// Cache: the transmission time of a frame of size is whole plus part/rate ns.
	size  int32
	whole time.Duration
	part  uint64
}

// prepare makes the cache that of a size.
func (l *line) prepare(size int32) {
	if l.size = size; l.rate > 0 {
		bits := uint64(size) * 8 * uint64(time.Second) // no overflow: a size has 31 bits
		l.whole, l.part = time.Duration(bits/l.rate), bits%l.rate
	}
}

// next returns the transmission time of a frame that follows the last one.
func (l *line) next(size int32) time.Duration {
	after := *l
	return after.send(size)
}

// send returns the same as next and carries the fraction over to the next frame.
func (l *line) send(size int32) time.Duration {
	if size != l.size {
		l.prepare(size)
	}
	d := l.whole
	if l.rest += l.part; l.rest >= l.rate && l.rate > 0 {
		l.rest -= l.rate
		d++
	}
	return d
}

// ring is a growing ring buffer.
type ring[T any] struct {
	slots []T // the length is a power of two
	first int
	count int
}

func (r *ring[T]) head() *T { return &r.slots[r.first] }

func (r *ring[T]) at(i int) *T { return &r.slots[(r.first+i)&(len(r.slots)-1)] }

// empty returns the ring without its elements.
func (r *ring[T]) empty() ring[T] { return ring[T]{slots: r.slots} }

// full reports whether push needs more room.
func (r *ring[T]) full() bool { return r.count == len(r.slots) }

// push appends an element and returns it for the caller to fill. The ring must have room. That push
// does not call grow lets the compiler inline it.
func (r *ring[T]) push() *T {
	r.count++
	return r.at(r.count - 1)
}

// minSlots is the initial length of a ring: few, because all are used in turn and should stay in
// the processor's first cache.
const minSlots = 16

// grow doubles the ring.
func (r *ring[T]) grow() {
	slots := make([]T, max(minSlots, 2*len(r.slots)))
	n := copy(slots, r.slots[r.first:])
	copy(slots[n:], r.slots[:r.first])
	r.slots, r.first = slots, 0
}

// drop removes and returns the first element, which is valid until the next push. The ring must not
// be empty.
func (r *ring[T]) drop() *T {
	v := &r.slots[r.first]
	r.first = (r.first + 1) & (len(r.slots) - 1)
	r.count--
	return v
}

// fifo is a queue of frames.
type fifo[F any] struct {
	frames ring[packet[F]]
	size   unit.Size // sum of the frame sizes
	others int       // frames of Profile.Load
}

func (q *fifo[F]) len() int         { return q.frames.count }
func (q *fifo[F]) head() *packet[F] { return q.frames.head() }

func (q *fifo[F]) push(at time.Duration, size int32, frame *F) {
	f := q.add()
	f.arrived, f.size, f.other = at, size, false
	f.frame = *frame
	q.size += unit.Size(size)
}

// pushOther adds a frame of Profile.Load.
func (q *fifo[F]) pushOther(at time.Duration, size int32) {
	*q.add() = packet[F]{arrived: at, size: size, other: true}
	q.size += unit.Size(size)
	q.others++
}

func (q *fifo[F]) add() *packet[F] {
	if q.frames.full() {
		q.frames.grow()
	}
	return q.frames.push()
}

func (q *fifo[F]) drop() *packet[F] {
	f := q.frames.drop()
	q.size -= unit.Size(f.size)
	if f.other {
		q.others--
	}
	return f
}

// pop removes the first frame, and returns false when there is none.
func (q *fifo[F]) pop() (packet[F], bool) {
	if q.frames.count == 0 {
		return packet[F]{}, false
	}
	return *q.drop(), true
}

// Arrival is a frame on the wire.
type Arrival[F any] struct {
	At time.Duration
	// Size and Frame are the arguments of Arrive.
	Size  int32
	Frame F
}

// overtaker is a frame that is delivered before one that was sent earlier.
type overtaker[F any] struct {
	Arrival[F]
	sequence uint64
}

func (a *overtaker[F]) before(b *overtaker[F]) bool {
	return a.At < b.At || a.At == b.At && a.sequence < b.sequence
}

// flight is a heap of frames ordered by delivery time, then by order of sending. container/heap
// would allocate for each frame.
type flight[F any] []overtaker[F]

func (h *flight[F]) push(a overtaker[F]) {
	*h = append(*h, a)
	s := *h
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !a.before(&s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = a
}

func (h *flight[F]) pop() Arrival[F] {
	s := *h
	top := s[0]
	n := len(s) - 1
	*h = s[:n]
	last := &s[n] // it is below the place where it goes
	i := 0
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && s[down+1].before(&s[down]) {
			down++
		}
		if !s[down].before(last) {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = *last
	return top.Arrival
}
