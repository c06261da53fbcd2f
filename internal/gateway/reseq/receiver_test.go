package reseq

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

// packet is what a test sends: who it is and when it arrives.
type packet struct {
	Arrival
	at time.Duration
	id int
}

// stamps numbers packets as the sender of a tunnel does.
type stamps struct {
	next [lanes]uint32
	last map[[2]int]Arrival
	copy map[[2]int]bool
}

func (n *stamps) send(lane uint8, paths ...int) []Arrival {
	seq := n.next[lane]
	n.next[lane] = (seq + 1) & seqMask
	if n.last == nil {
		n.last, n.copy = map[[2]int]Arrival{}, map[[2]int]bool{}
	}
	var all []Arrival
	for _, p := range paths {
		at := [2]int{int(lane), p}
		a := Arrival{Path: p, Lane: lane, Seq: seq}
		if last, ok := n.last[at]; ok {
			a.Distance, a.Copied = uint16(since(seq, last.Seq)), n.copy[at]
		}
		n.last[at], n.copy[at] = a, len(paths) > 1
		all = append(all, a)
	}
	return all
}

// replay feeds packets in the order of their arrival and calls Expire when it is due. It returns
// the delivered ones with their times.
func replay(t interface{ Fatalf(string, ...any) }, r *Receiver[packet], all []packet) []packet {
	slices.SortStableFunc(all, func(a, b packet) int { return cmp.Compare(a.at, b.at) })
	var delivered, out []packet
	take := func(now time.Duration) {
		for _, p := range out {
			p.at = now
			delivered = append(delivered, p)
		}
		out = out[:0]
	}
	expire := func(before time.Duration) {
		for n := 0; ; n++ {
			at, ok := r.Timeout()
			if !ok || at > before {
				return
			}
			out = r.Expire(at, out)
			take(at)
			if n > 1<<16 {
				t.Fatalf("the timeout at %v does not end", at)
			}
		}
	}
	for _, p := range all {
		expire(p.at)
		out, _ = r.Push(p.at, p.Arrival, p, out)
		take(p.at)
		if s := r.Stats(); s.Held > r.maxHeld || r.rings.total > r.rings.budget {
			t.Fatalf("%d held, %d slots", s.Held, r.rings.total)
		}
	}
	expire(time.Hour)
	if s := r.Stats(); s.Held != 0 || len(r.waiting) != 0 || int(s.Delivered) != len(delivered) {
		t.Fatalf("at the end: %+v, delivered %d", s, len(delivered))
	}
	for _, l := range r.lanes {
		if l != nil && l.ring != nil {
			t.Fatalf("a lane without packets has a ring")
		}
	}
	for _, free := range r.rings.free {
		for _, ring := range free {
			for _, s := range ring {
				if s.state != missing || s.e.id != 0 {
					t.Fatalf("a free slot is %+v", s)
				}
			}
		}
	}
	return delivered
}

// traffic draws what arrives over paths with their own delays, losses and copies.
func traffic(t *rapid.T, hold Hold, jitter bool) []packet {
	paths := rapid.IntRange(1, 4).Draw(t, "paths")
	delay := make([]time.Duration, paths)
	for i := range delay {
		delay[i] = time.Duration(rapid.IntRange(0, 60).Draw(t, "delay")) * ms
	}
	loss := rapid.SampledFrom([]int{0, 2, 20}).Draw(t, "loss")
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	n := stamps{}
	start := rapid.SampledFrom([]uint32{0, seqMask - 20}).Draw(t, "start")
	n.next[7], n.next[9] = start, start
	arrived := make([]time.Duration, paths)
	var all []packet
	for i := range rapid.IntRange(1, 400).Draw(t, "packets") {
		sent := time.Duration(i) * ms / 2
		use := []int{random.IntN(paths)}
		if other := random.IntN(paths); random.IntN(5) == 0 && other != use[0] {
			use = append(use, other)
		}
		for _, a := range n.send([]uint8{7, 9}[random.IntN(2)], use...) {
			if random.IntN(100) < loss {
				continue
			}
			a.Hold = hold
			at := sent + delay[a.Path]
			if jitter {
				at += time.Duration(random.IntN(40)) * ms
			} else {
				at = max(at, arrived[a.Path])
			}
			arrived[a.Path] = at
			all = append(all, packet{a, at, i + 1})
		}
	}
	return all
}

