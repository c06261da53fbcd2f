package sched

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

const ms = time.Millisecond

func scheduler(t interface {
	Helper()
	Fatal(...any)
}, name string, o Options) Scheduler {
	t.Helper()
	s, err := New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// open returns a path with room and without estimates.
func open() Path { return Path{Usable: true, Room: math.MaxInt, MSS: 1000} }

// drive schedules n segments of 1000 bytes and returns the choices: a digit for a path, "-" for
// none.
func drive(s Scheduler, paths []Path, n int) string {
	var b strings.Builder
	for range n {
		switch set := s.Next(paths, Segment{Size: 1000, Window: math.MaxInt}); {
		case set == 0:
			b.WriteString("-")
		case set.Len() == 1:
			fmt.Fprint(&b, set.First())
		default:
			fmt.Fprintf(&b, "(%b)", set)
		}
	}
	return b.String()
}

func TestTurns(t *testing.T) {
	with := func(change func(p []Path)) []Path {
		p := []Path{open(), open(), open()}
		for i := range p {
			p[i].Ratio = i + 1
		}
		change(p)
		return p
	}
	for _, tt := range []struct {
		name, scheduler string
		paths           []Path
		want            string
	}{
		{"each ratio in succession", "ratio", with(func([]Path) {}), "011222011222"},
		{"a path that is not usable is passed over", "ratio", with(func(p []Path) { p[1].Usable = false }), "022202220222"},
		{"a path without a ratio gets nothing", "ratio", with(func(p []Path) { p[0].Ratio = 0 }), "112221122211"},
		{"a full path is waited for", "ratio", with(func(p []Path) { p[1].Room = 999 }), "0-----"},
		{"no ratio anywhere", "ratio", []Path{open(), open()}, "--"},
		{"no path", "ratio", nil, "--"},
		{"in turn", "round-robin", with(func([]Path) {}), "012012"},
		{"a full path is passed over", "round-robin", with(func(p []Path) { p[1].Room = 999 }), "020202"},
		{"all are full", "round-robin", with(func(p []Path) { p[0].Room, p[1].Room, p[2].Room = 0, -5, 999 }), "---"},
		{"a backup rests", "round-robin", with(func(p []Path) { p[0].Backup = true }), "121212"},
		{"a backup does not help out a full path", "round-robin", with(func(p []Path) {
			p[0].Backup, p[1].Room, p[2].Usable = true, 0, false
		}), "---"},
		{"backups when nothing else is usable", "round-robin", with(func(p []Path) {
			p[0].Usable, p[1].Backup, p[2].Backup = false, true, true
		}), "121212"},
		{"the lowest", "lowest-rtt", with(func(p []Path) { p[0].SRTT, p[1].SRTT, p[2].SRTT = 30*ms, 10*ms, 20*ms }), "111"},
		{"the lowest with room", "lowest-rtt", with(func(p []Path) {
			p[0].SRTT, p[1].SRTT, p[2].SRTT = 30*ms, 10*ms, 20*ms
			p[1].Room = 0
		}), "222"},
		{"no estimate is slow", "lowest-rtt", with(func(p []Path) { p[2].SRTT = 20 * ms }), "222"},
		{"of equals the first", "lowest-rtt", with(func([]Path) {}), "000"},
		{"everywhere", "redundant", with(func([]Path) {}), "(111)(111)"},
		{"everywhere with room", "redundant", with(func(p []Path) { p[1].Room = 0 }), "(101)"},
	} {
		t.Run(tt.scheduler+"/"+tt.name, func(t *testing.T) {
			if got := drive(scheduler(t, tt.scheduler, Options{}), tt.paths, len([]rune(tt.want))); !strings.HasPrefix(got, tt.want) {
				t.Errorf("goes over %s, want %s", got, tt.want)
			}
		})
	}
}

// TestBLEST: the fast path is full. rtts = 40/10 = 4, X = (10000 + 1000 * 3/2) * 4 = 46000; lambda
// is 1.2 at first: 55200. The slow path is used while that is at most the window minus its 5000
// bytes in flight and the 1000 bytes of the segment.
func TestBLEST(t *testing.T) {
	fast, slow := open(), open()
	fast.Cwnd, fast.SRTT, fast.Room = 10_000, 10*ms, 0
	slow.Cwnd, slow.SRTT, slow.InFlight = 20_000, 40*ms, 5_000
	paths := []Path{fast, slow}
	for _, tt := range []struct {
		window, unacked int
		want            Set
	}{
		{51_200, 10_000, One(1)},
		{51_199, 10_000, 0},
		{61_200, 0, One(1)},
		{1_000, 60_200, One(1)},
		{0, 0, 0},
	} {
		b := scheduler(t, "blest", Options{})
		if got := b.Next(paths, Segment{Size: 1000, Window: tt.window, Unacked: tt.unacked}); got != tt.want {
			t.Errorf("with a window of %d and %d unacknowledged: %b, want %b", tt.window, tt.unacked, got, tt.want)
		}
	}

	b := scheduler(t, "blest", Options{}).(*blest)
	next := func(now time.Duration, window int) {
		b.Next(paths, Segment{Now: now, Size: 1000, Window: window, Unacked: 10_000})
	}
	lambda := func(when string, want float64) {
		t.Helper()
		if math.Abs(b.lambda-want) > 1e-9 {
			t.Errorf("lambda is %g %s, want %g", b.lambda, when, want)
		}
	}
	next(39*ms, 50_000)
	lambda("before a round trip of the slow path", 1.2)
	next(40*ms, 50_000)
	lambda("after one that was not blocked", 1.19)
	next(50*ms, 999)
	next(79*ms, 50_000)
	lambda("within the next", 1.19)
	next(80*ms, 50_000)
	lambda("after one that was blocked", 1.23)
	for i := range 40 {
		next(time.Duration(3+i)*40*ms, 0)
	}
	lambda("at most", blestMax)
	for i := range 40 {
		next(time.Duration(50+i)*40*ms, 50_000)
	}
	lambda("at least", blestMin)

	paths[0].Room = 1000
	if got := b.Next(paths, Segment{Size: 1000}); got != One(0) {
		t.Errorf("with room on the fast path: %b, want path 0 whatever the window", got)
	}
}

// TestECF: the fast path is full and has an RTT of 10 ms and a window of 10 segments; the slow path
// has 100 ms and 20 segments. RTTVAR is 2 and 8 ms. delta is 8 ms. n RTT_F < RTT_S + delta while 10
// (1 + k/10) < 108: k < 98 segments. The second condition, k/20 * 100 >= 28, is true for k >= 5.6.
// In the waiting state the first bound is 135: k < 125.
func TestECF(t *testing.T) {
	fast, slow := open(), open()
	fast.Cwnd, fast.SRTT, fast.RTTVAR, fast.Room = 10_000, 10*ms, 2*ms, 0
	slow.Cwnd, slow.SRTT, slow.RTTVAR = 20_000, 100*ms, 8*ms
	paths := []Path{fast, slow}
	e := scheduler(t, "ecf", Options{})
	for i, tt := range []struct {
		queued int
		want   Set
	}{
		{98_000, One(1)},  // long queue: both paths are needed
		{5_599, One(1)},   // short queue: the slow path completes it soon
		{97_999, 0},       // the fast path alone completes it earlier
		{124_999, 0},      // still waiting: hysteresis
		{5_599, One(1)},   // a short queue does not end the waiting state
		{124_999, 0},      //
		{125_000, One(1)}, // a long queue ends it
		{98_000, One(1)},
		{5_600, 0},
		{0, One(1)}, // at least this segment is queued
	} {
		if got := e.Next(paths, Segment{Size: 1000, Queued: tt.queued}); got != tt.want {
			t.Errorf("step %d, %d bytes wait: %b, want %b", i, tt.queued, got, tt.want)
		}
	}
	hasty := scheduler(t, "ecf", Options{Beta: 1e-9})
	hasty.Next(paths, Segment{Size: 1000, Queued: 97_999})
	if got := hasty.Next(paths, Segment{Size: 1000, Queued: 98_001}); got != One(1) {
		t.Errorf("with a beta of next to nothing: %b, want path 1", got)
	}
}

// TestDQ checks equations 1 and 2 of paper D: packets of 1000 bytes take 10 ms at 800 kbit/s and 5
// ms at 1600 kbit/s; the delays are 20 and 40 ms.
func TestDQ(t *testing.T) {
	slow, fast := open(), open()
	slow.Rate, slow.Delay = 800*unit.KbitPerSecond, 20*ms
	fast.Rate, fast.Delay = 1600*unit.KbitPerSecond, 40*ms
	paths := []Path{slow, fast, open()} // a path without a rate is never used
	d := scheduler(t, "dq", Options{})
	for i, tt := range []struct {
		now  time.Duration
		want int
	}{
		{0, 0},        // 30 against 45
		{0, 0},        // 40 against 45
		{0, 1},        // 50 against 45
		{0, 0},        // 50 against 50: the first of equal paths
		{0, 1},        // 60 against 50
		{5 * ms, 1},   // 25 + 10 + 20 = 55 against 5 + 5 + 40 = 50
		{15 * ms, 0},  // 15 + 10 + 20 = 45 against 0 + 5 + 40 = 45
		{500 * ms, 0}, // empty queues: 30 against 45
	} {
		if got := d.Next(paths, Segment{Now: tt.now, Size: 1000}); got != One(tt.want) {
			t.Errorf("packet %d at %v: %b, want path %d", i, tt.now, got, tt.want)
		}
	}
}

// TestDQJ repeats paper D's experiments: three paths, packets of 1500 bytes. The counts are the
// sums of equation 4 over the other paths.
func TestDQJ(t *testing.T) {
	for _, tt := range []struct {
		name    string
		rates   [3]unit.Bandwidth
		jitters [3]time.Duration
		options Options
		want    Set
	}{
		// floor(384000 * 0.05 / 12000) = 1, so 2 < 3 for each.
		{"experiment 1, 50 ms", [3]unit.Bandwidth{384_000, 384_000, 384_000}, [3]time.Duration{50 * ms, 50 * ms, 50 * ms}, Options{}, 0b111},
		// 3 + 3 for the third; without it 1 for each of the others.
		{"experiment 1, 100 ms", [3]unit.Bandwidth{384_000, 384_000, 384_000}, [3]time.Duration{50 * ms, 50 * ms, 100 * ms}, Options{}, 0b011},
		// floor(128000 * 0.15 / 12000) = 1 twice.
		{"experiment 3, 150 ms", [3]unit.Bandwidth{128_000, 128_000, 384_000}, [3]time.Duration{50 * ms, 50 * ms, 150 * ms}, Options{}, 0b111},
		// floor(2.13) twice is 4: the third path is excluded, but its rate exceeds the sum
		// of the others, so it is used alone.
		{"experiment 3, 200 ms", [3]unit.Bandwidth{128_000, 128_000, 384_000}, [3]time.Duration{50 * ms, 50 * ms, 200 * ms}, Options{}, 0b100},
		// 3 < 4 overtaken packets.
		{"a larger threshold", [3]unit.Bandwidth{384_000, 384_000, 1}, [3]time.Duration{100 * ms, 100 * ms, 0}, Options{Overtaken: 4}, 0b111},
		// Exactly 3 packets of 1500 bytes are sent within 93.75 ms; the rule requires less
		// than 3.
		{"the bound itself", [3]unit.Bandwidth{384_000, 384_000, 0}, [3]time.Duration{93750 * time.Microsecond, 0, 0}, Options{}, 0b010},
		{"just below the bound", [3]unit.Bandwidth{384_000, 384_000, 0}, [3]time.Duration{93749 * time.Microsecond, 0, 0}, Options{}, 0b011},
		// As printed, 1 + 1 + 1 violates the rule.
		{"with its own packets", [3]unit.Bandwidth{384_000, 384_000, 384_000}, [3]time.Duration{50 * ms, 50 * ms, 50 * ms}, Options{Own: true}, 0b011},
	} {
		t.Run(tt.name, func(t *testing.T) {
			paths := []Path{open(), open(), open()}
			for i := range paths {
				paths[i].Rate, paths[i].Jitter, paths[i].Delay = tt.rates[i], tt.jitters[i], 200*ms
			}
			d := scheduler(t, "dqj", tt.options)
			if got := d.(*dqj).eligible(paths, candidates(paths), 1500); got != tt.want {
				t.Errorf("uses %03b, want %03b", got, tt.want)
			}
			var used Set
			for range 100 {
				used |= d.Next(paths, Segment{Size: 1500})
			}
			if used &^= One(0) & -Set(tt.rates[0]&1); used&^tt.want != 0 {
				t.Errorf("sends on %03b, want only %03b", used, tt.want)
			}
		})
	}
}

func TestNew(t *testing.T) {
	for _, name := range Names() {
		scheduler(t, name, Options{})
	}
	for _, tt := range []struct {
		name string
		o    Options
		says string
	}{
		{"fastest", Options{}, `unknown scheduler "fastest": want one of default, ratio, round-robin`},
		{"ecf", Options{Beta: math.NaN()}, "beta: must be from 0 to 1, got NaN"},
		{"ecf", Options{Beta: -0.25}, "beta: must be from 0 to 1"},
		{"dqj", Options{Overtaken: -1}, "overtaken: must not be negative, got -1"},
	} {
		if _, err := New(tt.name, tt.o); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("New(%q, %+v) says %v, want %q", tt.name, tt.o, err, tt.says)
		}
	}
}

