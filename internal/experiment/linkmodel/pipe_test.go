package linkmodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

const ms = time.Millisecond

// refs is a Store that fails the test when a slot without references is released.
type refs struct {
	t    rapid.TB
	refs map[int32]int
}

func (r *refs) Retain(slot int32) { r.refs[slot]++ }
func (r *refs) Release(slot int32) {
	if r.refs[slot] == 0 {
		r.t.Fatalf("slot %d released twice", slot)
	}
	if r.refs[slot]--; r.refs[slot] == 0 {
		delete(r.refs, slot)
	}
}

// offer is a frame that arrives.
type offer struct {
	at   time.Duration
	size int32
}

// sent is a delivered frame; slot is the index of its offer.
type sent struct {
	at   time.Duration
	slot int32
	size int32
}

// change sets the profile of a pipe at a time.
type change struct {
	at      time.Duration
	profile Profile
}

// play passes the offers through a pipe. It calls Due only before offers for which look returns
// true, and at the end.
func play(t rapid.TB, p Profile, seed uint64, offers []offer, changes []change, look func(i int) bool) ([]sent, *Pipe[int32]) {
	store := &refs{t, map[int32]int{}}
	pipe := NewPipe(p, 1514, seed, 0, store)
	var out []sent
	collect := func(now time.Duration) {
		for {
			a, ok := pipe.Due(now)
			if !ok {
				if next := pipe.Next(); next <= now {
					t.Fatalf("next is %s, but nothing is due at %s", next, now)
				}
				return
			}
			out = append(out, sent{a.At, a.Frame, a.Size})
			pipe.store.Release(a.Frame)
		}
	}
	for i, o := range offers {
		for len(changes) > 0 && changes[0].at <= o.at {
			pipe.Set(changes[0].at, changes[0].profile)
			changes = changes[1:]
		}
		if look(i) {
			collect(o.at)
		}
		store.refs[int32(i)] = 1
		slot := int32(i)
		pipe.Arrive(o.at, o.size, &slot)
	}
	for pipe.Next() != Never {
		collect(pipe.Next())
	}
	if len(store.refs) != 0 {
		t.Fatalf("%d slots are never released", len(store.refs))
	}
	return out, pipe
}

func always(int) bool { return true }

// steady returns n frames of a size, one per interval.
func steady(n int, interval time.Duration, size int32) []offer {
	list := make([]offer, n)
	for i := range list {
		list[i] = offer{time.Duration(i) * interval, size}
	}
	return list
}

func genProfile(t *rapid.T) Profile {
	p := Profile{Delay: time.Duration(rapid.IntRange(0, 200).Draw(t, "delay")) * ms}
	if rapid.Bool().Draw(t, "limited") {
		p.Rate = unit.Bandwidth(rapid.Int64Range(int64(minRate)*10, 1e9).Draw(t, "rate"))
		p.Burst = unit.Size(rapid.SampledFrom([]int{0, 0, 1, 3000, 100_000}).Draw(t, "burst"))
		if rapid.Bool().Draw(t, "loaded") {
			p.Load.Rate = max(minRate, p.Rate/unit.Bandwidth(rapid.IntRange(1, 20).Draw(t, "share")))
			if rapid.Bool().Draw(t, "bursty") {
				p.Load.On, p.Load.Off = 20*ms, 30*ms
			}
		}
	}
	if rapid.Bool().Draw(t, "jittery") && p.Delay > 0 {
		p.Jitter = Jitter{
			Kind:    rapid.SampledFrom([]JitterKind{Uniform, Normal, Pareto}).Draw(t, "jitter"),
			Amount:  time.Duration(rapid.Int64Range(1, int64(p.Delay)).Draw(t, "amount")),
			Reorder: rapid.Bool().Draw(t, "reorder"),
		}
	}
	p.Slot = time.Duration(rapid.SampledFrom([]int{0, 0, 1, 7}).Draw(t, "slot")) * ms
	switch rapid.IntRange(0, 2).Draw(t, "loss") {
	case 1:
		p.Loss = Loss{Kind: Random, P: rapid.Float64Range(0, 1).Draw(t, "p")}
	case 2:
		p.Loss = Loss{Kind: GilbertElliott, P: rapid.Float64Range(0, 1).Draw(t, "p"), R: rapid.Float64Range(0, 1).Draw(t, "r"), Bad: 1}
	}
	p.Duplicate = rapid.SampledFrom([]float64{0, 0.1, 1}).Draw(t, "duplicate")
	switch rapid.IntRange(0, 3).Draw(t, "limit") {
	case 1:
		p.Queue.Bytes = unit.Size(rapid.IntRange(1, 100000).Draw(t, "bytes"))
	case 2:
		p.Queue.Packets = rapid.IntRange(1, 100).Draw(t, "packets")
	case 3:
		p.Queue.Time = time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "time"))
	}
	switch p.Queue.Discipline = rapid.SampledFrom([]Discipline{"", DisciplineDropTail, DisciplineRED, DisciplineCoDel}).Draw(t, "discipline"); p.Queue.Discipline {
	case DisciplineRED:
		p.Queue.RED = RED{Min: Limit{Packets: 5}, Max: Limit{Packets: 15}, P: 0.1, Weight: 0.1}
	case DisciplineCoDel:
		p.Queue.CoDel = CoDel{Target: time.Duration(rapid.IntRange(1, 10).Draw(t, "target")) * ms, Interval: 20 * ms}
	case DisciplineDropTail:
	}
	if faults := p.Check(); len(faults) > 0 {
		t.Fatalf("generated profile is wrong: %v", faults)
	}
	return p
}

