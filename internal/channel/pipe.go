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
}

// Store keeps the bytes of frames. A slot that arrives in a pipe has one reference.
type Store interface {
	Retain(slot int32)
	Release(slot int32)
}

// Counters are what a pipe counts.
type Counters struct {
	Arrived, ArrivedBytes uint64
	Duplicated            uint64
	// Tail, RED and CoDel are drops of the queue, by cause.
	Tail, RED, CoDel uint64
	// Lost is what the wire lost.
	Lost uint64
}

// Pipe is one direction of a link in virtual time: it has no clock. Times count from any start and must not go
// backwards; one that does means the latest time so far.
type Pipe struct {
	profile Profile
	codel   CoDel     // the profile's, with defaults in place
	frame   unit.Size // the largest, for CoDel and for the average of RED
	store   Store
	counted Counters

	now   time.Duration
	free  time.Duration // when the transmitter is done with the last frame given to it
	queue fifo
	fly   flight
	last  time.Duration // latest delivery so far

	bad      bool // state of Gilbert-Elliott
	early    red
	control  codel
	losses   *rand.Rand
	copies   *rand.Rand
	jitters  *rand.Rand
	sequence uint64
}

// NewPipe makes a pipe. All randomness comes from seed and stream; what is random in different ways draws from
// different generators, so that a change of the one does not change the other.
func NewPipe(p Profile, frame unit.Size, seed, stream uint64, s Store) *Pipe {
	generator := func(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream<<8|purpose)) }
	return &Pipe{
		profile: p, codel: p.Queue.CoDel.filled(), frame: frame, store: s,
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

// Flying is how many frames are being sent or on the wire.
func (p *Pipe) Flying() int { return len(p.fly) }

// Set changes the profile at the time now. A frame that is being sent or on the wire keeps what it was given; frames
// that wait stay, even beyond a smaller limit.
func (p *Pipe) Set(now time.Duration, profile Profile) {
	p.advance(now)
	if profile.Queue != p.profile.Queue {
		p.codel = profile.Queue.CoDel.filled()
		p.control = codel{}
		p.early = red{count: -1, random: p.early.random}
	}
	p.profile = profile
}

// Arrive takes a frame.
func (p *Pipe) Arrive(at time.Duration, size int32, slot int32) {
	p.advance(at)
	at = p.now
	p.counted.Arrived++
	p.counted.ArrivedBytes += uint64(size)
	busy := p.free > at || p.queue.len() > 0
	q := &p.profile.Queue
	switch {
	case q.Discipline == EarlyDrop && p.early.drop(&q.RED, p.length(q.RED.Min), p.idle()):
		p.counted.RED++
		p.store.Release(slot)
	case busy && q.limited(p.queue.size, p.queue.len(), p.wait(), unit.Size(size)):
		p.counted.Tail++
		p.store.Release(slot)
	default:
		p.queue.push(packet{slot, size, at})
		p.advance(at)
	}
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
func (c *controlled) drop(f packet) {
	c.counted.CoDel++
	c.store.Release(f.slot)
}

// send gives a frame to the transmitter at the time t and, from there, to the wire.
func (p *Pipe) send(f packet, t time.Duration) {
	p.free = t
	if p.profile.Rate > 0 {
		p.free += p.profile.Rate.TimeFor(unit.Size(f.size))
	}
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
	p.last = max(p.last, at)
	p.sequence++
	p.fly.push(Arrival{At: at, sequence: p.sequence, Slot: f.slot, Size: f.size})
}

// Due takes the next frame that is to be delivered until and at the time now, and false when there is none. The caller
// releases its slot.
func (p *Pipe) Due(now time.Duration) (Arrival, bool) {
	p.advance(now)
	if len(p.fly) == 0 || p.fly[0].At > now {
		return Arrival{}, false
	}
	return p.fly.pop(), true
}

// Next is the time at which due has something, or a little earlier when CoDel may still drop; Never when there is
// nothing.
func (p *Pipe) Next() time.Duration {
	at := Never
	if len(p.fly) > 0 {
		at = p.fly[0].At
	}
	if p.queue.len() > 0 {
		// The first that waits cannot be delivered before this. CoDel may drop it, and the second be shorter.
		first := p.free + p.profile.Least()
		if p.profile.Rate > 0 && p.profile.Queue.Discipline != ControlledDelay {
			first += p.profile.Rate.TimeFor(unit.Size(p.queue.head().size))
		}
		at = min(at, first)
	}
	return at
}

// Flush ends all frames that wait or are on the wire, and says how many there were.
func (p *Pipe) Flush() int {
	n := p.queue.len() + len(p.fly)
	for p.queue.len() > 0 {
		f, _ := p.queue.pop()
		p.store.Release(f.slot)
	}
	for _, a := range p.fly {
		p.store.Release(a.Slot)
	}
	p.fly = p.fly[:0]
	return n
}

// fifo is a queue of frames in a ring that grows.
type fifo struct {
	ring  []packet // its length is a power of two
	first int
	count int
	size  unit.Size // of the frames
}

func (q *fifo) len() int      { return q.count }
func (q *fifo) head() *packet { return &q.ring[q.first] }

func (q *fifo) push(f packet) {
	if q.count == len(q.ring) {
		ring := make([]packet, max(64, 2*len(q.ring)))
		n := copy(ring, q.ring[q.first:])
		copy(ring[n:], q.ring[:q.first])
		q.ring, q.first = ring, 0
	}
	q.ring[(q.first+q.count)&(len(q.ring)-1)] = f
	q.count++
	q.size += unit.Size(f.size)
}

func (q *fifo) pop() (packet, bool) {
	if q.count == 0 {
		return packet{}, false
	}
	f := q.ring[q.first]
	q.first = (q.first + 1) & (len(q.ring) - 1)
	q.count--
	q.size -= unit.Size(f.size)
	return f, true
}

// Arrival is a frame on the wire.
type Arrival struct {
	At       time.Duration
	sequence uint64
	// Slot and Size are as the frame arrived with.
	Slot, Size int32
}

func (a *Arrival) before(b *Arrival) bool {
	return a.At < b.At || a.At == b.At && a.sequence < b.sequence
}

// flight is a heap of frames by their time, those of the same time in the order in which they were sent. While order is
// kept push costs a comparison. container/heap would allocate for each frame.
type flight []Arrival

func (h *flight) push(a Arrival) {
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
	return top
}
