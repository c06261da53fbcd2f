package sim

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// genExtreme draws a link with values up to the limits of what a network can be, and the limits
// themselves.
func genExtreme(t *rapid.T) linkmodel.Profile {
	share := rapid.OneOf(rapid.SampledFrom([]float64{0, 0, 1e-9, 0.5, 0.999999, 1}), rapid.Float64Range(0, 1))
	delay := rapid.OneOf(rapid.SampledFrom([]time.Duration{0, 1, time.Microsecond, 10 * time.Second}), rapid.Map(rapid.IntRange(0, 10_000), func(n int) time.Duration { return time.Duration(n) * ms }))
	p := linkmodel.Profile{
		Rate:      rapid.SampledFrom([]unit.Bandwidth{0, 8 * unit.KbitPerSecond, 64 * unit.KbitPerSecond, unit.MbitPerSecond, 10 * unit.MbitPerSecond, 10 * unit.GbitPerSecond, 100 * unit.GbitPerSecond}).Draw(t, "rate"),
		Delay:     delay.Draw(t, "delay"),
		Duplicate: share.Draw(t, "duplicate"),
	}
	switch rapid.IntRange(0, 4).Draw(t, "queue") {
	case 0:
		p.Queue.Packets = rapid.SampledFrom([]int{1, 2, 10, 100_000}).Draw(t, "packets")
	case 1:
		p.Queue.Bytes = unit.Size(rapid.SampledFrom([]int{1, 1500, 100_000_000}).Draw(t, "bytes"))
	case 2:
		p.Queue.Discipline = linkmodel.DisciplineCoDel
	case 3:
		p.Queue.Discipline = linkmodel.DisciplineRED
		p.Queue.RED = linkmodel.RED{Min: linkmodel.Limit{Packets: 1}, Max: linkmodel.Limit{Packets: 2}, P: 1}
	}
	if p.Delay > 0 && rapid.Bool().Draw(t, "jittery") {
		p.Jitter = linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: time.Duration(rapid.Int64Range(1, int64(p.Delay)).Draw(t, "amount")), Reorder: rapid.Bool().Draw(t, "reorder")}
	}
	if rapid.Bool().Draw(t, "lossy") {
		p.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: share.Draw(t, "p")}
	}
	return p
}

// genExtremeConfig draws a connection and datagrams over such links, with gateways or without.
func genExtremeConfig(t *rapid.T) Config {
	c := Config{Seed: rapid.Uint64().Draw(t, "seed"), Duration: time.Duration(rapid.IntRange(1, 60).Draw(t, "duration")) * time.Second}
	paths := rapid.IntRange(1, 3).Draw(t, "paths")
	for range 2 * paths {
		c.Links = append(c.Links, Link{Profile: genExtreme(t)})
	}
	var all []Path
	for i := range paths {
		all = append(all, Path{Out: []int{2 * i}, Back: []int{2*i + 1}})
	}
	gateway := func() *Gateway {
		return &Gateway{
			Discipline: rapid.SampledFrom(sched.Disciplines()).Draw(t, "discipline"), Hold: rapid.SampledFrom([]reseq.Hold{reseq.Auto, reseq.Off, reseq.Hold(5 * time.Second)}).Draw(t, "hold"),
			Overhead: rapid.SampledFrom([]int{0, 72, 9000}).Draw(t, "overhead"), Replies: rapid.IntRange(0, paths).Draw(t, "replies"),
			Probes: rapid.Bool().Draw(t, "probes"), Open: rapid.Bool().Draw(t, "open"),
		}
	}
	k := Connection{
		Start: time.Duration(rapid.IntRange(0, 2000).Draw(t, "start")) * ms, Congestion: rapid.SampledFrom(cc.Names()).Draw(t, "congestion"),
		Segment: rapid.SampledFrom([]int{1, 1388, 9000}).Draw(t, "segment"), RACK: rapid.Bool().Draw(t, "rack"), Handshake: rapid.Bool().Draw(t, "handshake"), Paths: all,
	}
	k.Bytes = unit.Size(k.Segment * rapid.IntRange(1, 3000).Draw(t, "segments"))
	switch rapid.IntRange(0, 2).Draw(t, "carried") {
	case 0:
		k.Gateway = gateway()
	case 1:
		k.MPTCP, k.Scheduler = true, rapid.SampledFrom(sched.Names()).Draw(t, "scheduler")
	default:
		k.Paths = all[:1]
	}
	c.Connections = []Connection{k}
	if rapid.Bool().Draw(t, "datagrams") {
		x := Cross{Kind: CBR, Rate: 300 * unit.KbitPerSecond, Size: 1042, Payload: 1000, Out: all[0].Out}
		if rapid.Bool().Draw(t, "over gateways") {
			x.Gateway, x.Paths = gateway(), all
		}
		c.Cross = []Cross{x}
	}
	return c
}

// TestPropertyExtremes: whatever the network, the simulator ends within a bounded number of steps,
// and each packet that entered a link left it, was dropped, or is still on it.
func TestPropertyExtremes(t *testing.T) { rapid.Check(t, extremes) }

func FuzzExtremes(f *testing.F) { f.Fuzz(rapid.MakeFuzz(extremes)) }

func extremes(t *rapid.T) {
	c := genExtremeConfig(t)
	if len(c.Check()) > 0 {
		t.Skip(c.Check())
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	// A packet is at most a few events at each link, and timers have a least interval.
	const most, mostAtOnce = 3_000_000, 500_000
	atOnce := 0
	for steps := 0; ; steps++ {
		at, _, ok := s.events.first()
		if !ok || at > c.Duration {
			break
		}
		if atOnce++; at > s.now {
			atOnce = 0
		}
		if steps > most || atOnce > mostAtOnce {
			t.Fatalf("%d steps up to %s, %d of them at that time", steps, s.now, atOnce)
		}
		s.step()
	}
	if err := s.conserved(); err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
}

// conserved compares the packets that entered each link with those that left it.
func (s *Sim) conserved() error {
	inFlight := 0
	for i := range s.links {
		l := &s.links[i]
		n := l.Counted()
		waiting, _ := l.Waiting()
		on := waiting + l.Flying()
		inFlight += on
		if in, out := n.Arrived+n.Duplicated, l.sent+n.Tail+n.RED+n.CoDel+n.Lost; in != out+uint64(on) {
			return fmt.Errorf("link %d: %d packets in, %d out, %d on it: %+v", i, in, out, on, n)
		}
	}
	if inFlight != s.traffic.packets {
		return fmt.Errorf("%d packets on links, %d counted", inFlight, s.traffic.packets)
	}
	return nil
}
