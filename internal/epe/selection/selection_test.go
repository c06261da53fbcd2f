package selection

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestProperties looks at random paths: one is first and open, a silent first path opens all, and
// nothing opens while no open path is saturated, nor before its rest ends.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Connection[int]
		now := time.Duration(0)
		delivered := make([]uint32, 5)
		until := map[int]time.Duration{}
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now += time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond
			var samples []Sample[int]
			for i := range delivered {
				if rapid.IntRange(0, 3).Draw(t, "absent") == 0 {
					continue
				}
				delivered[i] += uint32(rapid.IntRange(0, 1000).Draw(t, "delivered"))
				samples = append(samples, Sample[int]{
					Path: i, Source: uint64(rapid.IntRange(0, 1).Draw(t, "source")), Delivered: delivered[i], Segment: 1400,
					Cwnd: rapid.IntRange(1, 100).Draw(t, "cwnd"), InFlight: rapid.IntRange(0, 100).Draw(t, "flight"),
					NotSent: rapid.SampledFrom([]int{0, 0, 5000}).Draw(t, "unsent"), Window: rapid.SampledFrom([]int{0, 1 << 16, 1 << 24}).Draw(t, "window"),
					SRTT: time.Duration(rapid.IntRange(0, 300).Draw(t, "srtt")) * time.Millisecond, SlowStart: rapid.Bool().Draw(t, "slow start"),
					Silence: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 200}).Draw(t, "silence")) * time.Millisecond,
				})
			}
			before := map[int]Reason{}
			for _, s := range samples {
				before[s.Path] = c.Reason(s.Path)
			}
			changed := c.Update(now, samples)
			firsts, moved, saturated := 0, false, false
			var first *Sample[int]
			for i, s := range samples {
				if c.Reason(s.Path) == First {
					firsts++
					first = &samples[i]
				}
				moved = moved || before[s.Path].Open() != c.Reason(s.Path).Open()
				saturated = saturated || before[s.Path].Open() && s.Saturated() || first == &samples[i] && s.Saturated()
			}
			if want := min(len(samples), 1); firsts != want || changed != moved {
				t.Fatalf("%d paths are first, want %d; changed %v, want %v", firsts, want, changed, moved)
			}
			for _, s := range samples {
				r := c.Reason(s.Path)
				opens := !before[s.Path].Open() && r.Open()
				switch {
				case first.Silence > 0 && !r.Open():
					t.Fatalf("path %d rests (%s) while the first is silent", s.Path, r)
				case first.Silence == 0 && r == Overflow && opens && !saturated:
					t.Fatalf("path %d opens while no open one is saturated", s.Path)
				case first.Silence == 0 && r == Overflow && opens && now < until[s.Path]:
					t.Fatalf("path %d opens %s before its rest ends", s.Path, until[s.Path]-now)
				}
				if before[s.Path].Open() && (r == Slow || r == Window || r == NoGain) {
					until[s.Path] = now + restFirst
				}
			}
		}
	})
}

// road is a path of the model: its rate in bytes/s and its round-trip time.
type road struct {
	rate float64
	rtt  time.Duration
}

// model carries a load over roads as Linux' scheduler does in the mean: open paths are filled in
// the order of the list, and the connection carries at most a receive window in the largest delay
// of an open path.
type model struct {
	c         Connection[int]
	roads     []road
	delivered []float64
	window    float64
	now       time.Duration
	open      []time.Duration // of each road
}

func newModel(window float64, roads ...road) *model {
	return &model{roads: roads, delivered: make([]float64, len(roads)), window: window, open: make([]time.Duration, len(roads))}
}

// run offers a load in bytes/s for some time, and returns the rate that is carried.
func (m *model) run(load float64, d time.Duration) float64 {
	carried := 0.0
	for end := m.now + d; m.now < end; m.now += Interval {
		can, slowest := load, 0.0
		for i, r := range m.roads {
			if m.c.Reason(i).Open() || m.now == 0 && i == 0 {
				slowest = max(slowest, r.rtt.Seconds()+sendBurst/r.rate)
				m.open[i] += Interval
			}
		}
		can = min(can, m.window/slowest)
		var samples []Sample[int]
		for i, r := range m.roads {
			s := Sample[int]{Path: i, Segment: 1400, Cwnd: 10, SRTT: r.rtt, MinRTT: r.rtt, Window: int(m.window)}
			if m.c.Reason(i).Open() || m.now == 0 && i == 0 {
				part := min(can, r.rate)
				can -= part
				m.delivered[i] += part * Interval.Seconds()
				carried += part * Interval.Seconds()
				s.Cwnd = int(math.Ceil(r.rate*r.rtt.Seconds()/1400)) + 1
				s.InFlight = min(s.Cwnd, int(part*r.rtt.Seconds()/1400)+1)
				if load > part && part >= r.rate*0.999 {
					s.InFlight, s.NotSent = s.Cwnd, 1<<15
				}
			}
			s.Delivered = uint32(m.delivered[i] / 1400)
			samples = append(samples, s)
		}
		m.c.Update(m.now, samples)
	}
	return carried / d.Seconds()
}

