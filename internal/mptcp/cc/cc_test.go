package cc

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func control(t interface {
	Helper()
	Fatal(...any)
}, name string) Control {
	t.Helper()
	c, err := New(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// flow returns a subflow in congestion avoidance whose whole window is in flight.
func flow(window float64, rtt time.Duration) Subflow {
	return Subflow{Cwnd: window, Ssthresh: window, SRTT: rtt, MinRTT: rtt, InFlight: window}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
		t.Errorf("%s is %.12g, want %.12g", what, got, want)
	}
}

func TestNew(t *testing.T) {
	for _, name := range Names() {
		control(t, name)
	}
	if _, err := New("bbr"); err == nil || err.Error() != `choose congestion control "bbr": want one of newreno, cubic, vegas, lia, olia, balia, wvegas` {
		t.Errorf("an unknown name says %v", err)
	}
}

// TestTable: a control that only the kernel has is known and refused, and names of the kernel
// translate both ways.
func TestTable(t *testing.T) {
	for _, name := range Known() {
		if c, err := New(name); (err == nil) != slices.Contains(Names(), name) || (err == nil) != (c != nil) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if got := OfKernel(InKernel(name)); got != name {
			t.Errorf("%s is %s in the kernel, and that is %s", name, InKernel(name), got)
		}
	}
	if _, err := New("bbr"); err == nil || !slices.Contains(Known(), "bbr") {
		t.Errorf("bbr: %v, known are %q", err, Known())
	}
	if got := InKernel("newreno"); got != "reno" {
		t.Errorf("newreno is %q in the kernel", got)
	}
	if in, of := InKernel("own"), OfKernel(""); in != "own" || of != "" {
		t.Errorf("unknown names become %q and %q", in, of)
	}
}

func TestStart(t *testing.T) {
	f := Start(InitialWindow)
	if f.Cwnd != 10 || f.Ssthresh != NoThreshold {
		t.Errorf("a fresh subflow is %+v", f)
	}
	defer func() {
		if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "BUG: ") {
			t.Errorf("a window of 0 says %v", r)
		}
	}()
	Start(0)
}

// TestSlowStart applies to all controls but cubic, which is that of Linux: one acknowledgement grows
// the window by at most two segments, and by at most one after a timeout.
func TestSlowStart(t *testing.T) {
	for _, name := range Names() {
		if name == "cubic" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := control(t, name)
			s := []Subflow{Start(10), flow(10, 10*ms)}
			s[0].SRTT, s[0].MinRTT = 10*ms, 10*ms
			ack := func(segments int) float64 {
				s[0].InFlight = s[0].Cwnd
				c.Acked(s, 0, Ack{Now: 10 * ms, Segments: segments, RTT: 10 * ms, Limited: true})
				return s[0].Cwnd
			}
			near(t, "the window after one segment", ack(1), 11)
			near(t, "the window after two segments", ack(2), 13)
			near(t, "the window after a jump of a window", ack(40), 15)
			c.Acked(s, 0, Ack{Now: 10 * ms, Segments: 1})
			near(t, "the window after an acknowledgement while it was not the limit", s[0].Cwnd, 15)

			c.TimedOut(s, 0, 20*ms)
			near(t, "the window after a timeout", s[0].Cwnd, 1)
			near(t, "the window after a jump after it", ack(40), 2)

			s[0].Cwnd, s[0].Ssthresh = 4, 4.5
			near(t, "the window that reaches the threshold", ack(2), 4.5)
			s[0].Cwnd, s[0].Ssthresh, s[0].InFlight = maxWindow, NoThreshold, maxWindow
			if ack(2); s[0].Cwnd > maxWindow {
				t.Errorf("the window grows to %g", s[0].Cwnd)
			}
			s[0].Cwnd, s[0].Ssthresh = maxWindow, 1
			if c.Acked(s, 0, Ack{Now: 30 * ms, Segments: 1e6, RTT: 10 * ms, Limited: true}); s[0].Cwnd > maxWindow {
				t.Errorf("the window grows in congestion avoidance to %g", s[0].Cwnd)
			}
		})
	}
}

