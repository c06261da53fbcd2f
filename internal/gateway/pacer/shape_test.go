package pacer

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

const (
	ms   = time.Millisecond
	mbit = unit.MbitPerSecond
)

// packet is a packet of a flow, with its number.
type packet struct {
	flow, number int
	at           time.Duration // when it was pushed
	capable      bool
}

func queue(t interface {
	Helper()
	Fatal(...any)
}, o Options[packet]) *Queue[packet] {
	t.Helper()
	q, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestOptions(t *testing.T) {
	for _, o := range []Options[packet]{
		{Target: 100 * ms}, {Target: -ms}, {Interval: 10 * ms}, {Burst: -ms}, {MaxWait: -ms}, {Quantum: -1}, {Quantum: 1 << 15}, {Flows: -1}, {Flows: 1 << 15}, {Limit: -1}, {MaxBytes: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestPacing: packets leave at 0.97 of the rate, also when the caller comes late, as on a busy
// machine.
func TestPacing(t *testing.T) {
	for _, late := range []time.Duration{0, ms, 2 * ms, 8 * ms} {
		q := queue(t, Options[packet]{Limit: 20_000, MaxBytes: 1 << 30, MaxWait: time.Hour, Target: time.Hour, Interval: 2 * time.Hour})
		q.Set(8 * mbit) // 1000 bytes take 1/0.97 ms
		if q.Next() != Never {
			t.Error("an empty queue has a next packet")
		}
		for i := range 10_000 {
			q.Push(0, packet{}, 1000, uint32(i))
		}
		if got, want := q.Wait(0), 10_000*ms*100/97; max(got-want, want-got) > ms {
			t.Errorf("the queue lasts %v, want %v", got, want)
		}
		sent, now := 0, time.Duration(0)
		for now = 0; now < 2*time.Second; now = q.Next() + late {
			for {
				if _, size, ok := q.Pop(now); !ok {
					break
				} else if size != 1000 {
					t.Fatalf("a packet of %d bytes", size)
				}
				sent++
			}
		}
		if sent < 1930 || sent > 1945 {
			t.Errorf("%d packets in 2 s, %v late each time, want 1940", sent, late)
		}
	}
	// What comes after a pause has not waited: no more than the granularity of a timer is sent at
	// once.
	q := queue(t, Options[packet]{})
	q.Set(8 * mbit)
	for i := range 20 {
		q.Push(time.Second, packet{}, 1000, uint32(i))
	}
	burst := 0
	for {
		if _, _, ok := q.Pop(time.Second); !ok {
			break
		}
		burst++
	}
	if burst > 3 {
		t.Errorf("%d packets of 1 ms at once after a pause", burst)
	}
}

// TestPacedAfterPause: what arrives at once after a pause leaves at the rate: a modem may have room
// for ten packets.
func TestPacedAfterPause(t *testing.T) {
	q := queue(t, Options[packet]{})
	q.Set(300 * mbit)
	for _, begins := range []time.Duration{time.Second, 2 * time.Second} {
		for i := range 20 {
			q.Push(begins, packet{}, 1500, uint32(i))
		}
		for i := range 20 {
			now := q.Next()
			if want := begins + time.Duration(i)*q.Line(1500); max(now-want, want-now) > time.Microsecond {
				t.Errorf("packet %d leaves after %v, want %v", i, now-begins, want-begins)
			}
			if _, _, ok := q.Pop(now); !ok {
				t.Fatalf("packet %d does not leave", i)
			}
		}
	}
}

func TestNoRateDoesNotPace(t *testing.T) {
	q := queue(t, Options[packet]{})
	for i := range 100 {
		q.Push(0, packet{number: i}, 1500, 7)
	}
	for i := range 100 {
		if p, _, ok := q.Pop(0); !ok || p.number != i {
			t.Fatalf("packet %d: %+v, %v", i, p, ok)
		}
	}
	if q.Wait(0) != 0 || q.Len() != 0 || q.Bytes() != 0 {
		t.Errorf("%d packets, %d bytes, %v", q.Len(), q.Bytes(), q.Wait(0))
	}
}

// offer pushes what each flow sends in a time at a constant rate, and pops what leaves.
type source struct {
	rate unit.Bandwidth
	size int
}

func play(q *Queue[packet], from, to time.Duration, sources []source, sent func(now time.Duration, p packet, size int)) {
	next := make([]time.Duration, len(sources))
	for i := range next {
		next[i] = from
	}
	for now := from; now < to; now += 100 * time.Microsecond {
		for i, s := range sources {
			for s.rate > 0 && next[i] <= now {
				q.Push(now, packet{flow: i, at: next[i]}, s.size, uint32(i))
				next[i] += s.rate.TimeFor(unit.Size(s.size))
			}
		}
		for {
			p, size, ok := q.Pop(now)
			if !ok {
				break
			}
			sent(now, p, size)
		}
	}
}

// TestFlowsShare: two flows that send as fast as they can have equal shares whatever the size of
// their packets, and one that sends little does not wait.
func TestFlowsShare(t *testing.T) {
	q := queue(t, Options[packet]{})
	q.Set(10 * mbit)
	got := make([]int, 3)
	worst := time.Duration(0)
	play(q, 0, 5*time.Second, []source{{30 * mbit, 1500}, {30 * mbit, 300}, {100 * unit.KbitPerSecond, 200}}, func(now time.Duration, p packet, size int) {
		got[p.flow] += size
		if p.flow == 2 {
			worst = max(worst, now-p.at)
		}
	})
	if a, b := float64(got[0]), float64(got[1]); math.Abs(a/b-1) > 0.03 {
		t.Errorf("two flows sent %v bytes", got)
	}
	if got[2] < 61_000 || worst > 5*ms {
		t.Errorf("the small flow sent %d bytes and waited %v", got[2], worst)
	}
	if c := q.Counted(); c.Refused == 0 || q.Wait(5*time.Second) > 260*ms {
		t.Errorf("%+v, and a queue of %v", c, q.Wait(5*time.Second))
	}
}

// TestStandingQueue: a flow that reduces its rate when a packet is refused or marked, as TCP does,
// has a short queue and the whole rate.
func TestStandingQueue(t *testing.T) {
	for _, ecn := range []bool{false, true} {
		marks := 0
		q := queue(t, Options[packet]{Mark: func(p packet) bool {
			if p.capable {
				marks++
			}
			return p.capable
		}})
		q.Set(20 * mbit)
		const rtt = 40 * ms
		window, inFlight, refused := 10., 0, false
		type ack struct{ at time.Duration }
		var acks []ack
		var waits []time.Duration
		reduced := time.Duration(-rtt)
		sent := 0
		for now := time.Duration(0); now < 20*time.Second; now += 100 * time.Microsecond {
			for len(acks) > 0 && acks[0].at <= now {
				acks = acks[1:]
				inFlight--
				window += 1 / window
			}
			if (refused || marks > 0) && now-reduced >= rtt {
				window, reduced = max(window*0.7, 2), now
			}
			refused, marks = false, 0
			for inFlight < int(window) {
				if !q.Push(now, packet{at: now, capable: ecn}, 1500, 1) {
					refused = true
					break
				}
				inFlight++
			}
			for {
				p, _, ok := q.Pop(now)
				if !ok {
					break
				}
				acks = append(acks, ack{now + rtt})
				if now > 5*time.Second {
					waits = append(waits, now-p.at)
					sent++
				}
			}
		}
		total := time.Duration(0)
		for _, w := range waits {
			total += w
		}
		mean := total / time.Duration(len(waits))
		rate := float64(sent) * 12000 / 15 / 20e6
		c := q.Counted()
		if mean > 30*ms || rate < 0.95 || ecn != (c.Marked > 0) || ecn == (c.Refused > 0) || c.Evicted+c.Full > 0 {
			t.Errorf("ECN %v: a mean wait of %v at %.3f of the rate, %+v", ecn, mean, rate, c)
		}
	}
}

// sender is TCP: what it sends is limited by the data not acknowledged in order, and by a
// congestion window, if it has one. It retransmits a packet when the next one arrives.
type sender struct {
	buffer, una, next int
	window            float64 // 0: none
	arrived           map[int]bool
	lost              []int
	inFlight, reduced int // reduced: at no loss before this packet
}

// transfer has senders that are the same flow to a queue send for a time. It returns the share of
// the rate that arrived in order and the mean wait after a fifth of that.
func transfer(q *Queue[packet], rate unit.Bandwidth, rtt, length time.Duration, senders ...*sender) (share float64, mean time.Duration) {
	type ack struct {
		at time.Duration
		p  packet
	}
	var acks []ack
	var total time.Duration
	sent, before, size := 0, 0, 1500
	pushed := map[packet]time.Duration{}
	for now := time.Duration(0); now < length; now += 100 * time.Microsecond {
		for ; len(acks) > 0 && acks[0].at <= now; acks = acks[1:] {
			p := acks[0].p
			f := senders[p.flow]
			if f.arrived[p.number] = true; p.number > f.una && !f.arrived[p.number-1] && p.number > f.reduced {
				f.lost, f.reduced = append(f.lost, p.number-1), f.next
				f.inFlight--
				f.window *= 0.7
			}
			f.inFlight--
			for ; f.arrived[f.una]; f.una++ {
				if f.window > 0 && f.una >= f.reduced {
					f.window += 1 / f.window
				}
			}
		}
		for i, f := range senders {
			for f.window == 0 || f.inFlight < int(f.window) {
				p := packet{flow: i, number: f.next}
				if len(f.lost) > 0 {
					p.number, f.lost = f.lost[0], f.lost[1:]
				} else if f.next < f.una+f.buffer {
					f.next++
				} else {
					break
				}
				f.inFlight++
				if q.Push(now, p, size, 1) {
					pushed[p] = now
				}
			}
		}
		for p, _, ok := q.Pop(now); ok; p, _, ok = q.Pop(now) {
			acks = append(acks, ack{now + rtt, p})
			if now >= length/5 {
				total += now - pushed[p]
				sent++
			}
		}
		if now == length/5 {
			for _, f := range senders {
				before -= f.una
			}
		}
	}
	for _, f := range senders {
		before += f.una
	}
	return float64(before*size) / float64(rate.SizeIn(length*4/5)), total / time.Duration(max(sent, 1))
}

// TestStops: a sender that only its buffer limits is stopped by signals, and gets them more and
// more seldom. Several that reduce their rates, in one flow queue, get as many as their queue
// needs.
func TestStops(t *testing.T) {
	const rate, rtt, length = 20 * mbit, 40 * ms, 20 * time.Second
	for _, tt := range []struct {
		name   string
		number int
		sender sender
		most   uint64 // refused
		wait   time.Duration
	}{
		{"limited by its buffer", 1, sender{buffer: 110}, 16, 30 * ms},
		{"reducing", 1, sender{buffer: 1 << 20, window: 10}, 100, 25 * ms},
		{"reducing, three", 3, sender{buffer: 1 << 20, window: 10}, 1000, 30 * ms},
	} {
		q := queue(t, Options[packet]{})
		q.Set(rate)
		q.SetRTT(rtt)
		var senders []*sender
		for range tt.number {
			s := tt.sender
			s.arrived = map[int]bool{}
			senders = append(senders, &s)
		}
		share, wait := transfer(q, rate, rtt, length, senders...)
		if share < 0.93 || wait > tt.wait || q.Counted().Refused > tt.most {
			t.Errorf("%s: %.3f of the rate, a mean wait of %v, %+v", tt.name, share, wait, q.Counted())
		}
	}
}

// TestLag: a queue that may stand for longer is not signaled.
func TestLag(t *testing.T) {
	for _, tt := range []struct {
		lag     time.Duration
		signals bool
	}{{0, true}, {40 * ms, false}} {
		q := queue(t, Options[packet]{})
		q.Set(8 * mbit)
		q.SetLag(tt.lag)
		for range 40 { // 41 ms
			q.Push(0, packet{}, 1000, 1)
		}
		play(q, 0, time.Second, []source{{8 * mbit * 97 / 100, 1000}}, func(time.Duration, packet, int) {})
		play(q, time.Second, 2*time.Second, []source{{}, {8 * mbit * 97 / 100, 1000}}, func(time.Duration, packet, int) {})
		if got := q.Counted().Refused > 0; got != tt.signals {
			t.Errorf("with a lag of %v: %+v", tt.lag, q.Counted())
		}
	}
}

// TestRTT: where a signal shows its effect only after half a second, a queue of 41 ms is no
// standing one, and one of 20 ms more than a tenth of the round-trip time is, after that time.
func TestRTT(t *testing.T) {
	for _, tt := range []struct {
		rtt     time.Duration
		packets int // of 1 ms
		lasts   time.Duration
		signals bool
	}{{50 * time.Millisecond, 41, time.Second, true}, {500 * time.Millisecond, 41, 2 * time.Second, false}, {500 * time.Millisecond, 70, 300 * time.Millisecond, false}, {500 * time.Millisecond, 70, 2 * time.Second, true}, {time.Hour, 90, 3 * time.Second, false}} {
		q := queue(t, Options[packet]{})
		q.Set(8 * mbit)
		q.SetRTT(tt.rtt)
		for range tt.packets {
			q.Push(0, packet{}, 1000, 1)
		}
		play(q, 0, tt.lasts, []source{{8 * mbit * 97 / 100, 1000}}, func(time.Duration, packet, int) {})
		play(q, tt.lasts, tt.lasts+100*time.Millisecond, []source{{}, {8 * mbit * 97 / 100, 1000}}, func(time.Duration, packet, int) {})
		if got := q.Counted().Refused > 0; got != tt.signals {
			t.Errorf("round-trip time %s, %d packets for %s: %+v", tt.rtt, tt.packets, tt.lasts, q.Counted())
		}
	}
}

// TestSlow: on a slow path some packets are no standing queue.
func TestSlow(t *testing.T) {
	for _, tt := range []struct {
		rate    unit.Bandwidth
		signals bool
	}{{8 * mbit, true}, {mbit, false}} {
		q := queue(t, Options[packet]{Quantum: 1000})
		q.Set(tt.rate)
		packets := 41 // 41 ms
		if tt.rate < 8*mbit {
			packets = 10 // 80 ms
		}
		for range packets {
			q.Push(0, packet{}, 1000, 1)
		}
		play(q, 0, time.Second, []source{{tt.rate * 97 / 100, 1000}}, func(time.Duration, packet, int) {})
		play(q, time.Second, 2*time.Second, []source{{}, {tt.rate * 97 / 100, 1000}}, func(time.Duration, packet, int) {})
		if got := q.Counted().Refused > 0; got != tt.signals {
			t.Errorf("at %v: %+v", tt.rate, q.Counted())
		}
	}
}

// TestEarly: on a slow path a flow whose queue grows is signaled before it is full, and then not
// again before it can have reduced its rate, on no path.
func TestEarly(t *testing.T) {
	const line, rtt = 12 * ms, 400 * ms // of 1455 bytes at 0.97 of a Mbit/s
	signals := new(Signals)
	var paths [2]*Queue[packet]
	for i := range paths {
		paths[i] = queue(t, Options[packet]{Signals: signals})
		paths[i].Set(mbit)
		paths[i].SetRTT(rtt)
	}
	push := func(at time.Duration, i, n int) (refused []int) {
		for j := range n {
			if !paths[i].Push(at, packet{}, 1455, 7) {
				refused = append(refused, j)
			}
		}
		return refused
	}
	first, second := push(0, 0, 30), push(0, 1, 30)
	if len(first) != 1 || len(second) != 0 {
		t.Fatalf("of 30 packets each, %v and %v are refused; want one of the first path's", first, second)
	}
	if at := first[0]; at < signalQuanta || at > 26 {
		t.Errorf("packet %d is refused, of a queue that holds more than %d", at, minQuanta)
	}
	effect := 2 * (rtt + time.Duration(first[0])*line)
	if got := push(effect-100*ms, 1, 1); len(got) > 0 {
		t.Errorf("a packet is refused before the sender has reduced its rate")
	}
	if got := push(effect+100*ms, 1, 2); len(got) != 1 {
		t.Errorf("%v of two packets are refused later, want one", got)
	}
}

// TestOverflow: a flow that fills the queue loses its own packets, and those of others have room.
func TestOverflow(t *testing.T) {
	var dropped []packet
	q := queue(t, Options[packet]{Limit: 10, Drop: func(p packet) { dropped = append(dropped, p) }})
	for i := range 12 {
		if ok := q.Push(0, packet{flow: 1, number: i}, 100, 1); ok != (i < 10) {
			t.Errorf("packet %d: %v", i, ok)
		}
	}
	if !q.Push(0, packet{flow: 2}, 100, 2) || len(dropped) != 1 || dropped[0].number != 0 {
		t.Errorf("dropped %v", dropped)
	}
	if c := q.Counted(); c != (Counters{Pushed: 11, Full: 2, Evicted: 1}) {
		t.Errorf("%+v", c)
	}
	if q.Push(0, packet{}, defaultBytes+1, 3) {
		t.Error("a packet larger than the queue is accepted")
	}
}

// TestPropertyQueue: the packets of a flow stay in order, none is lost but those reported, and the
// queue stays within its bounds.
func TestPropertyQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := map[int]int{}
		dropped := 0
		o := Options[packet]{
			Limit: rapid.IntRange(1, 50).Draw(t, "limit"), MaxBytes: rapid.IntRange(1, 50_000).Draw(t, "bytes"),
			Flows: rapid.IntRange(1, 8).Draw(t, "flows"), Drop: func(packet) { dropped++ },
			Mark: func(p packet) bool { return p.capable },
		}
		q := queue(t, o)
		now := time.Duration(0)
		pushed, popped := 0, 0
		pop := func() bool {
			p, size, ok := q.Pop(now)
			if !ok {
				return false
			}
			popped++
			if n, seen := last[p.flow]; seen && p.number <= n {
				t.Fatalf("packet %d of flow %d after %d", p.number, p.flow, n)
			}
			if last[p.flow] = p.number; size < 0 {
				t.Fatalf("a size of %d", size)
			}
			return true
		}
		for i := range rapid.IntRange(1, 300).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(30*ms)).Draw(t, "later"))
			switch rapid.IntRange(0, 8).Draw(t, "what") {
			case 0:
				q.Set(unit.Bandwidth(rapid.Int64Range(0, 1e8).Draw(t, "rate")))
			case 1, 2, 3:
				pop()
			default:
				flow := rapid.IntRange(0, 10).Draw(t, "flow")
				if q.Push(now, packet{flow: flow, number: i, capable: rapid.Bool().Draw(t, "capable")}, rapid.IntRange(0, 3000).Draw(t, "size"), uint32(flow)) {
					pushed++
				}
			}
			if q.Len() > o.Limit || q.Bytes() > o.MaxBytes || q.Len() != pushed-popped-dropped {
				t.Fatalf("%d packets with %d bytes after %d pushed, %d popped, %d dropped", q.Len(), q.Bytes(), pushed, popped, dropped)
			}
		}
		q.Set(0)
		for pop() {
		}
		if q.Len() != 0 || q.Bytes() != 0 || pushed != popped+dropped || q.Next() != Never {
			t.Fatalf("%d packets with %d bytes are left", q.Len(), q.Bytes())
		}
	})
}

