package sched

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

// wire returns a path for packets.
func wire(rate unit.Bandwidth, delay time.Duration) Path {
	return Path{Usable: true, Room: math.MaxInt, Rate: rate, Delay: delay}
}

func TestDisciplines(t *testing.T) {
	if got, want := strings.Join(Disciplines(), " "), "ratio redundant dq dqj auto best flow"; got != want {
		t.Errorf("the disciplines are %s, want %s", got, want)
	}
	for _, name := range []string{"auto", "best", "flow"} {
		if slices.Contains(Names(), name) {
			t.Errorf("%s is a scheduler of connections", name)
		}
	}
}

// TestWait: packets of 1000 bytes take 10 ms at 800 kbit/s.
func TestWait(t *testing.T) {
	var q Queues
	p := wire(800*unit.KbitPerSecond, 0)
	wait := func(now, want time.Duration) {
		t.Helper()
		if got := q.Wait(0, now); got != want {
			t.Errorf("at %v the wait is %v, want %v", now, got, want)
		}
	}
	wait(0, 0)
	q.Add(0, &p, 0, 1000)
	wait(0, 10*ms)
	q.Add(0, &p, 0, 1000)
	wait(0, 20*ms)
	wait(5*ms, 15*ms)
	p.Rate *= 2
	q.Add(0, &p, 5*ms, 1000)
	wait(5*ms, 20*ms) // those before keep their time
	p.Buffer = 22 * ms
	q.Add(0, &p, 5*ms, 1000)
	wait(5*ms, 22*ms) // the rest would be dropped
	p.Rate = 0
	q.Add(0, &p, 5*ms, 1000)
	wait(5*ms, 22*ms)
	q.Set(0, 6*ms, 3*ms)
	wait(6*ms, 3*ms)
	wait(60*ms, 0)
	p.Rate, p.Buffer = 8*unit.KbitPerSecond, ms
	q.Add(0, &p, 60*ms, 1000)
	wait(60*ms, time.Second) // a buffer always holds one packet
}

// TestQueuesAreShared: what one scheduler sends delays the packets of the other.
func TestQueuesAreShared(t *testing.T) {
	for _, name := range Disciplines() {
		t.Run(name, func(t *testing.T) {
			var q Queues
			paths := []Path{wire(8*unit.MbitPerSecond, 0), wire(8*unit.MbitPerSecond, 500*ms)}
			paths[0].Ratio = 1
			s := scheduler(t, name, Options{Queues: &q})
			for range 5 {
				s.Next(paths, Segment{Size: 1000})
			}
			if q.Wait(0, 0)+q.Wait(1, 0) < 5*ms {
				t.Errorf("5 packets of 1 ms made queues of %v and %v", q.Wait(0, 0), q.Wait(1, 0))
			}
			d := scheduler(t, "dq", Options{Queues: &q})
			if got, want := d.Next(paths, Segment{Size: 1000}), q.Wait(0, 0); got != One(0) || want < ms {
				t.Errorf("dq chose %b with a wait of %v", got, want)
			}
		})
	}
}

// TestTies: of paths that differ by less than a tie the one used last is kept.
func TestTies(t *testing.T) {
	paths := []Path{wire(80*unit.MbitPerSecond, 0), wire(80*unit.MbitPerSecond, 0)} // 100 us each
	if got := drive(scheduler(t, "dq", Options{}), paths, 6); got != "010101" {
		t.Errorf("without ties: %s", got)
	}
	if got := drive(scheduler(t, "dq", Options{Tie: Tie}), paths, 8); got != "00111100" {
		t.Errorf("with ties: %s", got)
	}
}