func TestNewReno(t *testing.T) {
	c := control(t, "newreno")
	s := []Subflow{flow(10, 10*ms)}
	c.Acked(s, 0, Ack{Segments: 1, Limited: true})
	near(t, "the window after a segment", s[0].Cwnd, 10.1)
	c.Acked(s, 0, Ack{Segments: 2, Limited: true})
	near(t, "the window after two", s[0].Cwnd, 10.1+2/10.1)
	s[0].Cwnd = 10
	c.Acked(s, 0, Ack{Segments: 1000, Limited: true})
	near(t, "the window after a jump: a round trip's growth", s[0].Cwnd, 11)

	for _, tt := range []struct{ window, inFlight, threshold float64 }{
		{11, 11, 5.5},
		{11, 13, 5.5}, // limited transmit
		{11, 6, 3},    // the sender had less to send
		{3, 3, 2},
		{1, 1, 2},
	} {
		s[0].Cwnd, s[0].InFlight = tt.window, tt.inFlight
		c.Lost(s, 0, 0)
		near(t, "the window after a loss", s[0].Cwnd, tt.threshold)
		near(t, "the threshold after a loss", s[0].Ssthresh, tt.threshold)
		s[0].Cwnd, s[0].InFlight = tt.window, tt.inFlight
		c.TimedOut(s, 0, 0)
		near(t, "the window after a timeout", s[0].Cwnd, 1)
		near(t, "the threshold after a timeout", s[0].Ssthresh, tt.threshold)
	}
}

// TestCubicReduces: windows are whole segments (cubictcp_recalc_ssthresh: 717/1024, rounded down, at
// least 2), and do not depend on what is in flight.
func TestCubicReduces(t *testing.T) {
	c := control(t, "cubic")
	for _, tt := range []struct{ window, inFlight, want float64 }{
		{100, 100, 70}, {11, 11, 7}, {10, 10, 7}, {9, 9, 6}, {7, 7, 4}, {6, 6, 4}, {3, 3, 2}, {2, 2, 2}, {100, 10, 70},
	} {
		s := []Subflow{flow(tt.window, 100*ms)}
		s[0].InFlight = tt.inFlight
		c.Lost(s, 0, 0)
		near(t, fmt.Sprintf("the window after a loss at %v", tt.window), s[0].Cwnd, tt.want)
		near(t, "its threshold", s[0].Ssthresh, tt.want)
		s = []Subflow{flow(tt.window, 100*ms)}
		c.TimedOut(s, 0, 0)
		near(t, fmt.Sprintf("the threshold after a timeout at %v", tt.window), s[0].Ssthresh, tt.want)
		near(t, "the window after it", s[0].Cwnd, 1)
	}
}

// TestCubic follows bictcp_update from a loss at 100 segments: W_max 100, window 70, K = 4.2158 s.
func TestCubic(t *testing.T) {
	c := control(t, "cubic")
	s := []Subflow{flow(100, 100*ms)}
	c.(Sampler).Sampled(s, 0, 0, 100*ms)
	c.Lost(s, 0, 0)
	steps := []struct {
		what     string
		now      time.Duration
		segments int
		idle     time.Duration
		window   float64
		count    uint32
	}{
		{"the stage begins: 100 - 27 segments are its target, 3 more", time.Second, 1, 0, 70, 23},
		{"a second later: 88, 18 more", 2 * time.Second, 1, 0, 70, 3},
		{"the third segment for these", 2 * time.Second, 1, 0, 71, 3},
		{"another window, at the same time: the cubic function is not computed again", 2 * time.Second, 3, 0, 72, 3},
		{"28 ms later the window is another", 2028 * ms, 1, 0, 72, 4},
		{"28 ms after that it is the same", 2056 * ms, 1, 0, 72, 4},
		{"a pause of 10 s does not count", 12056 * ms, 1, 10 * time.Second, 72, 4},
		{"4 segments", 12056 * ms, 1, 0, 73, 4},
		{"the window of the loss is passed slowly", 14300 * ms, 1, 0, 73, 2},
	}
	for _, x := range steps {
		s[0].Idle = x.idle
		c.Acked(s, 0, Ack{Now: x.now, Segments: x.segments, Limited: true})
		near(t, x.what+": the window", s[0].Cwnd, x.window)
		if s[0].count != x.count {
			t.Errorf("%s: it grows for each %d segments, want %d", x.what, s[0].count, x.count)
		}
	}

	// What is not the limit does not grow.
	c.Acked(s, 0, Ack{Now: 14300 * ms, Segments: 10})
	near(t, "the window that is not the limit", s[0].Cwnd, 73)

	// Fast convergence: lost below W_max.
	s = []Subflow{flow(100, 100*ms)}
	c.Lost(s, 0, 0)
	s[0].Cwnd = 80
	c.Lost(s, 0, 0)
	near(t, "W_max after a loss at 80 of 100", float64(s[0].wMax), 68)
	near(t, "the window after it", s[0].Cwnd, 56)

	// After a timeout the cubic function begins at its plateau, with a segment for each 20.
	s = []Subflow{flow(100, 100*ms)}
	c.TimedOut(s, 0, 0)
	s[0].Cwnd = 70
	c.Acked(s, 0, Ack{Now: time.Second, Segments: 1, Limited: true})
	if s[0].k != 0 || s[0].count != 20 {
		t.Errorf("after a timeout K is %g, and the window grows for each %d segments, want 0 and 20", s[0].k, s[0].count)
	}
}

