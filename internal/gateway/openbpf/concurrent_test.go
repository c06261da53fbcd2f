package openbpf

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

const threads = 4

// atOnce runs a function in several threads, so that processors run a program at the same time.
func atOnce(t *testing.T, run func(i int) error) {
	t.Helper()
	errs := make([]error, threads)
	var all sync.WaitGroup
	for i := range threads {
		all.Go(func() { errs[i] = run(i) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// inRounds runs a function in two threads, which begin each round at the same time, and another one
// between rounds.
func inRounds(t *testing.T, rounds int, run func(i, round int) error, after func(round int) error) {
	t.Helper()
	var arrived atomic.Int64
	var failed atomic.Bool
	var errs [2]error
	wait := func(n int) {
		arrived.Add(1)
		for arrived.Load() < int64(n*len(errs)) {
			runtime.Gosched()
		}
	}
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for round := 0; round < rounds && !failed.Load(); round++ {
				wait(3*round + 1)
				errs[i] = run(i, round)
				wait(3*round + 2)
				if i == 0 {
					errs[i] = errors.Join(errs[i], after(round))
				}
				if errs[i] != nil {
					failed.Store(true)
				}
				wait(3*round + 3)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
}

// packetsOf returns how many packets a program has processed. Runs that a signal interrupts are
// repeated, and count too.
func packetsOf(t *testing.T, p *ebpf.Program) uint64 {
	t.Helper()
	s, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s.RunCount
}

// TestSplitAtOnce: where processors send to a peer at the same time, no packet is missing in the
// counters or in the virtual queues, and paths take turns as the ratio says.
func TestSplitAtOnce(t *testing.T) {
	const rounds, repeat, filling = 1000, 200, 50
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 255, payload: 446}
	frame := m.frame()
	size := uint64(len(frame) - 14)
	netnstest.Need(t)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	for _, discipline := range []string{"ratio", "dq"} {
		p := load(t, Options{})
		p.routes4and6(t)
		planner, err := sched.NewPlanner(discipline, sched.Options{Size: 1500, Tie: sched.Tie})
		if err != nil {
			t.Fatal(err)
		}
		// A packet takes a millisecond, so that no queue is ever empty.
		path := sched.Path{Usable: true, Room: math.MaxInt32, Rate: unit.Bandwidth(size) * 8 * 1000}
		three := path
		path.Ratio, three.Ratio = 1, 3
		way := Way{Interface: 1, IPv4: netip.MustParseAddr("192.0.2.1")}
		if err := errors.Join(
			p.SetPlan(Key{Generation: 1}, Plan{Choice: planner.Plan([]sched.Path{path, three}), MTU: 1500, Table: NoTable, Ways: []Way{way, way}}),
			p.SetPolicy(1, dataplane.Policy{{}}),
		); err != nil {
			t.Fatal(err)
		}
		// queues returns when both queues are empty, as a sum.
		queues := func() (sum int64) {
			var peer programPeer
			if err := p.objects.Peers.Lookup(uint32(0), &peer); err != nil {
				t.Fatal(err)
			}
			return peer.Queues.Empty[0] + peer.Queues.Empty[1]
		}
		// Both have packets for 2.5 s at least, longer than a busy machine stops this thread. Then one
		// more is one more line.
		for range filling {
			if _, err := p.objects.Split.Run(&ebpf.RunOptions{Data: frame, Repeat: repeat}); err != nil {
				t.Fatal(err)
			}
		}
		filled := packetsOf(t, p.objects.Split)
		before := queues()
		p.run(t, frame)
		line := queues() - before
		atOnce(t, func(int) error {
			for range rounds {
				if _, err := p.objects.Split.Run(&ebpf.RunOptions{Data: frame, Repeat: repeat}); err != nil {
					return err
				}
			}
			return nil
		})
		packets := packetsOf(t, p.objects.Split)
		got, err := p.Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		all := dataplane.Count{Packets: packets, Bytes: packets * size}
		sum := dataplane.Count{Packets: got.Paths[0].Packets + got.Paths[1].Packets, Bytes: got.Paths[0].Bytes + got.Paths[1].Bytes}
		if sum != all || got.Rules[0].Sent != all || packets < threads*rounds*repeat {
			t.Errorf("%s: paths %v, rule %v, want %v", discipline, got.Paths[:2], got.Rules[0].Sent, all)
		}
		if first := (packets + 3) / 4; discipline == "ratio" && got.Paths[0].Packets != first {
			t.Errorf("%d of %d packets over the path with the first of four turns, want %d", got.Paths[0].Packets, packets, first)
		}
		if added, want := queues()-before, int64(packets-filled)*line; added != want {
			t.Errorf("%s: %v were added to the queues, want %v", discipline, time.Duration(added), time.Duration(want))
		}
	}
}

// TestCopiesAtOnce: of copies that arrive on two processors at the same time, one is delivered.
func TestCopiesAtOnce(t *testing.T) {
	const packets = 20_000
	e := newEnds(t, "redundant", 2, local4, remote4)
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 10}
	var frames [2][][]byte
	for range packets {
		out := e.fromNear(t, m)
		for path := range frames {
			out[14+28+1] = 0x80 | byte(path)
			frames[path] = append(frames[path], slices.Clone(out))
		}
	}
	var delivered [2]int
	inRounds(t, packets, func(i, round int) error {
		verdict, err := e.far.objects.Join.Run(&ebpf.RunOptions{Data: frames[i][round], Repeat: 1})
		delivered[i] = 0
		if verdict == next {
			delivered[i] = 1
		}
		return err
	}, func(round int) error {
		if delivered[0]+delivered[1] != 1 {
			return fmt.Errorf("%d copies of packet %d are delivered", delivered[0]+delivered[1], round)
		}
		return nil
	})
	refused, err := e.far.Refused()
	if err != nil {
		t.Fatal(err)
	}
	if refused["duplicate"] != packets {
		t.Errorf("%v refused", refused)
	}
}

// TestJoinAtOnce: packets of a path that arrive on two processors at the same time are all counted,
// and the last one is known.
func TestJoinAtOnce(t *testing.T) {
	const rounds = 20_000
	e := newEnds(t, "ratio", 1, local4, remote4)
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 10}
	var frames [2 * rounds][]byte
	for i := range frames {
		frames[i] = slices.Clone(e.fromNear(t, m))
	}
	inRounds(t, rounds, func(i, round int) error {
		_, err := e.far.objects.Join.Run(&ebpf.RunOptions{Data: frames[2*round+(i+round)%2], Repeat: 1})
		return err
	}, func(round int) error {
		var r programReceiver
		if err := e.far.objects.Receivers.Lookup(cookieOf(0), &r); err != nil {
			return err
		}
		if n := uint64(2 * (round + 1)); r.Path[0].Next != n || r.Path[0].Count.Packets != n {
			return fmt.Errorf("%d packets, the next one is %d, want %d", r.Path[0].Count.Packets, r.Path[0].Next, n)
		}
		return nil
	})
}