// TestResting: auto sends bulk flows and acknowledgments on a path that rests only if it has no other
// one. Other packets, and other disciplines, use it.
func TestResting(t *testing.T) {
	paths := []Path{wire(8*unit.MbitPerSecond, 0), wire(80*unit.MbitPerSecond, 0), wire(8*unit.MbitPerSecond, 0)}
	paths[1].Resting, paths[2].Backup = true, true
	for _, kind := range []Kind{Bulk, Acks} {
		a := scheduler(t, "auto", Options{})
		for i, want := range []int{0, 1, 2} {
			if got := a.Next(paths, Segment{Size: 1000, Kind: kind}); got != One(want) {
				t.Errorf("auto, kind %d, %d paths failed: %b, want %d", kind, i, got, want)
			}
			paths[want].Usable = false
		}
		for i := range paths {
			paths[i].Usable = true
		}
	}
	if got := scheduler(t, "auto", Options{}).Next(paths, Segment{Size: 1000, Kind: Prompt}); got != One(1) {
		t.Errorf("auto, a packet whose own arrival matters: %b, want path 1", got)
	}
	paths[0].Usable, paths[1].Usable = true, true
	for _, name := range []string{"best", "dq", "dqj"} {
		if got := scheduler(t, name, Options{}).Next(paths, Segment{Size: 1000}); got != One(1) {
			t.Errorf("%s: %b, want path 1", name, got)
		}
	}
}

