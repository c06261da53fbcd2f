package channel

import (
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// packet is a frame in the queue.
type packet struct {
	slot    int32 // where its bytes are
	size    int32
	arrived time.Duration
	tag     uint32
}

// Store keeps the bytes of frames. A slot that arrives in a pipe has one reference.
type Store interface {
	Retain(slot int32)
	Release(slot int32)
}

// Marker is a Store whose frames can be marked. Where a Store is none, no frame can.
type Marker interface {
	// Mark tells the receiver of a frame of congestion (RFC 3168), and says whether the frame can be told with.
	Mark(slot int32) bool
}

// Counters are what a pipe counts.
type Counters struct {
	Arrived, ArrivedBytes uint64
	Duplicated            uint64
	// Tail, RED and CoDel are drops of the queue, by cause.
	Tail, RED, CoDel uint64
	// Lost is what the wire lost.
	Lost uint64
	// Marked is what RED or CoDel marked in place of dropping.
	Marked uint64
}

// Pipe is one direction of a link in virtual time: it has no clock. Times count from any start and must not go
// backwards; one that does means the latest time so far.
type Pipe struct {
	// plain: no frame is lost, duplicated or delayed differently than others, and the tail alone is dropped. Most pipes are, and for them
	// there is a short way. What it needs comes first.
	plain bool
	now   time.Duration
	free  time.Duration // when the transmitter is done with the last frame given to it
	last  time.Duration // latest delivery so far
	line  line
	// What is on the wire: fly is in order of time, loose is what overtakes.
	fly     ring[Arrival]
	queue   fifo
	counted Counters

	profile Profile
	loose   flight
	codel   CoDel     // the profile's, with defaults in place
	frame   unit.Size // the largest, for CoDel and for the average of RED
	store   Store
	marker  Marker // the store, or nil

	bad      bool // state of Gilbert-Elliott
	early    red
	control  codel
	losses   *rand.Rand
	copies   *rand.Rand
	jitters  *rand.Rand
	sequence uint64 // of frames in loose
}

// NewPipe makes a pipe. All randomness comes from seed and stream; what is random in different ways draws from
// different generators, so that a change of the one does not change the other.
func NewPipe(p Profile, frame unit.Size, seed, stream uint64, s Store) *Pipe {
	generator := func(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream<<8|purpose)) }
	marker, _ := s.(Marker)
	return &Pipe{
		plain: p.plain(), profile: p, codel: p.Queue.CoDel.filled(), frame: frame, store: s, marker: marker, line: line{rate: uint64(p.Rate)},
		losses: generator(1), copies: generator(2), jitters: generator(3),
		early: red{count: -1, random: generator(4)},
	}
}

// Profile is in force now.
func (p *Pipe) Profile() Profile { return p.profile }

// Counted is what happened since the pipe was made.
func (p *Pipe) Counted() Counters { return p.counted }

// Waiting is how many frames, and how much, wait in the queue, without the frame that is being sent.
func (p *Pipe) Waiting() (int, unit.Size) { return p.queue.len(), p.queue.size }

// Least is the shortest time from the arrival of a frame to its delivery.
func (p *Pipe) Least() time.Duration { return p.profile.Least() }

// Overtakes says whether a frame may be delivered before one that came earlier.
func (p *Pipe) Overtakes() bool { return !p.plain && p.profile.Jitter.Reorder }

// Duplicates says whether a frame that is delivered may have a copy: whether any was duplicated since the pipe was made.
func (p *Pipe) Duplicates() bool { return p.counted.Duplicated > 0 }

// Flying is how many frames are being sent or on the wire.
func (p *Pipe) Flying() int { return p.fly.count + len(p.loose) }

// Set changes the profile at the time now. A frame that is being sent or on the wire keeps what it was given; frames
// that wait stay, even beyond a smaller limit.
func (p *Pipe) Set(now time.Duration, profile Profile) {
	p.advance(now)
	if profile.Queue != p.profile.Queue {
		p.codel = profile.Queue.CoDel.filled()
		p.control = codel{}
		p.early = red{count: -1, random: p.early.random}
	}
	if profile.Rate != p.profile.Rate {
		p.line = line{rate: uint64(profile.Rate)}
	}
	p.profile, p.plain = profile, profile.plain()
}

