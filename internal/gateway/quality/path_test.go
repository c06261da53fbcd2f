package quality

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

// TestClock: differences do not depend on the clocks, also when the sender's wraps around.
func TestClock(t *testing.T) {
	var c Clock
	sent := uint32(math.MaxUint32 - 500)
	received := 77 * time.Hour
	for i, tt := range []struct {
		after uint32 // us
		delay time.Duration
		want  time.Duration
	}{{0, 30 * ms, 0}, {1000, 35 * ms, 5 * ms}, {2000, 10 * ms, -20 * ms}, {3_000_000, 30 * ms, 0}} {
		at := received + time.Duration(tt.after)*time.Microsecond + tt.delay
		if got := c.Difference(sent+tt.after, at); got != tt.want {
			t.Errorf("packet %d: %v, want %v", i, got, tt.want)
		}
	}
}

// path sends packets to an estimator: each has a delay and an expected wait.
func feed(e *OneWayEstimator, from, to, gap time.Duration, delay func(now time.Duration) (difference, wait time.Duration)) {
	for now := from; now < to; now += gap {
		d, w := delay(now)
		e.Update(now+d, d, w)
	}
}

func near(t *testing.T, what string, got, want, within time.Duration) {
	t.Helper()
	if d := got - want; d < -within || d > within {
		t.Errorf("%s is %v, want %v +- %v", what, got, want, within)
	}
}

func value(t *testing.T, e *OneWayEstimator) OneWay {
	t.Helper()
	v, ok := e.Value()
	if !ok {
		t.Fatal("no estimate")
	}
	return v
}

// TestOwnQueueIsNotJitter: packets that wait in the sender's own queue, from 0 to 100 ms, leave the
// estimate of a path with a constant delay as it is.
func TestOwnQueueIsNotJitter(t *testing.T) {
	var e OneWayEstimator
	if _, ok := e.Value(); ok {
		t.Error("an estimate without a packet")
	}
	feed(&e, 0, 5*time.Second, ms, func(now time.Duration) (time.Duration, time.Duration) {
		wait := now % (100 * ms)
		return 40*ms + wait, wait
	})
	v := value(t, &e)
	if v != (OneWay{Base: 40 * ms, Delay: 40 * ms}) {
		t.Errorf("%+v", v)
	}
}

// TestMeanOfJitter: uniform +- 30 ms has a mean of 0, and differences of 20 ms in the mean.
func TestMeanOfJitter(t *testing.T) {
	for _, gap := range []time.Duration{100 * time.Microsecond, ms, 20 * ms} {
		var e OneWayEstimator
		random := rand.New(rand.NewPCG(1, 2))
		feed(&e, 0, 10*time.Second, gap, func(time.Duration) (time.Duration, time.Duration) {
			return 50*ms + time.Duration((2*random.Float64()-1)*30*float64(ms)), 0
		})
		v := value(t, &e)
		near(t, "base", v.Base, 20*ms, 2*ms)
		near(t, "delay", v.Delay, 50*ms, 8*ms)
		near(t, "jitter", v.Jitter, 20*ms, 6*ms)
		near(t, "spread", v.Spread, 60*ms, 6*ms)
		near(t, "standing queue", v.Standing, 0, 15*ms)
	}
}

// TestChangeOfJitter: a change is known within half a second, whatever the packet rate.
func TestChangeOfJitter(t *testing.T) {
	for _, gap := range []time.Duration{100 * time.Microsecond, ms, 20 * ms} {
		var e OneWayEstimator
		random := rand.New(rand.NewPCG(3, 4))
		jitter := func(a time.Duration) func(time.Duration) (time.Duration, time.Duration) {
			return func(time.Duration) (time.Duration, time.Duration) {
				return 250*ms + time.Duration((2*random.Float64()-1)*float64(a)), 0
			}
		}
		feed(&e, 0, 10*time.Second, gap, jitter(50*ms))
		near(t, "jitter before", value(t, &e).Jitter, 33*ms, 12*ms)
		feed(&e, 10*time.Second, 10500*ms, gap, jitter(200*ms))
		if got := value(t, &e).Jitter; got < 80*ms {
			t.Errorf("half a second after the jitter rose to 133 ms it is %v (a packet in %v)", got, gap)
		}
		feed(&e, 10500*ms, 15*time.Second, gap, jitter(200*ms))
		feed(&e, 15*time.Second, 15500*ms, gap, jitter(50*ms))
		if got := value(t, &e).Jitter; got > 75*ms {
			t.Errorf("half a second after the jitter fell to 33 ms it is %v (a packet in %v)", got, gap)
		}
	}
}