// TestPropertyReceiver: each packet that arrives is delivered once, in the order of its lane unless
// it was late beyond the bound, and is not held for longer than the bound.
func TestPropertyReceiver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hold := rapid.SampledFrom([]Hold{Off, Auto, Prompt, Hold(5 * ms), Hold(80 * ms), Hold(time.Hour)}).Draw(t, "hold")
		jitter := rapid.Bool().Draw(t, "jitter")
		all := traffic(t, hold, jitter)
		limit := time.Duration(rapid.SampledFrom([]int{20, 500}).Draw(t, "limit")) * ms
		r := NewReceiver[packet](ReceiverOptions{Limit: limit, Held: rapid.SampledFrom([]int{3, 1000}).Draw(t, "held")})
		if rapid.Bool().Draw(t, "live") {
			r.SetLive(0, 0xf, nil)
		}
		start := uint32(0)
		for _, p := range all {
			if p.Seq > 1<<20 {
				start = seqMask - 20
			}
		}
		for _, lane := range []uint8{7, 9} {
			l := r.lane(lane)
			l.next, l.high = start, start
		}
		arrival := map[int]time.Duration{}
		for _, p := range all {
			if at, ok := arrival[p.id]; !ok || p.at < at {
				arrival[p.id] = p.at
			}
		}
		delivered := replay(t, r, all)
		if len(delivered) != len(arrival) {
			t.Fatalf("%d of %d packets delivered", len(delivered), len(arrival))
		}
		bound := min(time.Duration(hold), limit)
		if hold < 0 {
			bound = limit
		}
		seen := map[int]bool{}
		highest := map[uint8]int{} // ids are in the order of numbers
		for i, p := range delivered {
			if seen[p.id] {
				t.Fatalf("packet %d is delivered twice", p.id)
			}
			seen[p.id] = true
			if wait := p.at - arrival[p.id]; wait < 0 || wait > bound {
				t.Fatalf("packet %d is held for %v, bound %v", p.id, wait, bound)
			}
			if p.id > highest[p.Lane] {
				highest[p.Lane] = p.id
				continue
			}
			if hold <= 0 || jitter || r.Stats().Forced > 0 {
				continue
			}
			// Since when was it missed?
			since := arrival[p.id]
			for _, q := range all {
				if q.Lane == p.Lane && q.id > p.id {
					since = min(since, q.at)
				}
			}
			if late := arrival[p.id] - since; late < bound-r.resolution {
				t.Fatalf("packet %d (delivered as %d) is behind %d though only %v late, bound %v", p.id, i, highest[p.Lane], late, bound)
			}
		}
	})
}

// TestPropertyReceiverOfAnything: any sequence of numbers leaves memory bounded, and each packet is
// either delivered or reported as dropped.
func TestPropertyReceiverOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewReceiver[packet](ReceiverOptions{Window: 64, Held: 50})
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		now, base := time.Duration(0), uint32(0)
		pushed, dropped, delivered := 0, 0, 0
		var out []packet
		for i := range rapid.IntRange(1, 2000).Draw(t, "packets") {
			now += time.Duration(random.IntN(3000)) * time.Microsecond
			if random.IntN(50) == 0 {
				base = random.Uint32()
			}
			a := Arrival{
				Path: random.IntN(MaxPaths), Lane: uint8(random.IntN(3)), Seq: (base + random.Uint32N(80)) & seqMask,
				Distance: uint16(random.IntN(100)), Copied: random.IntN(2) == 0, Hold: []Hold{Off, Auto, Prompt, Hold(10 * ms)}[random.IntN(4)],
				Lag: time.Duration(random.IntN(2000)) * ms,
			}
			base++
			pushed++
			var ok bool
			if out, ok = r.Push(now, a, packet{id: i + 1}, out); !ok {
				dropped++
			}
			switch random.IntN(20) {
			case 0:
				out = r.Expire(now, out)
			case 1:
				out = r.Passed(now, random.IntN(MaxPaths), uint8(random.IntN(4)), random.Uint32()&seqMask, out)
			case 2:
				out = r.SetLive(now, uint16(random.Uint32()), out)
			}
			delivered += len(out)
			out = out[:0]
			s := r.Stats()
			if s.Held > r.maxHeld || r.rings.total > r.rings.budget || pushed != delivered+dropped+s.Held {
				t.Fatalf("%d pushed, %d delivered, %d dropped, %d slots, %+v", pushed, delivered, dropped, r.rings.total, s)
			}
		}
		if out = r.Flush(out); pushed != delivered+len(out)+dropped || r.Stats().Held != 0 || len(r.waiting) != 0 {
			t.Fatalf("%d pushed, %d delivered and %d at the end, %d dropped", pushed, delivered, len(out), dropped)
		}
	})
}

