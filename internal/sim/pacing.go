package sim

import (
	"time"

	"github.com/tabane/tabane/internal/mptcp/cc"
)

// pacing spreads over a round trip what a subflow sends, as the kernel's own timer does
// (tcp_pacing_check). It belongs to Connection.Lowat: the controls in eBPF turn it on and off
// (pace_if_needed).
type pacing struct {
	on       bool
	lost     bool          // a segment was lost once
	looked   time.Duration // when it was last turned on or off
	rate     float64       // bytes/ns
	next     time.Duration // the next buffer is not sent before
	burst    int           // bytes of the present buffer that are not sent yet
	credit   time.Duration // by which the present buffer was late
	deadline time.Duration // of the timer, 0 while it does not run
}

const (
	pacingInterval = 10 * time.Millisecond // between looks (TICK)
	pacingAfter    = 10                    // segments that are sent at once (tcp_update_skb_after_send)

	// How much more than its window a subflow sends in a round trip: in slow start, and else
	// (net.ipv4.tcp_pacing_ss_ratio, tcp_pacing_ca_ratio).
	pacingSlowStart, pacingElse = 2, 1.2

	// A buffer holds what is sent in bufferTime, at least leastSegments, and more if the round trip
	// is short: half as much for each roundTripUnit (tcp_tso_autosize).
	bufferTime    = time.Second >> 10
	leastSegments = 2
	mostBuffer    = 64 << 10
	roundTripUnit = 512 * time.Microsecond
)

// paces reports whether a subflow may be paced.
func (f *sender) paces() bool { return f.c.ahead && f.c.Lowat }

// pace adapts the pacing of a subflow that may be paced to an acknowledgement.
func (f *sender) pace(s *Sim) {
	p, rtt := &f.pacing, f.retrans.rtt.SRTT
	if rtt <= 0 {
		return
	}
	p.lost = p.lost || f.board.lost > 0
	if s.now-p.looked >= pacingInterval {
		p.looked = s.now
		p.on = !cc.Fast(f.clamped(), f.c.Segment, rtt) && (p.lost || f.backlog.bytes > 0)
	}
	f.cc.Paced = p.on
	ratio := pacingElse
	if f.cc.Cwnd < f.cc.Ssthresh/2 {
		ratio = pacingSlowStart
	}
	p.rate = ratio * max(f.cc.Cwnd, float64(f.board.next-f.board.una)) * float64(f.c.Segment) / float64(rtt)
}

// early reports whether the subflow must wait before it sends, and starts the timer then.
func (f *sender) early(s *Sim) bool {
	p := &f.pacing
	if !p.on || p.burst > 0 || p.next <= s.now {
		return false
	}
	p.deadline = p.next
	f.wake(s, p.deadline)
	return true
}

// sent counts bytes that are sent. The buffer that they are in ends the earlier the later it began.
func (p *pacing) sent(f *sender, now time.Duration, bytes int) {
	if !p.on || p.rate == 0 || f.result.Segments <= pacingAfter {
		return
	}
	if p.burst <= 0 {
		p.credit = max(now-p.next, 0)
		p.next = max(p.next, now)
		p.burst = int(p.rate * float64(bufferTime))
		if n := f.retrans.rtt.MinRTT / roundTripUnit; n < 32 {
			p.burst += mostBuffer >> n
		}
		p.burst = min(max(p.burst, leastSegments*f.c.Segment), mostBuffer)
	}
	p.burst -= bytes
	takes := time.Duration(float64(bytes) / p.rate)
	saved := min(takes/2, p.credit)
	p.credit -= saved
	p.next += takes - saved
}

// flush ends the present buffer: there is nothing to send, or no room.
func (p *pacing) flush() { p.burst = 0 }

// resume sends what has waited for the timer.
func (f *sender) resume(s *Sim) {
	f.pacing.deadline = 0
	f.retransmitLost(s)
	f.sendBacklog(s)
	f.refresh(s)
	f.c.schedule(s)
}