// drawPaths draws paths in any state, including extreme values that a caller may pass.
func drawPaths(t *rapid.T) []Path {
	draw := rapid.Custom(func(t *rapid.T) Path {
		return Path{
			Usable:   rapid.Bool().Draw(t, "usable"),
			Backup:   rapid.Bool().Draw(t, "backup"),
			Room:     rapid.IntRange(-2000, 5000).Draw(t, "room"),
			Cwnd:     rapid.IntRange(-1, 100_000).Draw(t, "cwnd"),
			InFlight: rapid.IntRange(0, 100_000).Draw(t, "in flight"),
			MSS:      1000,
			SRTT:     time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "srtt")),
			RTTVAR:   time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "rttvar")),
			Delay:    time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "delay")),
			Jitter:   time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "jitter")),
			Rate:     unit.Bandwidth(rapid.Int64Range(0, math.MaxInt64).Draw(t, "rate")),
			Ratio:    rapid.IntRange(0, 5).Draw(t, "ratio"),
		}
	})
	return rapid.SliceOfN(draw, 0, MaxPaths).Draw(t, "paths")
}

// TestPropertyChoicesArePossible: every chosen path exists, is usable and has room, and a backup is
// chosen only if no other path is usable. The default scheduler assigns the rest of a piece even
// without room.
func TestPropertyChoicesArePossible(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := scheduler(t, name, Options{})
				paths := drawPaths(t)
				now := time.Duration(0)
				for range 20 {
					now += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "later"))
					g := Segment{Now: now, Size: rapid.IntRange(0, 1500).Draw(t, "size"), Window: rapid.IntRange(0, 1e6).Draw(t, "window"),
						Unacked: rapid.IntRange(0, 1e6).Draw(t, "unacked"), Queued: rapid.IntRange(0, 1e6).Draw(t, "queued")}
					chosen := s.Next(paths, g)
					if len(paths) < MaxPaths && chosen>>len(paths) != 0 {
						t.Fatalf("chose %b of %d paths", chosen, len(paths))
					}
					regular := false
					for _, p := range paths {
						regular = regular || p.Usable && !p.Backup
					}
					for i, p := range paths {
						if chosen.Has(i) && (!p.Usable || p.Room < g.Size && name != Default || p.Backup && regular) {
							t.Fatalf("chose path %d %+v for %+v (a regular path is usable: %v)", i, p, g, regular)
						}
					}
					if name != "redundant" && chosen.Len() > 1 {
						t.Fatalf("chose several paths: %b", chosen)
					}
					if i := rapid.IntRange(0, 2*MaxPaths).Draw(t, "changes"); i < len(paths) {
						paths[i].Usable = !paths[i].Usable
					}
				}
			})
		})
	}
}