func TestAuto(t *testing.T) {
	mbit := unit.MbitPerSecond
	lossy := func(p Path) Path { p.Loss = 5000; return p }
	measured := func(p Path) Path { p.SRTT = 2 * p.Delay; return p }
	for _, tt := range []struct {
		name  string
		paths []Path
		o     Options
		want  string
	}{
		{"equal paths", []Path{wire(8*mbit, 0), wire(8*mbit, 0)}, Options{}, "0101"},
		{"a jittery path is later by its jitter", []Path{wire(8*mbit, 0), {Usable: true, Room: math.MaxInt, Rate: 8 * mbit, Jitter: 833 * time.Microsecond}}, Options{}, "00010"},
		{"a copy of what may be lost", []Path{lossy(wire(8*mbit, 0)), wire(8*mbit, 9*ms)}, Options{}, "(11)(11)00"},
		{"no copy by a path that costs more", []Path{lossy(wire(8*mbit, 0)), {Usable: true, Room: math.MaxInt, Rate: 8 * mbit, Delay: 9 * ms, Cost: 1}}, Options{}, "0000"},
		{"unless it is allowed", []Path{lossy(wire(8*mbit, 0)), {Usable: true, Room: math.MaxInt, Rate: 8 * mbit, Delay: 9 * ms, Cost: 1}}, Options{CopyCostlier: true}, "(11)(11)00"},
		{"resting paths carry copies", []Path{lossy(wire(8*mbit, 0)), {Usable: true, Resting: true, Room: math.MaxInt, Rate: 8 * mbit}}, Options{}, "(11)(11)01"},
		{"no copy that comes later than a retransmission", []Path{lossy(measured(wire(8*mbit, 5*ms))), wire(8*mbit, 200*ms)}, Options{}, "0000"},
		{"a copy that comes sooner", []Path{lossy(measured(wire(8*mbit, 5*ms))), wire(8*mbit, 14*ms)}, Options{}, "(11)(11)00"},
		{"the first of several", []Path{lossy(wire(8*mbit, 0)), wire(8*mbit, 20*ms), wire(8*mbit, 10*ms)}, Options{}, "(101)(101)(11)(11)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := drive(scheduler(t, "auto", tt.o), tt.paths, strings.Count(strings.ReplaceAll(strings.ReplaceAll(tt.want, "(101)", "x"), "(11)", "x"), "")-1); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestHome: a flow with much to send begins on the path on which a download is complete first.
// Other packets take the one on which they arrive first.
func TestHome(t *testing.T) {
	mbit := unit.MbitPerSecond
	costly := wire(60*mbit, 35*ms)
	costly.Cost = 1
	for _, tt := range []struct {
		name string
		far  Path
		want int // with much to send
	}{
		{"of four times the rate", wire(60*mbit, 35*ms), 1},
		{"that costs more", costly, 0},
		{"of the same rate", wire(16*mbit, 13*ms), 0},
		{"a little faster", wire(18*mbit, 35*ms), 0},
		{"too late", wire(60*mbit, 135*ms), 0},
		{"too jittery", Path{Usable: true, Room: math.MaxInt, Rate: 60 * mbit, Delay: 35 * ms, Jitter: 30 * ms}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			paths := []Path{wire(16*mbit, 12*ms), tt.far}
			for kind, want := range map[Kind]int{Prompt: 0, Acks: 0, Bulk: tt.want} {
				if got := scheduler(t, "auto", Options{}).Next(paths, Segment{Size: 1000, Kind: kind}); got != One(want) {
					t.Errorf("kind %d: %b, want path %d", kind, got, want)
				}
			}
		})
	}
}

// TestPathOfSmallObjects: a flow that pauses after each of some small objects moves to the path
// where such an object is complete first. One whose window doubles stays on that of a burst, and so
// does one that fills its path.
func TestPathOfSmallObjects(t *testing.T) {
	short, long := wire(29_500*unit.KbitPerSecond, 5*ms), wire(72_400*unit.KbitPerSecond, 45*ms)
	short.SRTT, long.SRTT = 10*ms, 90*ms
	const packet = 1000
	for _, tt := range []struct {
		name   string
		train  func(round int) int // packets
		rounds int
		every  time.Duration
		want   int // path of the last train
	}{
		{"objects of 50 kB", func(int) int { return 50 }, 12, 90 * ms, 0},
		{"after an object of 50 kB", func(round int) int { return []int{10, 20, 20, 50}[round] }, 4, 90 * ms, 0},
		{"objects of 120 kB", func(int) int { return 120 }, 12, 90 * ms, 1},
		{"a window that doubles", func(round int) int { return min(10<<round, 600) }, 12, 90 * ms, 1},
		{"no pause", func(int) int { return 50 }, 12, 6 * ms, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := scheduler(t, "auto", Options{})
			for round := range tt.rounds {
				want := 1
				if round == tt.rounds-1 {
					want = tt.want
				}
				for i := range tt.train(round) {
					got := a.Next([]Path{short, long}, Segment{Now: time.Duration(round) * tt.every, Size: packet, Kind: Bulk})
					if i == 0 && (round == 0 || round == tt.rounds-1) && got != One(want) {
						t.Errorf("round %d on path %d, want %d", round, got.First(), want)
					}
				}
			}
		})
	}
}

// TestPathOfAcks: acknowledgments do not begin on the shortest path if its uplink is full when much
// arrives: they would move to another one then, and senders take longer round trips for congestion.
func TestPathOfAcks(t *testing.T) {
	for uplink, want := range map[unit.Bandwidth]int{256 * unit.KbitPerSecond: 1, unit.MbitPerSecond: 1, 4 * unit.MbitPerSecond: 0} {
		paths := []Path{wire(uplink, 3*ms), wire(100*unit.MbitPerSecond, 55*ms)}
		a := scheduler(t, "auto", Options{})
		for i := range 100 {
			now := time.Duration(i) * 2 * time.Millisecond
			if got := a.Next(paths, Segment{Now: now, Size: 130, Kind: Acks}); got != One(want) {
				t.Errorf("uplink of %v: acknowledgment %d on path %d, want %d", uplink, i, got.First(), want)
				break
			}
			if got := a.Next(paths, Segment{Now: now, Size: 130}); i == 0 && got != One(0) {
				t.Errorf("uplink of %v: another packet on path %d", uplink, got.First())
			}
		}
	}
}

// TestHomeOfShortPackets: the first packets of a flow, which are short, take the path of its data
// whichever path an acknowledgment before them took.
func TestHomeOfShortPackets(t *testing.T) {
	paths := []Path{wire(30*unit.MbitPerSecond, 80*ms), wire(10*unit.MbitPerSecond, 10*ms)}
	a := scheduler(t, "auto", Options{Tie: Tie})
	for i, kind := range []Kind{Acks, Bulk, Prompt, Bulk} {
		want := 1
		if kind == Bulk {
			want = 0
		}
		if got := a.Next(paths, Segment{Now: time.Duration(i) * time.Second, Size: 150, Kind: kind}); got != One(want) {
			t.Errorf("packet %d, kind %d: path %d, want %d", i, kind, got.First(), want)
		}
	}
}

// TestFormerHome: when a later path comes up that is faster, flows that run keep to the one that
// they are on for 10 s, but for what fills it; others begin on the later one, also after a pause.
func TestFormerHome(t *testing.T) {
	paths := []Path{wire(30*unit.MbitPerSecond, 80*ms), wire(10*unit.MbitPerSecond, 10*ms)}
	paths[0].Usable = false
	a := scheduler(t, "auto", Options{Tie: Tie})
	send := func(now time.Duration, flow uint32, up bool, want int) {
		t.Helper()
		paths[0].Usable = up
		if got := a.Next(paths, Segment{Now: now, Size: 1000, Flow: flow, Kind: Bulk}); got != One(want) {
			t.Errorf("at %v: flow %d on path %d, want %d", now, flow, got.First(), want)
		}
	}
	send(500*ms, 1, false, 1)
	send(1500*ms, 1, false, 1)
	send(1600*ms, 1, true, 1)
	send(1700*ms, 2, true, 0)
	send(2500*ms, 1, true, 1)
	send(3600*ms, 1, true, 0) // after a pause
	send(4000*ms, 3, false, 1)
	send(4100*ms, 3, true, 1)
	send(5*time.Second, 3, true, 1)
	send(6*time.Second, 3, false, 1)
	for now := 7 * time.Second; now < 17*time.Second; now += time.Second {
		send(now, 3, true, 1)
	}
	send(17*time.Second, 3, true, 0)
	shared := 0
	for i := range 200 {
		now := 20*time.Second + time.Duration(i)*ms/10
		paths[0].Usable = i > 0
		shared += int(a.Next(paths, Segment{Now: now, Size: 1500, Flow: 4, Kind: Bulk}) & One(0))
	}
	if shared < 30 || shared > 140 {
		t.Errorf("%d of 200 packets, which queue for longer than the later path is late, on the later path", shared)
	}
}

// TestHomeIsShared: what fills its home uses the other path at once, and the home follows rates.
func TestHomeIsShared(t *testing.T) {
	mbit := unit.MbitPerSecond
	paths := []Path{wire(16*mbit, 12*ms), wire(64*mbit, 35*ms)}
	var q Queues
	a := scheduler(t, "auto", Options{Queues: &q})
	var counts [2]int
	for range 500 {
		counts[a.Next(paths, Segment{Size: 1000, Kind: Bulk}).First()]++
	}
	if counts[0] < 95 || counts[0] > 105 {
		t.Errorf("%d packets on the paths, want a fifth on the first", counts)
	}
	const between = 18600 * unit.KbitPerSecond // less of a burst is saved than the 23 ms that the path is longer
	for i, tt := range []struct {
		rate unit.Bandwidth
		want int
	}{{64 * mbit, 1}, {between, 0}, {64 * mbit, 1}} {
		paths[1].Rate = tt.rate
		if got := a.Next(paths, Segment{Now: time.Duration(i+1) * 2 * time.Second, Size: 1000, Kind: Bulk}); got != One(tt.want) {
			t.Errorf("at %v: path %d, want %d", tt.rate, got.First(), tt.want)
		}
	}
}

// TestLag: the first path has to be busy for 60 ms before the second is used.
func TestLag(t *testing.T) {
	mbit := unit.MbitPerSecond
	paths := []Path{wire(10*mbit, 10*ms), wire(10*mbit, 50*ms), wire(10*mbit, 400*ms), wire(10*mbit, 90*ms), wire(0, 100*ms)}
	paths[1].Jitter, paths[3].Resting = 20*ms, true
	for i, want := range []time.Duration{100 * ms, 0, 0} {
		if got := Lag(paths, i, 200*ms); got != want {
			t.Errorf("path %d: %v, want %v", i, got, want)
		}
	}
	// A path of a higher rate may be later in proportion, up to four times the bound.
	for rate, want := range map[unit.Bandwidth]time.Duration{19 * mbit: 100 * ms, 20 * mbit: 390 * ms, 100 * mbit: 390 * ms} {
		paths[2].Rate = rate
		if got := Lag(paths, 0, 200*ms); got != want {
			t.Errorf("beside a path of %v: %v, want %v", rate, got, want)
		}
	}
	paths[2].Rate = 15 * mbit
	paths[2].Delay = 300 * ms
	if got := Lag(paths, 0, 200*ms); got != 290*ms {
		t.Errorf("beside a later path of one and a half times the rate: %v", got)
	}
	paths[2].Delay = 900 * ms
	if got := Lag(paths, 0, 200*ms); got != 100*ms {
		t.Errorf("beside a path that is too late: %v", got)
	}
}

// TestFirst: where half of the packets are lost, one has to be retransmitted once on average.
func TestFirst(t *testing.T) {
	paths := []Path{wire(unit.MbitPerSecond, 15*ms), wire(unit.MbitPerSecond, 30*ms)}
	paths[0].SRTT, paths[1].SRTT = 30*ms, 60*ms
	for loss, want := range map[int]int{0: 0, 300_000: 0, 400_000: 1, 1_000_000: 1} {
		if paths[0].Loss = loss; new(Queues).First(paths, 0, 1500, -1) != want {
			t.Errorf("with a loss of %d in a million, path %d is first", loss, new(Queues).First(paths, 0, 1500, -1))
		}
	}
	paths[0].Loss = 0
	var busy Queues
	if busy.Set(0, 0, 20*ms); busy.First(paths, 0, 1500, -1) != 1 {
		t.Error("the queue of a path does not count")
	}
}

// TestLatest: a packet that auto sends on any path arrives no earlier, were it late, than those
// before it on other paths, so that few of those arrive later than Latest after it has left the
// queue of its path. Paths that are not usable do not count.
func TestLatest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var queues Queues
		paths := make([]Path, rapid.IntRange(1, 4).Draw(t, "paths"))
		for i := range paths {
			paths[i] = wire(unit.Bandwidth(rapid.IntRange(1, 50).Draw(t, "rate"))*unit.MbitPerSecond, time.Duration(rapid.IntRange(-100, 200).Draw(t, "delay"))*ms)
			paths[i].Jitter = time.Duration(rapid.IntRange(0, 50).Draw(t, "jitter")) * ms
			paths[i].Usable = i == 0 || rapid.Bool().Draw(t, "usable")
		}
		latest, any := Latest(paths)
		if !any {
			t.Fatal("no path is usable")
		}
		a := scheduler(t, "auto", Options{Queues: &queues})
		arrived := time.Duration(math.MinInt64) // all but few of the packets so far
		for now := time.Duration(0); now < 300*ms; now += ms {
			kind := rapid.SampledFrom([]Kind{Prompt, Bulk, Acks}).Draw(t, "kind")
			for range rapid.IntRange(0, 10).Draw(t, "packets") {
				i := a.Next(paths, Segment{Now: now, Size: 1000, Kind: kind}).First()
				left := now + queues.Wait(i, now)
				if arrived > left+latest+8*ms { // the transmission time of a packet
					t.Fatalf("one leaves at %v on path %d, those before it arrive by %v, want by %v later than that", left, i, arrived, latest)
				}
				arrived = max(arrived, left+paths[i].late())
			}
		}
	})
	if _, any := Latest([]Path{{Delay: ms}}); any {
		t.Error("no path is usable")
	}
}

