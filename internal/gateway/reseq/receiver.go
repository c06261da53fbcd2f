package reseq

import (
	"fmt"
	"time"
)

// MaxPaths is the number of paths of a Receiver.
const MaxPaths = 16

// lanes is the number of lanes of a Receiver, seqBits the length of a sequence number.
const (
	lanes   = 256
	seqBits = 24
	seqMask = 1<<seqBits - 1
)

// Hold is how long a Receiver may hold a packet for packets before it: Off, Auto, Prompt, or a
// fixed time.
type Hold time.Duration

const (
	// Off: the packet is delivered when it arrives, unless it is a duplicate.
	Off Hold = 0
	// Auto: the packet is held only while reordering is measured, and only as long as needed.
	Auto Hold = -1
	// Prompt: the same by the reordering of such packets alone, and without those that were lost
	// and sent again, which take a round trip: its own arrival matters more than their order.
	Prompt Hold = -2
)

// Arrival describes a packet of a tunnel.
type Arrival struct {
	// Path is the path that it arrived over, from 0 to MaxPaths-1.
	Path int
	// Lane and Seq number it. Seq has 24 bits and wraps around. A copy has the numbers of the
	// original.
	Lane uint8
	Seq  uint32
	// Distance is Seq minus the number of the packet that was sent before it in this lane on this
	// path, 0 if unknown. Copied: that packet was also sent on another path.
	Distance uint16
	Copied   bool
	// Lag is how much later than this packet those before it may arrive that were sent on other
	// paths, by what is known of the delays of the paths. 0: none, or unknown.
	Lag time.Duration
	// Requests is how often the packet was requested because it was missing. Most that were lost
	// were lost once, so Auto does not hold others for as long as those that were lost twice.
	Requests uint8
	Hold     Hold
}

// ReceiverOptions configure a Receiver. Zero means the default.
type ReceiverOptions struct {
	// Limit bounds how long a packet is held, by default 500 ms.
	Limit time.Duration
	// Window is how far a number may be behind the highest one of its lane, a power of two of at
	// least 64. Packets further behind are dropped, because they may be duplicates. By default it
	// is 32768; each lane in use needs Window/8 + 3300 bytes, twice once it was reset.
	Window int
	// Held bounds the number of packets held in all lanes, by default 16384. Beyond it a lane is
	// delivered with its gaps.
	Held int
}

// ReceiverStats count packets since the start.
type ReceiverStats struct {
	// Delivered were delivered. Of these, Waited were held, and Late came after packets with higher
	// numbers had been delivered.
	Delivered, Waited, Late uint64
	// Reordered arrived after packets with higher numbers; Late is a part of it.
	Reordered uint64
	// Duplicates and Stale were dropped: received before, and older than the window.
	Duplicates, Stale uint64
	// Named are numbers skipped because the distance of a later packet of their path named them,
	// Passed because all live paths had passed them, Expired because time was over, and Forced
	// because of a bound on memory or a jump of the numbers.
	Named, Passed, Expired, Forced uint64
	// Held is the number of packets held now, and Bound how long Auto holds them at most; 0: no
	// reordering is measured.
	Held  int
	Bound time.Duration
}

// Receiver restores the order of a tunnel's packets and removes duplicates. Packets are in lanes:
// order is restored in each of them, and a missing packet delays only its own lane. It holds
// elements of any type without copying what they refer to, and in steady state it does not
// allocate.
//
// A number that is missing is skipped
//   - at once, when a later packet of the same path names it by Distance and was not Copied,
//   - when all live paths have passed it (RFC 1990, section 4.1),
//   - when it is missed for longer than Hold allows. With Auto that is the largest delay by which
//     packets arrived after higher numbers in the last 5 to 10 s, plus a quarter and a millisecond.
//     A packet that arrives too late raises it at once. Without such packets nothing is held,
//     except for numbers that were not all sent on the path of the packet, by Distance: they are
//     waited for at least twice as long as Arrival.Lag says.
//
// The first two rules apply only to paths that keep the order of their own packets. What arrives
// after its number was skipped is delivered at once.
//
// Methods take the time of a monotonic clock, which does not run backwards, and append the elements
// to be delivered, in order, to out. A Receiver is not safe for concurrent use.
type Receiver[T any] struct {
	window, maxHeld int
	limit           time.Duration
	resolution      time.Duration // of passage times

	lanes [lanes]*lane[T]
	// earlier are the lanes of before the last reset, which hold nothing.
	earlier [lanes]*lane[T]
	// waiting are the lanes that hold packets.
	waiting []uint8
	live    uint16
	// unordered is until when a path counts as one that reorders its own packets.
	unordered [MaxPaths]time.Duration
	// spread is that of all packets but those with Prompt, which have prompt.
	spread, prompt spread
	rings          rings[T]
	stats          ReceiverStats
}