// TestChangeOfDelay: the delay follows a longer route at once and the base after 10 to 20 s; a
// shorter one both at once.
func TestChangeOfDelay(t *testing.T) {
	var e OneWayEstimator
	constant := func(d time.Duration) func(time.Duration) (time.Duration, time.Duration) {
		return func(time.Duration) (time.Duration, time.Duration) { return d, 0 }
	}
	feed(&e, 0, 5*time.Second, 10*ms, constant(20*ms))
	feed(&e, 5*time.Second, 6*time.Second, 10*ms, constant(80*ms))
	v := value(t, &e)
	near(t, "delay", v.Delay, 80*ms, 2*ms)
	near(t, "base", v.Base, 20*ms, 0)
	near(t, "standing queue", v.Standing, 60*ms, 0)
	feed(&e, 6*time.Second, 26*time.Second, 10*ms, constant(80*ms))
	v = value(t, &e)
	near(t, "base after 20 s", v.Base, 80*ms, 0)
	near(t, "standing queue after 20 s", v.Standing, 0, 0)
	feed(&e, 26*time.Second, 27*time.Second, 10*ms, constant(10*ms))
	v = value(t, &e)
	near(t, "base of the short route", v.Base, 10*ms, 0)
	near(t, "delay of the short route", v.Delay, 10*ms, 2*ms)
}

// TestVirtualQueueTooLong: expected waits that no packet had do not make the path look shorter.
func TestVirtualQueueTooLong(t *testing.T) {
	var e OneWayEstimator
	feed(&e, 0, 5*time.Second, 10*ms, func(now time.Duration) (time.Duration, time.Duration) { return 30 * ms, now })
	if v := value(t, &e); v.Base != 30*ms || v.Delay != 30*ms {
		t.Errorf("%+v", v)
	}
}

// TestPropertyOneWay: for any packets, the base is not above the delay, and nothing is negative
// that cannot be.
func TestPropertyOneWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e OneWayEstimator
		now := time.Duration(0)
		low, high := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			now += time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "gap"))
			d := time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "difference"))
			low, high = min(low, d), max(high, d)
			e.Update(now, d, time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "wait")))
			v, ok := e.Value()
			if !ok || v.Base < low || v.Delay < v.Base || v.Delay > high || v.Jitter < 0 || v.Spread < 0 || v.Standing < 0 {
				t.Fatalf("%+v after differences from %v to %v", v, low, high)
			}
		}
	})
}

func TestLiveness(t *testing.T) {
	for _, tt := range []struct {
		name, probes string // + answered, - missed, d link down
		alive        bool
	}{
		{"no probe", "", false},
		{"the first answer is enough", "+", true},
		{"also after misses", "---+", true},
		{"two misses", "+--", true},
		{"three misses", "+---", false},
		{"not in succession", "+--+--+--", true},
		{"link down", "+d", false},
		{"back after three", "+---++", false},
		{"back after three", "+---+++", true},
		{"three in succession", "+---++-++", false},
		{"after link down too", "+d++", false},
		{"after link down too", "+d+++", true},
		{"dead again", "+---+++---", false},
	} {
		var l Liveness
		for _, c := range tt.probes {
			was := l.Alive()
			var changed bool
			switch c {
			case '+':
				changed = l.Answered()
			case '-':
				changed = l.Missed()
			case 'd':
				changed = l.Down()
			}
			if changed != (was != l.Alive()) {
				t.Errorf("%s: %s reports %v", tt.name, tt.probes, changed)
			}
		}
		if l.Alive() != tt.alive {
			t.Errorf("%s: after %q alive is %v", tt.name, tt.probes, l.Alive())
		}
	}
}

// bottleneck is a path with a rate and a drop-tail queue, fed by a sender that paces at 0.97 of the
// estimate.
type bottleneck struct {
	rate   unit.Bandwidth
	buffer time.Duration
	late   time.Duration // of all packets, without a queue
	depth  time.Duration // of its token bucket, at the rate
	queue  float64       // bits
	tokens float64       // bits
}

