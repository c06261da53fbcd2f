package arrival

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// vector is the state that the functions of bpf/lib/spray.h are applied to, and what they return.
type vector struct {
	Path, Home                      Path
	Watch                           watch
	Turns                           Turns
	Queues                          [MaxPaths]Queue
	Trial                           trial
	Backoff                         backoff
	Now, Size, First, Second, Third uint32
	Result                          [17]uint32
}

// apply does what testdata/vectors.c does.
func (v *vector) apply() {
	number := func(b bool) uint32 {
		if b {
			return 1
		}
		return 0
	}
	arrival, r := v.First, &v.Result
	r[0] = v.Path.arrival(v.Size)
	r[1] = number(v.Path.stalled(&v.Home, v.Second%3))
	r[2] = number(v.Path.better(&v.Home, v.Size, &arrival))
	r[3] = arrival
	v.Path.send(v.Now, v.Size)
	v.Path.arrived(v.Home.Rate, v.Second, v.Size, v.Third)
	l := v.Path.retransmitted(v.First&1 != 0, v.Now)
	r[10] = uint32(l)
	if v.Third&1 == 0 {
		l = loss(v.Third % 3)
	}
	v.Path.found(l)
	r[4] = number(v.Path.loses())
	r[5] = number(v.Path.harms())
	r[6] = number(v.Watch.isWorse(&v.Home, v.Now, v.First, v.Second))
	r[7] = uint32(v.Turns.choose(v.Queues[:], int(v.Third%MaxPaths), v.Second, v.Size, v.Now))
	r[8] = uint32(v.Turns.count(v.Queues[0].Delay, v.Now, v.Size, v.Second&1 != 0))
	fitShare(v.Queues[:], int(v.Third%MaxPaths), v.First)
	r[9] = number(v.Home.queued())
	r[11] = number(v.Home.dead(v.Now))
	r[12] = uint32(v.Trial.arrived(v.Third, v.Now))
	r[13] = v.Home.lossyRate(v.First, v.Second)
	r[16] = v.Backoff.sent(v.Now, v.Size)
	r[15] = v.Home.answered()
	r[14] = number(outage([]Path{v.Path, v.Home}, int(v.Third%3), v.Now))
}

// TestVectors: the arithmetic of the program in the kernel is that of this package, for states that
// are likely and for any others.
func TestVectors(t *testing.T) {
	clang := programs.Need(t, "clang-14")
	program := filepath.Join(t.TempDir(), "vectors")
	if out, err := exec.Command(clang, "-O1", "-w", "-I../../../bpf/include", "-I../../../bpf/lib", "-o", program, "testdata/vectors.c").CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	const seed = 35
	r := rand.New(rand.NewPCG(seed, 0))
	// A number is 0, close to a bound, of any order of magnitude, or close to the time.
	draw := func(now uint32) uint32 {
		switch r.IntN(6) {
		case 0:
			return uint32(r.IntN(3))
		case 1:
			return now - uint32(r.IntN(3_000_000))
		case 2:
			return []uint32{mostWindow, begin, near, again, backlog, watchFor, part, doubt, lossy}[r.IntN(9)] + uint32(r.IntN(3)) - 1
		default:
			return r.Uint32() >> r.IntN(32)
		}
	}
	const count = 20_000
	given := make([]vector, count)
	for i := range given {
		raw := make([]uint32, binary.Size(vector{})/4)
		now := r.Uint32()
		for j := range raw {
			raw[j] = draw(now)
		}
		var b bytes.Buffer
		if err := binary.Write(&b, binary.NativeEndian, raw); err != nil {
			t.Fatal(err)
		}
		v := &given[i]
		if err := binary.Read(&b, binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
		v.Now, v.Size, v.Turns.State = now, v.Size%65536, uint32(r.IntN(3))
		if g := 1 + v.First%500_000; i%3 == 0 {
			v.Backoff = backoff{Last: max(now-g*2-v.Second%(g/4+1)+g/8, 1), Gap: g, Times: v.Third % 3}
		}
		v.Result = [17]uint32{}
	}
	var in, out bytes.Buffer
	if err := binary.Write(&in, binary.NativeEndian, given); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program)
	c.Stdin, c.Stdout = &in, &out
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	got := make([]vector, count)
	if err := binary.Read(&out, binary.NativeEndian, got); err != nil {
		t.Fatal(err)
	}
	verdicts, trials := map[uint32]int{}, map[uint32]int{}
	for i := range given {
		before := given[i]
		given[i].apply()
		verdicts[given[i].Result[8]]++
		trials[given[i].Result[12]]++
		if given[i] != got[i] {
			t.Fatalf("of\n%+v\nthe kernel makes\n%+v\nand Go\n%+v", before, got[i], given[i])
		}
	}
	if len(verdicts) < 3 || len(trials) < 3 {
		t.Errorf("the vectors reach the verdicts %v of turns and %v of trials alone", verdicts, trials)
	}
}
