package sim

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

func linux24Of(c *Connection) {
	c.RACK, c.Linux24, c.Congestion = false, true, "newreno"
	c.ReceiveBuffer, c.InitialReceive = 64*unit.KiB, 64*unit.KiB
}

// With counting that does not adapt, 10 Mbit/s become 1.8 with a jitter of 5 ms.
func TestLinux24AdaptsToReordering(t *testing.T) {
	for _, jitter := range []time.Duration{0, 1 * ms, 2 * ms, 5 * ms} {
		goodput := func(change func(*Connection)) float64 {
			r := run(t, reordering(jitter, func(c *Config) { change(&c.Connections[0]) })).Connections[0]
			return float64(r.After())
		}
		adapts := goodput(linux24Of)
		counts := goodput(func(c *Connection) { linux24Of(c); c.Linux24 = false })
		if adapts < 8.3e6 {
			t.Errorf("jitter %s: %.1f Mbit/s, want 8.3 at least", jitter, adapts/1e6)
		}
		if jitter == 5*ms && counts > adapts/2 {
			t.Errorf("jitter %s: %.1f Mbit/s with a threshold of three, %.1f with one that adapts", jitter, counts/1e6, adapts/1e6)
		}
	}
}

// Losses are repaired in one recovery, with nothing undone and only what is lost retransmitted, and
// the window is halved; after a loss of the retransmission new segments prove that too.
func TestLinux24RepairsLosses(t *testing.T) {
	lost := []uint32{20, 21, 25, 30}
	s := newStage(t, once(lost...), func(c *Connection) { linux24Of(c); c.Bytes = 1340 * 200 })
	s.until("recovery", func(f *sender) bool { return f.state == caRecovery })
	before := s.senders[0].cc.Cwnd
	s.until("the end of recovery", func(f *sender) bool { return f.state != caRecovery })
	if w := s.senders[0].cc; w.Cwnd > w.Ssthresh || w.Ssthresh > before/2+1 {
		t.Errorf("window %v and threshold %v after a recovery that began with a window of %v", w.Cwnd, w.Ssthresh, before)
	}
	s.until("the end", func(f *sender) bool { return f.c.done })
	r := s.senders[0].result
	if r.Recoveries != 1 || r.Timeouts != 0 || r.Undone != 0 || int(r.Retransmissions) != len(lost) {
		t.Errorf("%+v, want one recovery with %d retransmissions", r, len(lost))
	}
	s = newStage(t, func(seq uint32, n int) bool { return seq == 20 && n <= 2 }, func(c *Connection) { linux24Of(c); c.Bytes = 1340 * 200 })
	s.until("the third copy", func(f *sender) bool { return f.board.una > 20 })
	if n := s.senders[0].result.Timeouts; n != 0 {
		t.Errorf("%d timeouts, want none", n)
	}
}

// The threshold is what reordering asks for, 127 at most, and 3 again after a timeout.
func TestLinux24Threshold(t *testing.T) {
	l := linux24{threshold: dupThresh}
	for _, step := range []struct{ by, want int32 }{{2, 3}, {3, 3}, {10, 10}, {5, 10}, {500, maxReordering}} {
		if l.displaced(step.by); l.threshold != step.want || l.reordered != (step.want > dupThresh) {
			t.Errorf("threshold %d and reordered %v after %d segments, want %d", l.threshold, l.reordered, step.by, step.want)
		}
	}
	s := newStage(t, func(seq uint32, n int) bool { return seq >= 20 && n == 1 }, linux24Of)
	s.senders[0].linux24.threshold = 40
	s.until("timeout", func(f *sender) bool { return f.result.Timeouts == 1 })
	if f := &s.senders[0]; f.linux24.threshold != dupThresh || f.cc.Cwnd != 1 {
		t.Errorf("threshold %d and window %v after a timeout", f.linux24.threshold, f.cc.Cwnd)
	}
}

// Data above a gap takes of the window: while it is held, the receiver offers less than its buffer
// above what is acknowledged (paper D, Fig. 9).
func TestHeldDataTakesWindow(t *testing.T) {
	s := newStage(t, once(20, 40), linux24Of)
	s.until("the first gap closed", func(f *sender) bool { return s.receivers[0].next > 20 && s.receivers[0].held > 0 })
	c, r := s.senders[0].c, &s.receivers[0]
	_, window := c.advertise(r)
	if held := r.held * c.Segment; int(window) > int(c.ReceiveBuffer)-held/2 {
		t.Errorf("a window of %d bytes with %d held", window, held)
	}
}
