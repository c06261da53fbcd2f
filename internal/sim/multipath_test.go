package sim

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// lossless returns the second path without losses.
func lossless() road {
	r := second
	r.loss = 0
	return r
}

// rate returns the mean rate of a series between two times, in Mbit/s.
func rate(series []unit.Size, interval, from, to time.Duration) float64 {
	var sum unit.Size
	for _, n := range series[from/interval : to/interval] {
		sum += n
	}
	return float64(sum.Over(to-from)) / 1e6
}

// When a path fails, the connection loses only the goodput of that path, reinjects its data on the
// other, and uses it again when it is back up.
func TestPathFails(t *testing.T) {
	for _, scheduler := range sched.Names() {
		c := paper(first, lossless())
		c.Series = 500 * ms
		k := &c.Connections[0]
		k.Scheduler = scheduler
		if scheduler == "dq" || scheduler == "dqj" {
			k.Paths[1].Rate = 3500 * unit.KbitPerSecond // what its window allows
		}
		for _, l := range []int{4, 6} {
			c.Changes = append(c.Changes, Change{At: 5 * time.Second, Link: l, Down: true})
		}
		for _, l := range []int{4, 6} {
			c.Changes = append(c.Changes, Change{At: 10 * time.Second, Link: l, Up: true})
		}
		r := run(t, c).Connections[0]
		if scheduler != "redundant" && r.Reinjected == 0 {
			t.Errorf("%s: nothing is sent over the other path", scheduler)
		}
		if scheduler == "ratio" {
			continue // waits for the failed path until it is stale
		}
		one := 5 * 1340. / 1380
		if got := rate(r.Series, c.Series, 8*time.Second, 10*time.Second); !near(got, one, 0.03) {
			t.Errorf("%s: %.2f Mbit/s over the path that is left, want %.2f", scheduler, got, one)
		}
		if got := rate(r.Paths[1].Series, c.Series, 20*time.Second, 30*time.Second); got < 2.5 {
			t.Errorf("%s: %.2f Mbit/s over the path that is back", scheduler, got)
		}
		if r.LongestGap > 2*time.Second {
			t.Errorf("%s: nothing for %s", scheduler, r.LongestGap)
		}
	}
}

// Two subflows over a queue of one packet time out in turn, each with data that was reinjected
// before. The lowest data is reinjected first.
func TestReinjectionIsInOrder(t *testing.T) {
	line := Link{Profile: linkmodel.Profile{Rate: 100 * unit.KbitPerSecond, Queue: linkmodel.Queue{Discipline: linkmodel.DisciplineCoDel}}}
	path := Path{Out: []int{0}, Back: []int{0}, Start: 2 * ms, Backup: true}
	r := run(t, Config{Duration: time.Minute, Links: []Link{line}, Connections: []Connection{{
		MPTCP: true, Scheduler: sched.Default, Congestion: "newreno", Segment: 1340, Bytes: 13_912, ReceiveBuffer: 13 * 1340, InitialWindow: 1,
		Paths: []Path{path, path}, DelayedACK: true, Handshake: true,
	}}}).Connections[0]
	if r.Reinjected == 0 || r.Finish == Never || r.Finish > 10*time.Second {
		t.Errorf("%d segments reinjected, delivered %s at %s", r.Reinjected, r.Delivered, r.Finish)
	}
}

// Of two paths one is down for ever, from before its subflow is established or when it carries
// data. After a timeout on the other path, the data assigned to that path is sent on it.
func TestUnsentDataReturns(t *testing.T) {
	good := Link{Profile: linkmodel.Profile{Rate: unit.MbitPerSecond, Delay: 10 * ms}}
	for _, handshake := range []bool{true, false} {
		c := Config{
			Duration: time.Minute, Links: []Link{good, good, good},
			Changes: []Change{{At: 50 * ms, Link: 1, Down: true}, {At: 20 * time.Second, Link: 0, Down: true}, {At: 22 * time.Second, Link: 0, Up: true}},
			Connections: []Connection{{
				MPTCP: true, Scheduler: sched.Default, Bytes: 4 * unit.MB, Handshake: handshake,
				Paths: []Path{{Out: []int{0}, Back: []int{2}}, {Out: []int{1}, Back: []int{2}, Start: 100 * ms}},
			}},
		}
		r := run(t, c).Connections[0]
		if r.Paths[0].Timeouts == 0 || r.Finish == Never || r.Finish > 50*time.Second {
			t.Errorf("handshake %t: %d timeouts, delivered %s at %s", handshake, r.Paths[0].Timeouts, r.Delivered, r.Finish)
		}
	}
}