func TestBest(t *testing.T) {
	mbit := unit.MbitPerSecond
	paths := []Path{wire(0, 0), wire(10*mbit, 50*ms), wire(10*mbit, 20*ms)}
	b := scheduler(t, "best", Options{})
	for i, tt := range []struct {
		change func()
		want   Set
	}{
		{func() {}, One(2)},
		{func() { paths[1].Rate = 11 * mbit }, One(2)},
		{func() { paths[1].Rate = 11*mbit + 1 }, One(1)},
		{func() { paths[2].Rate = 12 * mbit }, One(1)},
		{func() { paths[1].Room = 0 }, 0},
		{func() { paths[1].Usable = false }, One(2)},
		{func() { paths[2].Rate = 0 }, 0},
		{func() { paths[0].Rate = 1 }, One(0)},
	} {
		tt.change()
		if got := b.Next(paths, Segment{Size: 1000}); got != tt.want {
			t.Errorf("step %d: %b, want %b", i, got, tt.want)
		}
	}
}

func TestFlow(t *testing.T) {
	mbit := unit.MbitPerSecond
	paths := []Path{wire(30*mbit, 0), wire(10*mbit, 0), wire(0, 0), wire(40*mbit, 0)}
	paths[3].Cost = 1
	const flows = 4000
	spread := func(f Scheduler, now time.Duration) (where [flows]Set, count [4]int) {
		for i := range flows {
			where[i] = f.Next(paths, Segment{Now: now, Size: 1000, Flow: uint32(i)})
			count[where[i].First()]++
		}
		return where, count
	}
	near := func(t *testing.T, count [4]int, want ...float64) {
		t.Helper()
		for i, share := range want {
			if got := float64(count[i]) / flows; math.Abs(got-share) > 0.02 {
				t.Errorf("path %d has %.3f of the flows, want %.3f", i, got, share)
			}
		}
	}
	t.Run("pinned", func(t *testing.T) {
		f := scheduler(t, "flow", Options{})
		before, count := spread(f, 0)
		near(t, count, 3./8, 1./8, 0, 4./8)
		paths[0].Rate = 100 * mbit
		if again, _ := spread(f, time.Second); again != before {
			t.Error("flows moved when a rate changed")
		}
		paths[0].Rate = 30 * mbit
		paths[3].Usable = false
		after, count := spread(f, 2*time.Second)
		near(t, count, 3./4, 1./4, 0, 0)
		for i := range flows {
			if before[i] != One(3) && before[i] != after[i] {
				t.Fatalf("flow %d moved from %b to %b when path 3 failed", i, before[i], after[i])
			}
		}
		paths[3].Usable = true
		if again, _ := spread(f, 3*time.Second); again != after {
			t.Error("flows moved back at once")
		}
		_, count = spread(f, 9*time.Second)
		near(t, count, 3./8, 1./8, 0, 4./8)
	})
	t.Run("cheapest", func(t *testing.T) {
		_, count := spread(scheduler(t, "flow", Options{Choice: Cheapest}), 0)
		near(t, count, 3./4, 1./4, 0, 0)
	})
	t.Run("fastest", func(t *testing.T) {
		var q Queues
		f := scheduler(t, "flow", Options{Choice: Fastest, Queues: &q})
		if got := f.Next(paths, Segment{Size: 1000, Flow: 1}); got != One(3) {
			t.Errorf("the first flow is on %b, want path 3", got)
		}
		for range 10 {
			f.Next(paths, Segment{Size: 1000, Flow: 1})
		}
		if got := f.Next(paths, Segment{Size: 1000, Flow: 2}); got != One(0) {
			t.Errorf("beside a queue of %v the second flow is on %b, want path 0", q.Wait(3, 0), got)
		}
		if got := f.Next(paths, Segment{Size: 1000, Flow: 1}); got != One(3) {
			t.Errorf("the first flow moved to %b", got)
		}
	})
}

