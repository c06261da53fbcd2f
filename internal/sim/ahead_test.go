package sim

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// The backlog returns all added data exactly once, in order, in segments.
func TestBacklog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b backlog
		var model []uint64 // each byte
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if b.bytes != len(model) {
					t.Fatalf("%d bytes wait, want %d", b.bytes, len(model))
				}
			},
			"add": func(t *rapid.T) {
				next += uint64(rapid.IntRange(0, 1).Draw(t, "gap"))
				n := rapid.IntRange(1, 5).Draw(t, "length")
				b.add(next, n, false)
				for range n {
					model = append(model, next)
					next++
				}
			},
			"add in front": func(t *rapid.T) {
				n := rapid.IntRange(1, 5).Draw(t, "length")
				b.add(1<<40, n, true)
				var front []uint64
				for i := range n {
					front = append(front, 1<<40+uint64(i))
				}
				model = append(front, model...)
			},
			"take": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("nothing waits")
				}
				data, n := b.take(3)
				if n < 1 || n > 3 {
					t.Fatalf("took %d bytes", n)
				}
				for i := range n {
					if model[i] != data+uint64(i) {
						t.Fatalf("took %d, want %d", data+uint64(i), model[i])
					}
				}
				model = model[n:]
			},
		})
	})
}

// Linux' scheduler fills both paths, and consecutive data of one path is delivered in bursts of 64
// kB.
func TestDefaultSchedulerDeliversInPieces(t *testing.T) {
	c := paper(first, lossless())
	c.Bursts = true
	k := &c.Connections[0]
	k.Scheduler = sched.Default
	r := run(t, c).Connections[0]
	k.Scheduler = "lowest-rtt"
	each := run(t, c).Connections[0]
	if got, want := float64(r.Delivered), float64(each.Delivered); !near(got, want, 0.02) {
		t.Errorf("delivered %.0f bytes, a scheduler of single segments %.0f", got, want)
	}
	if r.Reseq.Delay.Mean() < 2*each.Reseq.Delay.Mean() {
		t.Errorf("mean delay %v, a scheduler of single segments %v", time.Duration(r.Reseq.Delay.Mean()), time.Duration(each.Reseq.Delay.Mean()))
	}
}

// Beside a path fifty times as fast, what the scheduler gives to the slow one blocks the receive
// window. With bounded unsent data the connection carries nearly what the fast path does.
func TestLowat(t *testing.T) {
	c := paper(road{rate: 50 * unit.MbitPerSecond, delay: 5 * ms, queue: linkmodel.Limit{Packets: 200}}, road{rate: unit.MbitPerSecond, delay: 5 * ms, queue: linkmodel.Limit{Packets: 5}})
	c.Duration = 5 * time.Second
	k := &c.Connections[0]
	k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer, k.RACK = sched.Default, "cubic", 0, 3*unit.MB, true
	for bounded, within := range map[bool][2]unit.Bandwidth{false: {1, 25}, true: {35, 50}} {
		k.Lowat = bounded
		got := run(t, c).Connections[0].Delivered.Over(c.Duration)
		if got < within[0]*unit.MbitPerSecond || got > within[1]*unit.MbitPerSecond {
			t.Errorf("bounded %v: %s, want %d to %d Mbit/s", bounded, got, within[0], within[1])
		}
	}
}

