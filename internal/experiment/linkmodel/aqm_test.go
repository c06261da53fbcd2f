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

// markable is a store in which every share-th frame can be marked.
type markable struct {
	*refs
	share  int32
	marked map[int32]bool
}

func (m *markable) Mark(slot int32) bool {
	if m.refs.refs[slot] != 1 {
		m.t.Fatalf("slot %d is marked with %d references", slot, m.refs.refs[slot])
	}
	if slot%m.share != 0 {
		return false
	}
	m.marked[slot] = true
	return true
}

// overload offers 120 % of the rate to a link with a queue of two seconds. It returns the pipe, the
// number of bytes delivered and the time of the last delivery.
func overload(t *testing.T, queue Queue, store *markable) (pipe *Pipe[int32], size int64, last time.Duration) {
	queue.Limit = Limit{Time: 2 * time.Second}
	p := Profile{Rate: 10 * unit.MbitPerSecond, Delay: 10 * ms, Queue: queue}
	pipe = NewPipe(p, 1514, 1, 0, store)
	for i, o := range steady(8000, p.Rate.TimeFor(1000)*5/6, 1000) {
		store.refs.refs[int32(i)] = 1
		slot := int32(i)
		pipe.Arrive(o.at, o.size, &slot)
	}
	for pipe.Next() != Never {
		a, ok := pipe.Due(pipe.Next())
		if ok {
			size, last = size+int64(a.Size), a.At
			store.Release(a.Frame)
		}
	}
	return pipe, size, last
}

// disciplines are the disciplines that support ECN.
var disciplines = map[string]Queue{
	"red":   {Discipline: DisciplineRED, RED: RED{Min: Limit{Time: 5 * ms}, Max: Limit{Time: 50 * ms}, P: 0.1}},
	"codel": {Discipline: DisciplineCoDel},
}

// ECN-capable frames are marked instead of dropped, others are dropped, and the link stays
// saturated.
func TestMarksInPlaceOfDrops(t *testing.T) {
	for name, queue := range disciplines {
		for _, tt := range []struct {
			ecn   bool
			share int32 // every share-th frame is ECN-capable
		}{{false, 1}, {true, 1}, {true, 2}, {true, 1 << 30}} {
			queue.ECN = tt.ecn
			store := &markable{&refs{t, map[int32]int{}}, tt.share, map[int32]bool{}}
			pipe, size, last := overload(t, queue, store)
			c := pipe.Counted()
			drops := c.RED + c.CoDel
			if int(c.Marked) != len(store.marked) && tt.ecn {
				t.Errorf("%s %+v: %d marks are counted, %d frames have one", name, tt, c.Marked, len(store.marked))
			}
			if c.Tail != 0 && c.Marked == 0 || size != int64(c.Arrived-drops-c.Tail)*1000 {
				t.Errorf("%s %+v: %+v, %d bytes delivered", name, tt, c, size)
			}
			marks, dropped := tt.ecn && tt.share < 1<<30, !tt.ecn || tt.share > 1
			if marks != (c.Marked > 1) || dropped != (drops > 1) {
				t.Errorf("%s %+v: %d marked and %d dropped", name, tt, c.Marked, drops)
			}
			// The link is saturated from the first frame on; the last frame then has
			// the delay.
			if want := pipe.Profile().Rate.TimeFor(unit.Size(size)) + 10*ms; last < want || last > want+ms {
				t.Errorf("%s %+v: %d bytes by %s, want %s", name, tt, size, last, want)
			}
			if len(store.refs.refs) != 0 {
				t.Errorf("%s %+v: %d slots are never released", name, tt, len(store.refs.refs))
			}
		}
	}
}

// If no frame is ECN-capable, a queue with ECN behaves like one without.
func TestPropertyNothingToMark(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, offers := genProfile(t), genOffers(t)
		p.Queue.Discipline = rapid.SampledFrom([]Discipline{DisciplineRED, DisciplineCoDel}).Draw(t, "marking")
		p.Queue.RED, p.Queue.CoDel = RED{}, CoDel{}
		if p.Queue.Discipline == DisciplineRED {
			p.Queue.RED = RED{Min: Limit{Packets: 2}, Max: Limit{Packets: 5}, P: 0.5, Weight: 0.5}
		}
		drops, _ := play(t, p, 1, offers, nil, always)
		p.Queue.ECN = true
		marks, _ := play(t, p, 1, offers, nil, always)
		if !slices.Equal(drops, marks) {
			t.Fatalf("%v, and without marks %v", marks, drops)
		}
	})
}

// A frame that finds the queue full is dropped, not marked.
func TestFullQueueMarksNothing(t *testing.T) {
	store := &markable{&refs{t, map[int32]int{}}, 1, map[int32]bool{}}
	queue := Queue{Limit: Limit{Packets: 1}, Discipline: DisciplineRED, ECN: true, RED: RED{Min: Limit{Bytes: 1}, Max: Limit{Bytes: 2}, P: 1, Weight: 1}}
	pipe := NewPipe(Profile{Rate: minRate, Queue: queue}, 1514, 1, 0, store)
	for slot := range int32(4) {
		store.refs.refs[slot] = 1
		pipe.Arrive(0, 1000, &slot)
	}
	// The first frame is sent and the second is queued, so the average is 0 until the third.
	if c := pipe.Counted(); c.Marked != 0 || c.RED != 2 {
		t.Errorf("%+v", c)
	}
	pipe.Flush()
}

func TestCoDelBringsTheDelayDown(t *testing.T) {
	// The offered load is 110 % of the rate. Drop-tail fills its queue of one second, CoDel
	// does not. The load does not react to drops, so CoDel drops at an increasing rate.
	p := Profile{Rate: 10 * unit.MbitPerSecond, Queue: Queue{Limit: Limit{Time: time.Second}, Discipline: DisciplineCoDel}}
	offers := steady(60_000, p.Rate.TimeFor(1000)*10/11, 1000)
	out, pipe := play(t, p, 1, offers, nil, always)
	last := out[len(out)-1]
	if wait := last.at - offers[last.slot].at; wait > 150*ms || pipe.counted.CoDel == 0 || pipe.counted.Tail != 0 {
		t.Errorf("delay %s after %d drops of CoDel and %d of the tail", wait, pipe.counted.CoDel, pipe.counted.Tail)
	}
}

// The average is an EWMA, which decays in idle time as if frames arrived at an empty queue (Floyd
// and Jacobson, section 4).
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

// At a constant average the distance between drops is uniform from 1 to 1/pb: its mean is
// (1/pb+1)/2 (section 7).
func TestREDDistances(t *testing.T) {
	for _, tt := range []struct {
		average, base float64 // base is pb
	}{
		{10, 0.05},
		{12.5, 0.075},
		{17.5, 0.1 + 0.9*2.5/15}, // on the gentle slope
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
		// The share of drops by the paper's formula, computed frame by frame.
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
