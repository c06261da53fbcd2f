package link

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

// store keeps the bytes of frames. A slot that arrives in a pipe has one reference.
type store interface {
	retain(slot int32)
	release(slot int32)
}

// counters are what a pipe counts.
type counters struct {
	arrived, arrivedBytes uint64
	duplicated            uint64
	tail, red, codel      uint64
	lost                  uint64
}

// pipe is one direction of a link in virtual time: it has no clock. Times count from any start and must not go
// backwards; one that does means the latest time so far.
type pipe struct {
	profile Profile
	codel   CoDel     // the profile's, with defaults in place
	frame   unit.Size // the largest, for CoDel and for the average of RED
	store   store
	counted counters

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

// newPipe makes a pipe. All randomness comes from seed and stream; what is random in different ways draws from
// different generators, so that a change of the one does not change the other.
func newPipe(p Profile, frame unit.Size, seed, stream uint64, s store) *pipe {
	generator := func(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream<<8|purpose)) }
	return &pipe{
		profile: p, codel: p.Queue.CoDel.filled(), frame: frame, store: s,
		losses: generator(1), copies: generator(2), jitters: generator(3),
		early: red{count: -1, random: generator(4)},
	}
}

// set changes the profile at the time now. A frame that is being sent or on the wire keeps what it was given; frames
// that wait stay, even beyond a smaller limit.
func (p *pipe) set(now time.Duration, profile Profile) {
	p.advance(now)
	if profile.Queue != p.profile.Queue {
		p.codel = profile.Queue.CoDel.filled()
		p.control = codel{}
		p.early = red{count: -1, random: p.early.random}
	}
	p.profile = profile
}

// arrive takes a frame.
func (p *pipe) arrive(at time.Duration, size int32, slot int32) {
	p.advance(at)
	at = p.now
	p.counted.arrived++
	p.counted.arrivedBytes += uint64(size)
	busy := p.free > at || p.queue.len() > 0
	q := &p.profile.Queue
	switch {
	case q.Discipline == EarlyDrop && p.early.drop(&q.RED, p.length(q.RED.Min), p.idle()):
		p.counted.red++
		p.store.release(slot)
	case busy && q.limited(p.queue.size, p.queue.len(), p.wait(), unit.Size(size)):
		p.counted.tail++
		p.store.release(slot)
	default:
		p.queue.push(packet{slot, size, at})
		p.advance(at)
	}
}

// wait is how long a frame that arrives now waits until it is sent.
func (p *pipe) wait() time.Duration {
	w := max(0, p.free-p.now)
	if p.profile.Rate > 0 {
		w += p.profile.Rate.TimeFor(p.queue.size)
	}
	return w
}

// length is that of the queue in the unit of a limit.
func (p *pipe) length(in Limit) float64 {
	switch {
	case in.Bytes != 0:
		return float64(p.queue.size)
	case in.Packets != 0:
		return float64(p.queue.len())
	}
	return float64(p.wait())
}

// idle is how many of the largest frames could have been sent since there was nothing to send.
func (p *pipe) idle() float64 {
	if p.queue.len() > 0 || p.now <= p.free {
		return 0
	}
	if p.profile.Rate == 0 {
		return float64(p.now - p.free) // a frame takes no time; count one each nanosecond
	}
	return float64(p.now-p.free) / float64(p.profile.Rate.TimeFor(p.frame))
}

// advance does what happens until and at the time now: frames whose turn comes leave the queue.
func (p *pipe) advance(now time.Duration) {
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
type controlled pipe

func (c *controlled) pop() (packet, bool) { return c.queue.pop() }
func (c *controlled) bytes() unit.Size    { return c.queue.size }
func (c *controlled) drop(f packet) {
	c.counted.codel++
	c.store.release(f.slot)
}

// send gives a frame to the transmitter at the time t and, from there, to the wire.
func (p *pipe) send(f packet, t time.Duration) {
	p.free = t
	if p.profile.Rate > 0 {
		p.free += p.profile.Rate.TimeFor(unit.Size(f.size))
	}
	if p.lose() {
		p.counted.lost++
		p.store.release(f.slot)
		return
	}
	p.deliver(f)
	if p.profile.Duplicate > 0 && p.copies.Float64() < p.profile.Duplicate {
		p.counted.duplicated++
		p.store.retain(f.slot)
		p.deliver(f)
	}
}

// lose draws the fate of a frame on the wire.
func (p *pipe) lose() bool {
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
func (p *pipe) deliver(f packet) {
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
	p.fly.push(arrival{at: at, sequence: p.sequence, slot: f.slot, size: f.size})
}

// due takes the next frame that is to be delivered until and at the time now, and false when there is none. The caller
// releases its slot.
func (p *pipe) due(now time.Duration) (arrival, bool) {
	p.advance(now)
	if len(p.fly) == 0 || p.fly[0].at > now {
		return arrival{}, false
	}
	return p.fly.pop(), true
}

// next is the time at which due has something, or a little earlier when CoDel may still drop; never when there is
// nothing.
func (p *pipe) next() time.Duration {
	at := never
	if len(p.fly) > 0 {
		at = p.fly[0].at
	}
	if p.queue.len() > 0 {
		// The first that waits cannot be delivered before this. CoDel may drop it, and the second be shorter.
		first := p.free + p.profile.least()
		if p.profile.Rate > 0 && p.profile.Queue.Discipline != ControlledDelay {
			first += p.profile.Rate.TimeFor(unit.Size(p.queue.head().size))
		}
		at = min(at, first)
	}
	return at
}

// flush ends all frames that wait or are on the wire, and says how many there were.
func (p *pipe) flush() int {
	n := p.queue.len() + len(p.fly)
	for p.queue.len() > 0 {
		f, _ := p.queue.pop()
		p.store.release(f.slot)
	}
	for _, a := range p.fly {
		p.store.release(a.slot)
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

// arrival is a frame on the wire.
type arrival struct {
	at       time.Duration
	sequence uint64
	slot     int32
	size     int32
}

func (a *arrival) before(b *arrival) bool {
	return a.at < b.at || a.at == b.at && a.sequence < b.sequence
}

// flight is a heap of frames by their time, those of the same time in the order in which they were sent. While order is
// kept push costs a comparison. container/heap would allocate for each frame.
type flight []arrival

func (h *flight) push(a arrival) {
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

func (h *flight) pop() arrival {
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