// With one path first, and bounded unsent data, the connection carries what the fast path does, and
// small objects do not wait for the slow one, over which the connection begins.
func TestOverflow(t *testing.T) {
	fast := road{rate: 50 * unit.MbitPerSecond, delay: 5 * ms, queue: linkmodel.Limit{Packets: 200}}
	slow := road{rate: unit.MbitPerSecond, delay: 5 * ms, queue: linkmodel.Limit{Packets: 5}}
	c := paper(fast, slow)
	c.Duration = 5 * time.Second
	k := &c.Connections[0]
	k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer, k.RACK, k.Handshake, k.Lowat, k.Overflow = sched.Default, "cubic", 0, 3*unit.MB, true, true, true, true
	if got := run(t, c).Connections[0].Delivered.Over(c.Duration); got < 46*unit.MbitPerSecond {
		t.Errorf("bulk: %s", got)
	}
	// Another connection that recalls what this one learned does not try the slow path.
	first := run(t, c).Connections[0]
	k.Past = first.Learned
	for i := range k.Past {
		k.Past[i].Left = time.Minute
	}
	next := run(t, c).Connections[0]
	if first.Paths[1].Segments == 0 || next.Paths[1].Segments > 0 || next.Learned[1].Verdict == selection.Unused {
		t.Errorf("%d and %d segments over the slow path; learned %+v", first.Paths[1].Segments, next.Paths[1].Segments, next.Learned)
	}
	for overflows, within := range map[bool][2]time.Duration{false: {200 * ms, time.Second}, true: {20 * ms, 60 * ms}} {
		c := paper(slow, fast)
		c.Duration = 30 * time.Second
		k := &c.Connections[0]
		k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer, k.RACK, k.Handshake, k.Overflow = sched.Default, "cubic", 0, 3*unit.MB, true, true, overflows
		k.Object, k.Bytes, k.InitialWindow = 50*unit.KB, 50*50*unit.KB, 10
		objects := run(t, c).Connections[0].Objects
		slices.Sort(objects)
		if n := len(objects); n < 25 || objects[n/2] < within[0] || objects[n/2] > within[1] {
			t.Errorf("overflow %v: %d objects, %v", overflows, n, objects)
		}
	}
}

// TestBegin: a connection is established on the path where it begins, and one that is a backup
// carries what is sent before another path has joined.
func TestBegin(t *testing.T) {
	c := paper(road{rate: 10 * unit.MbitPerSecond, delay: 5 * ms, queue: linkmodel.Limit{Packets: 50}}, road{rate: 10 * unit.MbitPerSecond, delay: 100 * ms, queue: linkmodel.Limit{Packets: 50}})
	c.Duration = 5 * time.Second
	k := &c.Connections[0]
	k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer, k.RACK, k.Handshake = sched.Default, "cubic", 0, 3*unit.MB, true, true
	k.Begin, k.Paths[1].Backup = 1, true
	got := run(t, c).Connections[0]
	if at := got.FirstByte; at < 400*ms || at > 450*ms {
		t.Errorf("the first byte arrived after %s, want two round trips of the path where it begins", at)
	}
	if first, other := got.Paths[0].Segments, got.Paths[1].Segments; other == 0 || other > 60 || first < 2000 {
		t.Errorf("%d segments over the path that joined, %d over that where it begins", first, other)
	}
	k.Begin = 2
	if _, err := New(c); err == nil {
		t.Error("a connection begins on a path that it does not have")
	}
}

// A stream that one path carries uses no other one, also if it starts with a backlog, from slow
// start, and the other one has helped before. One that is too much for it does.
func TestStreamCatchesUp(t *testing.T) {
	c := paper(road{rate: 40 * unit.MbitPerSecond, delay: 20 * ms, queue: linkmodel.Limit{Packets: 150}}, road{rate: 20 * unit.MbitPerSecond, delay: 35 * ms, queue: linkmodel.Limit{Packets: 75}})
	c.Duration = 5 * time.Second
	k := &c.Connections[0]
	k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer, k.RACK, k.Handshake, k.Lowat, k.Overflow = sched.Default, "cubic", 0, 16*unit.MB, true, true, true, true
	k.Past = []selection.Past{{Rate: 4.6e6, MinRTT: 40 * ms, Left: time.Minute}, {Rate: 2.3e6, MinRTT: 70 * ms, Left: time.Minute}}
	for rate, uses := range map[unit.Bandwidth]bool{33 * unit.MbitPerSecond: false, 45 * unit.MbitPerSecond: true} {
		k.Rate = rate
		if got := run(t, c).Connections[0].Paths[1].Segments; got > 0 != uses {
			t.Errorf("%s: %d segments over the other path", rate, got)
		}
	}
}