// TestPropertyWaitIsExact: the wait in integers is that of Bandwidth.TimeFor, which rounds up, to
// two nanoseconds and 1/1000.
func TestPropertyWaitIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := wire(unit.Bandwidth(rapid.Int64Range(1000, int64(unit.TbitPerSecond)/10).Draw(t, "rate")), 0)
		size := rapid.IntRange(1, 1<<16).Draw(t, "size")
		var q Queues
		q.Add(0, &p, 0, size)
		want := min(p.Rate.TimeFor(unit.Size(size)), tooLong)
		if got := q.Wait(0, 0); max(got-want, want-got) > 2+want/1000 {
			t.Fatalf("%d bytes at %v take %v, want %v", size, p.Rate, got, want)
		}
	})
}

// TestWaitIsRoundedDown: what is queued is divided in integers, where Bandwidth.TimeFor rounds up.
func TestWaitIsRoundedDown(t *testing.T) {
	p := wire(96491764057, 0)
	var q Queues
	if q.Add(0, &p, 0, 193); q.Wait(0, 0) != 15 || p.Rate.TimeFor(193) != 17 {
		t.Errorf("193 bytes wait for %v of %v, want 15ns of 17ns", q.Wait(0, 0), p.Rate.TimeFor(193))
	}
}

// TestPropertyAllDisciplines: every chosen path exists, is usable and has room, and no queue
// exceeds its buffer.
func TestPropertyAllDisciplines(t *testing.T) {
	for _, name := range Disciplines() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var q Queues
				s := scheduler(t, name, Options{Queues: &q, Tie: Tie, Choice: Choice(rapid.IntRange(0, 2).Draw(t, "choice"))})
				paths := drawPaths(t)
				for i := range paths {
					paths[i].Resting = rapid.Bool().Draw(t, "resting")
					paths[i].Loss = rapid.IntRange(0, 1e6).Draw(t, "loss")
					paths[i].Buffer = time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "buffer"))
				}
				now := time.Duration(0)
				for range 20 {
					now += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "later"))
					g := Segment{Now: now, Size: rapid.IntRange(0, 70_000).Draw(t, "size"), Flow: rapid.Uint32().Draw(t, "flow")}
					chosen := s.Next(paths, g)
					if bits.Len64(uint64(chosen)) > len(paths) {
						t.Fatalf("chose %b of %d paths", chosen, len(paths))
					}
					for i, p := range paths {
						if chosen.Has(i) && (!p.Usable || p.Room < g.Size) {
							t.Fatalf("chose %b, but path %d is %+v", chosen, i, p)
						}
						if w := q.Wait(i, now); w < 0 || w > tooLong {
							t.Fatalf("path %d has a wait of %v", i, w)
						}
					}
					if rapid.Bool().Draw(t, "change") && len(paths) > 0 {
						i := rapid.IntRange(0, len(paths)-1).Draw(t, "path")
						paths[i].Usable, paths[i].Resting = !paths[i].Usable, rapid.Bool().Draw(t, "rest")
					}
				}
			})
		})
	}
}