// TestCubicSlowStart: the window grows by all that is acknowledged, without a limit for an
// acknowledgement (tcp_slow_start).
func TestCubicSlowStart(t *testing.T) {
	c := control(t, "cubic")
	s := []Subflow{Start(10)}
	c.Acked(s, 0, Ack{Segments: 10, Limited: true})
	near(t, "the window after 10 segments", s[0].Cwnd, 20)
	s[0].Ssthresh = 25
	c.Acked(s, 0, Ack{Segments: 10, Limited: true})
	near(t, "the window at the threshold", s[0].Cwnd, 25)
	for _, threshold := range []float64{1, NoThreshold} {
		s[0].Cwnd, s[0].Ssthresh = maxWindow, threshold
		if c.Acked(s, 0, Ack{Now: time.Second, Segments: 1e6, Limited: true}); s[0].Cwnd > maxWindow {
			t.Errorf("the window grows to %g", s[0].Cwnd)
		}
	}
}

// TestCubicIsFriendly: at the plateau of a window of 7 the window grows as that of a Reno with the
// same mean rate: by one for 13 segments, 15/8 windows. It is computed at most each 32 ms while the
// window is the same.
func TestCubicIsFriendly(t *testing.T) {
	for _, tt := range []struct {
		every time.Duration
		want  int // segments until the window grows
	}{{40 * ms, 14}, {4 * ms, 17}} {
		c := control(t, "cubic")
		s := []Subflow{flow(7, ms)}
		s[0].wMax = 7
		n := 0
		for now := time.Second; s[0].Cwnd == 7 && n < 100; now += tt.every {
			c.Acked(s, 0, Ack{Now: now, Segments: 1, Limited: true})
			n++
		}
		if n != tt.want || s[0].Cwnd != 8 {
			t.Errorf("with an acknowledgement each %v a window of 7 grows to %g after %d segments, want 8 after %d", tt.every, s[0].Cwnd, n, tt.want)
		}
	}
}

