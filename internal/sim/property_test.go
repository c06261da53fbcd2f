package sim

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

func genProfile(t *rapid.T, harm bool) linkmodel.Profile {
	p := linkmodel.Profile{
		Rate:  unit.Bandwidth(rapid.Int64Range(100_000, 50_000_000).Draw(t, "rate")),
		Delay: time.Duration(rapid.IntRange(0, 100).Draw(t, "delay")) * ms,
	}
	switch rapid.IntRange(0, 3).Draw(t, "queue") {
	case 0:
		p.Queue.Packets = rapid.IntRange(3, 100).Draw(t, "packets")
	case 1:
		p.Queue.Bytes = unit.Size(rapid.IntRange(20_000, 200_000).Draw(t, "bytes"))
	case 2:
		p.Queue.Discipline = linkmodel.DisciplineCoDel
	case 3:
		p.Queue.Discipline = linkmodel.DisciplineRED
		p.Queue.RED = linkmodel.RED{Min: linkmodel.Limit{Packets: 5}, Max: linkmodel.Limit{Packets: 15}, P: 0.1}
	}
	if !harm {
		return p
	}
	if p.Delay > 0 && rapid.Bool().Draw(t, "jittery") {
		p.Jitter = linkmodel.Jitter{
			Kind: linkmodel.Uniform, Amount: time.Duration(rapid.Int64Range(1, int64(p.Delay)).Draw(t, "amount")),
			Reorder: rapid.Bool().Draw(t, "reorder"),
		}
	}
	if rapid.Bool().Draw(t, "lossy") {
		p.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: rapid.Float64Range(0, 0.1).Draw(t, "p")}
	}
	p.Duplicate = rapid.SampledFrom([]float64{0, 0, 0.01, 0.3}).Draw(t, "duplicate")
	return p
}

func genWay(t *rapid.T, links int, name string) []int {
	return rapid.SliceOfN(rapid.IntRange(0, links-1), 1, 3).Draw(t, name)
}

func genConnection(t *rapid.T, links int) Connection {
	k := Connection{
		Start:         time.Duration(rapid.IntRange(0, 300).Draw(t, "start")) * ms,
		MPTCP:         rapid.Bool().Draw(t, "mptcp"),
		Scheduler:     rapid.SampledFrom(sched.Names()).Draw(t, "scheduler"),
		Congestion:    rapid.SampledFrom(cc.Names()).Draw(t, "congestion"),
		Segment:       rapid.SampledFrom([]int{1, 100, 1340, 9000}).Draw(t, "segment"),
		Bytes:         unit.Size(rapid.IntRange(1, 100_000).Draw(t, "bytes")),
		DelayedACK:    rapid.Bool().Draw(t, "delayed"),
		RACK:          rapid.Bool().Draw(t, "rack"),
		Handshake:     rapid.Bool().Draw(t, "handshake"),
		Opportunistic: rapid.Bool().Draw(t, "opportunistic"),
		Penalize:      rapid.Bool().Draw(t, "penalize"),
		InitialWindow: rapid.IntRange(1, 20).Draw(t, "initial"),
	}
	if !k.MPTCP {
		k.Scheduler = ""
	}
	k.Bytes = min(k.Bytes, unit.Size(300*k.Segment))
	some := func(name string) unit.Size {
		if rapid.Bool().Draw(t, name) {
			return 0
		}
		return unit.Size(k.Segment * rapid.IntRange(1, 60).Draw(t, name+" segments"))
	}
	k.Window, k.RBuf, k.ReceiveBuffer, k.SendBuffer = some("window"), some("rbuf"), some("receive buffer"), some("send buffer")
	if rapid.Bool().Draw(t, "paced") {
		k.Rate = unit.Bandwidth(rapid.IntRange(50_000, 5_000_000).Draw(t, "pace"))
	}
	paths := 1
	if k.MPTCP {
		paths = rapid.IntRange(1, 4).Draw(t, "paths")
	}
	for range paths {
		k.Paths = append(k.Paths, Path{
			Out: genWay(t, links, "out"), Back: genWay(t, links, "back"),
			Start:  time.Duration(rapid.IntRange(0, 100).Draw(t, "path start")) * ms,
			Backup: rapid.Bool().Draw(t, "backup"), Ratio: rapid.IntRange(0, 3).Draw(t, "ratio"),
		})
	}
	return k
}