const mbit = 1e6 / 8

func TestPairs(t *testing.T) {
	const ms, bulk = time.Millisecond, 1e12
	for name, tt := range map[string]struct {
		roads  []road
		window float64
		load   float64
		least  float64       // of what the connection carries, bytes/s
		second time.Duration // the longest that the second path is open in 20 s
		most   Reason        // its state at the end
	}{
		"both help":          {[]road{{50 * mbit, 10 * ms}, {50 * mbit, 10 * ms}}, 16e6, bulk, 97 * mbit, time.Minute, Overflow},
		"long, large window": {[]road{{50 * mbit, 10 * ms}, {50 * mbit, 200 * ms}}, 16e6, bulk, 97 * mbit, time.Minute, Overflow},
		"long, small window": {[]road{{50 * mbit, 10 * ms}, {50 * mbit, 200 * ms}}, 1e6, bulk, 48 * mbit, 2 * time.Second, Window},
		"both, small window": {[]road{{50 * mbit, 10 * ms}, {50 * mbit, 10 * ms}}, 1e6, bulk, 97 * mbit, time.Minute, Overflow},
		"slow":               {[]road{{100 * mbit, 10 * ms}, {mbit, 10 * ms}}, 16e6, bulk, 98 * mbit, 5 * time.Second, Slow},
		"slow, small window": {[]road{{100 * mbit, 10 * ms}, {mbit, 10 * ms}}, 1e6, bulk, 98 * mbit, 2 * time.Second, Window},
		"stream":             {[]road{{50 * mbit, 10 * ms}, {5 * mbit, 10 * ms}}, 16e6, 42 * mbit, 41 * mbit, 0, Unused},
		"stream over both":   {[]road{{50 * mbit, 10 * ms}, {20 * mbit, 80 * ms}}, 16e6, 60 * mbit, 59 * mbit, time.Minute, Overflow},
	} {
		m := newModel(tt.window, tt.roads...)
		got := m.run(tt.load, 20*time.Second)
		if got < tt.least || m.open[1] > tt.second || m.c.Reason(1) != tt.most {
			t.Errorf("%s: carried %.1f Mbit/s, want %.1f; second path open for %s, %s", name, got/mbit, tt.least/mbit, m.open[1], m.c.Reason(1))
		}
	}
}

// TestFirst begins on the slow path, which is preferred: the other one becomes first, and the slow
// one rests.
func TestFirst(t *testing.T) {
	m := newModel(16e6, road{5 * mbit, 10 * time.Millisecond}, road{50 * mbit, 10 * time.Millisecond})
	m.run(4*mbit, 3*time.Second)
	if a, b := m.c.Reason(0), m.c.Reason(1); a != Unused || b != First {
		t.Errorf("the slow path is %s, the other %s", a, b)
	}
	// What was overflow rests again when the load is that of one path.
	m.run(1e12, 3*time.Second)
	if r := m.c.Reason(0); r != Overflow {
		t.Errorf("the slow path is %s under load", r)
	}
	m.run(10*mbit, 3*time.Second)
	if r := m.c.Reason(0); r != Unused {
		t.Errorf("the slow path is %s after the load", r)
	}
}

// TestDoubling: each trial of a path that does not help is followed by a longer rest.
func TestDoubling(t *testing.T) {
	m := newModel(1e6, road{100 * mbit, 10 * time.Millisecond}, road{mbit, 10 * time.Millisecond})
	m.run(1e12, 10*time.Minute)
	if m.open[1] == 0 || m.open[1] > 8*time.Second {
		t.Errorf("open for %s in 10 minutes", m.open[1])
	}
}

// TestFailover: all paths open as soon as a sample shows that the first is silent, whatever they
// rest for.
func TestFailover(t *testing.T) {
	m := newModel(1e6, road{100 * mbit, 10 * time.Millisecond}, road{mbit, 10 * time.Millisecond})
	m.run(1e12, 5*time.Second)
	if m.c.Reason(1).Open() {
		t.Fatal("the slow path does not rest")
	}
	s := []Sample[int]{{Path: 0, Segment: 1400, Cwnd: 10, InFlight: 10, SRTT: 10 * time.Millisecond, Silence: 200 * time.Millisecond}, {Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * time.Millisecond}}
	if !m.c.Update(m.now, s) || m.c.Reason(1) != Failover {
		t.Errorf("the other path is %s", m.c.Reason(1))
	}
	// Without the first it is the only one.
	if m.c.Update(m.now+Interval, s[1:]); m.c.Reason(1) != First {
		t.Errorf("the last path is %s", m.c.Reason(1))
	}
}