func genOffers(t *rapid.T) []offer {
	gaps := rapid.SliceOfN(rapid.IntRange(0, 3000), 1, 300).Draw(t, "gaps")
	at, list := time.Duration(0), make([]offer, len(gaps))
	for i, g := range gaps {
		at += time.Duration(g) * time.Microsecond
		list[i] = offer{at, int32(rapid.IntRange(14, 1514).Draw(t, "size"))}
	}
	return list
}

// Equal arrivals and seeds give equal deliveries, however often Due is called.
func TestPropertyDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, offers := genProfile(t), genOffers(t)
		seed := rapid.Uint64().Draw(t, "seed")
		changes := []change{{offers[len(offers)/2].at, genProfile(t)}}
		one, first := play(t, p, seed, offers, changes, always)
		two, second := play(t, p, seed, offers, changes, func(i int) bool { return i%7 == 0 })
		three, _ := play(t, p, seed, offers, changes, func(int) bool { return false })
		// Deliveries are in order even if Due is called late.
		if !slices.Equal(one, two) || !slices.Equal(one, three) {
			t.Fatal("looking changes what happens")
		}
		if first.counted != second.counted {
			t.Fatalf("counts %+v and %+v", first.counted, second.counted)
		}
		c := first.counted
		if int(c.Arrived+c.Duplicated-c.Tail-c.RED-c.CoDel-c.Lost) != len(one) {
			t.Fatalf("%+v, but %d delivered", c, len(one))
		}
	})
}

// Frames are delivered in order of arrival unless Reorder is set, and never before the minimum
// delay.
func TestPropertyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, offers := genProfile(t), genOffers(t)
		p.Jitter.Reorder = false
		after := genProfile(t)
		after.Jitter.Reorder = false
		out, _ := play(t, p, 1, offers, []change{{offers[len(offers)/2].at, after}}, always)
		least := min(p.Least(), after.Least())
		for i, s := range out {
			if i > 0 && (s.slot < out[i-1].slot || s.at < out[i-1].at) {
				t.Fatalf("frame %d at %s comes after frame %d at %s", s.slot, s.at, out[i-1].slot, out[i-1].at)
			}
			if s.at < offers[s.slot].at+least {
				t.Fatalf("frame %d takes %s, less than %s", s.slot, s.at-offers[s.slot].at, least)
			}
		}
	})
}

// No window has more than the rate allows plus one frame and the burst. Windows begin at the end of a
// transmission.
func TestPropertyRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, offers := genProfile(t), genOffers(t)
		p.Rate = unit.Bandwidth(rapid.Int64Range(1e5, 1e8).Draw(t, "limit"))
		p.Jitter, p.Slot, p.Duplicate = Jitter{}, 0, 0
		out, _ := play(t, p, 1, offers, nil, always)
		for i := range out {
			sum := unit.Size(0)
			for _, s := range out[i+1:] {
				sum += unit.Size(s.size)
				if window := s.at - out[i].at; p.Rate.TimeFor(sum) > window+p.Rate.TimeFor(p.Burst)+time.Duration(len(out)) {
					t.Fatalf("%s in %s at %s", sum, window, p.Rate)
				}
			}
		}
	})
}

// A saturated link carries exactly its rate.
func TestRateIsReached(t *testing.T) {
	p := Profile{Rate: 10 * unit.MbitPerSecond, Delay: 20 * ms}
	out, _ := play(t, p, 1, steady(5000, ms, 1514), nil, always)
	last := out[len(out)-1].at - p.Delay
	if got := (unit.Size(len(out)) * 1514).Over(last); math.Abs(float64(got)/1e7-1) > 1e-4 {
		t.Errorf("carries %s", got)
	}
}

