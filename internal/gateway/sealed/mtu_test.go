package sealed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// emulatedPath answers the probes of a peer's path in a time of its own, as a network would.
type emulatedPath struct {
	r       *peer
	k       *keys
	b       *batch
	now     time.Duration
	carries int // largest packet, without the tunnel
	busy    bool
	// lost reports whether a message is lost now, in the direction of the probes or back.
	lost   func(now time.Duration, back bool) bool
	delay  func() time.Duration
	seen   int // probes of the ring
	coming []comingAnswer
	counts struct{ probes, bytes int }
}

type comingAnswer struct {
	id uint64
	at time.Duration
}

func newEmulatedPath(t cleaner) *emulatedPath {
	r, k := ally(t, dataplane.Alliance{}, 1)
	return &emulatedPath{
		r: r, k: k, b: newBatch(r.plane, 1<<16), carries: 1428, busy: true,
		lost: func(time.Duration, bool) bool { return false }, delay: func() time.Duration { return 20 * time.Millisecond },
	}
}

func (p *emulatedPath) link() *link { return &p.r.links[0] }

// limit is the largest packet that is sent.
func (p *emulatedPath) limit() int {
	l := p.link()
	return l.search.limit(1500, true)
}

// run runs the path for that long, and calls check after each event.
func (p *emulatedPath) run(length time.Duration, check func()) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	l := p.link()
	l.line.mtu.Store(1500)
	for end := p.now + length; p.now < end; {
		if p.busy {
			p.r.active.Store(int64(p.now))
		}
		due := p.r.prober.probe(p.b, p.k, 0, p.now)
		p.b.out, p.b.next = [tunnel.MaxPaths]outgoing{}, 0 // nobody else receives them
		for ; p.seen != l.probing.sent.next; p.seen = (p.seen + 1) % probesKept {
			s := &l.probing.sent.ring[p.seen]
			p.counts.probes++
			p.counts.bytes += s.size
			if s.size > p.carries {
				continue
			}
			at := p.now + p.delay()
			if p.lost(p.now, false) || p.lost(at, true) {
				l.search.doubt() // the next report says it
				continue
			}
			p.coming = append(p.coming, comingAnswer{s.id, at})
		}
		slices.SortStableFunc(p.coming, func(a, b comingAnswer) int { return int(a.at - b.at) })
		if len(p.coming) > 0 && p.coming[0].at <= due {
			p.now = max(p.now, p.coming[0].at)
			p.r.prober.answered(p.k, 0, tunnel.Answer{ID: p.coming[0].id}, p.now)
			p.coming = p.coming[1:]
		} else {
			p.now = max(due, p.now+granularity)
		}
		check()
	}
}

// TestMTUAfterOutages: a path of MTU 1500 is dead for a moment, several times, so that the last
// probes before it is dead are lost, whatever their size. Its MTU does not change.
func TestMTUAfterOutages(t *testing.T) {
	for lasts := 50 * time.Millisecond; lasts < 3*time.Second; lasts += 137 * time.Millisecond {
		p := newEmulatedPath(t)
		dead := false
		p.lost = func(time.Duration, bool) bool { return dead }
		for i := range 4 {
			for _, dead = range []bool{false, true} {
				p.run(map[bool]time.Duration{false: time.Minute, true: lasts}[dead], func() {
					if got := p.limit(); got != 1428 {
						t.Fatalf("outage %d of %v, at %v: packets of %d bytes are sent, the path carries 1428", i+1, lasts, p.now, got)
					}
				})
			}
		}
	}
}

// TestMTUWithLoss: whatever a path loses, its MTU does not fall: random loss, in bursts too,
// outages in one or both directions, jitter.
func TestMTUWithLoss(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newEmulatedPath(t)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		p.busy = rapid.Bool().Draw(rt, "busy")
		loss := [2]float64{rapid.Float64Range(0, 0.3).Draw(rt, "loss"), rapid.Float64Range(0, 0.3).Draw(rt, "loss back")}
		burst := time.Duration(rapid.IntRange(0, 300).Draw(rt, "burst ms")) * time.Millisecond
		base := time.Duration(rapid.IntRange(1, 600).Draw(rt, "delay ms")) * time.Millisecond
		jitter := rapid.IntRange(1, 200).Draw(rt, "jitter ms")
		every := time.Duration(rapid.IntRange(500, 30_000).Draw(rt, "outage every ms")) * time.Millisecond
		lasts := time.Duration(rapid.IntRange(500, 10_000).Draw(rt, "outage ms")) * time.Millisecond
		hit := rapid.SampledFrom([][2]bool{{}, {true, true}, {true, false}, {false, true}}).Draw(rt, "outage of")
		var burstUntil [2]time.Duration
		p.delay = func() time.Duration {
			return base + time.Duration(random.IntN(jitter))*time.Millisecond
		}
		p.lost = func(now time.Duration, back bool) bool {
			d := 0
			if back {
				d = 1
			}
			if hit[d] && now%(every+lasts) >= every || now < burstUntil[d] {
				return true
			}
			if random.Float64() < loss[d] {
				burstUntil[d] = now + time.Duration(random.Int64N(int64(burst)+1))
				return true
			}
			return false
		}
		p.run(3*time.Minute, func() {
			if got := p.limit(); got != 1428 {
				rt.Fatalf("at %v: packets of %d bytes are sent, the path carries 1428", p.now, got)
			}
		})
	})
}