// TestRepays: what a path saves of a transfer is at least the delay that it adds.
func TestRepays(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		lasted, rtt   time.Duration
		share, longer float64
		want          bool
	}{
		"as much":             {300 * ms, 100 * ms, 0.5, 0.1, true},
		"less":                {299 * ms, 100 * ms, 0.5, 0.1, false},
		"less of the rate":    {time.Second, 0, 0.09, 0.1, false},
		"as short":            {10 * ms, 10 * ms, 0.5, 0, true},
		"shorter":             {0, 10 * ms, 0.5, -0.1, true},
		"no rate":             {math.MaxInt64, 0, 0, 0.1, false},
		"no finite delay":     {math.MaxInt64, 0, 1, math.Inf(1), false},
		"end of 10 MB":        {500 * ms, 155 * ms, 1. / 3, 0.15, false},
		"two seconds of bulk": {2 * time.Second, 155 * ms, 1. / 3, 0.15, true},
	} {
		if got := repays(tt.lasted, tt.rtt, tt.share, tt.longer); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestWait: a path in slow start may be enough soon, and a longer one is for transfers that it
// shortens, so the next path waits for longer.
func TestWait(t *testing.T) {
	const ms = time.Millisecond
	helped := Past{Rate: 10 * mbit, Left: time.Minute}
	for name, tt := range map[string]struct {
		policy Policy
		starts bool
		rtt    time.Duration
		past   Past
		want   time.Duration
	}{
		"a little longer":  {Throughput, false, 50 * ms, Past{Rate: 45 * mbit, Left: time.Minute}, saturatedFor},
		"longer":           {Throughput, false, 50 * ms, helped, 520 * ms}, // 0.18 of the rate, and 81 ms of delay
		"much longer":      {Throughput, false, 300 * ms, helped, 2120 * ms},
		"longer, quick":    {Throughput, false, 200 * ms, Past{Rate: 45 * mbit, Left: time.Minute}, 600 * ms},
		"longer, a stream": {Steady, false, 300 * ms, helped, saturatedShort},
		"slow start":       {Throughput, true, 50 * ms, helped, startFor},
		"unknown":          {Throughput, false, 50 * ms, Past{}, 240 * ms},
		"unknown, longer":  {Throughput, false, 300 * ms, Past{}, 1280 * ms}, // 21 Mbit/s beside 45, and 0.3 s of delay
		"no gain":          {Throughput, false, 50 * ms, Past{Rate: 10 * mbit, Verdict: NoGain, Rests: 1, Left: time.Minute}, 520 * ms},
		"forgotten":        {Throughput, false, 50 * ms, Past{Rate: 10 * mbit}, 240 * ms},
	} {
		c := Connection[int]{Policy: tt.policy, Recall: func(i int) Past { return map[int]Past{1: tt.past}[i] }}
		opened := time.Duration(0)
		for now := time.Duration(0); opened == 0 && now < 5*time.Second; now += Interval {
			s := []Sample[int]{
				{Path: 0, Delivered: uint32(now / 1e6 * 4), Segment: 1400, Cwnd: 10, InFlight: 10, SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond, SlowStart: tt.starts},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: tt.rtt, MinRTT: tt.rtt},
			}
			if c.Update(now, s); c.Reason(1) == Overflow {
				opened = now
			}
		}
		if opened != tt.want {
			t.Errorf("%s: the next path opens after %s, want %s", name, opened, tt.want)
		}
	}
}

// TestSaturatedInTurns: the next path opens also while an open one with a long round trip is given
// data only at times, be it the first one, but not if it needs none, or if none of them waits.
func TestSaturatedInTurns(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		first, second int // saturated in one of so many samples
		opens         bool
	}{
		"both":                 {1, 1, true},
		"second at times":      {1, 8, true},
		"second seldom":        {1, 1000, false},
		"first at times":       {8, 1, true},
		"first seldom":         {1000, 1, false},
		"both at times, apart": {4, 6, false},
	} {
		c := Connection[int]{Recall: func(i int) Past {
			return map[int]Past{1: {Rate: 10 * mbit, MinRTT: 400 * ms, Left: time.Minute}, 2: {Rate: 20 * mbit, MinRTT: 420 * ms, Left: time.Minute}}[i]
		}}
		opened := false
		for i := range 250 {
			now := time.Duration(i) * Interval
			s := []Sample[int]{
				{Path: 0, Delivered: uint32(now / ms), Segment: 1400, Cwnd: 400, InFlight: 200, SRTT: 390 * ms, MinRTT: 390 * ms},
				{Path: 1, Delivered: uint32(now / ms), Segment: 1400, Cwnd: 400, InFlight: 200, SRTT: 400 * ms, MinRTT: 400 * ms},
				{Path: 2, Segment: 1400, Cwnd: 10, SRTT: 420 * ms, MinRTT: 420 * ms},
			}
			for p, every := range []int{tt.first, tt.second} {
				if i%every == 0 || i < 100 { // the second path opens
					s[p].NotSent = 1
				}
			}
			if i < 120 {
				s = s[:2]
			}
			c.Update(now, s)
			opened = opened || c.Reason(2).Open()
		}
		if !c.Reason(1).Open() && !opened {
			t.Errorf("%s: the second path does not open", name)
		}
		if opened != tt.opens {
			t.Errorf("%s: the third path opens: %t", name, opened)
		}
	}
}