func TestDisciplinesDoNotAllocate(t *testing.T) {
	paths := benchPaths(16)
	for _, name := range Disciplines() {
		s := scheduler(t, name, Options{Queues: new(Queues), Tie: Tie})
		now := time.Duration(0)
		if n := testing.AllocsPerRun(100, func() {
			now += ms
			s.Next(paths, Segment{Now: now, Size: 1000, Flow: uint32(now)})
		}); n != 0 {
			t.Errorf("%s allocates %g times a call", name, n)
		}
	}
}

// BenchmarkDiscipline schedules packets of 1400 bytes at the rate that 2, 3 and 16 paths carry. A
// quality changes every 1000 packets.
func BenchmarkDiscipline(b *testing.B) {
	for _, n := range []int{2, 3, 16} {
		paths := make([]Path, n)
		for i := range paths {
			paths[i] = wire(unit.Bandwidth(20+i)*unit.MbitPerSecond, time.Duration(20+i)*ms)
			paths[i].Jitter, paths[i].Ratio = time.Duration(i)*100*time.Microsecond, 1+i%3
		}
		for _, name := range Disciplines() {
			b.Run(fmt.Sprintf("%s/paths=%d", name, n), func(b *testing.B) {
				s := scheduler(b, name, Options{Queues: new(Queues), Tie: Tie, Size: 1500})
				b.ReportAllocs()
				now := time.Duration(0)
				i := 0
				for b.Loop() {
					now += 400 * time.Microsecond / time.Duration(n)
					i++
					if i%1000 == 0 {
						paths[i%n].Jitter += 1 - 2*time.Duration(i/1000%2)
					}
					s.Next(paths, Segment{Now: now, Size: 1400, Flow: uint32(i % 64), Version: uint64(1 + i/1000)})
				}
			})
		}
	}
}