// genConfig draws configs whose data is certain to be delivered before the end.
func genConfig(t *rapid.T) Config {
	c := Config{
		Seed: rapid.Uint64().Draw(t, "seed"), Duration: 4 * time.Hour, Series: time.Minute,
		Bursts: rapid.Bool().Draw(t, "bursts"),
	}
	harm := rapid.Bool().Draw(t, "harm")
	for range rapid.IntRange(1, 5).Draw(t, "links") {
		c.Links = append(c.Links, Link{Profile: genProfile(t, harm)})
	}
	for range rapid.IntRange(1, 3).Draw(t, "connections") {
		c.Connections = append(c.Connections, genConnection(t, len(c.Links)))
	}
	if rapid.Bool().Draw(t, "busy") {
		x := Cross{
			Kind: rapid.SampledFrom([]CrossKind{CBR, Poisson, OnOff}).Draw(t, "kind"), Rate: 50 * unit.KbitPerSecond,
			Size: rapid.IntRange(40, 1500).Draw(t, "size"), Out: genWay(t, len(c.Links), "cross"), Stop: 60 * time.Second,
		}
		if x.Kind == OnOff {
			x.On, x.Off = 100*ms, 100*ms
			x.Pareto = rapid.SampledFrom([]float64{0, 1.5}).Draw(t, "pareto")
		}
		c.Cross = append(c.Cross, x)
	}
	at := time.Duration(0)
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		at += time.Duration(rapid.IntRange(0, 2000).Draw(t, "at")) * ms
		i := rapid.IntRange(0, len(c.Links)-1).Draw(t, "link")
		// Every link that goes down comes up again.
		c.Changes = append(c.Changes, Change{At: at, Link: i, Down: true})
		at += time.Duration(rapid.IntRange(0, 2000).Draw(t, "for")) * ms
		p := genProfile(t, harm)
		c.Changes = append(c.Changes, Change{At: at, Link: i, Up: true, Change: linkmodel.Change{Rate: &p.Rate, Loss: &p.Loss, Queue: &p.Queue}})
	}
	return c
}

// addDeadPath adds to MPTCP connections a path over a link that goes down for ever. Where nothing
// is reinjected, data sent on it would be lost.
func addDeadPath(t *rapid.T, c *Config) {
	dead := len(c.Links)
	c.Links = append(c.Links, Link{Profile: genProfile(t, false)})
	for i := range c.Connections {
		if k := &c.Connections[i]; k.MPTCP && !k.Uncounted {
			k.Paths = append(k.Paths, Path{
				Out: []int{dead}, Back: genWay(t, dead, "back"), Start: time.Duration(rapid.IntRange(0, 1000).Draw(t, "path start")) * ms,
			})
		}
	}
	down := Change{At: time.Duration(rapid.IntRange(0, 2000).Draw(t, "dies")) * ms, Link: dead, Down: true}
	at, _ := slices.BinarySearchFunc(c.Changes, down, func(a, b Change) int { return cmp.Compare(a.At, b.At) })
	c.Changes = slices.Insert(c.Changes, at, down)
}