// TestStream: a path that sends what a stream wrote while the path was in slow start is enough. A
// file, or a stream that is too much for it, needs the next one.
func TestStream(t *testing.T) {
	const ms, never = time.Millisecond, time.Duration(0)
	limited := func(time.Duration) float64 { return 40 * mbit }
	for name, tt := range map[string]struct {
		policy   Policy
		past     time.Duration                   // how long what was learned of the next path counts
		load     float64                         // written, bytes/s
		backlog  float64                         // bytes at the start
		full     bool                            // the application waits to write
		unknown  bool                            // what it writes
		capacity func(now time.Duration) float64 // of the first path, bytes/s
		starts   time.Duration                   // until when that is in slow start
		want     time.Duration
	}{
		"stream":                {Throughput, time.Minute, 35 * mbit, 1e6, false, false, limited, 0, never},
		"stream, next unknown":  {Throughput, 0, 36 * mbit, 1e6, false, false, limited, 0, never},
		"stream, policy for it": {Steady, time.Minute, 35 * mbit, 1e6, false, false, limited, 0, saturatedShort},
		"not known":             {Throughput, time.Minute, 35 * mbit, 1e6, false, true, limited, 0, saturatedFor},
		"bulk":                  {Throughput, time.Minute, 35 * mbit, 1e6, true, false, limited, 0, saturatedFor},
		"bulk, next unknown":    {Throughput, 0, 35 * mbit, 1e6, true, false, limited, 0, saturatedFor},
		"as much":               {Throughput, time.Minute, 39 * mbit, 1e6, false, false, limited, 0, saturatedFor},
		"more":                  {Throughput, time.Minute, 50 * mbit, 1e6, false, false, limited, 0, saturatedFor},
		"file in the buffer":    {Throughput, time.Minute, 0, 4e6, false, false, limited, 0, saturatedFor},
		"stream, then a slower path": {Throughput, time.Minute, 35 * mbit, 1e6, false, false, func(now time.Duration) float64 {
			if now < time.Second {
				return 40 * mbit
			}
			return 20 * mbit
		}, 0, 1200 * ms},
		"stream after slow start": {Throughput, time.Minute, 35 * mbit, 0, false, false, func(now time.Duration) float64 {
			if now < 400*ms {
				return 10 * mbit
			}
			return 40 * mbit
		}, 400 * ms, never},
		"more after slow start": {Throughput, time.Minute, 45 * mbit, 0, false, false, func(now time.Duration) float64 {
			if now < 400*ms {
				return 10 * mbit
			}
			return 40 * mbit
		}, 400 * ms, 600 * ms},
	} {
		c := Connection[int]{Policy: tt.policy, Recall: func(i int) Past {
			return Past{Rate: []float64{40 * mbit, 38 * mbit}[i], Left: []time.Duration{time.Minute, tt.past}[i]}
		}}
		written, delivered, opened := tt.backlog, 0.0, never
		if !tt.unknown {
			c.Source = func() (Source, bool) {
				return Source{Written: uint64(written), Full: tt.full}, true
			}
		}
		for now := time.Duration(0); opened == never && now < 5*time.Second; now += Interval {
			s := []Sample[int]{
				{Path: 0, Delivered: uint32(delivered / 1400), Segment: 1400, Cwnd: 100, InFlight: 50, SRTT: 10 * ms, MinRTT: 10 * ms, SlowStart: now < tt.starts},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 15 * ms, MinRTT: 15 * ms},
			}
			if tt.full || written > delivered {
				s[0].InFlight, s[0].NotSent = 100, 1<<15
			}
			if c.Update(now, s); c.Reason(1) == Overflow {
				opened = now
			}
			carried := tt.capacity(now) * Interval.Seconds()
			written += tt.load * Interval.Seconds()
			if !tt.full {
				carried = min(carried, written-delivered)
			}
			delivered += carried
		}
		if opened != tt.want {
			t.Errorf("%s: the next path opens after %s, want %s", name, opened, tt.want)
		}
	}
}

// TestStreamSampledBefore: an update with samples of before, as after a change of routes, shows
// less than what was delivered since the application wrote. That matters not to one that waits to
// write.
func TestStreamSampledBefore(t *testing.T) {
	const ms = time.Millisecond
	for _, full := range []bool{false, true} {
		now := time.Duration(0)
		c := Connection[int]{Recall: func(i int) Past { return Past{Rate: 40 * mbit, Left: time.Minute} }}
		c.Source = func() (Source, bool) { return Source{Written: uint64(35 * mbit * now.Seconds()), Full: full}, true }
		samples := []Sample[int]{
			{Path: 0, Segment: 1400, Cwnd: 100, InFlight: 100, SRTT: 10 * ms, MinRTT: 10 * ms},
			{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * ms, MinRTT: 10 * ms},
		}
		for ; now < saturatedFor; now += Interval {
			samples[0].Delivered = uint32(40 * mbit * now.Seconds() / 1400)
			c.Update(now, samples)
		}
		if c.Update(now, samples); c.Reason(1).Open() != full {
			t.Errorf("full %v: the next path is %s", full, c.Reason(1))
		}
	}
}