// run gives c samples of 100 ms for a time, with that much to send, and returns the estimates.
func (b *bottleneck) run(c *Capacity, samples int, offered unit.Bandwidth) (list []float64) {
	const interval = 100 * ms
	for range samples {
		pace := float64(c.Pace()) * 0.97
		busy := float64(offered) >= pace
		sent := min(pace, float64(offered)) * interval.Seconds()
		room := float64(b.rate)*b.buffer.Seconds() + float64(b.rate)*interval.Seconds()
		b.queue = min(b.queue+sent, room+b.tokens)
		b.tokens += float64(b.rate) * interval.Seconds()
		arrived := min(b.queue, b.tokens)
		b.queue -= arrived
		b.tokens = min(b.tokens-arrived, float64(b.rate)*b.depth.Seconds())
		c.Update(CapacitySample{
			Interval: interval, Sent: unit.Size(sent / 8), Arrived: unit.Size(arrived / 8), Busy: busy,
			Delays: Delays{Standing: b.late + time.Duration(b.queue/float64(b.rate)*float64(time.Second))},
		})
		list = append(list, float64(c.Value())/float64(b.rate))
	}
	return list
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

// TestCapacity: the estimate finds rates from 1 Mbit/s to 1 Gbit/s within 2 s, stays near, and
// follows changes.
func TestCapacity(t *testing.T) {
	const all = unit.TbitPerSecond
	for _, rate := range []unit.Bandwidth{unit.MbitPerSecond, 20 * unit.MbitPerSecond, 300 * unit.MbitPerSecond, unit.GbitPerSecond} {
		for _, buffer := range []time.Duration{20 * ms, 50 * ms, 500 * ms} {
			var c Capacity
			b := bottleneck{rate: rate, buffer: buffer}
			b.run(&c, 20, all)
			if got := mean(b.run(&c, 100, all)); got < 0.93 || got > 1.1 {
				t.Errorf("%v with a queue of %v: the mean estimate is %.2f of it", rate, buffer, got)
			}
			b.rate = rate * 6 / 10
			b.run(&c, 10, all)
			if got := mean(b.run(&c, 50, all)); got < 0.93 || got > 1.1 {
				t.Errorf("%v with a queue of %v, slower: the mean estimate is %.2f of it", rate, buffer, got)
			}
			b.rate = rate * 2
			b.run(&c, 80, all)
			if got := mean(b.run(&c, 50, all)); got < 0.9 || got > 1.1 {
				t.Errorf("%v with a queue of %v, faster: the mean estimate is %.2f of it", rate, buffer, got)
			}
			before := c.Value()
			b.run(&c, 100, rate/10)
			if got := float64(c.Value()) / float64(before); got < 0.9 || got > 1.3 {
				t.Errorf("%v: with little to send the estimate became %.2f of what it was", rate, got)
			}
		}
	}
}

// TestStart: before a path was full the sender is not held at an estimate. Samples of TCP in slow
// start, in which less arrives than is sent because what is sent arrives a round trip later, do not
// lower the estimate; the first queue, or losses where there is none, sets it to what arrives.
func TestStart(t *testing.T) {
	sample := func(sent, arrived, standing, loss float64, busy bool) CapacitySample {
		const interval = 150 * ms
		return CapacitySample{
			Interval: interval, Sent: unit.Bandwidth(sent * 1e6).SizeIn(interval), Arrived: unit.Bandwidth(arrived * 1e6).SizeIn(interval), Busy: busy,
			Delays: Delays{RTT: 60 * ms, Jitter: ms / 5, Standing: time.Duration(standing * float64(ms)), Loss: loss},
		}
	}
	start := []CapacitySample{sample(2, 0.7, 0, 0, false), sample(6.4, 3.9, 0, 0, false), sample(9.8, 9.6, 0, 0, true)}
	for _, tt := range []struct {
		name     string
		then     []CapacitySample
		low, top unit.Bandwidth // of the estimate
		held     bool
	}{
		{"slow start", nil, FirstCapacity, 20 * unit.MbitPerSecond, false},
		{"queue", []CapacitySample{sample(72, 36, 0, 0, false), sample(84, 58, 31, 0, false), sample(81, 60, 70, 0, false)}, 57 * unit.MbitPerSecond, 62 * unit.MbitPerSecond, true},
		{"queue of a slow path", []CapacitySample{sample(6, 1, 120, 0, false), sample(6, 1, 120, 0, false)}, unit.MbitPerSecond * 9 / 10, unit.MbitPerSecond * 11 / 10, true},
		{"queue that overflows", []CapacitySample{sample(31, 20, 18, 0, false), sample(40, 20, 92, 0.2, false)}, 19 * unit.MbitPerSecond, 21 * unit.MbitPerSecond, true},
		{"others' queue", []CapacitySample{sample(0.05, 0.04, 40, 0, false), sample(0.05, 0.04, 40, 0, false), sample(0.05, 0.04, 40, 0, false)}, FirstCapacity, 20 * unit.MbitPerSecond, false},
		{"losses", []CapacitySample{sample(60, 30, 2, 0.2, false), sample(60, 30, 2, 0.4, false), sample(60, 30, 2, 0.5, false)}, 26 * unit.MbitPerSecond, 40 * unit.MbitPerSecond, true},
		{"few losses", []CapacitySample{sample(60, 58, 2, 0.02, false), sample(60, 58, 2, 0.02, false), sample(60, 58, 2, 0.02, false)}, FirstCapacity, 60 * unit.MbitPerSecond, false},
	} {
		var c Capacity
		for _, s := range append(slices.Clone(start), tt.then...) {
			if c.Pace() < 500*unit.MbitPerSecond {
				t.Errorf("%s: paced to %v before the path was full", tt.name, c.Pace())
			}
			c.Update(s)
		}
		c.draining = 0
		if got := c.Value(); got < tt.low || got > tt.top {
			t.Errorf("%s: the estimate is %v, want %v to %v", tt.name, got, tt.low, tt.top)
		}
		if held := c.Pace() == c.Value(); held != tt.held {
			t.Errorf("%s: paced to the estimate %v, want %v", tt.name, held, tt.held)
		}
	}
}

// TestConfiguredCapacity: a rate that is configured 30 % too high is corrected within half a
// second, one that is 30 % too low within 6 s, and a right one is kept. More than 1.5 times what is
// configured is never used.
func TestConfiguredCapacity(t *testing.T) {
	const rate = 20 * unit.MbitPerSecond
	for _, tt := range []struct {
		configured unit.Bandwidth
		samples    int     // until the estimate is right
		want       float64 // of the rate
	}{{rate * 4 / 10, 60, 0.6}, {rate * 7 / 10, 60, 1}, {rate, 0, 1}, {rate * 13 / 10, 5, 1}, {rate * 2, 5, 1}} {
		c := LimitCapacity(tt.configured)
		b := bottleneck{rate: rate, buffer: 100 * ms}
		if c.Value() != tt.configured {
			t.Errorf("begins with %v", c.Value())
		}
		b.run(&c, tt.samples, unit.TbitPerSecond)
		if got := float64(c.Value()) / float64(rate); got < 0.8*tt.want || got > 1.1*tt.want {
			t.Errorf("configured as %v: the estimate is %.2f of the rate after %d samples", tt.configured, got, tt.samples)
		}
		b.run(&c, 60, unit.TbitPerSecond)
		if got := mean(b.run(&c, 100, unit.TbitPerSecond)); got < 0.97*tt.want || got > 1.05*tt.want {
			t.Errorf("configured as %v: the mean estimate is %.2f of the rate", tt.configured, got)
		}
	}
}

// TestConfiguredBehindJitter: where the packets of a busy path are constantly later than the
// earliest ones, because jitter keeps their order, a rate configured 30 % too low is raised
// nevertheless, later, and a right one is kept. On slow paths few packets are as late.
func TestConfiguredBehindJitter(t *testing.T) {
	const mbit = unit.MbitPerSecond
	for _, tt := range []struct{ rate, configured, want unit.Bandwidth }{
		{50 * mbit, 35 * mbit, 50 * mbit}, {50 * mbit, 50 * mbit, 50 * mbit}, {5 * mbit, 3.5e6, 3.5e6},
	} {
		c := LimitCapacity(tt.configured)
		b := bottleneck{rate: tt.rate, buffer: 100 * ms, late: 12 * ms}
		b.run(&c, 5, unit.TbitPerSecond)
		if c.Value() != tt.configured {
			t.Errorf("%v configured as %v: the estimate is %v at once", tt.rate, tt.configured, c.Value())
		}
		b.run(&c, 80, unit.TbitPerSecond)
		if got := mean(b.run(&c, 100, unit.TbitPerSecond)) * float64(tt.rate) / float64(tt.want); got < 0.93 || got > 1.05 {
			t.Errorf("%v configured as %v: the mean estimate is %.2f of %v", tt.rate, tt.configured, got, tt.want)
		}
	}
}

// TestTokenBucket: what a token bucket saved while less was sent shows no higher rate, and a path that
// is faster than its estimate is known to be within 8 s all the same.
func TestTokenBucket(t *testing.T) {
	const rate = 50 * unit.MbitPerSecond
	for _, depth := range []time.Duration{20 * ms, 50 * ms, 100 * ms} {
		var c Capacity
		b := bottleneck{rate: rate, buffer: 100 * ms, depth: depth}
		b.run(&c, 30, unit.TbitPerSecond)
		for range 10 {
			b.run(&c, 10, rate/4)
			for range 20 {
				b.run(&c, 1, unit.TbitPerSecond)
				// While a probe lasts, the estimate is the one before.
				if got := float64(c.estimate()) / float64(rate); got > 1.15 {
					t.Errorf("a bucket of %v: the estimate is %.2f of the rate", depth, got)
				}
			}
		}
		b.rate *= 2
		b.run(&c, 10, rate/4)
		if got := mean(b.run(&c, 90, unit.TbitPerSecond)[80:]); got < 0.9 {
			t.Errorf("a bucket of %v, twice as fast: the estimate is %.2f of the rate", depth, got)
		}
	}
}

// TestPolicedPath: of a path that drops what exceeds its rate, where nothing waits in front of it,
// a rate that is estimated too high is found within 2 s. One that a transfer does not fill keeps its
// estimate, and so does one with a tenth of random losses, or that is interrupted for a moment.
func TestPolicedPath(t *testing.T) {
	const rate, interval = 20 * unit.MbitPerSecond, 150 * ms
	for _, tt := range []struct {
		name             string
		offered, carried float64 // of the rate
		loss             float64
		low, top         float64 // of the estimate
	}{
		{"policed", 2, 1, 0, 0.9, 1.3},
		{"not filled", 0.5, 1, 0, 8, 8},
		{"random losses", 2, 8, 0.1, 8, 8},
		{"interrupted", 2, 0, 0, 3.9, 8},
	} {
		c := Capacity{found: true, rate: 8 * rate}
		samples := 13
		if tt.carried == 0 {
			samples = 4
		}
		for range samples {
			offered := unit.Bandwidth(tt.offered * float64(rate))
			sent := min(offered, c.Pace()*pacedPercent/100)
			c.Update(CapacitySample{
				Interval: interval, Sent: sent.SizeIn(interval), Busy: offered > sent,
				Arrived: unit.Bandwidth(min(float64(sent)*(1-tt.loss), tt.carried*float64(rate))).SizeIn(interval),
				Delays:  Delays{RTT: 20 * ms, Loss: tt.loss},
			})
		}
		if got := float64(c.Value()) / float64(rate); got < tt.low || got > tt.top {
			t.Errorf("%s: the estimate is %.2f of the rate, want %g to %g", tt.name, got, tt.low, tt.top)
		}
	}
}

// TestProbeOfLongPath: on a path whose round trip takes several samples, a probe waits for what it
// sent, so that a rate configured 30 % too low is raised within 6 s, and a right one is kept.
func TestProbeOfLongPath(t *testing.T) {
	const (
		rate     = 20 * unit.MbitPerSecond
		interval = 150 * ms
	)
	for _, rtt := range []time.Duration{20 * ms, 120 * ms, 620 * ms} {
		for _, configured := range []unit.Bandwidth{rate * 7 / 10, rate} {
			c := LimitCapacity(configured)
			late := make([]unit.Bandwidth, rtt/(10*ms)) // what is sent, in steps of 10 ms
			queue, standing := 0.0, 0.0
			for range int(6 * time.Second / interval) {
				s := CapacitySample{Interval: interval, Busy: true, Delays: Delays{RTT: rtt}}
				for range interval / (10 * ms) {
					pace := c.Value() * pacedPercent / 100
					late = append(late, pace)
					queue += float64(late[0])
					late = late[1:]
					arrived := min(queue, float64(rate))
					queue -= arrived
					standing = queue * 0.01 / float64(rate)
					s.Sent += pace.SizeIn(10 * ms)
					s.Arrived += unit.Bandwidth(arrived).SizeIn(10 * ms)
				}
				s.Standing = time.Duration(standing * float64(time.Second))
				if c.Update(s); s.Standing > 40*ms {
					t.Errorf("round trip of %v, configured as %v: a queue of %v stands on the path", rtt, configured, s.Standing)
				}
			}
			// While a probe lasts, the estimate is the one before.
			if got := float64(c.estimate()) / float64(rate); got < 0.97 || got > 1.05 {
				t.Errorf("round trip of %v, configured as %v: the estimate is %.2f of the rate", rtt, configured, got)
			}
		}
	}
}

// TestSilentProbe: a probe of a higher rate ends within a round trip and half a second if no report
// comes of it, if all are of before it, or if the receiver's clock steps, and the next one waits
// for longer. A report in time does not end it so.
func TestSilentProbe(t *testing.T) {
	const (
		rate   = 20 * unit.MbitPerSecond
		report = 50 * ms
		rtt    = 80 * ms
		bound  = rtt + 500*ms
	)
	for _, tt := range []struct {
		name string
		// again returns what the n-th report after the probe began has, of its time and of the
		// bytes that have arrived by then.
		again func(n int, at time.Duration, arrived uint64) (time.Duration, uint64)
	}{
		{"no report", nil},
		{"reports of before", func(n int, at time.Duration, arrived uint64) (time.Duration, uint64) {
			return at - time.Duration(n)*report, arrived - uint64(n)*uint64(rate.SizeIn(report))
		}},
		{"the same report", func(n int, at time.Duration, arrived uint64) (time.Duration, uint64) {
			return at - time.Duration(n)*report, arrived
		}},
		{"the clock steps forward", func(n int, at time.Duration, arrived uint64) (time.Duration, uint64) {
			return at + time.Duration(n)*time.Hour, arrived
		}},
		{"the clock steps back", func(n int, at time.Duration, arrived uint64) (time.Duration, uint64) {
			return at - time.Duration(n)*time.Hour, arrived
		}},
	} {
		m := CapacityMeter{Capacity: LimitCapacity(rate)}
		now, bytes := report, uint64(rate.SizeIn(time.Second))
		d := Delays{RTT: rtt}
		for ; m.probing == noProbe && now < 5*time.Second; now += report {
			bytes += uint64((rate * pacedPercent / 100).SizeIn(report))
			m.AddReport(now, now, bytes, bytes, true, d)
			if m.Expire(now) {
				t.Fatalf("%s: there was no probe after %v", tt.name, now)
			}
		}
		began := now - report
		if m.Value() <= rate {
			t.Fatalf("%s: no probe in %v", tt.name, now)
		}
		if m.Expire(began + rtt) {
			t.Errorf("%s: the probe ended after a round trip", tt.name)
		}
		for n := 1; m.probing != noProbe && now < began+10*time.Second; n, now = n+1, now+report {
			bytes += uint64(m.Value().SizeIn(report))
			if tt.again != nil {
				at, arrived := tt.again(n, now, bytes)
				m.AddReport(now, at, bytes, arrived, true, d)
			}
			m.Expire(now)
		}
		if took := now - began; took > bound || m.Value() != rate || m.every <= firstProbe {
			t.Errorf("%s: after %v the rate is %v, and the next probe is after %d samples", tt.name, took, m.Value(), m.every)
		}
	}
}

// TestUntestedProbe: a probe in which the sender was late, so that no more was sent than before, is
// repeated soon.
func TestUntestedProbe(t *testing.T) {
	const rate = 14 * unit.MbitPerSecond
	c := LimitCapacity(rate)
	probes := 0
	for range 100 {
		n := (rate * 97 / 100).SizeIn(150 * ms)
		c.Update(CapacitySample{Interval: 150 * ms, Sent: n, Arrived: n, Busy: true, Delays: Delays{RTT: 20 * ms}})
		if c.Value() > rate {
			probes++
		}
	}
	if probes < 20 {
		t.Errorf("%d of 100 samples are probes, want at least 20", probes)
	}
}

// TestLeastCapacity: a path is not taken to be slower than the least estimate while its queue
// drains either.
func TestLeastCapacity(t *testing.T) {
	var c Capacity
	c.find(0, 500*ms)
	if c.draining == 0 || c.Value() != minCapacity {
		t.Errorf("the estimate is %v", c.Value())
	}
}

// TestProbeOfLatePath: where jitter keeps the order of packets, those of a busy path are later than
// the earliest ones of an idle one, with hardly any jitter. That is no queue, and an estimate that
// is too low is raised within 3 s.
func TestProbeOfLatePath(t *testing.T) {
	const rate = 60 * unit.MbitPerSecond
	c := Capacity{rate: rate * 7 / 10, found: true}
	b := bottleneck{rate: rate, buffer: 100 * ms, late: 11 * ms}
	b.run(&c, 30, unit.TbitPerSecond)
	if got := mean(b.run(&c, 50, unit.TbitPerSecond)); got < 0.97 || got > 1.05 {
		t.Errorf("the mean estimate is %.2f of the rate", got)
	}
}

// TestLateSender: after a probe a queue stands on the path, and a sender that is late once does not
// lower the estimate.
func TestLateSender(t *testing.T) {
	const rate = 20 * unit.MbitPerSecond
	c := LimitCapacity(rate)
	c.Update(CapacitySample{
		Interval: 197 * ms, Sent: (rate * 66 / 100).SizeIn(197 * ms), Arrived: (rate * 58 / 100).SizeIn(197 * ms), Busy: true,
		Delays: Delays{RTT: 25 * ms, Standing: 23 * ms},
	})
	if got := c.Value(); got != rate {
		t.Errorf("the estimate is %v", got)
	}
}

// TestSlowerPath: a path that suddenly carries less is noticed within half a second, also when it
// carries a quarter.
func TestSlowerPath(t *testing.T) {
	const rate = 20 * unit.MbitPerSecond
	for _, then := range []unit.Bandwidth{rate / 4, rate / 2, rate * 3 / 4} {
		c := LimitCapacity(rate)
		b := bottleneck{rate: rate, buffer: 100 * ms}
		b.run(&c, 50, unit.TbitPerSecond)
		b.rate = then
		b.run(&c, 5, unit.TbitPerSecond)
		if got := float64(c.Value()) / float64(then); got < 0.8 || got > 1.1 {
			t.Errorf("%v after 500 ms at %v, which it carries", c.Value(), then)
		}
	}
}

// TestSlowerPathNotFilled: traffic that filled half of the path fills it when it carries less; that
// is noticed in half a second at whatever time of a sample it begins.
func TestSlowerPathNotFilled(t *testing.T) {
	const (
		rate, sends, then = 20 * unit.MbitPerSecond, 11 * unit.MbitPerSecond, 8 * unit.MbitPerSecond
		step, report      = 10 * ms, 50 * ms
	)
	for begins := time.Second; begins < time.Second+sampleInterval; begins += step {
		m := CapacityMeter{Capacity: LimitCapacity(rate)}
		var sent, arrived, queue uint64
		now := step
		for ; m.Value() == rate && now < 2*time.Second; now += step {
			carries := rate
			if now > begins {
				carries = then
			}
			sent += uint64(sends.SizeIn(step))
			queue += uint64(sends.SizeIn(step))
			n := min(queue, uint64(carries.SizeIn(step)))
			arrived, queue = arrived+n, queue-n
			if now%report == 0 {
				// The queue grows by 30 ms in 80 ms, the time that its smallest length is of.
				standing := max(0, carries.TimeFor(unit.Size(queue))-30*ms)
				m.AddReport(now, now, sent, arrived, false, Delays{RTT: 80 * ms, Standing: standing})
			}
		}
		if took := now - begins; took > 450*ms {
			t.Errorf("a change after %v was noticed after %v", begins, took)
		}
	}
}

// TestLateReports: the reports of a steady path come back over a jittery one. The path is not taken
// to carry more than it does.
func TestLateReports(t *testing.T) {
	const rate = 20 * unit.MbitPerSecond
	random := rand.New(rand.NewPCG(1, 2))
	m := CapacityMeter{Capacity: LimitCapacity(rate)}
	var sent, arrived, queue, latest float64
	most := unit.Bandwidth(0)
	type report struct {
		at, comes time.Duration
		arrived   float64
		standing  time.Duration
	}
	var under []report
	for now := time.Duration(0); now < 60*time.Second; now += ms {
		n := float64(m.Value().SizeIn(ms)) * pacedPercent / 100
		sent, queue = sent+n, queue+n
		out := min(queue, float64(rate.SizeIn(ms)))
		arrived, queue = arrived+out, queue-out
		if now%(50*ms) == 0 {
			late := time.Duration(random.NormFloat64() * float64(25*ms))
			under = append(under, report{now, now + max(0, 75*ms+late), arrived, rate.TimeFor(unit.Size(queue))})
		}
		for len(under) > 0 && under[0].comes <= now {
			r := under[0]
			under = under[1:]
			if latest = max(latest, r.arrived); latest == r.arrived {
				m.AddReport(now, r.at, uint64(sent), uint64(r.arrived), true, Delays{RTT: 140 * ms, Standing: r.standing})
			}
		}
		most = max(most, m.Value())
	}
	if most > rate*probeGrowthPercent/100 {
		t.Errorf("the estimate was up to %v", most)
	}
}

// TestLongerRoute: a delay that rises by 60 ms does not reduce the estimate.
func TestLongerRoute(t *testing.T) {
	c := LimitCapacity(20 * unit.MbitPerSecond)
	for range 200 {
		n := unit.Size(20_000_000 / 8 / 10 * 97 / 100)
		c.Update(CapacitySample{Interval: 100 * ms, Sent: n, Arrived: n, Busy: true, Delays: Delays{Standing: 60 * ms}})
	}
	if got := c.Value(); got != 20*unit.MbitPerSecond {
		t.Errorf("the estimate is %v", got)
	}
}

func TestPropertyCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Capacity
		ceiling := unit.Bandwidth(0)
		if rapid.Bool().Draw(t, "bounded") {
			ceiling = unit.Bandwidth(rapid.Int64Range(int64(minCapacity)*2, 1e9).Draw(t, "ceiling"))
			c = LimitCapacity(ceiling)
			c.Ceil(ceiling)
		}
		for range 50 {
			c.Update(CapacitySample{
				Interval: time.Duration(rapid.Int64Range(-1, int64(time.Second)).Draw(t, "interval")),
				Sent:     unit.Size(rapid.Int64Range(-1, 1e12).Draw(t, "sent")), Arrived: unit.Size(rapid.Int64Range(-1, 1e12).Draw(t, "arrived")),
				Busy: rapid.Bool().Draw(t, "busy"), Delays: Delays{
					Standing: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "standing")),
					RTT:      time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "RTT")),
				},
			})
			if ceiling == 0 && c.Value() < minCapacity || ceiling > 0 && c.Value() > ceiling {
				t.Fatalf("the estimate is %v", c.Value())
			}
		}
	})
}