// TestPropertyRatioIsExact: in every period, wherever it begins, each path is assigned exactly its
// ratio, however often a path was full.
func TestPropertyRatioIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ratios := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 6).Draw(t, "ratios")
		period := 0
		paths := make([]Path, len(ratios))
		for i, r := range ratios {
			paths[i] = open()
			paths[i].Ratio = r
			period += r
		}
		if period == 0 {
			return
		}
		s := scheduler(t, "ratio", Options{})
		var sent []int
		for len(sent) < 4*period {
			full := rapid.IntRange(-3, len(paths)-1).Draw(t, "full")
			if full >= 0 {
				paths[full].Room = 0
			}
			if set := s.Next(paths, Segment{Size: 1000}); set != 0 {
				sent = append(sent, set.First())
			}
			if full >= 0 {
				paths[full].Room = math.MaxInt
			}
		}
		for from := range len(sent) - period + 1 {
			got := make([]int, len(ratios))
			for _, i := range sent[from : from+period] {
				got[i]++
			}
			if fmt.Sprint(got) != fmt.Sprint(ratios) {
				t.Fatalf("packets %d to %d go %v, want %v", from, from+period, got, ratios)
			}
		}
	})
}

// TestPropertyDQIsEquations computes the equations as printed, in bits and seconds, and expects the
// same choices where they differ by more than rounding.
func TestPropertyDQIsEquations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "paths")
		paths := make([]Path, n)
		queue, tau := make([]float64, n), make([]float64, n)
		for i := range paths {
			paths[i] = open()
			paths[i].Rate = unit.Bandwidth(rapid.Int64Range(64_000, 100_000_000).Draw(t, "rate"))
			paths[i].Delay = time.Duration(rapid.Int64Range(0, int64(300*ms)).Draw(t, "delay"))
		}
		d := scheduler(t, "dq", Options{})
		now := time.Duration(0)
		for range 60 {
			now += time.Duration(rapid.Int64Range(0, int64(20*ms)).Draw(t, "later"))
			size := rapid.IntRange(40, 1500).Draw(t, "size")
			chosen := d.Next(paths, Segment{Now: now, Size: size}).First()
			arrives := make([]float64, n)
			least := math.Inf(1)
			var q float64
			for i, p := range paths {
				here := max(0, queue[i]-float64(p.Rate)*(now.Seconds()-tau[i])) + 8*float64(size)
				arrives[i] = here/float64(p.Rate) + p.Delay.Seconds()
				least = min(least, arrives[i])
				if i == chosen {
					q = here
				}
			}
			if arrives[chosen] > least+1e-6 {
				t.Fatalf("chose path %d of arrival times %v", chosen, arrives)
			}
			queue[chosen], tau[chosen] = q, now.Seconds()
		}
	})
}