// TestStreamOverSecond: Linux' scheduler may give a whole stream to the path that was opened
// second. The first one is then idle, but nothing is held up.
func TestStreamOverSecond(t *testing.T) {
	m := newModel(16e6, road{50 * mbit, 10 * time.Millisecond}, road{50 * mbit, 10 * time.Millisecond})
	m.run(1e12, 2*time.Second)
	if r := m.c.Reason(1); r != Overflow {
		t.Fatalf("the other path is %s", r)
	}
	for range 2 * time.Second / Interval {
		m.now += Interval
		m.delivered[1] += 45 * mbit * Interval.Seconds()
		m.c.Update(m.now, []Sample[int]{
			{Path: 0, Delivered: uint32(m.delivered[0] / 1400), Segment: 1400, Cwnd: 50, Window: 16e6, SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond},
			{Path: 1, Delivered: uint32(m.delivered[1] / 1400), Segment: 1400, Cwnd: 50, InFlight: 40, Window: 16e6, SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond},
		})
		if r := m.c.Reason(1); r == NoGain {
			t.Fatalf("after %s the other path is %s", m.now, r)
		}
	}
}

// TestFirstCarriesLoad: a path does not become first, however short its delay is, that carries less
// than the present one has to.
func TestFirstCarriesLoad(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		load  float64 // of the first path, bytes/s
		limit bool
		moves bool
	}{
		"stream": {40 * mbit, false, false},
		"bulk":   {45 * mbit, true, false},
		"little": {mbit, false, true},
	} {
		var c Connection[int]
		delivered := 0.0
		c.Recall = func(i int) Past { return Past{Rate: []float64{45 * mbit, 5 * mbit}[i], Left: time.Minute} }
		for now := time.Duration(0); now < 3*time.Second; now += Interval {
			delivered += tt.load * Interval.Seconds()
			s := []Sample[int]{
				{Path: 0, Delivered: uint32(delivered / 1400), Segment: 1400, Cwnd: 1000, InFlight: 900, SRTT: 300 * ms, MinRTT: 290 * ms},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * ms, MinRTT: 10 * ms},
			}
			if tt.limit {
				s[0].InFlight, s[0].NotSent = 1000, 1
			}
			if now < time.Second {
				s = s[:1] // the other has not joined
			}
			c.Update(now, s)
		}
		if moves := c.Reason(1) == First; moves != tt.moves {
			t.Errorf("%s: the first path is %s, the other %s", name, c.Reason(0), c.Reason(1))
		}
	}
}

// TestLessToSend: a stream that begins with a backlog carries less when that is sent, which is not
// for the path that was opened meanwhile.
func TestLessToSend(t *testing.T) {
	m := newModel(16e6, road{50 * mbit, 10 * time.Millisecond}, road{50 * mbit, 10 * time.Millisecond})
	m.run(1e12, 1500*time.Millisecond)
	if r := m.c.Reason(1); r != Overflow {
		t.Fatalf("the other path is %s", r)
	}
	for range 5 {
		m.run(43*mbit, time.Second)
		if r := m.c.Reason(1); r == NoGain {
			t.Errorf("after %s the other path is %s", m.now, r)
		}
	}
}

// TestFirstStays: the window of a path in slow start says little of its rate. Such a path does not
// become first, nor when the first is busy with its own queue.
func TestFirstStays(t *testing.T) {
	const ms = time.Millisecond
	var c Connection[int]
	for now := time.Duration(0); now < 3*time.Second; now += Interval {
		s := []Sample[int]{
			{Path: 0, Delivered: uint32(now / 1e6 * 4), Segment: 1400, Cwnd: 200, InFlight: 200, NotSent: 1, SRTT: 60 * ms, MinRTT: 10 * ms},
			{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * ms, MinRTT: 10 * ms},
		}
		if now >= time.Second { // it is open
			s[1].Cwnd, s[1].InFlight, s[1].SRTT, s[1].SlowStart, s[1].Delivered = 200, 200, 15*ms, true, uint32((now-time.Second)/1e6)
			if now/Interval%3 == 0 {
				s[0].InFlight, s[0].NotSent = 150, 0
			}
		}
		if c.Update(now, s); c.Reason(0) != First {
			t.Fatalf("after %s the first path is %s", now, c.Reason(0))
		}
	}
}