func TestNoAllocation(t *testing.T) {
	q := queue(t, Options[packet]{})
	q.Set(100 * mbit)
	now := time.Duration(0)
	step := func() {
		now += 100 * time.Microsecond
		q.Push(now, packet{}, 1400, uint32(now))
		q.Pop(now)
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n > 0 {
		t.Errorf("%g allocations for a packet", n)
	}
}

func BenchmarkPushPop(b *testing.B) {
	for _, flows := range []uint32{1, 16, 256} {
		b.Run(map[uint32]string{1: "flows=1", 16: "flows=16", 256: "flows=256"}[flows], func(b *testing.B) {
			q := queue(b, Options[packet]{})
			q.Set(unit.GbitPerSecond)
			b.ReportAllocs()
			now := time.Duration(0)
			i := uint32(0)
			for b.Loop() {
				now += 11 * time.Microsecond
				i++
				q.Push(now, packet{}, 1400, i%flows)
				q.Pop(now)
			}
		})
	}
}

// TestWaitOf: a packet of another flow does not wait for those of a busy one, and one that is sent
// ahead delays all.
func TestWaitOf(t *testing.T) {
	q := queue(t, Options[packet]{})
	q.Set(8 * mbit)
	for range 20 {
		q.Push(0, packet{}, 970, 1)
	}
	q.Pop(0)
	if busy, other := q.WaitOf(0, 1), q.WaitOf(0, 2); busy != q.Wait(0) || busy < 19*ms || other > ms {
		t.Errorf("a packet of the busy flow waits %v, of another one %v", busy, other)
	}
	// Flows are served in turn: beside a busy one, the second packet of another one leaves after
	// four.
	q.Push(0, packet{}, 970, 2)
	if got := q.WaitOf(0, 2); got < 2*ms || got > 4*ms {
		t.Errorf("a second packet beside a busy flow waits %v, want that of two packets or three", got)
	}
	before := q.Next()
	q.Charge(0, 970)
	if got := q.Next() - before; got < 990*time.Microsecond || got > 1010*time.Microsecond {
		t.Errorf("970 bytes at 0.97 of 8 Mbit/s delay the next packet by %v", got)
	}
}

// TestClear: the packets of all flows leave the queue, those of a flow in order, and it is used on.
func TestClear(t *testing.T) {
	q, err := New(Options[int]{})
	if err != nil {
		t.Fatal(err)
	}
	q.Set(unit.MbitPerSecond)
	for i := range 10 {
		q.Push(0, i, 100, uint32(i%2))
	}
	var got []int
	q.Clear(func(i int) { got = append(got, i) })
	if want := []int{0, 2, 4, 6, 8, 1, 3, 5, 7, 9}; !slices.Equal(got, want) || q.Len() != 0 || q.Bytes() != 0 {
		t.Errorf("%v, %d packets and %d bytes remain; want %v", got, q.Len(), q.Bytes(), want)
	}
	q.Push(0, 10, 100, 0)
	if i, _, ok := q.Pop(0); !ok || i != 10 {
		t.Errorf("after Clear: %d, %v", i, ok)
	}
}

// TestReplace: the last packet of a flow is replaced in its place, and only beside a large packet.
func TestReplace(t *testing.T) {
	q := queue(t, Options[packet]{})
	q.Set(mbit)
	if _, ok := q.Beside(1); ok {
		t.Error("an empty queue has a packet")
	}
	q.Push(0, packet{flow: 1, number: 1}, 100, 1)
	q.Push(0, packet{flow: 1, number: 2}, 100, 1)
	q.Push(0, packet{flow: 2}, defaultQuantum/2-1, 2)
	if p, ok := q.Beside(1); ok {
		t.Errorf("%+v beside less than half a quantum", p)
	}
	q.Push(0, packet{flow: 3}, defaultQuantum/2, 3)
	if p, ok := q.Beside(1); !ok || p.number != 2 {
		t.Errorf("%+v, %v, want the last packet", p, ok)
	}
	if _, ok := q.Beside(4); ok {
		t.Error("a flow without packets has one")
	}
	before := q.Bytes()
	q.Replace(packet{flow: 1, number: 3}, 120, 1)
	if q.Bytes() != before+20 || q.Len() != 4 || q.Counted().Replaced != 1 {
		t.Errorf("%d bytes instead of %d, %d packets, %+v", q.Bytes(), before, q.Len(), q.Counted())
	}
	var got []int
	q.Set(0)
	for {
		p, size, ok := q.Pop(0)
		if !ok {
			break
		}
		if got = append(got, p.number); p.number == 3 && size != 120 {
			t.Errorf("a size of %d, want 120", size)
		}
	}
	if want := []int{1, 3, 0, 0}; !slices.Equal(got, want) || q.Bytes() != 0 {
		t.Errorf("%v, %d bytes remain, want %v", got, q.Bytes(), want)
	}
}