// TestVegas: BaseRTT is 100 ms. The window is 20 segments: diff is 20 (rtt - 100) / 100.
func TestVegas(t *testing.T) {
	for _, tt := range []struct {
		name      string
		rtt       time.Duration
		slow      bool
		limited   bool
		samples   int
		want      float64
		threshold float64
	}{
		{"1 in the queue: too few", 105 * ms, false, true, 3, 21, 20},
		{"3 in the queue: as it should be", 115 * ms, false, true, 3, 20, 20},
		{"5 in the queue: too many", 125 * ms, false, true, 3, 19, 19},
		{"too few, but the window was not the limit", 105 * ms, false, false, 3, 20, 20},
		{"too few samples: as NewReno", 125 * ms, false, true, 2, 20.05, 20},
		{"slow start goes on", 104 * ms, true, true, 3, 23, 100},
		{"slow start ends at the actual rate", 125 * ms, true, true, 3, (20+2)*100.0/125 + 1, (20+2)*100.0/125 + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := control(t, "vegas")
			s := []Subflow{flow(20, 100*ms)}
			if tt.slow {
				s[0].Ssthresh = 100
			}
			now := time.Second
			for range tt.samples - 1 { // sent before the round began
				c.Acked(s, 0, Ack{Now: now, Segments: 1, RTT: tt.rtt, Limited: tt.limited})
				now += ms
			}
			c.Acked(s, 0, Ack{Now: now + tt.rtt, Segments: 1, RTT: tt.rtt, Limited: tt.limited})
			near(t, "the window", s[0].Cwnd, tt.want)
			near(t, "the threshold", s[0].Ssthresh, tt.threshold)
		})
	}

	c := control(t, "vegas")
	s := []Subflow{flow(20, 100*ms)}
	now := time.Second
	ack := func() {
		c.Acked(s, 0, Ack{Now: now, Segments: 1, RTT: 100 * ms, Limited: true})
		now += ms
	}
	for range 100 {
		ack() // the round began at 1 s, so this is all of segments sent before
	}
	near(t, "the window within a round", s[0].Cwnd, 20)
	ack()
	near(t, "the window after it", s[0].Cwnd, 21)
	c.Lost(s, 0, now)
	near(t, "the window after a loss", s[0].Cwnd, 10)
	now += time.Second
	ack()
	near(t, "the window after the first acknowledgement since: a round begins", s[0].Cwnd, 10)
}

// TestVegasLeast: from a window of 1 neither the window nor the threshold shrinks to 0.
func TestVegasLeast(t *testing.T) {
	c := control(t, "vegas")
	s := []Subflow{flow(1, 100*ms)}
	s[0].Ssthresh = 1
	for range vegasSamples + 1 { // the first begins a round that the last ends
		c.Acked(s, 0, Ack{Now: time.Second, Segments: 1, RTT: time.Second, Limited: true})
	}
	c.Acked(s, 0, Ack{Now: 3 * time.Second, Segments: 1, RTT: time.Second, Limited: true})
	near(t, "the window", s[0].Cwnd, 2)
	near(t, "the threshold", s[0].Ssthresh, 1)
}

// TestWVegas: BaseRTT is 100 ms, and two subflows of 20 segments each: the target is 5 segments
// once it is reached, 2 before.
func TestWVegas(t *testing.T) {
	c := control(t, "wvegas")
	for _, tt := range []struct {
		name   string
		rtt    time.Duration
		target float64
		queue  time.Duration
		want   float64
	}{
		{"1 in the queue", 105 * ms, 2, 5 * ms, 21},
		{"4 in the queue: as many as its share allows", 125 * ms, 2, 25 * ms, 21},
		{"6.7 in the queue: too many", 150 * ms, 5, 50 * ms, 19},
		{"the queue has doubled: it is drained", 150 * ms, 5, 25 * ms, 19.0 / 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := []Subflow{flow(20, 100*ms), flow(20, 100*ms)}
			s[0].target, s[0].queue = tt.target, tt.queue
			now := time.Second
			for range 2 {
				c.Acked(s, 0, Ack{Now: now, Segments: 1, RTT: tt.rtt, Limited: true})
				now += ms
			}
			c.Acked(s, 0, Ack{Now: now + tt.rtt, Segments: 1, RTT: tt.rtt, Limited: true})
			near(t, "the window", s[0].Cwnd, tt.want)
			if tt.target > 2 {
				near(t, "the target", s[0].target, 5)
			}
		})
	}
}

// TestLIA: windows of 10 and 20 segments and RTTs of 50 and 100 ms, so both have a rate of 200
// segments a second. alpha is 30 * 10/0.05^2 / 400^2 = 0.75, so 0.75/30 = 1/40 of a segment for
// each.
func TestLIA(t *testing.T) {
	c := control(t, "lia")
	s := []Subflow{flow(10, 50*ms), flow(20, 100*ms)}
	all := look(s, 0)
	near(t, "alpha", 30*all.alpha(), 0.75)
	for i, w := range []float64{10, 20} {
		c.Acked(s, i, Ack{Segments: 1, Limited: true})
		near(t, "the window", s[i].Cwnd, w+0.025)
		s[i].Cwnd = w
	}
	// A tiny window of a short path: 2/0.01^2 / (200 + 200)^2, which is less than TCP's 1/2.
	s = []Subflow{flow(2, 10*ms), flow(100, 500*ms)}
	c.Acked(s, 0, Ack{Segments: 1, Limited: true})
	near(t, "a tiny window", s[0].Cwnd, 2+2/0.01/0.01/(400*400))
	// Alone, or beside subflows that are closed or have no round trip time yet, it is TCP.
	s = []Subflow{flow(10, 50*ms), {}, Start(10)}
	c.Acked(s, 0, Ack{Segments: 1, Limited: true})
	near(t, "the window of a subflow alone", s[0].Cwnd, 10.1)
}