// TestFirstStaysForObjects: the queue that short transfers leave on the first path is not its
// delay, which would make an equal one first. A queue of others is.
func TestFirstStaysForObjects(t *testing.T) {
	const ms = time.Millisecond
	for srtt, want := range map[time.Duration]Reason{22 * ms: First, 50 * ms: Unused} {
		c := Connection[int]{Recall: func(int) Past { return Past{Rate: 30 * mbit, MinRTT: 10 * ms, Left: time.Minute} }}
		for call := range 50 {
			s := []Sample[int]{
				{Path: 0, Delivered: uint32(36 * call), Segment: 1400, Cwnd: 60, SRTT: srtt, MinRTT: 10 * ms},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * ms, MinRTT: 10 * ms},
			}
			if call%2 == 0 {
				s[0].InFlight = 36
			}
			c.Update(time.Duration(call)*Interval, s)
		}
		if r := c.Reason(0); r != want {
			t.Errorf("with a round-trip time of %s the first path is %s, want %s", srtt, r, want)
		}
	}
}

// TestUnknownRate: a path of which only the round-trip time is known becomes first if that is
// shorter, after a while even if it is only a little, and the first rate that is measured decides. It
// does not become first if only its rate could be higher.
func TestUnknownRate(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		rtt     time.Duration
		rate    float64 // of the second path
		load    float64 // over the first path
		at, end Reason  // of the second path, soon and later
	}{
		"shorter":          {30 * ms, 60 * mbit, 3 * mbit, First, First},
		"shorter, slow":    {30 * ms, mbit, 3 * mbit, First, Unused},
		"as long":          {100 * ms, 60 * mbit, 3 * mbit, Unused, Unused},
		"a little shorter": {62 * ms, 60 * mbit, mbit, Unused, First},
	} {
		var c Connection[int]
		delivered := [2]uint32{}
		first := time.Duration(0)
		for now := time.Duration(0); now < 8*time.Second; now += Interval {
			s := []Sample[int]{
				{Path: 0, Segment: 1400, Cwnd: 80, SRTT: 85 * ms, MinRTT: 80 * ms},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: tt.rtt, MinRTT: tt.rtt, SlowStart: true},
			}
			if s[0].InFlight = 36; c.Reason(1) == First {
				s[0].InFlight, s[1].InFlight = 0, 10
				s[1].SRTT += time.Duration(10 * 1400 / tt.rate * float64(time.Second))
				delivered[1] += uint32(min(tt.rate, 20*mbit) * Interval.Seconds() / 1400)
				if first == 0 {
					first = now
				}
			} else {
				delivered[0] += uint32(tt.load * Interval.Seconds() / 1400)
			}
			s[0].Delivered, s[1].Delivered = delivered[0], delivered[1]
			if now < 200*ms {
				s = s[:1] // the other has not joined
			}
			c.Update(now, s)
			if now == 500*ms && c.Reason(1) != tt.at {
				t.Errorf("%s: soon the second path is %s, want %s", name, c.Reason(1), tt.at)
			}
			if tt.end == Unused && first > 0 && now > first+time.Second && c.Reason(1) == First {
				t.Errorf("%s: after %s the second path is first", name, now)
			}
		}
		if c.Reason(1) != tt.end {
			t.Errorf("%s: later the second path is %s, want %s", name, c.Reason(1), tt.end)
		}
	}
}

// TestUnknownRoundTrip: a path that has joined by a SYN/ACK that was retransmitted, so that its
// round-trip time is not known, is no short one: it opens when a long one would.
func TestUnknownRoundTrip(t *testing.T) {
	for rtt, opens := range map[time.Duration]time.Duration{0: 3 * time.Second, 10 * time.Millisecond: 200 * time.Millisecond, time.Second: 3 * time.Second} {
		var c Connection[int]
		opened := time.Duration(0)
		for now := time.Duration(0); now < 5*time.Second && opened == 0; now += Interval {
			delivered := uint32(now.Seconds() * 40 * mbit / 1400)
			c.Update(now, []Sample[int]{
				{Path: 0, Delivered: delivered, Segment: 1400, Cwnd: 36, InFlight: 36, NotSent: 1 << 16, SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: rtt, MinRTT: rtt, SlowStart: true},
			})
			if c.Reason(1).Open() {
				opened = now
			}
		}
		if opened < opens*9/10 || opened > 2*opens {
			t.Errorf("with a round-trip time of %s it opens after %s, want %s", rtt, opened, opens)
		}
	}
}

// TestReplaced: a subflow that takes over the path of another one and has not carried data, whose
// round-trip time is that of a handshake behind a queue, says nothing of the path: the better one
// becomes first again.
func TestReplaced(t *testing.T) {
	const ms = time.Millisecond
	var c Connection[int]
	a := Sample[int]{Path: 0, Source: 1, Segment: 1400, Cwnd: 19, InFlight: 18, SRTT: 60 * ms, MinRTT: 10 * ms}
	b := Sample[int]{Path: 1, Source: 2, Segment: 1400, Cwnd: 10, SRTT: 10 * ms, MinRTT: 10 * ms}
	for now := time.Duration(0); now < 600*ms; now += Interval {
		s := []Sample[int]{a, b}
		if now < 120*ms {
			s = s[:1] // the other has not joined
		}
		if c.Update(now, s); now == 160*ms && c.Reason(1) != First {
			t.Fatal("the path of which nothing is known is not tried")
		}
		if a.Delivered += 10; c.Reason(1) == First {
			a = Sample[int]{Path: 0, Source: 3, Segment: 1400, Cwnd: 10, SRTT: 60 * ms, MinRTT: 60 * ms}
			b.Cwnd, b.InFlight, b.SRTT = 11, 10, 60*ms
			b.Delivered += 4
			if now%(3*Interval) == 0 {
				b.InFlight = 0 // between two objects
			}
		}
	}
	if r := c.Reason(0); r != First {
		t.Errorf("the better path is %s", r)
	}
}