// push pushes numbers of lane 0, given as path and number, a millisecond apart, and returns the
// numbers that are delivered.
func push(t *testing.T, r *Receiver[uint32], now *time.Duration, out []uint32, all ...Arrival) []uint32 {
	t.Helper()
	for _, a := range all {
		*now += ms
		var ok bool
		if out, ok = r.Push(*now, a, a.Seq, out); !ok {
			t.Fatalf("%+v is dropped", a)
		}
	}
	return out
}

func TestReceiverGivesUp(t *testing.T) {
	const second = Hold(time.Second)
	at := func(path int, seq uint32, distance uint16) Arrival {
		return Arrival{Path: path, Seq: seq, Distance: distance, Hold: second}
	}
	copied := at(0, 2, 1)
	copied.Copied = true
	reorders := []Arrival{at(0, 0, 0), at(0, 2, 1), at(0, 1, 1), at(0, 3, 1)}
	for _, tt := range []struct {
		name string
		live uint16
		all  []Arrival
		want []uint32
		stat ReceiverStats
	}{
		{"named by the distance", 0, []Arrival{at(0, 0, 0), at(1, 2, 0), at(0, 3, 2), at(0, 5, 1)}, []uint32{0, 2, 3, 5}, ReceiverStats{Named: 2}},
		{"named, the first one", 0, []Arrival{at(0, 0, 0), at(0, 2, 1)}, []uint32{0, 2}, ReceiverStats{Named: 1}},
		{"named, but on another path too", 0, []Arrival{at(0, 0, 0), copied}, []uint32{0}, ReceiverStats{}},
		{"named by a path that reorders", 0, append(reorders, at(0, 5, 1)), []uint32{0, 2, 1, 3}, ReceiverStats{Named: 1}},
		{"passed by all paths", 3, []Arrival{at(0, 0, 0), at(1, 2, 0), at(0, 3, 0)}, []uint32{0, 2, 3}, ReceiverStats{Passed: 1}},
		{"passed by one of two paths", 3, []Arrival{at(0, 0, 0), at(0, 2, 0), at(0, 3, 0)}, []uint32{0}, ReceiverStats{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReceiver[uint32](ReceiverOptions{Limit: time.Second})
			var now time.Duration
			r.SetLive(0, tt.live, nil)
			got := push(t, r, &now, nil, tt.all...)
			s := r.Stats()
			if !slices.Equal(got, tt.want) || s.Named != tt.stat.Named || s.Passed != tt.stat.Passed {
				t.Errorf("delivered %v, want %v; %+v", got, tt.want, s)
			}
		})
	}
}

func TestReceiverProbes(t *testing.T) {
	r := NewReceiver[uint32](ReceiverOptions{})
	now := 10 * ms
	r.SetLive(now, 7, nil)
	hold := Hold(100 * ms)
	out := push(t, r, &now, nil, Arrival{Seq: 0, Hold: hold}, Arrival{Path: 1, Seq: 2, Hold: hold}, Arrival{Seq: 3, Hold: hold})
	if out = r.Passed(now, 2, 0, 1, out); !slices.Equal(out, []uint32{0}) {
		t.Fatalf("delivered %v, although path 2 may have 1", out)
	}
	if out = r.Passed(now, 2, 0, 2, out); !slices.Equal(out, []uint32{0, 2, 3}) {
		t.Errorf("delivered %v after the probe", out)
	}
	out = push(t, r, &now, nil, Arrival{Path: 1, Seq: 5, Hold: hold}, Arrival{Path: 2, Seq: 6, Hold: hold})
	if out = r.SetLive(now, 6, out); !slices.Equal(out, []uint32{5, 6}) {
		t.Errorf("delivered %v after path 0 has died", out)
	}
}

// TestReceiverLearns: reordering turns Auto on, a packet that comes too late raises the bound at
// once, and without reordering it ends.
func TestReceiverLearns(t *testing.T) {
	r := NewReceiver[uint32](ReceiverOptions{})
	now := 10 * ms
	seq := func(path int, n uint32) Arrival { return Arrival{Path: path, Seq: n, Hold: Auto} }
	out := push(t, r, &now, nil, seq(0, 0), seq(0, 2))
	if !slices.Equal(out, []uint32{0, 2}) || r.Stats().Bound != 0 {
		t.Fatalf("delivered %v, %+v before any reordering", out, r.Stats())
	}
	now += 39 * ms
	out = push(t, r, &now, out, seq(1, 1)) // 40 ms after 2, plus the resolution
	bound := r.Stats().Bound
	if bound < 51*ms || bound > 54*ms {
		t.Fatalf("the bound is %v, want 40 ms, a quarter and a millisecond", bound)
	}
	out = push(t, r, &now, out, seq(0, 4))
	if timeout, ok := r.Timeout(); !ok || timeout < now+bound-r.resolution || timeout > now+bound {
		t.Fatalf("timeout %v, %v; want %v after %v", timeout, ok, bound, now)
	}
	now += 100 * ms
	out = r.Expire(now, out)
	out = push(t, r, &now, out, seq(1, 3))
	if !slices.Equal(out, []uint32{0, 2, 1, 4, 3}) || r.Stats().Late != 2 || r.Stats().Bound < 126*ms {
		t.Fatalf("delivered %v, %+v", out, r.Stats())
	}
	now += memory
	out = push(t, r, &now, nil, seq(0, 6))
	if !slices.Equal(out, []uint32{6}) || r.Stats().Bound != 0 {
		t.Fatalf("delivered %v, %+v after a time without reordering", out, r.Stats())
	}
}