// TestPropertyDQJKeepsItsRule: no path of those used together violates the rule.
func TestPropertyDQJKeepsItsRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		paths := drawPaths(t)
		size := rapid.IntRange(1, 1500).Draw(t, "size")
		d := scheduler(t, "dqj", Options{}).(*dqj)
		use := d.eligible(paths, candidates(paths), size)
		for j, p := range paths {
			sum := 0.0
			for i, other := range paths {
				if use.Has(i) && i != j {
					sum += math.Floor(float64(other.Rate) * p.Jitter.Seconds() / 8 / float64(size) * (1 - 1e-9))
				}
			}
			if use.Has(j) && sum >= 3 {
				t.Fatalf("uses %b, where %g packets overtake one of path %d", use, sum, j)
			}
		}
	})
}

// TestDQJCountsPacketsWithin32Bits: so many packets overtake those of a path with very much jitter
// that an int of 32 bits does not hold them for several such paths.
func TestDQJCountsPacketsWithin32Bits(t *testing.T) {
	paths := []Path{
		{Usable: true, MSS: 1000, Rate: 6971923},
		{Usable: true, MSS: 1000, Rate: 1, Jitter: 2464150734884},
	}
	d := scheduler(t, "dqj", Options{}).(*dqj)
	if use := d.eligible(paths, candidates(paths), 1); use != One(0) {
		t.Errorf("uses %b, want the path without jitter", use)
	}
	if n := d.overtake(paths, candidates(paths), 1, 1); n < d.overtaken {
		t.Errorf("%d packets overtake one", n)
	}
}

