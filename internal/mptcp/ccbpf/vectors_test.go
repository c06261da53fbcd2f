package ccbpf

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// arithmetic is in the order of enum control in vectors.c.
var arithmetic = []string{"newreno", "lia", "olia", "balia", "vegas", "wvegas"}

const (
	batch  = 4096 // MAX_VECTORS
	random = 25   // batches, so more than 100,000 vectors
	rounds = 4    // of Vegas and wVegas, which keep state from one to the next
)

// sides are a vector and the model of the same connection.
type sides struct {
	kernel *vectorsVector
	model  cc.Control
	flows  []cc.Subflow
	now    time.Duration
}

// logarithmic returns a number between low and high, whose logarithm is uniform.
func logarithmic(r *rand.Rand, low, high float64) float64 {
	return low * math.Exp(r.Float64()*math.Log(high/low))
}

// draw fills a vector with up to 8 subflows of 2 to 5000 segments, 0.1 ms to 1 s.
func draw(t *testing.T, r *rand.Rand, v *vectorsVector) *sides {
	*v = vectorsVector{Control: uint32(r.IntN(len(arithmetic))), Flows: uint32(1 + r.IntN(8)), Threshold: 1}
	v.Own, v.Mss = uint32(r.IntN(int(v.Flows))), uint32(logarithmic(r, 88, 65000))
	s := &sides{kernel: v, flows: make([]cc.Subflow, v.Flows), now: time.Hour}
	var err error
	if s.model, err = cc.New(arithmetic[v.Control]); err != nil {
		t.Fatal(err)
	}
	for i := range s.flows {
		k, f := &v.Flow[i], &s.flows[i]
		us := uint32(logarithmic(r, 100, 1e6))
		k.Window, k.Srtt = uint32(logarithmic(r, 2, 5001)), us*8
		k.Threshold = k.Window + uint32(r.IntN(2)) // or in slow start
		k.Previous = uint32(logarithmic(r, 1, 1e5))
		k.Loss = k.Previous + uint32(logarithmic(r, 1, 1e5))
		k.Delivered = k.Loss + uint32(logarithmic(r, 1, 1e5))
		f.SRTT = time.Duration(us) * time.Microsecond
		f.MinRTT = f.SRTT
		for _, delivered := range []uint32{k.Previous, k.Loss} {
			f.Delivered = uint64(delivered)
			s.model.Lost(s.flows, i, s.now)
		}
		f.Delivered = uint64(k.Delivered)
	}
	for i := range s.flows {
		s.reset(i)
	}
	return s
}

// reset sets the model's window of a subflow to that of the vector.
func (s *sides) reset(i int) {
	f := &s.flows[i]
	f.Cwnd, f.Ssthresh = float64(s.kernel.Flow[i].Window), 1
	f.InFlight = f.Cwnd
}

// within reports whether a window is within 1 % or one segment.
func within(got, want float64) bool {
	return math.Abs(got-want) <= max(1, 0.01*math.Abs(want))
}