// TestMTUChanges: what a path carries changes, without a word from anybody, and is found within
// seconds, with loss too.
func TestMTUChanges(t *testing.T) {
	const trial = searchTrial*searchPause + 200*time.Millisecond // with a round trip
	for _, percent := range []int{0, 1, 10} {
		// Of a trial, pairs may count for nothing, and it begins again where the path was taken for
		// dead. With 10 % of loss one change in 1,000 takes 2.5 s, one in 30,000 4.5 s, ten times
		// fewer for each 1.3 s more: this leaves about one in 10^7.
		slower := 1 + 30*float64(percent)/100
		fits := time.Duration(float64(searchConfirmBusy+2*trial) * slower)
		found := fits + time.Duration(float64(6*trial)*slower)
		raised := searchRaise + found
		if percent > 0 {
			raised = 8*searchRaise + found // a lost probe of a larger size is sent again after searchRaise
		}
		t.Run(fmt.Sprintf("%d percent", percent), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				p := newEmulatedPath(t)
				random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
				p.lost = func(time.Duration, bool) bool { return random.IntN(100) < percent }
				nothing := func() {}
				p.run(time.Second, nothing)
				for range 4 {
					before := p.carries
					p.carries = rapid.IntRange(baseMTU+1, 1428).Draw(rt, "carries")
					changed, since := p.now, p.now
					within := found
					if p.carries > before {
						within = raised
					}
					p.run(within+time.Duration(rapid.IntRange(0, 30_000).Draw(rt, "then ms"))*time.Millisecond, func() {
						if p.limit() <= p.carries && p.limit() > p.carries-2*searchStep {
							since = p.now
						}
						if got := p.limit(); got > p.carries && p.now-changed > fits {
							rt.Fatalf("%v after the change: packets of %d bytes are sent, the path carries %d", p.now-changed, got, p.carries)
						}
						if p.now-changed > within && since < changed+1 {
							rt.Fatalf("%v after the change from %d: packets of %d bytes are sent, the path carries %d", p.now-changed, before, p.limit(), p.carries)
						}
					})
					if got := p.limit(); got > p.carries || got <= p.carries-2*searchStep {
						rt.Fatalf("%v after the change from %d: packets of %d bytes are sent, the path carries %d", p.now-changed, before, got, p.carries)
					}
				}
			})
		})
	}
}

// TestMTUProbesAreFew: once the MTU is known, probes of it take little of an idle path, also where
// it is smaller than that of the interface.
func TestMTUProbesAreFew(t *testing.T) {
	for _, carries := range []int{1428, 1300} {
		p := newEmulatedPath(t)
		p.carries, p.busy = carries, false
		p.run(time.Minute, func() {})
		p.counts.bytes = 0
		p.run(time.Minute, func() {})
		if perSecond := p.counts.bytes / 60; perSecond > 600 {
			t.Errorf("a path that carries %d: %d bytes of probes each second", carries, perSecond)
		}
	}
}

// TestMTUBelowBase: a path carries less than baseMTU, from the beginning or later, or ordinary
// probes alone. What it carries is found within seconds, and probes are as few as on any other path.
func TestMTUBelowBase(t *testing.T) {
	for _, carries := range []int{baseMTU - 1, 1128, 700, 500} {
		for _, before := range []time.Duration{0, 10 * time.Second} {
			p := newEmulatedPath(t)
			p.run(before, func() {})
			p.carries = carries
			p.run(12*time.Second, func() {})
			least, most := carries-2*searchStep, max(carries, leastMTU)
			if l := p.link(); p.limit() <= least || p.limit() > most || !l.search.known || l.search.onTrial() > 0 {
				t.Errorf("after %v: packets of %d bytes are sent, the path carries %d: %+v", before, p.limit(), carries, l.search)
			}
			p.r.mu.Lock()
			p.r.scheduling.refresh()
			p.r.mu.Unlock()
			if got := p.r.rx.clamp.Load(); carries > leastMTU && int(got) != p.limit() {
				t.Errorf("after %v: connections get segments for packets of %d bytes, want %d", before, got, p.limit())
			}
			if got := p.r.trains.size(p.link().place()); got > p.limit() {
				t.Errorf("after %v: scouts of trains are as long as packets of %d bytes", before, got)
			}
			p.run(8*time.Second, func() {})
			p.counts.probes, p.counts.bytes = 0, 0
			p.run(time.Minute, func() {})
			if perSecond := p.counts.bytes / 60; perSecond > 2*baseMTU {
				t.Errorf("after %v: %d bytes of padded probes each second, for ever", before, perSecond)
			}
			if !p.link().probing.alive.Alive() {
				t.Errorf("after %v: the path is dead, which answers ordinary probes", before)
			}
			p.carries = 1428
			p.run(3*searchRaise, func() {})
			if p.limit() != 1428 {
				t.Errorf("after %v: packets of %d bytes are sent, the path carries 1428 again", before, p.limit())
			}
		}
	}
}

