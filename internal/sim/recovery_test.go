package sim

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// stage is a simulation in which a test chooses the packets that are lost, and inspects every step.
type stage struct {
	*Sim
	t    *testing.T
	seen map[copyOf]int
	// lose reports whether the n-th copy of a segment, from 1, is lost.
	lose func(seq uint32, n int) bool
}

type copyOf struct {
	seq  uint32
	sent time.Duration
}

// newStage returns one TCP connection with an initial window of 10, over a path of 5 Mbit/s with an
// RTT of 60 ms.
func newStage(t *testing.T, lose func(seq uint32, n int) bool, change func(*Connection)) *stage {
	t.Helper()
	c := paper(road{rate: 5 * unit.MbitPerSecond, delay: 20 * ms})
	c.Connections[0].InitialWindow = 10
	change(&c.Connections[0])
	// The destination of packets to be lost.
	c.Cross = []Cross{{Kind: CBR, Rate: unit.KbitPerSecond, Size: 100, Out: []int{0}, Start: MaxDuration}}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &stage{Sim: s, t: t, seen: map[copyOf]int{}, lose: lose}
}

// onTheWay iterates over the packets in flight.
func (s *stage) onTheWay(yield func(*packet) bool) {
	for i := range s.links {
		for p := range s.links[i].Frames {
			if !yield(p) {
				return
			}
		}
	}
}

// until steps until the condition holds, and fails the test if the simulation ends first.
func (s *stage) until(what string, done func(f *sender) bool) {
	s.t.Helper()
	f := &s.senders[0]
	copies := map[uint32]int{}
	for c := range s.seen {
		copies[c.seq]++
	}
	for !done(f) {
		if _, _, ok := s.events.first(); !ok || s.now > 20*time.Second {
			s.t.Fatalf("never: %s", what)
		}
		for p := range s.onTheWay {
			id := copyOf{p.seq, p.at}
			if p.kind != data || s.seen[id] > 0 {
				continue
			}
			copies[p.seq]++
			s.seen[id] = copies[p.seq]
			if s.lose(p.seq, copies[p.seq]) {
				p.kind, p.flow = cross, 0
			}
		}
		s.step()
		if err := s.check(); err != nil {
			s.t.Fatal(err)
		}
	}
}

func once(lost ...uint32) func(uint32, int) bool {
	return func(seq uint32, n int) bool {
		for _, l := range lost {
			if seq == l && n == 1 {
				return true
			}
		}
		return false
	}
}

func as(*Connection) {}

// The acknowledgement that ends recovery covers up to a whole window; if it counted, the window
// would grow by what recovery just reduced.
func TestLeavingRecoveryDoesNotGrowTheWindow(t *testing.T) {
	s := newStage(t, once(20, 21, 25), as)
	s.until("recovery", func(f *sender) bool { return f.state == caRecovery })
	s.until("the end of recovery", func(f *sender) bool { return f.state == caOpen })
	if w := s.senders[0].cc; w.Cwnd != w.Ssthresh {
		t.Errorf("window %v after recovery, want the threshold, %v", w.Cwnd, w.Ssthresh)
	}
}

// The acknowledgement of a retransmission that fills a gap also covers the segments above it: its
// size says nothing about the delivery rate.
func TestJumpDoesNotGrowTheWindow(t *testing.T) {
	s := newStage(t, func(seq uint32, n int) bool { return seq == 20 && n <= 2 }, as)
	s.until("timeout", func(f *sender) bool { return f.result.Timeouts == 1 })
	una := s.senders[0].board.una
	s.until("the jump", func(f *sender) bool { return f.board.una != una })
	if f := &s.senders[0]; f.board.una < una+10 || f.cc.Cwnd > 2 {
		t.Errorf("window %v after an acknowledgement of %d segments, want 2 at most", f.cc.Cwnd, f.board.una-una)
	}
}

// A retransmission restarts the timer: otherwise it would expire before the acknowledgement can
// arrive.
func TestRetransmissionRestartsTheTimer(t *testing.T) {
	s := newStage(t, once(20), as)
	s.until("recovery", func(f *sender) bool { return f.state == caRecovery })
	if f := &s.senders[0]; f.retrans.deadline != s.now+f.retrans.rto {
		t.Errorf("the timer expires %s after the retransmission, want %s", f.retrans.deadline-s.now, f.retrans.rto)
	}
	s.until("the end of recovery", func(f *sender) bool { return f.state == caOpen })
	if n := s.senders[0].result.Timeouts; n != 0 {
		t.Errorf("%d timeouts", n)
	}
}

// Only the lost segments are retransmitted.
func TestRetransmitsExactlyTheLost(t *testing.T) {
	for _, rack := range []bool{false, true} {
		lost := []uint32{20, 21, 25, 30, 31, 32}
		s := newStage(t, once(lost...), func(c *Connection) { c.RACK, c.Bytes = rack, 1340*200 })
		s.until("the end", func(f *sender) bool { return f.c.done })
		r := s.senders[0].result
		if r.Timeouts != 0 || r.Recoveries != 1 || r.Probes != 0 || r.Undone != 0 {
			t.Errorf("rack %v: %d recoveries, %d undone, %d timeouts, %d probes, want one recovery", rack, r.Recoveries, r.Undone, r.Timeouts, r.Probes)
		}
		for c, n := range s.seen {
			if n > 2 {
				t.Errorf("rack %v: segment %d is sent %d times", rack, c.seq, n)
			}
		}
		// The window was not used up, so the last segment may be retransmitted once (RFC
		// 6675, NextSeg 4).
		if n := int(r.Retransmissions) - len(lost); n < 0 || n > 1 {
			t.Errorf("rack %v: %d retransmissions of %d lost", rack, r.Retransmissions, len(lost))
		}
	}
}