func TestRateChangesWhileFramesWait(t *testing.T) {
	// A frame of 1000 bytes takes 1 ms at 8 Mbit/s.
	p := Profile{Rate: 8 * unit.MbitPerSecond, Delay: 10 * ms}
	slow := p
	slow.Rate /= 2
	// The third frame is being sent when the rate changes, and finishes at the old rate.
	out, _ := play(t, p, 1, append(steady(6, 0, 1000), offer{time.Second, 1000}), []change{{2500 * time.Microsecond, slow}}, func(int) bool { return false })
	want := []time.Duration{11 * ms, 12 * ms, 13 * ms, 15 * ms, 17 * ms, 19 * ms, 1012 * ms}
	for i, s := range out {
		if s.at != want[i] {
			t.Errorf("frame %d at %s, want %s", i, s.at, want[i])
		}
	}
	if len(out) != len(want) {
		t.Errorf("%d frames, want %d", len(out), len(want))
	}
}

// When the rate limit is removed, all queued frames are sent at once.
func TestRateIsLifted(t *testing.T) {
	p := Profile{Rate: 8 * unit.MbitPerSecond}
	out, _ := play(t, p, 1, append(steady(6, 0, 1000), offer{time.Second, 1000}), []change{{2500 * time.Microsecond, Profile{}}}, func(int) bool { return false })
	want := []time.Duration{ms, 2 * ms, 3 * ms, 3 * ms, 3 * ms, 3 * ms, time.Second}
	for i, s := range out {
		if s.at != want[i] {
			t.Errorf("frame %d at %s, want %s", i, s.at, want[i])
		}
	}
}

func TestDropTail(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit Limit
		want  int // accepted of 100 frames of 1000 B at once: one being sent, the rest queued
	}{
		{"bytes", Limit{Bytes: 5000}, 6},
		{"bytes that end within a frame", Limit{Bytes: 5999}, 6},
		{"packets", Limit{Packets: 7}, 8},
		{"time", Limit{Time: 3 * ms}, 4},
		{"default", Limit{}, 51},
	} {
		p := Profile{Rate: 8 * unit.MbitPerSecond, Queue: Queue{Limit: tt.limit}}
		out, pipe := play(t, p, 1, steady(100, 0, 1000), nil, always)
		if len(out) != tt.want || int(pipe.counted.Tail) != 100-tt.want {
			t.Errorf("%s: %d frames pass and %d are dropped, want %d", tt.name, len(out), pipe.counted.Tail, tt.want)
		}
	}
}

// within reports whether k of n is within 5 standard deviations of the probability p.
func within(k, n uint64, p float64) bool {
	return math.Abs(float64(k)-float64(n)*p) <= 5*math.Sqrt(float64(n)*p*(1-p))+1
}

func TestLossAndDuplicationFrequency(t *testing.T) {
	const n = 200_000
	for _, chance := range []float64{0, 0.001, 0.03, 0.5, 1} {
		_, pipe := play(t, Profile{Loss: Loss{Kind: Random, P: chance}}, 7, steady(n, 1000, 100), nil, always)
		if !within(pipe.counted.Lost, n, chance) {
			t.Errorf("probability %v: %d of %d lost", chance, pipe.counted.Lost, n)
		}
		_, pipe = play(t, Profile{Duplicate: chance}, 7, steady(n, 1000, 100), nil, always)
		if !within(pipe.counted.Duplicated, n, chance) {
			t.Errorf("probability %v: %d of %d duplicated", chance, pipe.counted.Duplicated, n)
		}
	}
}

func TestGilbertElliott(t *testing.T) {
	const n = 500_000
	l := Loss{Kind: GilbertElliott, P: 0.01, R: 0.2, Good: 0.001, Bad: 0.7}
	_, pipe := play(t, Profile{Loss: l}, 3, steady(n, 1000, 100), nil, always)
	want := (l.P*l.Bad + l.R*l.Good) / (l.P + l.R)
	if got := float64(pipe.counted.Lost) / n; math.Abs(got/want-1) > 0.05 {
		t.Errorf("loss %v, want %v", got, want)
	}
	if pipe := NewPipe[int32](Profile{Loss: Loss{Kind: GilbertElliott, Good: 1}}, 1514, 1, 0, nil); !pipe.lose() || pipe.bad {
		t.Error("does not start in the good state")
	}
	// The model stays in the bad state after the first frame, and only the bad state loses
	// frames.
	only := NewPipe[int32](Profile{Loss: Loss{Kind: GilbertElliott, P: 1, R: 0, Bad: 1}}, 1514, 1, 0, nil)
	if only.lose() || !only.lose() || !only.lose() {
		t.Error("states do not follow P and R")
	}
	// With Good 0 and Bad 1 a burst of losses is one period in the bad state, of 1/R frames on
	// average and at least one.
	out, pipe := play(t, Profile{Loss: Loss{Kind: GilbertElliott, P: 0.01, R: 0.2, Bad: 1}}, 3, steady(n, 1000, 100), nil, always)
	bursts := 0
	for i := 1; i < len(out); i++ {
		if out[i].slot != out[i-1].slot+1 {
			bursts++
		}
	}
	if got := float64(pipe.counted.Lost) / float64(bursts); math.Abs(got*0.2-1) > 0.05 {
		t.Errorf("mean burst %v, want 5", got)
	}
}