func TestNoAllocation(t *testing.T) {
	paths := benchPaths(8)
	for _, name := range Names() {
		s := scheduler(t, name, Options{})
		now := time.Duration(0)
		if n := testing.AllocsPerRun(100, func() {
			now += ms
			s.Next(paths, Segment{Now: now, Size: 1000, Window: 1e6, Queued: 1e6})
		}); n != 0 {
			t.Errorf("%s allocates %g times a call", name, n)
		}
	}
}

// benchPaths returns n paths, of which the fastest is full.
func benchPaths(n int) []Path {
	paths := make([]Path, n)
	for i := range paths {
		paths[i] = Path{Usable: true, Room: 100_000 * i, MSS: 1400, Cwnd: 56_000, InFlight: 14_000, SRTT: time.Duration(20+10*i) * ms, RTTVAR: ms,
			Delay: time.Duration(10+5*i) * ms, Jitter: ms, Rate: 10 * unit.MbitPerSecond, Ratio: i}
	}
	return paths
}

func BenchmarkNext(b *testing.B) {
	for _, n := range []int{2, 8} {
		paths := benchPaths(n)
		for _, name := range Names() {
			b.Run(fmt.Sprintf("%s/paths=%d", name, n), func(b *testing.B) {
				s := scheduler(b, name, Options{})
				b.ReportAllocs()
				now := time.Duration(0)
				for b.Loop() {
					now += ms
					s.Next(paths, Segment{Now: now, Size: 1400, Window: 1e6, Queued: 1e5})
				}
			})
		}
	}
}