// TestWindowRests: a path for whose delay the receive window is too small rests four times as long
// as others.
func TestWindowRests(t *testing.T) {
	m := newModel(1e6, road{100 * mbit, 10 * time.Millisecond}, road{mbit, 10 * time.Millisecond})
	m.run(1e12, 6*time.Second)
	opened := m.open[1]
	if r := m.c.Reason(1); r != Window {
		t.Fatalf("the slow path is %s", r)
	}
	if m.run(1e12, 30*time.Second); m.open[1] > opened {
		t.Errorf("it was open again for %s", m.open[1]-opened)
	}
	if m.run(1e12, 20*time.Second); m.open[1] == opened {
		t.Error("it was not tried again")
	}
}

// TestLeft: a path that was left in slow start for a shorter one opens once the transfer has lasted
// for long enough that what it carried so far is worth its delay.
func TestLeft(t *testing.T) {
	const ms = time.Millisecond
	var c Connection[int]
	opened, delivered := time.Duration(0), 0
	for now := time.Duration(0); now < 4*time.Second && opened == 0; now += Interval {
		s := []Sample[int]{
			{Path: 0, Segment: 1400, Cwnd: 10, Delivered: uint32(min(now, 320*ms) / (20 * ms)), SRTT: 150 * ms, MinRTT: 140 * ms, SlowStart: true, Window: 1 << 24},
			{Path: 1, Segment: 1400, Cwnd: 20, SRTT: 10 * ms, MinRTT: 10 * ms, Window: 1 << 24},
		}
		if c.Reason(1) == First {
			s[1].InFlight, s[1].NotSent = 20, 1<<15
			delivered += 30
		} else {
			s[0].InFlight = 8
		}
		if s[1].Delivered = uint32(delivered); now < 320*ms {
			s = s[:1] // the other has not joined
		}
		if c.Update(now, s); c.Reason(0) == Overflow {
			opened = now
		}
	}
	if opened < 320*ms+saturatedFor || opened > 2*time.Second {
		t.Errorf("the path opens after %s", opened)
	}
}

// TestGrowing: a path whose rate still grows becomes first once it has carried more than the first
// one can.
func TestGrowing(t *testing.T) {
	const ms = time.Millisecond
	var c Connection[int]
	delivered := [2]int{}
	for now := time.Duration(0); now < 4*time.Second; now += Interval {
		s := []Sample[int]{
			{Path: 0, Segment: 1400, Cwnd: 20, InFlight: 20, NotSent: 1 << 15, SRTT: 60 * ms, MinRTT: 10 * ms, Window: 1 << 24},
			{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 30 * ms, MinRTT: 30 * ms, SlowStart: true, Window: 1 << 24},
		}
		delivered[0] += 15
		if c.Reason(1).Open() { // never limited by its window, as when that of the client is full
			s[1].Cwnd, s[1].InFlight = 800, 400
			delivered[1] += 150
		}
		s[0].Delivered, s[1].Delivered = uint32(delivered[0]), uint32(delivered[1])
		c.Update(now, s)
	}
	if r := c.Reason(1); r != First {
		t.Errorf("the faster path is %s", r)
	}
}

// TestWindowOfBefore: a path that was measured, and carries again after a pause, is in slow start with
// the window that filled its queue before, while the queue is short again. It is no faster than it
// was measured, and does not become first.
func TestWindowOfBefore(t *testing.T) {
	const ms = time.Millisecond
	var c Connection[int]
	delivered := [2]int{}
	again := 0
	for now := time.Duration(0); now < 6*time.Second; now += Interval {
		s := []Sample[int]{
			{Path: 0, Segment: 1400, Cwnd: 40, InFlight: 40, NotSent: 1 << 15, SRTT: 70 * ms, MinRTT: 30 * ms, Window: 1 << 24},
			{Path: 1, Segment: 1400, Cwnd: 110, SRTT: 300 * ms, MinRTT: 5 * ms, Window: 1 << 24},
		}
		delivered[0] += 25 // 7 Mbit/s
		if c.Reason(1).Open() {
			delivered[1] += 7 // 2 Mbit/s
			s[1].InFlight, s[1].NotSent = 110, 1<<14
			if now > 3*time.Second {
				again++
				s[1].SlowStart, s[1].SRTT = true, 120*ms
			}
		}
		if now > 2*time.Second && now < 3*time.Second { // the application has less to send
			s[0].InFlight, s[0].NotSent = 10, 0
			s[1].InFlight, s[1].NotSent = 0, 0
		}
		s[0].Delivered, s[1].Delivered = uint32(delivered[0]), uint32(delivered[1])
		c.Update(now, s)
		if now > 3*time.Second && c.Reason(1) == First {
			t.Fatalf("after %s the path of 2 Mbit/s is first", now)
		}
	}
	if again == 0 {
		t.Error("the path of 2 Mbit/s does not carry again")
	}
}