// compareIncrease compares the increase for a segment, and the threshold after a loss. It returns
// the relative difference of the increase.
func (s *sides) compareIncrease(t *testing.T) float64 {
	t.Helper()
	i := int(s.kernel.Own)
	before := s.flows[i].Cwnd
	s.model.Acked(s.flows, i, cc.Ack{Now: s.now, Segments: 1, Limited: true})
	want, got := s.flows[i].Cwnd-before, float64(s.kernel.Each)/(1<<32)
	s.reset(i)
	// What rounding the window in floats leaves of the model's increase does not count.
	lead := time.Duration(0)
	for j := range s.flows {
		if other := &s.flows[j]; j != i {
			slowStart := s.kernel.Flow[j].Window < s.kernel.Flow[j].Threshold
			lead = max(lead, cc.Lead(s.flows[i].Cwnd/float64(s.flows[i].SRTT), s.flows[i].SRTT, other.Cwnd/float64(other.SRTT), other.MinRTT, slowStart))
		}
	}
	if lowat := cc.Lowat(float64(s.kernel.Flow[i].Window), int(s.kernel.Mss), s.flows[i].SRTT, lead); int(s.kernel.Lowat) != lowat {
		t.Errorf("lowat %d, want %d: %+v", s.kernel.Lowat, lowat, s.kernel)
	}
	if buffer := cc.Buffer(cc.SendBufferLowat, float64(s.kernel.Flow[i].Window), int(s.kernel.Mss)); int(s.kernel.Buffer) != min(buffer, 1<<30) {
		t.Errorf("buffer %d, want %d: %+v", s.kernel.Buffer, buffer, s.kernel)
	}
	differs := math.Abs(got-want) / max(math.Abs(want), 1e-6)
	if differs > 0.01 {
		t.Errorf("%s: increase %g, want %g: %+v", arithmetic[s.kernel.Control], got, want, s.kernel)
	}
	s.model.Lost(s.flows, i, s.now)
	if !within(float64(s.kernel.Lost), s.flows[i].Ssthresh) {
		t.Errorf("%s: threshold %d, want %g: %+v", arithmetic[s.kernel.Control], s.kernel.Lost, s.flows[i].Ssthresh, s.kernel)
	}
	return differs
}

// drawRound sets the round-trip times of a round.
func (s *sides) drawRound(r *rand.Rand) {
	v := s.kernel
	i := int(v.Own)
	if v.Base == 0 {
		v.Base = v.Flow[i].Srtt / 8
		s.flows[i].MinRTT = time.Duration(v.Base) * time.Microsecond
	}
	// From none to a few windows in queues.
	v.Rtt = v.Base + uint32(float64(v.Base)*logarithmic(r, 1e-3, 4))
	v.Threshold, v.Limited = 1, uint32(r.IntN(2))
	if r.IntN(4) == 0 {
		v.Threshold = 100_000 // slow start
	}
}

// compareRound compares the end of a round.
func (s *sides) compareRound(t *testing.T) {
	t.Helper()
	v := s.kernel
	i := int(v.Own)
	f := &s.flows[i]
	rtt := time.Duration(v.Rtt) * time.Microsecond
	f.Ssthresh = float64(v.Threshold)
	for range 2 {
		s.now += time.Nanosecond
		s.model.Acked(s.flows, i, cc.Ack{Now: s.now, Segments: 1, RTT: rtt})
	}
	s.now += rtt
	s.model.Acked(s.flows, i, cc.Ack{Now: s.now, Segments: 1, RTT: rtt, Limited: v.Limited != 0})
	if !within(float64(v.WindowOut), f.Cwnd) || !within(float64(v.ThresholdOut), f.Ssthresh) {
		t.Errorf("%s: window %d, threshold %d, want %g and %g: %+v", arithmetic[v.Control], v.WindowOut, v.ThresholdOut, f.Cwnd, f.Ssthresh, v)
	}
	v.Flow[i].Window, v.Target, v.Queue = v.WindowOut, v.TargetOut, v.QueueOut
	s.reset(i)
}

// kernelVectors returns vectors, and a function that runs the program on them.
func kernelVectors(t *testing.T) (vectors []vectorsVector, run func()) {
	t.Helper()
	netnstest.Need(t)
	var objects vectorsObjects
	if err := loadVectorsObjects(&objects, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = objects.Close() })
	keys, vectors := make([]uint32, batch), make([]vectorsVector, batch)
	for i := range keys {
		keys[i] = uint32(i)
	}
	return vectors, func() {
		t.Helper()
		if _, err := objects.Vectors.BatchUpdate(keys, vectors, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.Run.Run(&ebpf.RunOptions{}); err != nil {
			t.Fatal(err)
		}
		var cursor ebpf.MapBatchCursor
		if n, err := objects.Vectors.BatchLookup(&cursor, keys, vectors, nil); n != batch {
			t.Fatal(n, err)
		}
	}
}