func TestJitterDistribution(t *testing.T) {
	const n = 100_000
	for _, tt := range []struct {
		kind             JitterKind
		deviation, reach time.Duration
	}{
		{Uniform, time.Duration(float64(10*ms) / math.Sqrt(3)), 10 * ms},
		{Normal, 10 * ms, 50 * ms},
	} {
		p := Profile{Delay: 50 * ms, Jitter: Jitter{Kind: tt.kind, Amount: 10 * ms, Reorder: true}}
		out, _ := play(t, p, 5, steady(n, 1000, 100), nil, always)
		var sum, square float64
		overtaken := false
		for i, s := range out {
			d := float64(s.at - time.Duration(s.slot)*1000 - p.Delay)
			sum += d
			square += d * d
			if math.Abs(d) > float64(tt.reach) {
				t.Fatalf("%s: %v off", tt.kind, time.Duration(d))
			}
			overtaken = overtaken || i > 0 && s.slot < out[i-1].slot
		}
		if mean := sum / n; math.Abs(mean) > float64(ms)/5 {
			t.Errorf("%s: mean %s", tt.kind, time.Duration(mean))
		}
		if got := math.Sqrt(square / n); math.Abs(got/float64(tt.deviation)-1) > 0.02 {
			t.Errorf("%s: deviation %s, want %s", tt.kind, time.Duration(got), tt.deviation)
		}
		if !overtaken {
			t.Errorf("%s: no frame overtakes another", tt.kind)
		}
	}
}

// TestHeavyTail: the mean of pareto is the amount, and its tail is that of the distribution.
func TestHeavyTail(t *testing.T) {
	const n = 200_000
	p := Profile{Delay: 5 * ms, Jitter: Jitter{Kind: Pareto, Amount: 10 * ms, Reorder: true}}
	out, _ := play(t, p, 5, steady(n, 1000, 100), nil, always)
	sum, less, far := 0., 0, 0
	for _, s := range out {
		d := s.at - time.Duration(s.slot)*1000 - p.Delay
		if d < 0 || d > MaxDelay {
			t.Fatalf("%s added", d)
		}
		sum += float64(d)
		if d < 10*ms {
			less++
		}
		if d > 222*ms {
			far++
		}
	}
	if mean := time.Duration(sum / n); mean < 95*time.Millisecond/10 || mean > 105*time.Millisecond/10 {
		t.Errorf("mean %s", mean)
	}
	if share := float64(less) / n; share < 0.70 || share > 0.74 {
		t.Errorf("%v have less than the mean", share)
	}
	if far < n/1000*7/10 || far > n/1000*13/10 {
		t.Errorf("%d of %d have more than 22 times the mean", far, n)
	}
}