// plain says whether nothing but rate, delay and a drop-tail queue is in it.
func (p *Profile) plain() bool {
	return p.Loss.Kind == "" && p.Jitter.Kind == "" && p.Duplicate == 0 && (p.Queue.Discipline == "" || p.Queue.Discipline == DropTail)
}

// Arrive takes a frame.
func (p *Pipe) Arrive(at time.Duration, size int32, slot int32) { p.ArriveTagged(at, size, slot, 0) }

// ArriveTagged takes a frame with a tag, which comes back with it: who has many frames on the way need not look at one to know what
// to do with it.
func (p *Pipe) ArriveTagged(at time.Duration, size int32, slot int32, tag uint32) {
	if p.queue.len() > 0 {
		p.advance(at)
	}
	at = max(at, p.now)
	p.now = at
	p.counted.Arrived++
	p.counted.ArrivedBytes += uint64(size)
	busy := p.free > at || p.queue.len() > 0
	if p.plain && !busy {
		p.transmit(size, slot, tag, at)
		return
	}
	q := &p.profile.Queue
	switch {
	case q.Discipline == EarlyDrop && p.early.drop(&q.RED, p.length(q.RED.Min), p.idle()) && (busy && p.full(unit.Size(size)) || !p.mark(slot)):
		p.counted.RED++
		p.store.Release(slot)
	case busy && p.full(unit.Size(size)):
		p.counted.Tail++
		p.store.Release(slot)
	case busy:
		p.queue.push(packet{slot: slot, size: size, arrived: at, tag: tag})
	case q.Discipline == ControlledDelay: // its state follows every frame
		p.queue.push(packet{slot: slot, size: size, arrived: at, tag: tag})
		p.advance(at)
	default:
		p.send(packet{slot: slot, size: size, arrived: at, tag: tag}, at)
	}
}

// mark tells of congestion by a frame that stays, where the queue is to and the frame can.
func (p *Pipe) mark(slot int32) bool {
	if !p.profile.Queue.ECN || p.marker == nil || !p.marker.Mark(slot) {
		return false
	}
	p.counted.Marked++
	return true
}