// TestVectors compares the arithmetic of the kernel's programs with package cc.
func TestVectors(t *testing.T) {
	vectors, run := kernelVectors(t)
	all := make([]*sides, batch)
	r := rand.New(rand.NewPCG(1, 2))
	count, worst := map[string]int{}, map[string]float64{}
	for range random {
		if t.Failed() {
			break
		}
		for i := range vectors {
			all[i] = draw(t, r, &vectors[i])
		}
		for round := range rounds {
			for i := range vectors {
				all[i].drawRound(r)
			}
			run()
			for i := range vectors {
				switch name := arithmetic[vectors[i].Control]; {
				case name == "vegas" || name == "wvegas":
					all[i].compareRound(t)
					count[name]++
				case round == 0:
					worst[name] = max(worst[name], all[i].compareIncrease(t))
					count[name]++
				}
			}
		}
	}
	t.Logf("vectors %v, largest relative difference of an increase %.2v", count, worst)
}

// containment is CONTAINMENT of vectors.c.
const containment = 6

// garbage returns a number as the kernel takes it from a skipped program: 0, the low half of an
// address, or any that is no window.
func garbage(r *rand.Rand) uint32 {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return 0x81104110
	}
	return uint32(1<<20 + r.Uint64N(1<<32-1<<20))
}

// TestContainVectors loses data 100,000 times on connections whose thresholds, windows after an
// undo, or both are garbage, and in between as often without.
func TestContainVectors(t *testing.T) {
	vectors, run := kernelVectors(t)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range vectors {
		vectors[i] = vectorsVector{Control: containment, Flows: 1, Last: uint32(logarithmic(r, 1, 5000))}
	}
	// contained runs the next acknowledgment.
	contained := func() {
		run()
		for i := range vectors {
			vectors[i].Last = vectors[i].WindowOut
		}
	}
	bounds := make([]uint32, len(vectors)) // of what is left
	losses, repairs, largest := 0, 0, uint32(0)
	for range random {
		if t.Failed() {
			break
		}
		// Windows double at most, and are lost in half: none of it is repaired.
		for i := range vectors {
			v := &vectors[i]
			v.Prior = min(1+r.Uint32N(2*v.Last), 5000)
			v.Flow[0].Window, v.Threshold, v.Reduced = max(v.Prior/2, 1), max(v.Prior/2, 2), uint32(r.IntN(2))
			if r.IntN(4) == 0 {
				v.Threshold, v.Reduced = 0x7fffffff, 0 // before the first loss
			}
		}
		contained()
		for i := range vectors {
			if v := &vectors[i]; v.Repaired != 0 || v.WindowOut != v.Flow[0].Window || v.ThresholdOut != v.Threshold {
				t.Fatalf("a proper window is repaired: %+v", v)
			}
		}
		for i := range vectors {
			v := &vectors[i]
			v.Prior = v.Last
			v.Flow[0].Window, v.Threshold, v.Reduced = max(v.Prior/2, 1), max(v.Prior/2, 2), 1
			bounds[i] = max(v.Last, 2)
			switch r.IntN(4) {
			case 0:
				v.Threshold = garbage(r)
			case 1:
				v.Flow[0].Window = garbage(r)
			case 2: // a loss while the window was garbage
				v.Prior = garbage(r)
				v.Threshold, v.Flow[0].Window = v.Prior/2, v.Prior/2
			default:
				v.Threshold, v.Flow[0].Window = garbage(r), garbage(r)
			}
			losses++
		}
		contained()
		for i := range vectors {
			v := &vectors[i]
			repairs += int(v.Repaired)
			largest = max(largest, v.WindowOut, v.ThresholdOut)
			if v.Repaired != 1 || v.WindowOut < 1 || v.WindowOut > bounds[i] || v.ThresholdOut < 2 || v.ThresholdOut > bounds[i] {
				t.Fatalf("after garbage: %+v", v)
			}
		}
	}
	t.Logf("%d losses with garbage, %d repairs, largest window %d", losses, repairs, largest)
}