// TestSettledInTurns: the rate of a path that is paced is known although it is not saturated in each
// sample, but not that of one that has nothing more to send.
func TestSettledInTurns(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		saturated func(sample int) bool
		want      bool
	}{
		{func(int) bool { return true }, true},
		{func(i int) bool { return i%5 != 2 }, true},
		{func(i int) bool { return i%10 < 2 }, false}, // for more than a round trip it is not
		{func(int) bool { return false }, false},
	} {
		var c Connection[int]
		for i := range 50 {
			s := Sample[int]{Delivered: uint32(30 * i), Segment: 1400, Cwnd: 80, InFlight: 40, SRTT: 100 * ms, MinRTT: 90 * ms}
			if tt.saturated(i) {
				s.NotSent = 1 << 14
			}
			c.Update(time.Duration(i)*Interval, []Sample[int]{s})
		}
		if past, _ := c.Learned(2*time.Second, 0); past.Rate > 0 != tt.want {
			t.Errorf("a path saturated in the samples %t %t %t %t %t ... is remembered with %.0f bytes/s",
				tt.saturated(0), tt.saturated(1), tt.saturated(2), tt.saturated(3), tt.saturated(4), past.Rate)
		}
	}
}

// TestFallenPath: the first path is slow for some seconds of bulk. Soon after it is first again,
// and one that stays slow is tried less and less often.
func TestFallenPath(t *testing.T) {
	const ms = time.Millisecond
	for _, returns := range []bool{true, false} {
		m := newModel(16e6, road{60 * mbit, 10 * ms}, road{20 * mbit, 25 * ms})
		m.run(4*mbit, 3*time.Second)
		m.roads[0].rate = 2 * mbit
		m.run(1e12, 6*time.Second)
		m.run(4*mbit, 2*time.Second)
		if a, b := m.c.Reason(0), m.c.Reason(1); a != Unused || b != First {
			t.Fatalf("in the fall the path is %s, the other %s", a, b)
		}
		if returns {
			m.roads[0].rate = 60 * mbit
			if m.run(4*mbit, restFirst+time.Second); m.c.Reason(0) != First {
				t.Errorf("after its return the path is %s", m.c.Reason(0))
			}
			continue
		}
		before := m.open[0]
		m.run(4*mbit, 5*time.Minute)
		if again := m.open[0] - before; m.c.Reason(1) != First || again == 0 || again > 8*time.Second {
			t.Errorf("a slow path was first for %s more, the other is %s", again, m.c.Reason(1))
		}
	}
}

// TestSlowAtOnce: a path whose rate is known, and small, does not stay open for the time in which
// others are judged.
func TestSlowAtOnce(t *testing.T) {
	m := newModel(16e6, road{100 * mbit, 10 * time.Millisecond}, road{mbit, 10 * time.Millisecond})
	m.run(1e12, 5*time.Second)
	if r := m.c.Reason(1); r != Slow || m.open[1] >= judgeAfter {
		t.Errorf("the slow path is %s, and was open for %s", r, m.open[1])
	}
}

// TestFirstAlone: a path that rests because it is slow beside the others is first where it is the
// shortest one for what there is to carry. One that failed is not, nor one of unknown rate.
func TestFirstAlone(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		rate          float64
		verdict, want Reason
	}{
		{10 * mbit, Slow, First}, {10 * mbit, NoGain, First}, {10 * mbit, Window, First}, {10 * mbit, Stalled, Stalled}, {10 * mbit, Broken, Broken}, {0, Slow, Slow},
	} {
		c := Connection[int]{Recall: func(i int) Past {
			return []Past{{Rate: 500 * mbit, MinRTT: 300 * ms, Left: time.Minute}, {Rate: tt.rate, MinRTT: 10 * ms, Verdict: tt.verdict, Rest: time.Minute, Left: time.Minute}}[i]
		}}
		for now := time.Duration(0); now < time.Second; now += Interval {
			s := []Sample[int]{
				{Path: 0, Segment: 1400, Cwnd: 100, SRTT: 300 * ms, MinRTT: 300 * ms},
				{Path: 1, Segment: 1400, Cwnd: 10, SRTT: 10 * ms, MinRTT: 10 * ms},
			}
			if now < 200*ms {
				s = s[:1] // the other has not joined
			}
			c.Update(now, s)
		}
		if got := c.Reason(1); got != tt.want {
			t.Errorf("the path of %.0f bytes/s that rests as %s is %s, want %s", tt.rate, tt.verdict, got, tt.want)
		}
	}
}
