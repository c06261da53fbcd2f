package quality

import (
	"github.com/tabane/tabane/internal/base/unit"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

// TestRTT compares with RFC 6298 (2.2) and (2.3), computed by hand.
func TestRTT(t *testing.T) {
	var r RTT
	if got := r.RTO(MinRTO); got != time.Second {
		t.Errorf("the timeout before any sample is %v, want 1s", got)
	}
	for _, tt := range []struct {
		sample, smoothed, variation, least, rto time.Duration
	}{
		{80 * ms, 80 * ms, 40 * ms, 80 * ms, 280 * ms},              // R/2; 80 + max(160, 200)
		{160 * ms, 90 * ms, 50 * ms, 80 * ms, 290 * ms},             // 3/4 40 + 1/4 80; 7/8 80 + 1/8 160
		{0, 90 * ms, 50 * ms, 80 * ms, 290 * ms},                    // no sample
		{-5 * ms, 90 * ms, 50 * ms, 80 * ms, 290 * ms},              // nor this
		{50 * ms, 85 * ms, 47500 * time.Microsecond, 50 * ms, 0},    // 3/4 50 + 1/4 40; 7/8 90 + 1/8 50
		{885 * ms, 185 * ms, 235625 * time.Microsecond, 50 * ms, 0}, // 3/4 47.5 + 1/4 800
	} {
		r.Update(tt.sample)
		if r.SRTT != tt.smoothed || r.RTTVAR != tt.variation || r.MinRTT != tt.least {
			t.Errorf("after %v: %+v, want %+v", tt.sample, r, tt)
		}
		if tt.rto == 0 {
			tt.rto = tt.smoothed + max(4*tt.variation, MinRTO)
		}
		if got := r.RTO(MinRTO); got != tt.rto {
			t.Errorf("the timeout after %v is %v, want %v", tt.sample, got, tt.rto)
		}
	}
	if got := r.RTO(5 * time.Second); got != 185*ms+5*time.Second {
		t.Errorf("with another least the timeout is %v", got)
	}
	r.Update(1000 * time.Second)
	if got := r.RTO(MinRTO); got != MaxRTO {
		t.Errorf("the timeout is %v, want at most %v", got, MaxRTO)
	}
}

func TestJitter(t *testing.T) {
	var j Jitter
	for i, tt := range []struct {
		sent, received time.Duration
		want           time.Duration
	}{
		{0, time.Hour, 0}, // clocks need not be synchronized
		{20 * ms, time.Hour + 36*ms, ms},
		{40 * ms, time.Hour + 40*ms, ms + 15*ms/16},
		{60 * ms, time.Hour + 60*ms, (ms + 15*ms/16) * 15 / 16},
	} {
		j.Update(tt.sent, tt.received)
		if d := j.Value - tt.want; d < -1 || d > 1 {
			t.Errorf("after packet %d the jitter is %v, want %v", i, j.Value, tt.want)
		}
	}
}

func TestOneWayDelay(t *testing.T) {
	var d OneWayDelay
	for i, tt := range []struct{ roundTrip, processing, want time.Duration }{
		{210 * ms, 10 * ms, 100 * ms},
		{310 * ms, 10 * ms, 110 * ms}, // 0.8 100 + 0.2 150
		{5 * ms, 10 * ms, 110 * ms},   // no sample
		{5 * ms, -10 * ms, 110 * ms},  // nor this
		{0, 0, 88 * ms},
	} {
		if d.Update(tt.roundTrip, tt.processing); d.Value != tt.want {
			t.Errorf("after sample %d the delay is %v, want %v", i, d.Value, tt.want)
		}
	}
}

func TestLoss(t *testing.T) {
	var l Loss
	l.Update(0, 0)
	l.Update(5, 6)
	if l.Sent != 0 {
		t.Errorf("impossible numbers were counted: %+v", l)
	}
	l.Update(50, 5)
	l.Update(50, 0)
	if math.Abs(l.Share-0.05) > 1e-12 {
		t.Errorf("5 of 100 are a share of %g", l.Share)
	}
	for range 10_000 {
		l.Update(1, 1)
	}
	if l.Share < 0.999 {
		t.Errorf("of a path that has broken down the share is %g", l.Share)
	}
	l.Update(256, 0)
	if want := math.Exp(-1); math.Abs(l.Share-want) > 0.01 {
		t.Errorf("after as many good packets as are remembered the share is %g, want about %g", l.Share, want)
	}
}

// TestPropertyLossIsAShare: for any counts, the share is from 0 to 1 and between the shares of the
// parts.
func TestPropertyLossIsAShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Loss
		for range 50 {
			sent := rapid.Uint64Range(1, 1e6).Draw(t, "sent")
			lost := rapid.Uint64Range(0, sent).Draw(t, "lost")
			before, here := l.Share, float64(lost)/float64(sent)
			first := l.Sent == 0
			l.Update(sent, lost)
			low, high := min(before, here), max(before, here)
			if first {
				low, high = here, here
			}
			if !(l.Share >= low-1e-12 && l.Share <= high+1e-12) {
				t.Fatalf("%d of %d lost takes the share from %g to %g", lost, sent, before, l.Share)
			}
		}
	})
}