// TestReceiverRestarts: a lane goes on when the sender's numbers jump, forward or back.
// TestReceiverPrompt checks that prompt packets wait as long as those of their kind were overtaken,
// not for what others wait for, nor for what was lost and sent again.
func TestReceiverPrompt(t *testing.T) {
	r := NewReceiver[uint32](ReceiverOptions{})
	now := time.Duration(0)
	prompt := func(n uint32) Arrival { return Arrival{Lane: 1, Seq: n, Hold: Prompt} }
	push(t, r, &now, nil, Arrival{Seq: 1, Hold: Auto})
	now += 100 * ms
	push(t, r, &now, nil, Arrival{Seq: 0, Hold: Auto}, prompt(0), prompt(2))
	now += 50 * ms
	lost := prompt(1)
	lost.Requests = 1
	push(t, r, &now, nil, lost)
	if out := push(t, r, &now, nil, prompt(4)); !slices.Equal(out, []uint32{4}) {
		t.Errorf("delivered %v: a prompt packet waits for others, or for what was lost", out)
	}
	now += 10 * ms
	push(t, r, &now, nil, prompt(3))
	if out := push(t, r, &now, nil, prompt(6)); len(out) > 0 {
		t.Errorf("delivered %v: a prompt packet does not wait for one that may be late", out)
	}
	if at, waits := r.Timeout(); !waits || at-now < 10*ms || at-now > 20*ms {
		t.Errorf("a prompt packet waits for %v (%v), want a little more than 10 ms", at-now, waits)
	}
}

// TestReceiverKnowsLaterPaths: the first packets on a path that is 40 ms shorter wait for those
// that were sent before on the other one, though none has been late so far. What the path itself
// has lost is not waited for as long.
func TestReceiverKnowsLaterPaths(t *testing.T) {
	const lag = 40 * ms
	short := func(seq uint32, distance uint16) Arrival {
		return Arrival{Path: 1, Seq: seq, Distance: distance, Hold: Auto, Lag: lag}
	}
	long := func(seq uint32) Arrival { return Arrival{Seq: seq, Distance: 1, Hold: Auto} }
	r := NewReceiver[uint32](ReceiverOptions{})
	var now time.Duration
	// Number 1 was sent on the short path too, and is lost there. That says nothing of number 0.
	if out := push(t, r, &now, nil, short(2, 1), short(5, 3)); len(out) != 0 {
		t.Fatalf("%d are delivered at once", out)
	}
	if at, waits := r.Timeout(); !waits || at < ms+lag || at > ms+2*lag {
		t.Errorf("they are held until %v, want a little longer than %v", at, ms+lag)
	}
	now = lag
	if out := push(t, r, &now, nil, long(0), long(3), long(4)); !slices.Equal(out, []uint32{0, 2, 3, 4, 5}) {
		t.Errorf("%d are delivered", out)
	}
	// The one that the others have to wait longest for counts, until all before it have come.
	early := short(8, 3)
	early.Lag = 4 * lag
	if out := push(t, r, &now, nil, early, short(11, 3)); len(out) != 0 {
		t.Fatalf("%d are delivered at once", out)
	}
	if at, waits := r.Timeout(); !waits || at < now-ms+4*lag {
		t.Errorf("they are held until %v, want %v at least", at, now-ms+4*lag)
	}
	if out := push(t, r, &now, nil, long(6), long(7), long(9), long(10)); !slices.Equal(out, []uint32{6, 7, 8, 9, 10, 11}) {
		t.Errorf("%d are delivered", out)
	}
	// Nothing else has been late for 10 s. Number 13 was sent on the short path, as the distance of
	// 14 says.
	now = time.Minute
	r.Expire(now, nil)
	if out := push(t, r, &now, nil, short(12, 1), short(14, 1)); !slices.Equal(out, []uint32{12, 14}) {
		t.Errorf("%d are delivered", out)
	}
}