// lane is a sequence. Numbers below next are delivered or skipped, and those from next to high are
// held or missing, or known to be lost.
type lane[T any] struct {
	id         uint8
	next, high uint32
	// seen has a bit for each number from high-window to high that arrived.
	seen []uint64
	// ring has the slots of the numbers from next to high. It is nil if nothing is held and no
	// number is known to be lost.
	ring []slot[T]
	held int
	// since is when next began to be missed, while packets are held; hold is that of the last
	// packet that may be held.
	since time.Duration
	hold  Hold
	place int // in waiting, or -1
	// Numbers below elsewhere that are missing may have been sent on other paths than a later
	// number, and be later than that by its Arrival.Lag. lag is the longest of these.
	elsewhere uint32
	lag       time.Duration
	// passed is, for the paths of known, the highest number that the path has delivered plus 1: it
	// holds no lower ones.
	passed [MaxPaths]uint32
	known  uint16
	// stale counts consecutive packets that are behind the window.
	stale int
	// The marks say when numbers were first exceeded, rounded down to the resolution: until the
	// time at[i], no number from from[i] on had arrived. They are a ring with used marks, the last
	// at newest.
	from         [marks]uint32
	at           [marks]time.Duration
	newest, used int
}

// marks is the number of marks of a lane, which reach back for the limit at least.
const marks = 256

// slot is a number from next to high.
type slot[T any] struct {
	e     T
	state state
}

type state uint8

const (
	missing state = iota
	held
	lost
	delivered
)

const (
	defaultLimit  = 500 * time.Millisecond
	defaultWindow = 1 << 15
	defaultHeld   = 1 << 14
	// restarted is after how many consecutive packets behind the window a lane starts again: the
	// sender has lost its numbers.
	restarted = 64
)

// NewReceiver returns a receiver whose lanes begin with 0.
func NewReceiver[T any](o ReceiverOptions) *Receiver[T] {
	if o.Limit == 0 {
		o.Limit = defaultLimit
	}
	if o.Window == 0 {
		o.Window = defaultWindow
	}
	if o.Held == 0 {
		o.Held = defaultHeld
	}
	if o.Limit < 0 || o.Held < 0 || o.Window < 64 || o.Window > 1<<(seqBits-2) || o.Window&(o.Window-1) != 0 {
		panic(fmt.Sprintf("BUG: receiver with %+v", o))
	}
	return &Receiver[T]{
		window: o.Window, maxHeld: o.Held, limit: o.Limit, resolution: max(o.Limit/(marks-1), time.Microsecond),
		rings: rings[T]{budget: 4 * o.Window},
	}
}

// SetLive sets the paths that are alive, bit i for path i. Numbers that only other paths could
// still deliver are skipped. A receiver begins without live paths; then the rule of RFC 1990 does
// not apply.
func (r *Receiver[T]) SetLive(now time.Duration, paths uint16, out []T) []T {
	r.live = paths
	for i := len(r.waiting) - 1; i >= 0; i-- { // from the last, because drain may remove the lane
		out = r.drain(now, r.lanes[r.waiting[i]], out)
	}
	return out
}