// RACK finds a lost retransmission; DupThresh does not.
func TestLostRetransmission(t *testing.T) {
	for rack, timeouts := range map[bool]uint64{false: 1, true: 0} {
		s := newStage(t, func(seq uint32, n int) bool { return seq == 20 && n <= 2 }, func(c *Connection) { c.RACK = rack })
		s.until("the third copy", func(f *sender) bool { return f.board.una > 20 })
		if n := s.senders[0].result.Timeouts; n != timeouts {
			t.Errorf("rack %v: %d timeouts, want %d", rack, n, timeouts)
		}
	}
}

// No later segment reveals the loss of the last segment: a tail loss probe or a timeout repairs it.
func TestLostTail(t *testing.T) {
	for rack, want := range map[bool][2]uint64{false: {1, 0}, true: {0, 1}} {
		s := newStage(t, once(40), func(c *Connection) { c.RACK, c.Bytes = rack, 1340*40 })
		s.until("the end", func(f *sender) bool { return f.c.done })
		if r := s.senders[0].result; r.Timeouts != want[0] || r.Probes != want[1] {
			t.Errorf("rack %v: %d timeouts and %d probes, want %v", rack, r.Timeouts, r.Probes, want)
		}
	}
}

// Consecutive timeouts double the timeout, and reduce ssthresh once.
func TestBackoff(t *testing.T) {
	s := newStage(t, func(seq uint32, n int) bool { return seq >= 20 && n <= 4 }, as)
	var at []time.Duration
	var threshold float64
	for n := range uint64(4) {
		s.until("timeout", func(f *sender) bool { return f.result.Timeouts == n+1 })
		at = append(at, s.now)
		if w := s.senders[0].cc; n == 0 {
			threshold = w.Ssthresh
		} else if w.Ssthresh != threshold || w.Cwnd != 1 {
			t.Errorf("threshold %v and window %v after timeout %d, want %v and 1", w.Ssthresh, w.Cwnd, n+1, threshold)
		}
	}
	first := at[1] - at[0]
	if at[2]-at[1] != 2*first || at[3]-at[2] != 4*first {
		t.Errorf("timeouts at %v", at)
	}
	s.until("a new sample", func(f *sender) bool { return f.board.una > 20 })
	if f := &s.senders[0]; f.retrans.backoff != 0 {
		t.Errorf("backs off %d times after an acknowledgement", f.retrans.backoff)
	}
}

func TestDelayedAcknowledgements(t *testing.T) {
	run := func(change func(*Connection)) PathResult {
		s := newStage(t, once(), func(c *Connection) { c.Bytes = 1340 * 1001; change(c) })
		s.until("the end", func(f *sender) bool { return f.c.done })
		return s.senders[0].result
	}
	if r := run(as); r.Acks != 1001 {
		t.Errorf("%d acknowledgements of 1001 segments", r.Acks)
	}
	if r := run(func(c *Connection) { c.DelayedACK = true }); r.Acks != 501 {
		t.Errorf("%d acknowledgements of every second of 1001 segments, want 501", r.Acks)
	}
	if r := run(func(c *Connection) { c.DelayedACK, c.QuickACKs = true, 101 }); r.Acks != 101+450 {
		t.Errorf("%d acknowledgements of 101 segments and every second of 900, want 551", r.Acks)
	}
}

// When acknowledgements are lost, a segment that had arrived is retransmitted. The reply echoes the
// timestamp of the copy (RFC 7323, section 4.3), so the RTT sample does not include the timeout.
func TestLostAcknowledgementsAreNoRoundTrip(t *testing.T) {
	c := paper(first)
	c.Links[2].Loss = linkmodel.Loss{Kind: linkmodel.Random, P: 0.2}
	c.Connections[0].Window = 1340
	r := run(t, c).Connections[0].Paths[0]
	if r.Timeouts == 0 || r.MeanRTT > 65*ms {
		t.Errorf("mean round trip %s with %d timeouts", r.MeanRTT, r.Timeouts)
	}
}

// A segment is lost when three above it have been selectively acknowledged (RFC 6675, DupThresh).
func TestThreshold(t *testing.T) {
	s := newStage(t, once(20), as)
	s.until("recovery", func(f *sender) bool { return f.state == caRecovery })
	if n := s.senders[0].board.sacked; n != 3 {
		t.Errorf("recovery begins with %d segments above the one that is lost, want 3", n)
	}
}

// With RACK two segments above are enough: the segment is lost a quarter of the minimum RTT after
// their acknowledgement (RFC 8985, section 6.2).
func TestReorderingWindow(t *testing.T) {
	s := newStage(t, once(38), func(c *Connection) { c.RACK, c.Bytes = true, 1340*40 })
	s.until("the end", func(f *sender) bool { return f.c.done })
	if r := s.senders[0].result; r.Timeouts != 0 || r.Probes != 0 || r.Recoveries != 1 || r.Retransmissions != 1 {
		t.Errorf("%+v, want one recovery with one retransmission", r)
	}
}

// TestIdleMovesCubic: cubic learns for how long nothing was sent, when something is again with
// nothing outstanding (CA_EVENT_TX_START).
func TestIdleMovesCubic(t *testing.T) {
	s := newStage(t, once(), func(c *Connection) { c.RACK, c.Bytes, c.Rate = true, 1340*3, 10_000 })
	s.until("the first segment is acknowledged", func(f *sender) bool { return f.board.una == 2 })
	sent := s.senders[0].lastSent
	s.until("the second", func(f *sender) bool { return f.board.next == 3 })
	if f := &s.senders[0]; f.cc.Idle != f.lastSent-sent || f.cc.Idle <= 0 {
		t.Errorf("nothing was sent for %v, cubic learns of %v", f.lastSent-sent, f.cc.Idle)
	}
}
