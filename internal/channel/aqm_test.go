package channel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// list is a queue for CoDel.
type list struct {
	frames  []packet
	dropped []int32
}

func (l *list) pop() (packet, bool) {
	if len(l.frames) == 0 {
		return packet{}, false
	}
	f := l.frames[0]
	l.frames = l.frames[1:]
	return f, true
}

func (l *list) bytes() unit.Size {
	n := unit.Size(0)
	for _, f := range l.frames {
		n += unit.Size(f.size)
	}
	return n
}

func (l *list) drop(f packet) { l.dropped = append(l.dropped, f.slot) }

// The times of drops follow RFC 8289, section 5: the first an interval after the sojourn time went above the target, the
// next ones an interval, divided by the root of their count, apart.
func TestCoDelDropTimes(t *testing.T) {
	var c codel
	q := &list{}
	p := CoDel{Target: 5 * ms, Interval: 100 * ms}
	var drops []time.Duration
	// A frame is dequeued each millisecond, having waited for 20 ms, and the queue stays long.
	for now := time.Duration(0); now < 400*ms; now += ms {
		for len(q.frames) < 10 {
			q.frames = append(q.frames, packet{size: 1000, arrived: now - 20*ms})
		}
		for i := range q.frames {
			q.frames[i].arrived = now - 20*ms
		}
		before := len(q.dropped)
		if _, ok := c.dequeue(p, 1514, now, q); !ok {
			t.Fatal("nothing to send")
		}
		for range len(q.dropped) - before {
			drops = append(drops, now)
		}
	}
	// 100, +100/sqrt(1), +100/sqrt(2), +100/sqrt(3), ... from there on, at the next dequeue.
	next, want := 100.0, []time.Duration{100 * ms}
	for n := 1; ; n++ {
		next += 100 / math.Sqrt(float64(n))
		if next >= 400 {
			break
		}
		want = append(want, time.Duration(math.Ceil(next-1e-6))*ms)
	}
	if len(drops) != len(want) {
		t.Fatalf("drops at %v, want %v", drops, want)
	}
	for i := range want {
		if drops[i] != want[i] {
			t.Errorf("drop %d at %s, want %s", i, drops[i], want[i])
		}
	}
}

func TestCoDelLeavesShortQueuesAlone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		wait  time.Duration
		count int
	}{
		{"below the target", 4 * ms, 10},
		{"one frame left", 50 * ms, 2},
	} {
		var c codel
		q := &list{}
		for now := time.Duration(0); now < time.Second; now += ms {
			q.frames = q.frames[:0]
			for range tt.count {
				q.frames = append(q.frames, packet{size: 1000, arrived: now - tt.wait})
			}
			c.dequeue(CoDel{Target: 5 * ms, Interval: 100 * ms}, 1514, now, q)
		}
		if len(q.dropped) > 0 {
			t.Errorf("%s: %d dropped", tt.name, len(q.dropped))
		}
	}
}

func TestCoDelBringsTheDelayDown(t *testing.T) {
	// 10 % more than the link carries: drop-tail fills its second of queue, CoDel does not. It is no flow that reacts, so
	// CoDel has to drop ever faster.
	p := Profile{Rate: 10 * unit.MbitPerSecond, Queue: Queue{Limit: Limit{Time: time.Second}, Discipline: ControlledDelay}}
	offers := steady(60_000, p.Rate.TimeFor(1000)*10/11, 1000)
	out, pipe := play(t, p, 1, offers, nil, always)
	last := out[len(out)-1]
	if wait := last.at - offers[last.slot].at; wait > 150*ms || pipe.counted.CoDel == 0 || pipe.counted.Tail != 0 {
		t.Errorf("delay %s after %d drops of CoDel and %d of the tail", wait, pipe.counted.CoDel, pipe.counted.Tail)
	}
}

// The average is the exponential one, and decays as if frames came while there are none (Floyd and Jacobson, section 4).
func TestREDAverage(t *testing.T) {
	p := &RED{Min: Limit{Packets: 5}, Max: Limit{Packets: 15}, P: 0.1, Weight: 0.002}
	r := red{count: -1, random: rand.New(rand.NewPCG(1, 1))}
	for range 1000 {
		r.drop(p, 4, 0)
	}
	if want := 4 * (1 - math.Pow(0.998, 1000)); math.Abs(r.average-want) > 1e-9 {
		t.Errorf("average %v, want %v", r.average, want)
	}
	before := r.average
	r.drop(p, 0, 500)
	if want := before * math.Pow(0.998, 500); math.Abs(r.average-want) > 1e-9 {
		t.Errorf("average after a pause %v, want %v", r.average, want)
	}
}

// At a constant average the distance between drops is uniform from 1 to 1/pb: its mean is (1/pb+1)/2 (section 7).
func TestREDDistances(t *testing.T) {
	for _, tt := range []struct {
		average, base float64 // base is pb
	}{
		{10, 0.05},
		{12.5, 0.075},
		{17.5, 0.1 + 0.9*2.5/15}, // the gentle slope
	} {
		p := &RED{Min: Limit{Packets: 5}, Max: Limit{Packets: 15}, P: 0.1}
		r := red{count: 0, average: tt.average, random: rand.New(rand.NewPCG(2, 2))}
		const n = 200_000
		drops, longest, distance := 0, 0, 0
		for range n {
			distance++
			if r.drop(p, tt.average, 0) {
				drops++
				longest = max(longest, distance)
				distance = 0
			}
		}
		most := math.Ceil(1 / tt.base)
		if float64(longest) > most {
			t.Errorf("average %v: distance %d, more than %v", tt.average, longest, most)
		}
		// The share of drops that a frame-by-frame computation of the paper's formula gives.
		want := 1 / meanDistance(tt.base)
		if got := float64(drops) / n; math.Abs(got/want-1) > 0.02 {
			t.Errorf("average %v: %v dropped, want %v", tt.average, got, want)
		}
	}
	p := &RED{Min: Limit{Packets: 5}, Max: Limit{Packets: 15}, P: 0.1}
	for average, want := range map[float64]bool{4.9: false, 30: true, 1000: true} {
		r := red{count: -1, average: average, random: rand.New(rand.NewPCG(3, 3))}
		for range 100 {
			if r.drop(p, average, 0) != want {
				t.Fatalf("average %v: drop is not %v", average, want)
			}
		}
	}
}

// meanDistance is the mean number of frames from one drop to the next.
func meanDistance(base float64) float64 {
	mean, survive := 0.0, 1.0
	for count := 1; survive > 0; count++ {
		mean += survive
		rest := 1 - float64(count)*base
		if rest <= base {
			break
		}
		survive *= 1 - base/rest
	}
	return mean
}