// TestMTUSearchOnSlowPaths: padded probes take a hundredth of a slow path, or are one pair each
// second, while sizes are on trial too. Others go on as often as on any path of that rate.
func TestMTUSearchOnSlowPaths(t *testing.T) {
	const length = 15 // seconds
	for _, tt := range []struct {
		rate       unit.Bandwidth
		most, each int // bytes of padded probes without headers, and ordinary probes, each second
	}{
		{unit.MbitPerSecond, 1_000_000 / 8 * trialShare / probeFraction, 9},
		{2 * unit.MbitPerSecond, 2_000_000 / 8 * trialShare / probeFraction, 15},
		{5 * unit.MbitPerSecond, 5_000_000 / 8 * trialShare / probeFraction, 15},
		{10 * unit.MbitPerSecond, 10_000_000 / 8 * trialShare / probeFraction, 15},
	} {
		p := newEmulatedPath(t)
		conf := *p.link().line.conf.Load()
		conf.Up.Bandwidth, conf.Down.Bandwidth = tt.rate, tt.rate
		p.link().line.conf.Store(&conf)
		p.link().rates.up = conf.Up
		p.carries = baseMTU - 1
		p.run(5*time.Second, func() {})
		p.counts.probes, p.counts.bytes = 0, 0
		p.run(length*time.Second, func() {
			if p.link().search.onTrial() == 0 && !p.link().search.known {
				t.Fatal("no size is on trial")
			}
		})
		// Beside the pairs there are long probes alone, when a size is tried for the first time.
		if perSecond := p.counts.bytes / length; perSecond > tt.most+tt.most/3 {
			t.Errorf("%s: %d bytes of padded probes each second, want at most %d", tt.rate, perSecond, tt.most)
		}
		if perSecond := p.counts.probes / length; perSecond < tt.each {
			t.Errorf("%s: %d probes each second, want at least %d", tt.rate, perSecond, tt.each)
		}
	}
}

// TestMTUWithLongTimeouts: round trips are short but have varied so much that probes time out after
// seconds. They are kept as long, so that the MTU is found.
func TestMTUWithLongTimeouts(t *testing.T) {
	p := newEmulatedPath(t)
	p.carries = 1300
	varied := func() {
		p.link().probing.rtt = quality.RTT{SRTT: 100 * time.Millisecond, RTTVAR: 1500 * time.Millisecond, MinRTT: 20 * time.Millisecond}
	}
	varied()
	p.run(3*time.Minute, varied)
	if got := p.limit(); got > 1300 || got <= 1300-2*searchStep {
		t.Errorf("packets of %d bytes are sent, the path carries 1300", got)
	}
}

// TestMTUOfInterface: the search begins again when the MTU of the interface changes.
func TestMTUOfInterface(t *testing.T) {
	var s mtuSearch
	for _, mtu := range []int{1500, 9000, 1400} {
		if size, _ := s.next(0, searchConfirm, mtu, true); size != largest(mtu, true) || s.limit(mtu, true) != size {
			t.Errorf("interface of MTU %d: %d is tried, packets of %d bytes are sent", mtu, size, s.limit(mtu, true))
		}
		s.carried(largest(mtu, true))
	}
}

// TestMTUUntilKnown: packets as long as the interface allows are sent until it is known that they
// do not arrive, and not again when larger ones are tried: a sender to whom a smaller size is
// reported keeps to it for minutes.
func TestMTUUntilKnown(t *testing.T) {
	p := newEmulatedPath(t)
	p.carries = 1380
	if got := p.limit(); got != 1428 {
		t.Errorf("packets of %d bytes are sent before anything is known", got)
	}
	last := 1428
	p.run(5*searchRaise, func() {
		switch got := p.limit(); {
		case got == last:
		case last == 1428 && got == baseMTU, last < got && got <= 1380:
			last = got
		default:
			t.Fatalf("at %v: packets of %d bytes are sent, %d before", p.now, got, last)
		}
	})
	if last <= 1380-2*searchStep {
		t.Errorf("packets of %d bytes are sent, the path carries 1380", last)
	}
}