// Without losses there is no backlog beyond what is counted. During a recovery the subflow is
// assigned far more than its window, up to RBuf.
func TestUncounted(t *testing.T) {
	measure := func(loss float64, rbuf unit.Size, uncounted bool) ConnectionResult {
		other := lossless()
		other.loss = loss
		c := paper(first, other)
		c.Connections[0].RBuf, c.Connections[0].Uncounted = rbuf, uncounted
		return run(t, c).Connections[0]
	}
	if got, want := measure(0, 0, true), measure(0, 0, false); got.Delivered != want.Delivered || got.Reseq.Delay.Mean() != want.Reseq.Delay.Mean() {
		t.Errorf("without loss %s delivered, mean delay %v; counted %s, %v", got.Delivered, got.Reseq.Delay.Mean(), want.Delivered, want.Reseq.Delay.Mean())
	}
	counted, free, bounded := measure(1e-3, 0, false), measure(1e-3, 0, true), measure(1e-3, 260*unit.KB, true)
	if got, want := free.Reseq.PeakOccupancy.Bytes, 5*counted.Reseq.PeakOccupancy.Bytes; got < want {
		t.Errorf("%d bytes were held, want at least %d", got, want)
	}
	if got, most := bounded.Reseq.PeakOccupancy.Bytes, uint64(260_000+1340); got > most || got < counted.Reseq.PeakOccupancy.Bytes {
		t.Errorf("%d bytes were held under a bound of 260 kB, %d without counting less", got, counted.Reseq.PeakOccupancy.Bytes)
	}
}

// The window grows with what the application reads, as far as needed and not beyond the buffer.
func TestRightSizing(t *testing.T) {
	c := paper(first, lossless())
	k := &c.Connections[0]
	unlimited := run(t, c).Connections[0].Delivered
	k.ReceiveBuffer = 64 * unit.KiB
	small := run(t, c).Connections[0].Delivered
	k.InitialReceive, k.ReceiveBuffer = 64*unit.KiB, 3*unit.MiB
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Connections[0].Delivered; !near(float64(got), float64(unlimited), 0.02) || near(float64(small), float64(unlimited), 0.02) {
		t.Errorf("delivered %s with a window that grows, %s without a limit, %s with one of 64 KiB", got, unlimited, small)
	}
	if got := s.connections[0].sizing.window; got <= 64<<10 || got > 3<<20 {
		t.Errorf("the window is %d bytes in the end", got)
	}
}

// As captured on Linux 6.18: 60 segments read in a round trip where 10 were expected let the window
// grow to 669,200 bytes, two segments for each that arrives.
func TestRightSizingGrowsAsLinux(t *testing.T) {
	c := paper(first, lossless())
	k := &c.Connections[0]
	k.Segment, k.InitialReceive, k.ReceiveBuffer = 536, 64*unit.KiB, 16*unit.MiB
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	conn, r := &s.connections[0], &s.receivers[0]
	s.now, r.rtt, conn.delivered = 100*ms, 101*ms, 60*536
	conn.resize(s)
	if got := conn.sizing.window; got != 64<<10 {
		t.Errorf("before a round trip is over the window is %d bytes", got)
	}
	s.now = 101 * ms
	conn.resize(s)
	if got := conn.sizing.window; !near(float64(got), 669_200, 1e-5) {
		t.Errorf("the window is %d bytes, want 669,200", got)
	}
	if got := conn.offers(r); got != 64<<10 {
		t.Errorf("%d bytes are offered before anything arrives", got)
	}
	for range 2 {
		r.widen(s, &packet{at: s.now - 30*ms})
	}
	if got, want := conn.offers(r), uint64(64<<10+4*536+1023)&^1023; got != want {
		t.Errorf("%d bytes are offered after two segments, want %d", got, want)
	}
	for i := range 10 {
		conn.buffer.Push(s.now, 0, uint64(1000+536*i), 536)
	}
	for range 1000 {
		r.widen(s, &packet{at: s.now - 30*ms})
	}
	// A segment held out of order takes 1280 bytes of memory, half of which counts as window.
	if got, want := conn.offers(r), (conn.sizing.window-10*640+1023)&^1023; got != want {
		t.Errorf("%d bytes are offered while ten segments wait, want %d", got, want)
	}
}

// The application fills the send buffer with pieces, and resumes when a third of it is free.
func TestApplicationWritesWhenAThirdIsFree(t *testing.T) {
	c := paper(first, lossless())
	c.Connections[0].Scheduler = sched.Default
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	conn := &s.connections[0]
	if !conn.written(s, 536) {
		t.Fatal("nothing is written at first")
	}
	all := conn.wrote
	if all%sched.Piece != 0 || all < 4<<10 {
		t.Errorf("wrote %d bytes, no number of pieces", all)
	}
	conn.next = all
	conn.acked = all - leastMemory/3*2 - 2
	if conn.written(s, 536) {
		t.Error("writes while more than two thirds are used")
	}
	conn.acked += 3
	if !conn.written(s, 536) || conn.wrote <= all {
		t.Error("does not write when a third is free")
	}
}
