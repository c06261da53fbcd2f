package openbpf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// vectors are the maps of bpf/gateway/open/vectors.c.
type vectors struct {
	objects vectorsObjects
	steps   []vectorsStep
	plans   []vectorsSchedPlan
	flows   []vectorsSchedFlow
}

// mapMemory maps the memory of an array map.
func mapMemory[T any](t testing.TB, m *ebpf.Map) []T {
	t.Helper()
	var one T
	n := int(m.MaxEntries())
	b, err := unix.Mmap(m.FD(), 0, n*int(unsafe.Sizeof(one)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func loadTestVectors(t testing.TB) *vectors {
	t.Helper()
	netnstest.Need(t)
	spec, err := loadVectors()
	if err != nil {
		t.Fatal(err)
	}
	v := new(vectors)
	if err := bpf.Load(spec, &v.objects); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.objects.Close(); err != nil {
			t.Error(err)
		}
	})
	v.steps = mapMemory[vectorsStep](t, v.objects.Steps)
	v.plans = mapMemory[vectorsSchedPlan](t, v.objects.Plans)
	v.flows = mapMemory[vectorsSchedFlow](t, v.objects.Flows)
	return v
}

// run runs the first n steps in the kernel, from nothing.
func (v *vectors) run(t testing.TB, n int) time.Duration {
	t.Helper()
	clear(v.flows)
	if err := v.objects.Memories.Put(uint32(0), &vectorsMemory{}); err != nil {
		t.Fatal(err)
	}
	if err := v.objects.Packets.Set(uint32(n)); err != nil {
		t.Fatal(err)
	}
	_, d, err := v.objects.Run.Benchmark(make([]byte, 64), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// disciplines are all that plans can be made of.
var disciplines = []struct {
	name    string
	options sched.Options
}{
	{"ratio", sched.Options{}},
	{"redundant", sched.Options{}},
	{"dq", sched.Options{Tie: sched.Tie}},
	{"dq", sched.Options{}},
	{"dqj", sched.Options{Tie: sched.Tie, Size: 1500}},
	{"best", sched.Options{}},
	{"flow", sched.Options{Choice: sched.Pinned}},
	{"flow", sched.Options{Choice: sched.Cheapest}},
	{"flow", sched.Options{Choice: sched.Fastest, Tie: sched.Tie}},
}

// trace is random: packets, and paths that change every so many of them.
type trace struct {
	r     *rand.Rand
	paths []sched.Path
	now   time.Duration
}

// change draws some of the paths again. A gateway may have none that can be used.
func (c *trace) change() {
	dead := c.r.IntN(30) == 0
	for i := range c.paths {
		p := &c.paths[i]
		if dead {
			p.Usable = false
			continue
		}
		if p.Room != 0 && c.r.IntN(3) > 0 {
			continue
		}
		*p = sched.Path{
			Usable: c.r.IntN(5) > 0, Room: math.MaxInt32, Cost: c.r.IntN(3), Ratio: c.r.IntN(5),
			Delay: time.Duration(c.r.Int64N(int64(300*time.Millisecond))) - 100*time.Millisecond, Jitter: time.Duration(c.r.Int64N(int64(20 * time.Millisecond))),
		}
		switch c.r.IntN(8) {
		case 0: // none in this direction
		case 1:
			p.Rate = 1 + unit.Bandwidth(c.r.Int64N(1000))
		case 2:
			p.Rate = 400 * unit.GbitPerSecond
		default:
			p.Rate = 100*unit.KbitPerSecond + unit.Bandwidth(c.r.Int64N(int64(unit.GbitPerSecond)))
		}
		if c.r.IntN(2) > 0 {
			p.Buffer = time.Duration(c.r.Int64N(int64(time.Second)))
		}
		if c.r.IntN(4) == 0 {
			p.Delay, p.Rate = c.paths[0].Delay, c.paths[0].Rate // a tie
		}
	}
}

// next draws a packet.
func (c *trace) next() sched.Segment {
	switch c.r.IntN(1000) {
	case 0:
		c.now += 6 * time.Second // flows become silent
	case 1:
		c.now += 48 * time.Hour
	default:
		c.now += time.Duration(c.r.Int64N(40_000))
	}
	size := 40 + c.r.IntN(1461)
	switch c.r.IntN(20) {
	case 0:
		size = 20 + c.r.IntN(200_000) // a super-packet
	case 1:
		size = 0
	}
	return sched.Segment{Now: c.now, Size: size, Window: 1 << 30, Flow: c.r.Uint32N(200) * 0x01000193}
}

// TestChoiceIsTheModels: with every discipline, 1 to 16 paths and traces whose paths change, the
// program sends each packet on the paths that internal/gateway/sched chooses: 1,000,000 packets
// each.
func TestChoiceIsTheModels(t *testing.T) {
	v := loadTestVectors(t)
	packets := len(v.steps)
	want := make([]sched.Set, packets)
	for n, d := range disciplines {
		r := rand.New(rand.NewPCG(12, uint64(n)))
		used := map[int]int{}
		for at := 0; at < packets; {
			// One gateway after another, each with its own state.
			count := min(packets-at, packets/8)
			c := &trace{r: r, paths: make([]sched.Path, 1+r.IntN(MaxPaths)), now: time.Hour}
			if at == 0 {
				c.paths = make([]sched.Path, MaxPaths)
			}
			o := d.options
			o.Queues = new(sched.Queues)
			scheduler, err := sched.New(d.name, o)
			if err != nil {
				t.Fatal(err)
			}
			planner, err := sched.NewPlanner(d.name, o)
			if err != nil {
				t.Fatal(err)
			}
			plan, version := 0, uint64(0)
			for i := range count {
				if i%(count/100) == 0 {
					c.change()
					version++
					p := planner.Plan(c.paths)
					plan = int(version)
					setChoice((*programSchedPlan)(unsafe.Pointer(&v.plans[plan])), &p)
				}
				s := c.next()
				s.Version = version
				set := scheduler.Next(c.paths, s)
				want[i] = set
				used[set.Len()]++
				v.steps[i] = vectorsStep{Now: int64(s.Now), Size: uint32(s.Size), Flow: s.Flow, Plan: uint32(plan)}
			}
			v.run(t, count)
			for i := range count {
				if got := setOf(v.steps[i].Path, &v.plans[v.steps[i].Plan]); got != want[i] {
					t.Fatalf("%s %+v, packet %d of %d, %d paths: %b, want %b\n%+v\n%+v", d.name, d.options, i, at, len(c.paths), got, want[i], v.steps[i], v.plans[v.steps[i].Plan])
				}
			}
			at += count
		}
		if used[0] == 0 || used[0] > packets/2 || d.name == "redundant" && len(used) < MaxPaths/2 {
			t.Errorf("%s: the trace tries little: %v", d.name, used)
		}
	}
}

// setOf converts what sched_next returns.
func setOf(path int32, plan *vectorsSchedPlan) sched.Set {
	switch {
	case path < 0:
		return 0
	case path == MaxPaths: // SCHED_EVERYWHERE
		return sched.Set(plan.May)
	}
	return sched.One(int(path))
}

// TestPlanNeedsAPlanner: there are no plans of schedulers that look at each packet.
func TestPlanNeedsAPlanner(t *testing.T) {
	for _, name := range []string{"auto", "default", "nothing", "dqj"} {
		if _, err := sched.NewPlanner(name, sched.Options{}); err == nil {
			t.Errorf("%s has plans", name)
		}
	}
}

// BenchmarkChoice measures the choice per packet in the kernel.
func BenchmarkChoice(b *testing.B) {
	v := loadTestVectors(b)
	for _, n := range []int{2, MaxPaths} {
		for _, d := range slices.CompactFunc(slices.Clone(disciplines), func(a, b struct {
			name    string
			options sched.Options
		}) bool {
			return a.name == b.name
		}) {
			b.Run(d.name+"/"+string(rune('0'+n/10))+string(rune('0'+n%10)), func(b *testing.B) {
				planner, err := sched.NewPlanner(d.name, d.options)
				if err != nil {
					b.Fatal(err)
				}
				paths := make([]sched.Path, n)
				for i := range paths {
					paths[i] = sched.Path{Usable: true, Room: math.MaxInt32, Rate: unit.GbitPerSecond, Ratio: 1, Delay: time.Duration(i) * time.Millisecond}
				}
				p := planner.Plan(paths)
				setChoice((*programSchedPlan)(unsafe.Pointer(&v.plans[0])), &p)
				for i := range v.steps {
					v.steps[i] = vectorsStep{Now: int64(i) * 5000, Size: 1000, Flow: uint32(i % 1000)}
				}
				var total time.Duration
				rounds := 0
				for b.Loop() {
					total += v.run(b, len(v.steps))
					rounds++
				}
				b.ReportMetric(float64(total.Nanoseconds())/float64(rounds*len(v.steps)), "ns/packet")
			})
		}
	}
}