// TestOLIA: windows of 10 and 20 segments at 100 ms. The increases without alpha are 10/0.01 /
// 300^2 and 20/0.01 / 300^2.
func TestOLIA(t *testing.T) {
	for _, tt := range []struct {
		name      string
		delivered [2]uint64
		loss      [2]uint64
		previous  [2]uint64
		alphas    [2]float64
	}{
		{"nothing known", [2]uint64{}, [2]uint64{}, [2]uint64{}, [2]float64{0.5, -0.5}},
		{"the smaller is better", [2]uint64{100, 50}, [2]uint64{}, [2]uint64{}, [2]float64{0.5, -0.5}},
		{"the larger is better", [2]uint64{50, 100}, [2]uint64{}, [2]uint64{}, [2]float64{0, 0}},
		{"the interval before counts too", [2]uint64{110, 150}, [2]uint64{100, 100}, [2]uint64{20, 60}, [2]float64{0.5, -0.5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := control(t, "olia")
			for i := range 2 {
				s := []Subflow{flow(10, 100*ms), flow(20, 100*ms)}
				for j := range s {
					s[j].Delivered, s[j].loss, s[j].previous = tt.delivered[j], tt.loss[j], tt.previous[j]
				}
				w := s[i].Cwnd
				near(t, "alpha", alpha(s, i, 2), tt.alphas[i])
				c.Acked(s, i, Ack{Segments: 1, Limited: true})
				near(t, "the window", s[i].Cwnd, w+w/900+tt.alphas[i]/w)
			}
		})
	}
	s := []Subflow{flow(10.2, 100*ms), flow(10.7, 100*ms)}
	near(t, "alpha of windows of as many whole segments", alpha(s, 0, 2), 0)

	// Two of three are best, and neither is the largest.
	s = []Subflow{flow(10, 100*ms), flow(11, 100*ms), flow(12, 100*ms)}
	s[0].Delivered, s[1].Delivered = 7, 7
	for i, want := range []float64{1. / 6, 1. / 6, -1. / 3} {
		near(t, "alpha", alpha(s, i, 3), want)
	}

	// Losses move the intervals on, but not when nothing was delivered between them.
	c := control(t, "olia")
	s = []Subflow{flow(3, 100*ms), flow(3, 100*ms)}
	for _, delivered := range []uint64{30, 70, 70} {
		s[0].Delivered = delivered
		c.Lost(s, 0, 0)
	}
	if s[0].loss != 70 || s[0].previous != 30 {
		t.Errorf("the losses are noted at %d and %d, want 70 and 30", s[0].loss, s[0].previous)
	}
	near(t, "the least window of one of two", s[0].Cwnd, 1)
	s = []Subflow{flow(3, 100*ms)}
	c.Lost(s, 0, 0)
	near(t, "the least window of one alone", s[0].Cwnd, 2)
}

