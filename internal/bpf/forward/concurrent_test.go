package forward

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/unit"
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

// TestSplitAtOnce: where processors send to a peer at the same time, no packet is missing in the counters or in the virtual
// queues, and paths take turns as the ratio says.
func TestSplitAtOnce(t *testing.T) {
	const rounds, repeat = 100, 200
	const packets = rounds * repeat * threads
	m := message{Packet: plane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 255, payload: 446}
	frame := m.frame()
	size := len(frame) - 14
	for _, discipline := range []string{"ratio", "dq"} {
		p := load(t, Options{})
		p.routes4and6(t)
		planner, err := sched.NewPlanner(discipline, sched.Options{Size: 1500, Tie: sched.Tie})
		if err != nil {
			t.Fatal(err)
		}
		// A packet takes a millisecond, so that no queue is ever empty.
		path := sched.Path{Usable: true, Room: 1 << 40, Rate: unit.Bandwidth(size) * 8 * 1000}
		three := path
		path.Ratio, three.Ratio = 1, 3
		way := Way{Interface: 1, IPv4: netip.MustParseAddr("192.0.2.1")}
		if err := errors.Join(
			p.SetPlan(Key{Generation: 1}, Plan{Choice: planner.Plan([]sched.Path{path, three}), MTU: 1500, Table: NoTable, Ways: []Way{way, way}}),
			p.SetPolicy(1, plane.Policy{{}}),
		); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		atOnce(t, func(int) error {
			for range rounds {
				if _, err := p.objects.Split.Run(&ebpf.RunOptions{Data: frame, Repeat: repeat}); err != nil {
					return err
				}
			}
			return nil
		})
		got, err := p.Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		all := plane.Count{Packets: packets, Bytes: uint64(packets * size)}
		sum := plane.Count{Packets: got.Paths[0].Packets + got.Paths[1].Packets, Bytes: got.Paths[0].Bytes + got.Paths[1].Bytes}
		if sum != all || got.Rules[0].Sent != all {
			t.Errorf("%s: paths %v, rule %v, want %v", discipline, got.Paths[:2], got.Rules[0].Sent, all)
		}
		if discipline == "ratio" && got.Paths[1].Packets != packets*3/4 {
			t.Errorf("%d of %d packets over the path with three of four turns", got.Paths[1].Packets, packets)
		}
		if waits, line := got.Waits[0]+got.Waits[1], packets*time.Millisecond; waits > line || waits < line-2*took {
			t.Errorf("%s: queues of %v after %v, %v were added", discipline, got.Waits[:2], took, line)
		}
	}
}

// TestJoinAtOnce: of copies that arrive on processors at the same time, one is delivered, and all are counted.
func TestJoinAtOnce(t *testing.T) {
	const packets = 3000
	e := newEnds(t, "redundant", threads, local4, remote4)
	m := message{Packet: plane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 10}
	var frames [threads][][]byte
	for range packets {
		out := e.fromNear(t, m)
		for path := range frames {
			out[14+28+1] = 0x80 | byte(path)
			frames[path] = append(frames[path], slices.Clone(out))
		}
	}
	var delivered [threads]int
	atOnce(t, func(i int) error {
		for _, frame := range frames[i] {
			verdict, err := e.far.objects.Join.Run(&ebpf.RunOptions{Data: frame, Repeat: 1})
			if err != nil {
				return err
			}
			if verdict == next {
				delivered[i]++
			}
		}
		return nil
	})
	sum := 0
	for _, n := range delivered {
		sum += n
	}
	refused, err := e.far.Refused()
	if err != nil {
		t.Fatal(err)
	}
	if sum != packets || refused["duplicate"] != packets*(threads-1) {
		t.Errorf("%v of %d packets were delivered, %v refused", delivered, packets, refused)
	}
	arrived, err := e.far.Arrived(cookieOf(0))
	if err != nil {
		t.Fatal(err)
	}
	for path := range threads {
		if a := arrived[path]; a.Packets != packets || a.Lost != 0 {
			t.Errorf("path %d: %+v", path, a)
		}
	}
}