// TestRate sends 1250 bytes every 10 ms, which is 1 Mbit/s.
func TestRate(t *testing.T) {
	var r Rate
	if got := r.Value(time.Second); got != 0 {
		t.Errorf("before any packet the rate is %v", got)
	}
	now := time.Hour
	send := func(n int, bytes int) {
		for range n {
			now += 10 * ms
			r.Update(now, bytes)
		}
	}
	send(101, 1250)
	if got := float64(r.Value(now)); math.Abs(got-1e6*(1-math.Exp(-1))) > 1e3 {
		t.Errorf("after a second the rate is %g, want 63 %% of 1 Mbit/s", got)
	}
	send(1000, 1250)
	if got := float64(r.Value(now)); math.Abs(got-1e6) > 1e3 {
		t.Errorf("the rate is %g, want 1 Mbit/s", got)
	}
	for range 500 { // the same rate in pairs of packets that arrive at the same time
		now += 20 * ms
		r.Update(now, 1250)
		r.Update(now, 1250)
	}
	if got := float64(r.Value(now)); math.Abs(got-1e6) > 2e4 {
		t.Errorf("in pairs the rate is %g, want 1 Mbit/s", got)
	}
	if got, want := float64(r.Value(now+time.Second)), float64(r.Value(now))/math.E; math.Abs(got-want) > 1e3 {
		t.Errorf("after a second of silence the rate is %g, want %g", got, want)
	}
}

func BenchmarkUpdate(b *testing.B) {
	b.Run("rtt", func(b *testing.B) {
		var r RTT
		b.ReportAllocs()
		for b.Loop() {
			r.Update(50 * ms)
		}
	})
	b.Run("jitter", func(b *testing.B) {
		var j Jitter
		b.ReportAllocs()
		now := time.Duration(0)
		for b.Loop() {
			now += ms
			j.Update(now, now+50*ms)
		}
	})
	b.Run("rate", func(b *testing.B) {
		var r Rate
		b.ReportAllocs()
		now := time.Duration(0)
		for b.Loop() {
			now += ms
			r.Update(now, 1400)
		}
	})
}

// TestLossMeter: packets count as lost when two reports say so, and not if they were sent before
// the path came up.
func TestLossMeter(t *testing.T) {
	var m LossMeter
	for i, step := range []struct {
		next, lost, more uint64
		share            float64
	}{
		{10, 3, 0, 0},            // the first report
		{110, 13, 3, 0},          // of which nothing counts
		{210, 13, 10, 0.1},       // of 100
		{310, 40, 0, 0.05},       // of 200
		{410, 14, 1, 11. / 300},  // 26 were late
		{350, 300, 0, 11. / 300}, // an old report
	} {
		if more := m.AddReport(step.next, step.lost); more != step.more || math.Abs(m.Share-step.share) > 0.005 {
			t.Errorf("step %d: %d more are lost and the share is %.4f, want %d and %.4f", i, more, m.Share, step.more, step.share)
		}
	}
	m.Restart(500)
	m.AddReport(480, 91)
	if m.AddReport(600, 100); m.Share != 0 {
		t.Errorf("the share is %.3f, of packets sent before the path came up", m.Share)
	}
	m.AddReport(700, 110)
	if m.AddReport(800, 110); m.Share != 0.1 {
		t.Errorf("the share is %.3f, of 100 packets of which 10 were lost", m.Share)
	}
	m.Renumber()
	m.AddReport(100, 5)
	if more := m.AddReport(200, 5); more != 5 {
		t.Errorf("%d are lost of those with new numbers, want 5", more)
	}
}

// TestRaise: an estimate that was lowered is raised to what a train shows, also if traffic ended
// while a probe was in progress.
func TestRaise(t *testing.T) {
	for _, configured := range []unit.Bandwidth{0, 20 * unit.MbitPerSecond} {
		c := LimitCapacity(configured)
		c.Hint(20 * unit.MbitPerSecond)
		sample := CapacitySample{Interval: time.Second, Sent: unit.MB, Arrived: 200 * unit.KB, Busy: true, Delays: Delays{RTT: 10 * time.Millisecond, Standing: 50 * time.Millisecond}}
		for c.Value() > 6*unit.MbitPerSecond {
			c.Update(sample)
		}
		sample.Standing = 0
		for range 100 {
			if c.probing != noProbe {
				break
			}
			sample.Sent = c.Value().SizeIn(time.Second)
			sample.Arrived = sample.Sent
			c.Update(sample)
		}
		if c.probing == noProbe || !c.Lowered() {
			t.Fatalf("of %v: no probe of a lowered estimate: %+v", configured, c)
		}
		if c.Raise(c.before) || !c.Raise(18*unit.MbitPerSecond) || c.Value() != 18*unit.MbitPerSecond || c.Lowered() {
			t.Errorf("of %v: %+v", configured, c)
		}
	}
}