// TestBALIA: rates of 100 and 200 segments a second. alpha is 2 and 1; x / (rtt 300^2) (1 +
// alpha)/2 (4 + alpha)/5 is 100/0.1/90000 * 1.5 * 1.2 = 0.02 and 200/0.1/90000 = 1/45.
func TestBALIA(t *testing.T) {
	c := control(t, "balia")
	for i, want := range []float64{0.02, 1. / 45} {
		s := []Subflow{flow(10, 100*ms), flow(20, 100*ms)}
		w := s[i].Cwnd
		c.Acked(s, i, Ack{Segments: 1, Limited: true})
		near(t, "the window", s[i].Cwnd, w+want)
	}
	for _, tt := range []struct {
		windows [2]float64
		want    [2]float64
	}{
		{[2]float64{10, 20}, [2]float64{2.5, 10}},   // alpha is 2: at most 3/2 counts
		{[2]float64{16, 20}, [2]float64{6, 10}},     // 16 - 8 * 1.25
		{[2]float64{2, 2}, [2]float64{1, 1}},        // one of two may be left with a segment
		{[2]float64{1, 100}, [2]float64{1, 50}},     // and no less
		{[2]float64{20, 20}, [2]float64{10, 10}},    // as TCP
		{[2]float64{40, 0}, [2]float64{20, 0 * 20}}, // alone
	} {
		for i, want := range tt.want {
			if tt.windows[i] == 0 {
				continue
			}
			for _, timeout := range []bool{false, true} {
				s := []Subflow{flow(tt.windows[0], 100*ms), flow(tt.windows[1], 100*ms)}
				if timeout {
					c.TimedOut(s, i, 0)
					near(t, "the window after a timeout", s[i].Cwnd, 1)
				} else {
					c.Lost(s, i, 0)
					near(t, "the window after a loss", s[i].Cwnd, want)
				}
				near(t, "the threshold", s[i].Ssthresh, want)
			}
		}
	}
}

// drawFlows draws subflows in any state that is reachable by calls.
func drawFlows(t *rapid.T) []Subflow {
	draw := rapid.Custom(func(t *rapid.T) Subflow {
		if rapid.IntRange(0, 9).Draw(t, "closed") == 0 {
			return Subflow{}
		}
		f := Subflow{
			Cwnd:     rapid.Float64Range(1, 1e6).Draw(t, "window"),
			Ssthresh: rapid.Float64Range(1, 1e6).Draw(t, "threshold"),
			SRTT:     time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "rtt")),
			InFlight: rapid.Float64Range(0, 1e6).Draw(t, "in flight"),
		}
		f.MinRTT = time.Duration(float64(f.SRTT) * rapid.Float64Range(0, 1).Draw(t, "least"))
		f.Delivered = rapid.Uint64().Draw(t, "delivered")
		f.loss = f.Delivered - rapid.Uint64Range(0, f.Delivered).Draw(t, "since loss")
		f.previous = f.loss - rapid.Uint64Range(0, f.loss).Draw(t, "since loss before")
		return f
	})
	return rapid.SliceOfN(draw, 1, 8).Draw(t, "subflows")
}

// TestPropertyWindowsStaySane: after any sequence of calls, windows and thresholds are finite and
// at least 1, and each call changes only those of its own subflow.
func TestPropertyWindowsStaySane(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := control(t, name)
				s := drawFlows(t)
				now := time.Duration(0)
				for range 60 {
					i := rapid.IntRange(0, len(s)-1).Draw(t, "subflow")
					if s[i].Cwnd == 0 {
						s[i] = Start(InitialWindow)
					}
					now += time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "later"))
					before := append([]Subflow(nil), s...)
					switch rapid.IntRange(0, 9).Draw(t, "event") {
					case 0:
						s[i].InFlight = rapid.Float64Range(0, 2*s[i].Cwnd).Draw(t, "in flight")
						c.Lost(s, i, now)
					case 1:
						c.TimedOut(s, i, now)
					default:
						a := Ack{Now: now, Segments: rapid.IntRange(1, 1e6).Draw(t, "segments"), Limited: rapid.Bool().Draw(t, "limited"),
							RTT: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "rtt"))}
						s[i].Delivered += uint64(a.Segments)
						s[i].SRTT = max(s[i].SRTT, a.RTT/8)
						if s[i].MinRTT == 0 || a.RTT > 0 && a.RTT < s[i].MinRTT {
							s[i].MinRTT = a.RTT
						}
						c.Acked(s, i, a)
					}
					for j, f := range s {
						if math.IsNaN(f.Cwnd) || math.IsInf(f.Cwnd, 0) || f.Cwnd != 0 && f.Cwnd < 1 || f.Cwnd > maxWindow {
							t.Fatalf("the window of %d is %g", j, f.Cwnd)
						}
						if math.IsNaN(f.Ssthresh) || math.IsInf(f.Ssthresh, 0) || f.Cwnd != 0 && f.Ssthresh < 1 {
							t.Fatalf("the threshold of %d is %g", j, f.Ssthresh)
						}
						if j != i && f != before[j] {
							t.Fatalf("what happened to %d changed %d from %+v to %+v", i, j, before[j], f)
						}
					}
				}
			})
		})
	}
}