// A backup path is used only while the other path is down.
func TestBackup(t *testing.T) {
	c := paper(first, lossless())
	c.Series = 500 * ms
	c.Connections[0].Paths[1].Backup = true
	c.Changes = []Change{{At: 10 * time.Second, Link: 0, Down: true}}
	r := run(t, c).Connections[0]
	if got := rate(r.Paths[1].Series, c.Series, 0, 10*time.Second); got != 0 {
		t.Errorf("%.2f Mbit/s over the backup while the path is there", got)
	}
	if got := rate(r.Series, c.Series, 20*time.Second, 30*time.Second); got < 3 {
		t.Errorf("%.2f Mbit/s after the path failed", got)
	}
	if !r.Paths[0].Stale {
		t.Error("the path that failed is not stale")
	}
}

// The receive window is shared: a buffer smaller than the bandwidth-delay product of all paths
// limits them, and so does the paper's rule.
func TestReceiveBuffer(t *testing.T) {
	build := func(buffer, rbuf unit.Size) Config {
		c := paper(first, lossless())
		k := &c.Connections[0]
		k.Window, k.ReceiveBuffer, k.RBuf = 0, buffer, rbuf
		return c
	}
	before := unit.Bandwidth(0)
	for _, size := range []unit.Size{16 * unit.KB, 65 * unit.KB, 130 * unit.KB, 520 * unit.KB} {
		r := run(t, build(size, 0)).Connections[0]
		if r.After() < before {
			t.Errorf("buffer of %s: %v, less than with a smaller one", size, r.After())
		}
		before = r.After()
		if held := r.Reseq.PeakOccupancy.Bytes; held > uint64(size) {
			t.Errorf("buffer of %s holds %d", size, held)
		}
		rule := run(t, build(0, size)).Connections[0]
		// The outstanding data is never less than the data held out of order.
		if held := rule.Reseq.PeakOccupancy.Bytes; held > uint64(size)+1340 {
			t.Errorf("rbuf of %s: %d held", size, held)
		}
		if !near(float64(rule.After()), float64(r.After()), 0.25) {
			t.Errorf("%s: %v with rbuf, %v with a buffer", size, rule.After(), r.After())
		}
		if size < 100*unit.KB && r.Blocked == 0 {
			t.Errorf("buffer of %s is never in the way", size)
		}
	}
	if before < 11*unit.MbitPerSecond {
		t.Errorf("%v with the largest buffer", before)
	}
}

// Raiciu et al., NSDI 2012, figure 4: on two paths of very different delay and with a small receive
// buffer, opportunistic retransmission and penalization reach a higher goodput than TCP on the
// better path alone; without them it is lower.
func TestOpportunisticRetransmission(t *testing.T) {
	wifi := road{rate: 8 * unit.MbitPerSecond, delay: 5 * ms}
	mobile := road{rate: 2 * unit.MbitPerSecond, delay: 70 * ms}
	mobile.queue.Packets = 300 // a second and a half
	got := map[bool]unit.Bandwidth{}
	for _, with := range []bool{false, true} {
		c := paper(wifi, mobile)
		k := &c.Connections[0]
		k.Window, k.ReceiveBuffer, k.InitialWindow = 0, 100*unit.KB, 10
		k.Opportunistic, k.Penalize = with, with
		r := run(t, c).Connections[0]
		got[with] = r.After()
		if with && (r.Penalties == 0 || r.Reinjected == 0) {
			t.Errorf("%d penalties, %d retransmissions over the other path", r.Penalties, r.Reinjected)
		}
	}
	if float64(got[true]) < 1.2*float64(got[false]) {
		t.Errorf("%v with, %v without", got[true], got[false])
	}
}