// TestLoad: what others send takes its share of the rate, and of the queue.
func TestLoad(t *testing.T) {
	const n = 50_000
	for _, tt := range []struct {
		name  string
		load  Load
		share float64 // of the rate that is left
	}{
		{"even", Load{Rate: 4 * unit.MbitPerSecond}, 0.6},
		{"half of the time", Load{Rate: 8 * unit.MbitPerSecond, On: 100 * ms, Off: 100 * ms}, 0.6},
	} {
		// Frames at the link's rate, at irregular times, so that neither they nor the others always come first
		// when the queue has room: what does not fit beside the others is dropped.
		p := Profile{Rate: 10 * unit.MbitPerSecond, Queue: Queue{Limit: Limit{Packets: 20}}, Load: tt.load}
		gap := p.Rate.TimeFor(1000)
		random := rand.New(rand.NewPCG(1, 2))
		offers := make([]offer, n)
		for i, at := 0, time.Duration(0); i < n; i++ {
			at += time.Duration(random.ExpFloat64() * float64(gap))
			offers[i] = offer{at, 1000}
		}
		out, pipe := play(t, p, 5, offers, nil, always)
		if got := len(out) + int(pipe.counted.Tail); got != n {
			t.Errorf("%s: %d frames arrived or were dropped, of %d", tt.name, got, n)
		}
		if took := out[len(out)-1].at; took > n*gap+time.Second {
			t.Errorf("%s: it took %s", tt.name, took)
		}
		// A full queue accepts the first frame that fits, which the larger ones are less often.
		if share := float64(len(out)) / n; share < tt.share-0.05 || share > tt.share+0.15 {
			t.Errorf("%s: %v of the frames came through", tt.name, share)
		}
	}
	// Alone on the link: every frame waits for what arrived before it.
	p := Profile{Rate: 8 * unit.MbitPerSecond, Load: Load{Rate: 4 * unit.MbitPerSecond}}
	out, _ := play(t, p, 1, steady(100, 10*ms, 1000), nil, always)
	if len(out) != 100 || out[0].at != 2514*time.Microsecond {
		t.Errorf("%d frames; the first at %s behind one of 1514 bytes", len(out), out[0].at)
	}
}

// Frames that are due before an arrival leave the queue before it is checked for room, even without
// a call of Due.
func TestRoomIsMadeInTime(t *testing.T) {
	p := Profile{Rate: 8 * unit.MbitPerSecond, Queue: Queue{Limit: Limit{Packets: 1}}}
	offers := []offer{{0, 1000}, {0, 1000}, {ms, 1000}, {ms + 1, 1000}, {2 * ms, 1000}}
	out, pipe := play(t, p, 1, offers, nil, func(int) bool { return false })
	want := []sent{{ms, 0, 1000}, {2 * ms, 1, 1000}, {3 * ms, 2, 1000}, {4 * ms, 4, 1000}}
	if !slices.Equal(out, want) || pipe.counted.Tail != 1 {
		t.Errorf("delivered %v, want %v; %d dropped", out, want, pipe.counted.Tail)
	}
}

// TestSlots: frames are delivered at multiples of the slot, as soon as one has come after they have.
func TestSlots(t *testing.T) {
	p := Profile{Rate: 8 * unit.MbitPerSecond, Delay: 10 * ms, Slot: 4 * ms}
	out, _ := play(t, p, 1, steady(5, 2*ms, 1000), nil, always)
	want := []sent{{12 * ms, 0, 1000}, {16 * ms, 1, 1000}, {16 * ms, 2, 1000}, {20 * ms, 3, 1000}, {20 * ms, 4, 1000}}
	if !slices.Equal(out, want) {
		t.Errorf("delivered %v, want %v", out, want)
	}
}

// TestTokenBucket: as much as the bucket holds passes at once after a pause, and then no more than the
// rate; what a policer has no tokens for is dropped.
func TestTokenBucket(t *testing.T) {
	var offers []offer
	for i := range 20 {
		offers = append(offers, offer{time.Second + time.Duration(i)*ms/10, 1000}) // 80 Mbit/s
	}
	p := Profile{Rate: 8 * unit.MbitPerSecond, Burst: 5000, Delay: 3 * ms, Queue: Queue{Limit: Limit{Packets: 100}}}
	out, _ := play(t, p, 1, offers, nil, always)
	for i, s := range out {
		arrives := time.Second + time.Duration(i)*ms/10
		if want := 3*ms + max(arrives, time.Second+time.Duration(i+1-5)*ms); s.at != want {
			t.Errorf("frame %d: %s, want %s", i, s.at, want)
		}
	}
	p.Queue = Queue{Limit: Limit{Bytes: 1}}
	out, pipe := play(t, p, 1, append(offers, offer{2 * time.Second, 1000}), nil, always)
	// Six frames, and those for which there are tokens after a millisecond each.
	if len(out) != 8 || pipe.counted.Tail != 13 || out[7].at != 2*time.Second+3*ms {
		t.Errorf("a policer delivers %v and drops %d", out, pipe.counted.Tail)
	}
}

func TestFlush(t *testing.T) {
	store := &refs{t, map[int32]int{0: 1, 1: 1, 2: 1}}
	p := NewPipe(Profile{Rate: unit.MbitPerSecond, Delay: ms, Duplicate: 1}, 1514, 1, 0, store)
	for i := range int32(3) {
		p.Arrive(0, 1000, &i)
	}
	if n := p.Flush(); n != 4 || len(store.refs) != 0 || p.Next() != Never {
		t.Errorf("flushed %d, want 4; %d slots left, next %s", n, len(store.refs), p.Next())
	}
}