// checkResult checks the invariants of a result.
func checkResult(c Config, r Result) error {
	for i := range r.Connections {
		k, got := &c.Connections[i], &r.Connections[i]
		if got.Delivered != unit.Size(got.Reseq.Released.Bytes) || got.Arrived != unit.Size(got.Reseq.Arrived.Bytes) {
			return fmt.Errorf("connection %d: delivered %s of %s, but resequencing had %+v", i, got.Delivered, got.Arrived, got.Reseq.Released)
		}
		if got.Delivered > k.Bytes {
			return fmt.Errorf("connection %d: delivered %s of %s", i, got.Delivered, k.Bytes)
		}
		// A connection with usable paths does not stall.
		if got.Finish == Never {
			return fmt.Errorf("connection %d: delivered %s of %s in %s", i, got.Delivered, k.Bytes, r.Duration)
		}
		if got.FirstByte > got.Finish || got.FirstByte < k.Start {
			return fmt.Errorf("connection %d: first byte at %s, last at %s", i, got.FirstByte, got.Finish)
		}
		var series, arrived unit.Size
		for _, n := range got.Series {
			series += n
		}
		if series != got.Delivered {
			return fmt.Errorf("connection %d: series of %s, delivered %s", i, series, got.Delivered)
		}
		for _, p := range got.Paths {
			arrived += p.Arrived
			if p.Retransmissions > p.Segments {
				return fmt.Errorf("connection %d: %d of %d segments are retransmissions", i, p.Retransmissions, p.Segments)
			}
		}
		if arrived < got.Arrived {
			return fmt.Errorf("connection %d: %s arrived on its paths, %s in all", i, arrived, got.Arrived)
		}
		if k.RBuf > 0 && got.Reseq.PeakOccupancy.Bytes > uint64(k.RBuf)+uint64(k.Segment) {
			return fmt.Errorf("connection %d: %d bytes held with an rbuf of %s", i, got.Reseq.PeakOccupancy.Bytes, k.RBuf)
		}
		if k.ReceiveBuffer > 0 && got.Reseq.PeakOccupancy.Bytes > uint64(k.ReceiveBuffer) {
			return fmt.Errorf("connection %d: %d bytes held in a receive buffer of %s", i, got.Reseq.PeakOccupancy.Bytes, k.ReceiveBuffer)
		}
	}
	for i, l := range r.Links {
		if l.Sent+l.Dropped+l.Lost > l.Arrived+l.Duplicated {
			return fmt.Errorf("link %d: %+v", i, l)
		}
	}
	return nil
}

// Every config that passes Check runs: all data is delivered, once and in order; occupancy does not
// exceed the buffers; no connection stalls.
func TestPropertyEverythingArrives(t *testing.T) { rapid.Check(t, everythingArrives) }

func FuzzEverythingArrives(f *testing.F) { f.Fuzz(rapid.MakeFuzz(everythingArrives)) }

func everythingArrives(t *rapid.T) {
	c := genConfig(t)
	for i := range c.Connections {
		k := &c.Connections[i]
		k.Uncounted = k.MPTCP && k.Scheduler != sched.Default && rapid.SampledFrom([]bool{false, false, true}).Draw(t, "uncounted")
		k.Linux24 = !k.RACK && rapid.Bool().Draw(t, "linux 2.4")
	}
	if rapid.Bool().Draw(t, "dead") {
		addDeadPath(t, &c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkResult(c, r); err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
}

// check compares counters with what they count, and scheduled events with the timers they serve.
func (s *Sim) check() error {
	for i := range s.links {
		// Next is a lower bound for frames in the queue, which follow those on the wire unless they
		// overtake.
		l := &s.links[i]
		if l.into != nil {
			continue // the second link of the pair has the event
		}
		at := l.Next()
		if l.from != nil {
			at = l.NextOf(&l.from.Pipe)
		}
		if at != linkmodel.Never && (!s.events.has(int32(i)) || s.events.at(int32(i)) > at && (l.Overtakes() || l.Flying() == 0)) {
			return fmt.Errorf("link %d delivers at %s, and has no event then", i, at)
		}
	}
	for i := range s.senders {
		f := &s.senders[i]
		var sackedSegments, lostSegments, retransSegments, pending int32
		for seq := f.board.una; seq != f.board.next; seq++ {
			switch g := f.board.at(seq).flags; {
			case g&sacked != 0:
				sackedSegments++
			default:
				if g&lost != 0 {
					lostSegments++
				}
				if g&retransInFlight != 0 {
					retransSegments++
				}
				if g&(lost|retransInFlight) == lost {
					pending++
				}
			}
		}
		if sackedSegments != f.board.sacked || lostSegments != f.board.lost || retransSegments != f.board.retrans || pending != f.board.pending {
			return fmt.Errorf("subflow %d counts %d %d %d %d, has %d %d %d %d", i, f.board.sacked, f.board.lost, f.board.retrans, f.board.pending,
				sackedSegments, lostSegments, retransSegments, pending)
		}
	}
	return nil
}

func TestPropertySameConfigSameResult(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genConfig(t)
		c.Duration = 5 * time.Second
		if one, two := run(t, c), run(t, c); !reflect.DeepEqual(one, two) {
			t.Fatalf("%+v and %+v", one, two)
		}
	})
}