// Each path carries a copy, and the first to arrive is used: the goodput is that of the better
// path, the delay that of the faster.
func TestRedundant(t *testing.T) {
	c := paper(first, second)
	c.Connections[0].Scheduler = "redundant"
	r := run(t, c).Connections[0]
	if want := 5e6 * 1340 / 1380; float64(r.After()) < want*0.97 || float64(r.After()) > want*1.6 {
		t.Errorf("%v", r.After())
	}
	if r.Reseq.Duplicate.Segments == 0 {
		t.Error("nothing arrives twice")
	}
}

func TestHandshake(t *testing.T) {
	c := paper(first, lossless())
	k := &c.Connections[0]
	k.Handshake, k.Start = true, time.Second
	r := run(t, c).Connections[0]
	// The RTTs are 60 ms and 120 ms; the receiver opens the connection, so data is sent 1.5 RTT
	// after the start.
	for i, want := range []time.Duration{1090 * ms, 1270 * ms} {
		if got := r.Paths[i].Established; got < want || got > want+2*ms {
			t.Errorf("subflow %d is established at %s, want %s", i, got, want)
		}
	}
	if want := 1120 * ms; r.FirstByte < want || r.FirstByte > want+5*ms {
		t.Errorf("first byte at %s, want %s", r.FirstByte, want)
	}
	// A lost SYN is retransmitted after a second.
	c.Changes = []Change{{At: 0, Link: 2, Down: true}, {At: 1500 * ms, Link: 2, Up: true}}
	r = run(t, c).Connections[0]
	if got, want := r.Paths[0].Established, 2090*ms; got < want || got > want+2*ms {
		t.Errorf("established at %s, want %s", got, want)
	}
}

// A source with a rate below that of the path is delivered at its rate, with any scheduler.
func TestConstantRate(t *testing.T) {
	for _, scheduler := range sched.Names() {
		c := paper(first, lossless())
		k := &c.Connections[0]
		k.Rate, k.Stop, k.Scheduler = 2*unit.MbitPerSecond, 20*time.Second, scheduler
		r := run(t, c).Connections[0]
		want := k.Rate.SizeIn(20 * time.Second)
		if r.Delivered > want || r.Delivered < want-2*1340 {
			t.Errorf("%s: %s delivered, want %s", scheduler, r.Delivered, want)
		}
		if r.LongestGap > 300*ms {
			t.Errorf("%s: nothing for %s", scheduler, r.LongestGap)
		}
	}
}

// Cross traffic leaves the rest of the capacity, and two equal connections share it equally.
func TestCrossTraffic(t *testing.T) {
	for _, kind := range []CrossKind{CBR, Poisson, OnOff} {
		c := paper(road{rate: 10 * unit.MbitPerSecond, delay: 10 * ms})
		c.Duration = 120 * time.Second
		c.Connections[0].Window = 0
		x := Cross{Kind: kind, Rate: 4 * unit.MbitPerSecond, Size: 1000, Out: []int{0}}
		if kind == OnOff {
			x.Rate, x.On, x.Off, x.Pareto = 8*unit.MbitPerSecond, 100*ms, 100*ms, 2.5
		}
		c.Cross = []Cross{x}
		r := run(t, c)
		sent := float64(unit.Size(r.Cross[0].Sent*1000).Over(c.Duration)) / 1e6
		if !near(sent, 4, 0.1) {
			t.Errorf("%s: %.2f Mbit/s, want 4", kind, sent)
		}
		got := float64(r.Connections[0].After()) / 1e6
		if got < 4 || got > 10-0.8*sent {
			t.Errorf("%s: %.2f Mbit/s beside %.2f", kind, got, sent)
		}
		var bits uint64
		for _, l := range r.Links[:1] {
			bits = 8 * l.SentBytes
		}
		if float64(bits) > 10e6*c.Duration.Seconds() {
			t.Errorf("%s: %d bits over a link of 10 Mbit/s in %s", kind, bits, c.Duration)
		}
	}
}