// full says whether there is no room for a frame that arrives now.
func (p *Pipe) full(frame unit.Size) bool {
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

// wait is how long a frame that arrives now waits until it is sent.
func (p *Pipe) wait() time.Duration {
	w := max(0, p.free-p.now)
	if p.profile.Rate > 0 {
		w += p.profile.Rate.TimeFor(p.queue.size)
	}
	return w
}

// length is that of the queue in the unit of a limit.
func (p *Pipe) length(in Limit) float64 {
	switch {
	case in.Bytes != 0:
		return float64(p.queue.size)
	case in.Packets != 0:
		return float64(p.queue.len())
	}
	return float64(p.wait())
}

// idle is how many of the largest frames could have been sent since there was nothing to send.
func (p *Pipe) idle() float64 {
	if p.queue.len() > 0 || p.now <= p.free {
		return 0
	}
	if p.profile.Rate == 0 {
		return float64(p.now - p.free) // a frame takes no time; count one each nanosecond
	}
	return float64(p.now-p.free) / float64(p.profile.Rate.TimeFor(p.frame))
}

// advance does what happens until and at the time now: frames whose turn comes leave the queue.
func (p *Pipe) advance(now time.Duration) {
	for p.queue.len() > 0 {
		t := max(p.free, p.queue.head().arrived)
		if t > now {
			break
		}
		if p.profile.Queue.Discipline == ControlledDelay {
			if f, ok := p.control.dequeue(p.codel, p.frame, t, (*controlled)(p)); ok {
				p.send(f, t)
			}
			continue
		}
		f, _ := p.queue.pop()
		p.send(f, t)
	}
	p.now = max(p.now, now)
}

// controlled is a pipe as CoDel sees it.
type controlled Pipe

func (c *controlled) pop() (packet, bool) { return c.queue.pop() }
func (c *controlled) bytes() unit.Size    { return c.queue.size }
func (c *controlled) signal(f packet) bool {
	if (*Pipe)(c).mark(f.slot) {
		return true
	}
	c.counted.CoDel++
	c.store.Release(f.slot)
	return false
}

// send gives a frame to the transmitter at the time t and, from there, to the wire.
func (p *Pipe) send(f packet, t time.Duration) {
	if p.plain {
		p.transmit(f.size, f.slot, f.tag, t)
		return
	}
	p.occupy(f.size, t)
	if p.lose() {
		p.counted.Lost++
		p.store.Release(f.slot)
		return
	}
	p.deliver(f)
	if p.profile.Duplicate > 0 && p.copies.Float64() < p.profile.Duplicate {
		p.counted.Duplicated++
		p.store.Retain(f.slot)
		p.deliver(f)
	}
}

// occupy is the transmitter's part of sending.
func (p *Pipe) occupy(size int32, t time.Duration) {
	if t > p.free {
		p.line.rest = 0
	}
	p.free = t + p.line.send(size)
}

// transmit is send in a plain pipe.
func (p *Pipe) transmit(size, slot int32, tag uint32, t time.Duration) {
	p.occupy(size, t)
	// After a change that shortens the delay frames stay in order.
	p.last = max(p.last, p.free+p.profile.Delay)
	p.fly.push(Arrival{At: p.last, Slot: slot, Size: size, Tag: tag})
}

// lose draws the fate of a frame on the wire.
func (p *Pipe) lose() bool {
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

// deliver puts a frame on the wire that the transmitter is done with at p.free.
func (p *Pipe) deliver(f packet) {
	delay := p.profile.Delay
	switch amount := float64(p.profile.Jitter.Amount); p.profile.Jitter.Kind {
	case Uniform:
		delay += time.Duration((2*p.jitters.Float64() - 1) * amount)
	case Normal:
		delay = max(0, delay+time.Duration(p.jitters.NormFloat64()*amount))
	}
	at := p.free + delay
	if !p.profile.Jitter.Reorder {
		at = max(at, p.last)
	}
	a := Arrival{At: at, Slot: f.slot, Size: f.size, Tag: f.tag}
	if at >= p.last {
		p.last = at
		p.fly.push(a)
	} else {
		p.sequence++
		p.loose.push(overtaker{a, p.sequence})
	}
}

// Due takes the next frame that is to be delivered until and at the time now, and false when there is none. The caller
// releases its slot.
func (p *Pipe) Due(now time.Duration) (Arrival, bool) {
	if p.queue.len() > 0 {
		p.advance(now)
	} else if now > p.now {
		p.now = now
	}
	// Of the same time, what is in order was sent before what overtakes: for that to overtake, something later was sent before it.
	if len(p.loose) > 0 && (p.fly.count == 0 || p.loose[0].At < p.fly.head().At) {
		if p.loose[0].At > now {
			return Arrival{}, false
		}
		return p.loose.pop(), true
	}
	if p.fly.count == 0 || p.fly.head().At > now {
		return Arrival{}, false
	}
	return p.fly.pop(), true
}

// Take is Due and then Next.
func (p *Pipe) Take(now time.Duration) (a Arrival, ok bool, next time.Duration) {
	if !p.plain || p.queue.len() > 0 || len(p.loose) > 0 || p.fly.count == 0 || p.fly.head().At > now {
		a, ok = p.Due(now)
		return a, ok, p.Next()
	}
	p.now = max(p.now, now)
	a = p.fly.pop()
	if p.fly.count == 0 {
		return a, true, Never
	}
	return a, true, p.fly.head().At
}

// Next is the time at which due has something, or a little earlier when CoDel may still drop; Never when there is
// nothing.
func (p *Pipe) Next() time.Duration {
	if p.plain && p.fly.count > 0 && len(p.loose) == 0 {
		return p.fly.head().At // what waits comes after it
	}
	at := Never
	if p.fly.count > 0 {
		at = p.fly.head().At
	}
	if len(p.loose) > 0 {
		at = min(at, p.loose[0].At)
	}
	if p.queue.len() > 0 {
		// The first that waits cannot be delivered before this. CoDel may drop it, and the second be shorter.
		first := p.free + p.profile.Least()
		if p.profile.Queue.Discipline != ControlledDelay {
			first += p.line.next(p.queue.head().size)
		}
		at = min(at, first)
	}
	return at
}

// Flush ends all frames that wait or are on the wire, and says how many there were.
func (p *Pipe) Flush() int {
	n := p.queue.len() + p.Flying()
	for p.queue.len() > 0 {
		f, _ := p.queue.pop()
		p.store.Release(f.slot)
	}
	for p.fly.count > 0 {
		p.store.Release(p.fly.pop().Slot)
	}
	for _, a := range p.loose {
		p.store.Release(a.Slot)
	}
	p.loose = p.loose[:0]
	return n
}

// line is a transmitter of a rate in bit/s, 0 for unlimited. It carries over what is left of a nanosecond from one frame to the
// next, so that the rate is exact in the long run.
type line struct {
	rate uint64
	// rest is by how much the end of the last frame is later than the nanosecond that was told, in parts of 1/rate ns.
	rest uint64
	// The time of a frame of the size is whole, and part in parts of 1/rate ns.
	size  int32
	whole time.Duration
	part  uint64
}

// next is how long a frame takes if it follows the last one.
func (l *line) next(size int32) time.Duration {
	if l.rate == 0 {
		return 0
	}
	if size != l.size {
		bits := uint64(size) * 8 * uint64(time.Second) // less than 2^64: a size has 31 bits
		l.size, l.whole, l.part = size, time.Duration(bits/l.rate), bits%l.rate
	}
	if l.rest+l.part >= l.rate {
		return l.whole + 1
	}
	return l.whole
}

// send is next, and takes the frame.
func (l *line) send(size int32) time.Duration {
	d := l.next(size)
	if l.rate == 0 {
		return d
	}
	if l.rest += l.part; l.rest >= l.rate {
		l.rest -= l.rate
	}
	return d
}

// ring is a queue that grows.
type ring[T any] struct {
	slots []T // its length is a power of two
	first int
	count int
}

func (r *ring[T]) head() *T { return &r.slots[r.first] }

func (r *ring[T]) push(v T) {
	if r.count == len(r.slots) {
		r.grow()
	}
	r.slots[(r.first+r.count)&(len(r.slots)-1)] = v
	r.count++
}

func (r *ring[T]) grow() {
	slots := make([]T, max(64, 2*len(r.slots)))
	n := copy(slots, r.slots[r.first:])
	copy(slots[n:], r.slots[:r.first])
	r.slots, r.first = slots, 0
}

// pop takes the first; there is one.
func (r *ring[T]) pop() T {
	v := r.slots[r.first]
	r.first = (r.first + 1) & (len(r.slots) - 1)
	r.count--
	return v
}

// fifo is a queue of frames.
type fifo struct {
	frames ring[packet]
	size   unit.Size // of the frames
}

func (q *fifo) len() int      { return q.frames.count }
func (q *fifo) head() *packet { return q.frames.head() }

func (q *fifo) push(f packet) {
	q.frames.push(f)
	q.size += unit.Size(f.size)
}

func (q *fifo) pop() (packet, bool) {
	if q.frames.count == 0 {
		return packet{}, false
	}
	f := q.frames.pop()
	q.size -= unit.Size(f.size)
	return f, true
}

// Arrival is a frame on the wire.
type Arrival struct {
	At time.Duration
	// Slot, Size and Tag are as the frame arrived with.
	Slot, Size int32
	Tag        uint32
}

// overtaker is a frame that is delivered before one that was sent earlier.
type overtaker struct {
	Arrival
	sequence uint64
}

func (a *overtaker) before(b *overtaker) bool {
	return a.At < b.At || a.At == b.At && a.sequence < b.sequence
}

// flight is a heap of frames by their time, those of the same time in the order in which they were sent. container/heap would allocate for
// each frame.
type flight []overtaker

func (h *flight) push(a overtaker) {
	*h = append(*h, a)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].before(&s[up]) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func (h *flight) pop() Arrival {
	s := *h
	top := s[0]
	n := len(s) - 1
	s[0] = s[n]
	s = s[:n]
	*h = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && s[down+1].before(&s[down]) {
			down++
		}
		if !s[down].before(&s[i]) {
			break
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
	return top.Arrival
}