// TestIdlePath: on a path with jitter that carries a probe each second, one probe does not decide.
func TestIdlePath(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var e OneWayEstimator
	var sum float64
	const probes = 400
	for i := range probes {
		now := time.Duration(i) * time.Second
		e.Update(now, 75*ms+time.Duration(rng.NormFloat64()*float64(20*ms)), 0)
		if v, _ := e.Value(); i >= 20 {
			sum += math.Pow(float64(v.Delay-75*ms)/float64(ms), 2)
		}
	}
	if sd := math.Sqrt(sum / (probes - 20)); sd > 8 {
		t.Errorf("the estimated delay varies by %.1f ms where a packet's does by 20 ms, want at most 8 ms", sd)
	}
}

// TestUnknownRate: a path that carries little has no known rate, also after reports.
func TestUnknownRate(t *testing.T) {
	var c Capacity
	for range 10 {
		c.Update(CapacitySample{Interval: 200 * time.Millisecond, Sent: 1000, Arrived: 1000})
	}
	if c.Known() {
		t.Errorf("known: %v", c.Value())
	}
	for range 10 {
		c.Update(CapacitySample{Interval: 200 * time.Millisecond, Sent: unit.MB, Arrived: unit.MB})
	}
	if limited := LimitCapacity(FirstCapacity); !c.Known() || !limited.Known() {
		t.Errorf("unknown: %v, or one that is configured", c.Value())
	}
}