// TestPropertyCoupledDoNoHarm: for the same acknowledgement no coupled subflow grows more than with
// NewReno; with OLIA at most by alpha more.
func TestPropertyCoupledDoNoHarm(t *testing.T) {
	for _, name := range []string{"lia", "olia", "balia"} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := drawFlows(t)
				i := rapid.IntRange(0, len(s)-1).Draw(t, "subflow")
				if s[i].Cwnd == 0 {
					return
				}
				a := Ack{Segments: rapid.IntRange(1, 100).Draw(t, "segments"), Limited: true}
				reno := append([]Subflow(nil), s...)
				control(t, "newreno").Acked(reno, i, a)
				extra := 0.0
				if all := look(s, i); name == "olia" && all.flows > 1 && s[i].Cwnd >= s[i].Ssthresh {
					extra = max(0, alpha(s, i, all.flows)) * min(float64(a.Segments), s[i].Cwnd) / s[i].Cwnd
				}
				control(t, name).Acked(s, i, a)
				if s[i].Cwnd > reno[i].Cwnd*(1+1e-12)+extra {
					t.Fatalf("grows to %g, NewReno to %g", s[i].Cwnd, reno[i].Cwnd)
				}
			})
		})
	}
}

// TestPropertyLIA compares with equation 2 of RFC 6356 as printed, in seconds.
func TestPropertyLIA(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawFlows(t)
		i := rapid.IntRange(0, len(s)-1).Draw(t, "subflow")
		f := &s[i]
		f.Ssthresh = 1
		if !f.part() {
			return
		}
		var total, most, sum float64
		for _, f := range s {
			if f.part() {
				total += f.Cwnd
				most = max(most, f.Cwnd/f.SRTT.Seconds()/f.SRTT.Seconds())
				sum += f.Cwnd / f.SRTT.Seconds()
			}
		}
		w := f.Cwnd
		want := w + min(total*most/(sum*sum)/total, 1/w)
		control(t, "lia").Acked(s, i, Ack{Segments: 1, Limited: true})
		if math.Abs(f.Cwnd-want) > 1e-9*want {
			t.Fatalf("grows to %g, want %g", f.Cwnd, want)
		}
	})
}

// TestPropertyOLIAMovesOnly: alphas sum to 0, so they move traffic between subflows and do not
// increase the total.
func TestPropertyOLIAMovesOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawFlows(t)
		flows := 0
		for _, f := range s {
			if f.part() {
				flows++
			}
		}
		sum := 0.0
		for i, f := range s {
			if f.part() {
				sum += alpha(s, i, flows)
			}
		}
		if math.Abs(sum) > 1e-9 {
			t.Fatalf("the alphas sum to %g", sum)
		}
	})
}

func TestNoAllocation(t *testing.T) {
	for _, name := range Names() {
		c := control(t, name)
		s := []Subflow{flow(10, 50*ms), flow(20, 100*ms)}
		now := time.Duration(0)
		if n := testing.AllocsPerRun(100, func() {
			now += ms
			c.Acked(s, 0, Ack{Now: now, Segments: 1, RTT: 50 * ms, Limited: true})
			c.Lost(s, 1, now)
			c.TimedOut(s, 1, now)
		}); n != 0 {
			t.Errorf("%s allocates %g times", name, n)
		}
	}
}

// BenchmarkAcked measures an acknowledgement in congestion avoidance.
func BenchmarkAcked(b *testing.B) {
	for _, n := range []int{1, 2, 8} {
		for _, name := range Names() {
			b.Run(fmt.Sprintf("%s/subflows=%d", name, n), func(b *testing.B) {
				c := control(b, name)
				s := make([]Subflow, n)
				for i := range s {
					s[i] = flow(float64(10+i), time.Duration(20+i)*ms)
				}
				b.ReportAllocs()
				now := time.Duration(0)
				for b.Loop() {
					now += ms
					s[0].Cwnd, s[0].Ssthresh = 10, 10
					s[0].Delivered++
					c.Acked(s, 0, Ack{Now: now, Segments: 1, RTT: 20 * ms, Limited: true})
				}
			})
		}
	}
}