// Push takes a packet that arrived. It returns false if the packet is a duplicate, or older than
// the window; then e is not kept. Otherwise e is held or in out.
func (r *Receiver[T]) Push(now time.Duration, a Arrival, e T, out []T) ([]T, bool) {
	if a.Path < 0 || a.Path >= MaxPaths || a.Seq > seqMask {
		panic(fmt.Sprintf("BUG: arrival %+v", a))
	}
	l := r.lane(a.Lane)
	ahead := since(a.Seq, l.high)
	switch {
	case ahead >= r.window:
		out = r.restart(l, a.Seq, out)
		ahead = 0
	case ahead < -r.window:
		if l.stale++; l.stale < restarted {
			r.stats.Stale++
			return out, false
		}
		out = r.restart(l, a.Seq, out)
		ahead = 0
	}
	l.stale = 0
	if a.Hold != Off {
		l.hold = a.Hold
	}
	if ahead < 0 {
		return r.pushBehind(now, l, a, e, out)
	}
	if since(a.Seq, l.next) >= r.window {
		out = r.deliverAll(l, out)
	}
	if gap := since(a.Seq, l.next); a.Distance != 1 || gap > 1 {
		if since(l.elsewhere, l.next) <= 0 {
			l.lag = 0
		}
		l.elsewhere, l.lag = a.Seq, max(l.lag, a.Lag)
	}
	l.mark(now, r.resolution)
	l.advance(a.Seq, ahead)
	l.pass(a.Path, l.high)
	if l.next == a.Seq || l.held == 0 && r.bound(now, l, a) == 0 {
		// In order, or nothing is to wait for the numbers before it.
		l.next = l.high
		r.stats.Delivered++
		return append(out, e), true
	}
	if s := r.slot(l, a.Seq); s != nil {
		return r.put(now, l, s, a, e, out), true
	}
	out = r.deliverAll(l, out)
	r.stats.Delivered++
	return append(out, e), true
}

// pushBehind takes a packet with a number below the highest one.
func (r *Receiver[T]) pushBehind(now time.Duration, l *lane[T], a Arrival, e T, out []T) ([]T, bool) {
	ordered := l.pass(a.Path, (a.Seq+1)&seqMask)
	if l.hasSeen(a.Seq) {
		r.stats.Duplicates++
		return r.settle(now, l, a, out), false
	}
	l.see(a.Seq)
	r.stats.Reordered++
	if late := now - l.missed(now, a.Seq, r.limit); a.Hold == Prompt && a.Requests == 0 {
		r.prompt.add(now, late, r.limit)
	} else if a.Hold != Prompt && a.Requests <= 1 {
		r.spread.add(now, late, r.limit)
	}
	if !ordered {
		r.unordered[a.Path] = now + memory
	}
	if since(a.Seq, l.next) < 0 {
		r.stats.Late++
		r.stats.Delivered++
		return r.settle(now, l, a, append(out, e)), true
	}
	return r.put(now, l, r.slot(l, a.Seq), a, e, out), true
}

// put holds a packet in its slot, or delivers it if it is the next one or must not be held.
func (r *Receiver[T]) put(now time.Duration, l *lane[T], s *slot[T], a Arrival, e T, out []T) []T {
	if a.Seq == l.next || r.bound(now, l, a) == 0 {
		s.state = delivered
		r.stats.Delivered++
		return r.settle(now, l, a, append(out, e))
	}
	*s = slot[T]{e, held}
	l.held++
	r.stats.Held++
	r.stats.Waited++
	if r.stats.Held > r.maxHeld {
		return r.deliverAll(l, out)
	}
	return r.settle(now, l, a, out)
}

// settle skips the number that an arrival reports as lost, and delivers what it can.
func (r *Receiver[T]) settle(now time.Duration, l *lane[T], a Arrival, out []T) []T {
	if l.held == 0 {
		return out
	}
	if a.Distance != 0 && !a.Copied && now >= r.unordered[a.Path] {
		before := (a.Seq - uint32(a.Distance)) & seqMask
		if since(before, l.next) >= 0 {
			if s := r.slot(l, before); s.state == missing {
				s.state = lost
			}
		}
	}
	return r.drain(now, l, out)
}