// TestPropertyVersion: a caller that says when paths change gets the same choices as one that does
// not.
func TestPropertyVersion(t *testing.T) {
	for _, name := range Disciplines() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				o := Options{Tie: Tie, Size: 1500, Choice: Choice(rapid.IntRange(0, 2).Draw(t, "choice"))}
				a, b := scheduler(t, name, o), scheduler(t, name, o)
				paths := drawPaths(t)
				g := Segment{Version: 1}
				for range 30 {
					g.Now += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "later"))
					g.Size, g.Flow = rapid.IntRange(0, 1500).Draw(t, "size"), rapid.Uint32Range(0, 3).Draw(t, "flow")
					unknown := g
					unknown.Version = 0
					if x, y := a.Next(paths, g), b.Next(paths, unknown); x != y {
						t.Fatalf("chose %b and, without a version, %b", x, y)
					}
					if len(paths) > 0 && rapid.Bool().Draw(t, "change") {
						p := &paths[rapid.IntRange(0, len(paths)-1).Draw(t, "path")]
						p.Usable, p.Jitter = !p.Usable, p.Jitter/2
						p.Rate = unit.Bandwidth(rapid.Int64Range(0, 1e9).Draw(t, "rate"))
						g.Version++
					}
					if len(paths) > 0 && rapid.Bool().Draw(t, "room") {
						paths[0].Room = rapid.IntRange(0, 3000).Draw(t, "bytes")
					}
				}
			})
		})
	}
}