func TestTwoShareALink(t *testing.T) {
	c := paper(road{rate: 10 * unit.MbitPerSecond, delay: 20 * ms})
	c.Duration = 300 * time.Second
	k := c.Connections[0]
	k.Window = 0
	c.Connections = []Connection{k, k}
	c.Connections[1].Start = 150 * ms
	r := run(t, c)
	one, two := float64(r.Connections[0].After()), float64(r.Connections[1].After())
	if !near(one, two, 0.25) || one+two < 9e6 {
		t.Errorf("%v and %v", unit.Bandwidth(one), unit.Bandwidth(two))
	}
}

// Links and sources added at the end of the config do not change the random numbers of earlier
// ones.
func TestStreamsAreIndependent(t *testing.T) {
	c := paper(first, second)
	before := run(t, c)
	c.Links = append(c.Links, c.Links[5])
	c.Cross = []Cross{{Kind: Poisson, Rate: unit.MbitPerSecond, Size: 500, Out: []int{len(c.Links) - 1}}}
	after := run(t, c)
	if !reflect.DeepEqual(before.Connections, after.Connections) || !reflect.DeepEqual(before.Links, after.Links[:8]) {
		t.Error("a link that nobody uses changes what happens on the others")
	}
	c.Seed++
	if reflect.DeepEqual(after.Connections, run(t, c).Connections) {
		t.Error("another seed makes no difference")
	}
}

func TestRunEnds(t *testing.T) {
	c := paper(first, second)
	c.Duration = MaxDuration
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	if _, err := s.Run(ctx); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
	if _, err := s.Run(context.Background()); err == nil {
		t.Error("runs twice")
	}
}

// An unlimited window over an unlimited link grows until ErrTooLarge.
func TestTooLarge(t *testing.T) {
	c := paper(first)
	for i := range c.Links {
		c.Links[i].Rate = 0
	}
	c.Connections[0].Window = 0
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.traffic.most = 100_000
	if _, err := s.Run(context.Background()); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want %v", err, ErrTooLarge)
	}
}

// No memory is allocated in steady state, with any option.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for _, scheduler := range sched.Names() {
		c := paper(first, second)
		c.Duration = MaxDuration
		c.Connections[0].Scheduler, c.Connections[0].RACK, c.Connections[0].DelayedACK = scheduler, true, true
		c.Connections[0].ReceiveBuffer = 260 * unit.KB
		c.Cross = []Cross{{Kind: Poisson, Rate: 100 * unit.KbitPerSecond, Size: 500, Out: []int{4}}}
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		for range 2_000_000 / len(sched.Names()) {
			s.step()
		}
		if n := testing.AllocsPerRun(20, func() {
			for range 2000 {
				s.step()
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations in 2000 events", scheduler, n)
		}
	}
}

// patient is a scheduler that waits until a time, with nothing in flight that would call it again.
type patient time.Duration

func (p patient) Next(paths []sched.Path, s sched.Segment) sched.Set {
	if s.Now < time.Duration(p) || paths[0].Room < s.Size {
		return 0
	}
	return sched.One(0)
}

func TestSchedulerThatWaitsIsAskedAgain(t *testing.T) {
	c := paper(first, second)
	c.Connections[0].Bytes = 100 * unit.KB
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.connections[0].scheduler = patient(500 * ms)
	r, err := s.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Connections[0].FirstByte; got < 530*ms || got > 530*ms+pause+5*ms {
		t.Errorf("first byte at %s, although the scheduler waits until 500ms only", got)
	}
}

// Packets that overtake others are delivered at their own time, not after those in front of them.
func TestOvertaking(t *testing.T) {
	c := paper(road{rate: 50 * unit.MbitPerSecond, delay: 50 * ms})
	c.Links[1].Jitter = linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: 10 * ms, Reorder: true}
	c.Connections[0].Window = 100 * 1340
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for s.now < time.Second {
		s.step()
		if err := s.check(); err != nil {
			t.Fatal(err)
		}
	}
}