// Passed takes the information that a path has no more packets of a lane with numbers before next,
// as a probe of an idle path reports.
func (r *Receiver[T]) Passed(now time.Duration, path int, id uint8, next uint32, out []T) []T {
	l := r.lanes[id]
	if l == nil || since(next, l.high) > r.window || since(l.high, next) > r.window {
		return out
	}
	l.pass(path, next)
	return r.drain(now, l, out)
}

// Expire skips the numbers that have been missing for too long.
func (r *Receiver[T]) Expire(now time.Duration, out []T) []T {
	for i := len(r.waiting) - 1; i >= 0; i-- { // from the last, because drain may remove the lane
		if l := r.lanes[r.waiting[i]]; now-l.since >= r.holding(l) {
			out = r.drain(now, l, out)
		}
	}
	return out
}

// Timeout returns when Expire must be called next, or false if nothing is held.
func (r *Receiver[T]) Timeout() (time.Duration, bool) {
	var first time.Duration
	for i, id := range r.waiting {
		l := r.lanes[id]
		if at := l.since + r.holding(l); i == 0 || at < first {
			first = at
		}
	}
	return first, len(r.waiting) > 0
}

// Flush delivers all that is held. Packets with the numbers that were missing are late from now on.
func (r *Receiver[T]) Flush(out []T) []T {
	for len(r.waiting) > 0 {
		out = r.deliverAll(r.lanes[r.waiting[0]], out)
	}
	return out
}

// Reset delivers all that is held and lets all lanes begin with 0 again, as those of a new key do.
// What is measured and counted remains. Packets with the numbers of before are for Earlier.
func (r *Receiver[T]) Reset(out []T) []T {
	out = r.Flush(out)
	r.lanes, r.earlier = r.earlier, r.lanes
	for _, l := range r.lanes {
		if l != nil {
			out = r.restart(l, 0, out)
			l.stale = 0
		}
	}
	return out
}

// Earlier takes a packet that was numbered before the last reset. It returns false if the packet is
// a duplicate, or older than the window; otherwise it is to be delivered at once.
func (r *Receiver[T]) Earlier(lane uint8, seq uint32) bool {
	l := r.earlier[lane]
	if l == nil {
		l = r.newLane(lane)
		r.earlier[lane] = l
	}
	ahead := since(seq, l.high)
	switch {
	case ahead >= r.window || ahead < -r.window:
		r.stats.Stale++
		return false
	case ahead >= 0:
		l.advance(seq, ahead)
	case l.hasSeen(seq):
		r.stats.Duplicates++
		return false
	default:
		l.see(seq)
	}
	r.stats.Delivered++
	return true
}

// Stats returns the counters.
func (r *Receiver[T]) Stats() ReceiverStats {
	s := r.stats
	s.Bound = r.spread.bound(r.limit)
	return s
}

func (r *Receiver[T]) lane(id uint8) *lane[T] {
	l := r.lanes[id]
	if l == nil {
		if r.waiting == nil {
			r.waiting = make([]uint8, 0, lanes)
		}
		l = r.newLane(id)
		r.lanes[id] = l
	}
	return l
}

func (r *Receiver[T]) newLane(id uint8) *lane[T] {
	return &lane[T]{id: id, seen: make([]uint64, r.window/64), place: -1}
}

// bound returns how long a packet of a lane may be held.
func (r *Receiver[T]) bound(now time.Duration, l *lane[T], a Arrival) time.Duration {
	if a.Hold == Off {
		return 0
	}
	r.spread.Age(now)
	r.prompt.Age(now)
	return r.holding(l)
}

// holding returns how long the packets of a lane that are held may be.
func (r *Receiver[T]) holding(l *lane[T]) time.Duration {
	if l.hold < 0 {
		by := &r.spread
		if l.hold == Prompt {
			by = &r.prompt
		}
		bound := by.bound(r.limit)
		if since(l.elsewhere, l.next) > 0 {
			bound = max(bound, patience(l.lag, r.limit))
		}
		return bound
	}
	return min(time.Duration(l.hold), r.limit)
}