func TestReceiverRestarts(t *testing.T) {
	r := NewReceiver[uint32](ReceiverOptions{})
	now := time.Duration(0)
	hold := Hold(100 * ms)
	out := push(t, r, &now, nil, Arrival{Seq: 0, Hold: hold}, Arrival{Seq: 2, Hold: hold}, Arrival{Seq: 1 << 20, Hold: hold})
	if !slices.Equal(out, []uint32{0, 2, 1 << 20}) {
		t.Fatalf("delivered %v", out)
	}
	out = out[:0]
	for seq := range uint32(2 * restarted) {
		out, _ = r.Push(now, Arrival{Seq: seq, Hold: hold}, seq, out)
	}
	if s := r.Stats(); len(out) != 2*restarted-(restarted-1) || s.Stale != restarted-1 {
		t.Errorf("%d delivered, %+v", len(out), s)
	}
}

// TestReceiverReset: after a change of keys numbers begin with 0, and the measured bound is kept.
func TestReceiverReset(t *testing.T) {
	r := NewReceiver[uint32](ReceiverOptions{})
	now := 10 * ms
	seq := func(path int, n uint32) Arrival { return Arrival{Path: path, Seq: n, Hold: Auto} }
	out := push(t, r, &now, nil, seq(0, 0), seq(0, 2), seq(1, 1), seq(0, 4))
	if out = r.Reset(out); !slices.Equal(out, []uint32{0, 2, 1, 4}) {
		t.Fatalf("delivered %v", out)
	}
	if out = push(t, r, &now, nil, seq(0, 0), seq(0, 2), seq(1, 1)); !slices.Equal(out, []uint32{0, 1, 2}) {
		t.Errorf("delivered %v after the reset", out)
	}
	// Copies that arrive under the key before: of what was delivered, of what was missing, of what
	// is new.
	for seq, want := range map[uint32]bool{0: false, 2: false, 3: true, 5: true, 1 << 20: false} {
		if got := r.Earlier(0, seq); got != want {
			t.Errorf("packet %d of before the reset is delivered: %v, want %v", seq, got, want)
		}
	}
	if r.Earlier(0, 3) || !r.Earlier(7, 9) || r.Earlier(7, 9) {
		t.Error("packets of before the reset are delivered twice, or not in a new lane")
	}
	r.Reset(nil)
	if r.Earlier(0, 1) || !r.Earlier(0, 3) {
		t.Error("a second reset keeps the numbers of before the first")
	}
}

func TestReceiverBound(t *testing.T) {
	// All lanes at once, each with a gap as long as the window.
	r := NewReceiver[*int](ReceiverOptions{Window: 1024})
	n := 0
	for seq := range uint32(1000) {
		for lane := range lanes {
			out, _ := r.Push(0, Arrival{Lane: uint8(lane), Seq: 1 + seq, Hold: Hold(ms)}, new(int), nil)
			n += len(out)
		}
	}
	s := r.Stats()
	if s.Held > defaultHeld || s.Held < defaultHeld/20 || r.rings.total > 4*1024 || n+s.Held != 1000*lanes {
		t.Errorf("%d delivered, %d slots, %+v", n, r.rings.total, s)
	}
}

func BenchmarkReceiver(b *testing.B) {
	bench := func(name string, next func(i int) Arrival) {
		b.Run(name, func(b *testing.B) {
			r := NewReceiver[*int](ReceiverOptions{})
			r.SetLive(0, 3, nil)
			e, out := new(int), make([]*int, 0, 1024)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				a := next(i)
				a.Seq &= seqMask
				out, _ = r.Push(time.Duration(i)*10*time.Microsecond, a, e, out[:0])
				i++
			}
		})
	}
	bench("in order", func(i int) Arrival { return Arrival{Path: i & 1, Seq: uint32(i), Distance: 2, Hold: Auto} })
	bench("256 lanes", func(i int) Arrival {
		return Arrival{Path: i & 1, Lane: uint8(i), Seq: uint32(i >> 8), Distance: 1, Hold: Auto}
	})
	// Two paths take turns, and the second one has 2000 packets more of delay, 20 ms.
	bench("20 ms apart", func(i int) Arrival {
		if i&1 == 0 || i < 2000 {
			return Arrival{Path: 0, Seq: uint32(i &^ 1), Distance: 2, Hold: Auto}
		}
		return Arrival{Path: 1, Seq: uint32(i - 2000), Distance: 2, Hold: Auto}
	})
}