// drain delivers the packets of a lane that need not wait any more.
func (r *Receiver[T]) drain(now time.Duration, l *lane[T], out []T) []T {
	floor := r.floor(now, l)
	for l.held > 0 {
		s := r.slot(l, l.next)
		switch s.state {
		case held:
			out = r.deliver(l, s, out)
		case lost:
			r.stats.Named++
		case missing:
			if since(floor, l.next) > 0 {
				r.stats.Passed++
			} else if at := l.missed(now, l.next, r.limit); now-at >= r.holding(l) {
				r.stats.Expired++
			} else {
				l.since = at
				r.wait(l)
				return out
			}
		case delivered:
		}
		s.state = missing
		l.next = (l.next + 1) & seqMask
	}
	r.rest(l)
	return out
}

// floor returns the number that all live paths have passed, or next if one has not or is unknown.
func (r *Receiver[T]) floor(now time.Duration, l *lane[T]) uint32 {
	if r.live == 0 || l.held == 0 || r.live&^l.known != 0 {
		return l.next
	}
	least := l.high
	for i, passed := range l.passed {
		if r.live>>i&1 == 0 {
			continue
		}
		if now < r.unordered[i] || since(passed, l.next) <= 0 {
			return l.next
		}
		if since(passed, least) < 0 {
			least = passed
		}
	}
	return least
}

// deliverAll delivers all packets of a lane that are held.
func (r *Receiver[T]) deliverAll(l *lane[T], out []T) []T {
	for l.held > 0 {
		s := r.slot(l, l.next)
		switch s.state {
		case held:
			out = r.deliver(l, s, out)
		case missing, lost:
			r.stats.Forced++
		case delivered:
		}
		s.state = missing
		l.next = (l.next + 1) & seqMask
	}
	r.rest(l)
	return out
}

func (r *Receiver[T]) deliver(l *lane[T], s *slot[T], out []T) []T {
	out = append(out, s.e)
	*s = slot[T]{} // no reference remains
	l.held--
	r.stats.Held--
	r.stats.Delivered++
	return out
}

// wait enters a lane into the list of those that hold packets.
func (r *Receiver[T]) wait(l *lane[T]) {
	if l.place < 0 {
		l.place = len(r.waiting)
		r.waiting = append(r.waiting, l.id)
	}
}

// rest ends the waiting of a lane that holds nothing.
func (r *Receiver[T]) rest(l *lane[T]) {
	if l.ring != nil {
		for i := range min(since(l.high, l.next), len(l.ring)) {
			l.ring[(int(l.next)+i)&(len(l.ring)-1)].state = missing
		}
		r.rings.put(l.ring)
		l.ring = nil
	}
	l.next = l.high
	if l.place >= 0 {
		last := r.waiting[len(r.waiting)-1]
		r.waiting[l.place], r.lanes[last].place = last, l.place
		r.waiting = r.waiting[:len(r.waiting)-1]
		l.place = -1
	}
}

// restart delivers what a lane holds and lets it continue with another number.
func (r *Receiver[T]) restart(l *lane[T], seq uint32, out []T) []T {
	out = r.deliverAll(l, out)
	clear(l.seen)
	l.next, l.high = seq, seq
	l.known, l.used, l.lag = 0, 0, 0
	return out
}

// slot returns the slot of a number from next to high, or nil if there is no memory for it.
func (r *Receiver[T]) slot(l *lane[T], seq uint32) *slot[T] {
	if need := since(seq, l.next) + 1; need > len(l.ring) {
		ring := r.rings.get(need)
		if ring == nil {
			return nil
		}
		for i := range l.ring {
			from := &l.ring[(int(l.next)+i)&(len(l.ring)-1)]
			ring[(int(l.next)+i)&(len(ring)-1)] = *from
			*from = slot[T]{}
		}
		if l.ring != nil {
			r.rings.put(l.ring)
		}
		l.ring = ring
	}
	return &l.ring[int(seq)&(len(l.ring)-1)]
}
