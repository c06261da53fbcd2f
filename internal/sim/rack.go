package sim

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/quality"
)

// rack is the state of RACK loss detection (RFC 8985, section 6; Linux: net/ipv4/tcp_recovery.c): a
// segment is lost when one that was sent sufficiently later has been delivered.
type rack struct {
	// sent and seq describe the most recently sent segment that has been delivered
	// (RACK.segment); rtt is its round-trip time.
	sent time.Duration
	seq  uint32
	rtt  time.Duration
	// highest is the highest segment delivered (RACK.fack). reordered: a lower segment that was
	// never retransmitted has been delivered after it (RACK.reordering_seen).
	highest   uint32
	reordered bool
	// deadline is when the reordering timer expires, 0 when it does not run.
	deadline time.Duration

	reordering reorderingWindow
}

// reorderingWindow adapts the reordering window to DSACKs (RFC 8985, section 6.2, step 4; Linux:
// tcp_rack_update_reo_wnd). Each round trip with a DSACK adds a quarter of MinRTT. Its zero value
// is one quarter.
type reorderingWindow struct {
	extra   int32  // RACK.reo_wnd_mult less 1
	persist int32  // recoveries until the window is reset (RACK.reo_wnd_persist)
	round   uint32 // SND.NXT at the last increase (RACK.dsack_round)
	// most is by how many segments one came late at most (tp->reordering); 0: fewer than dupThresh.
	most uint32
}

const (
	// reoWndPersist is TCP_RACK_RECOVERY_THRESH.
	reoWndPersist = 16
	// maxReoWndExtra is one less than the largest rack.reo_wnd_steps of Linux.
	maxReoWndExtra = 254
)

// maxReorderingRACK is net.ipv4.tcp_max_reordering.
const maxReorderingRACK = 300

// displaced looks for segments that came late: below the highest one that was selectively
// acknowledged before (tcp_check_sack_reordering).
func (w *reorderingWindow) displaced(b *scoreboard, top uint32) {
	if top == 0 || b.late >= top {
		return
	}
	highest := b.una
	if b.sacked > 0 {
		highest = b.highest[0]
	}
	if by := highest - b.late; highest > b.late && by > max(w.most, dupThresh) {
		w.most = min(by, maxReorderingRACK)
	}
}

// dsack processes a DSACK.
func (w *reorderingWindow) dsack(una, next uint32) {
	if una < w.round {
		return
	}
	w.round, w.persist = next, reoWndPersist
	w.extra = min(w.extra+1, maxReoWndExtra)
}

// recovered is called at the end of a recovery that was not spurious. The window is reset after 16
// of them without a DSACK.
func (w *reorderingWindow) recovered() {
	if w.persist > 0 {
		w.persist--
	}
	if w.persist == 0 {
		w.extra = 0
	}
}

// window returns the reordering window.
func (w *reorderingWindow) window(rtt *quality.RTT) time.Duration {
	return min(rtt.MinRTT/4*time.Duration(1+w.extra), rtt.SRTT)
}

// sentAfter reports whether a segment was sent after another (RFC 8985, section 6.2,
// RACK_sent_after).
func sentAfter(sent time.Duration, seq uint32, than time.Duration, other uint32) bool {
	return sent > than || sent == than && seq > other
}

// delivered processes a newly acknowledged segment (section 6.2, steps 1 to 3). minRTT is the
// minimum round-trip time.
func (r *rack) delivered(now time.Duration, seq uint32, e *segment, minRTT time.Duration) {
	rtt := now - e.sent
	if e.flags&everRetrans != 0 && rtt < minRTT {
		return // the acknowledgement is of the first transmission
	}
	if seq > r.highest {
		r.highest = seq
	} else if e.flags&everRetrans == 0 {
		r.reordered = true
	}
	if sentAfter(e.sent, seq, r.sent, r.seq) {
		r.sent, r.seq, r.rtt = e.sent, seq, rtt
	}
}

// detect marks lost segments, and sets when the reordering timer expires (section 6.2, step 5).
func (r *rack) detect(now time.Duration, b *scoreboard, rtt *quality.RTT, state caState) {
	r.deadline = 0
	if b.sacked == 0 && b.retrans == 0 && b.lost == 0 || r.rtt == 0 {
		return
	}
	var window time.Duration
	if r.reordered || state < caRecovery && b.sacked < dupThresh {
		window = r.reordering.window(rtt)
	}
	r.detectFirst(now, b, window)
	r.detectAgain(now, b, window)
}

// detectFirst is detect for segments from unsettled on, most of which were sent once.
func (r *rack) detectFirst(now time.Duration, b *scoreboard, window time.Duration) {
	for seq := b.unsettled; seq != b.next; seq++ {
		e := b.at(seq)
		if settled := e.settled(); seq == b.unsettled && (settled || e.flags&everRetrans != 0) {
			b.unsettled++
			if !settled {
				b.addAgain(retransmission{seq, e.sent})
			}
			continue
		}
		if e.flags&everRetrans == 0 && e.flags&(sacked|lost) == 0 && !sentAfter(r.sent, r.seq, e.sent, seq) {
			break // all further segments were sent after it, those sent again even later
		}
		r.judge(now, b, seq, e, window)
	}
}

// detectAgain is detect for the retransmissions of segments below unsettled.
func (r *rack) detectAgain(now time.Duration, b *scoreboard, window time.Duration) {
	left := b.again[:0]
	for i, x := range b.again {
		if !sentAfter(r.sent, r.seq, x.sent, x.seq) {
			if len(left) < i {
				left = append(left, b.again[i:]...)
			} else {
				left = b.again
			}
			break
		}
		if x.seq < b.una {
			continue
		}
		e := b.at(x.seq)
		if e.sent != x.sent {
			continue // it was sent once more
		}
		if r.judge(now, b, x.seq, e, window); !e.settled() {
			left = append(left, x)
		}
	}
	b.again = left
}

// judge marks a segment lost if one sent sufficiently later has been delivered.
func (r *rack) judge(now time.Duration, b *scoreboard, seq uint32, e *segment, window time.Duration) {
	if e.settled() || !sentAfter(r.sent, r.seq, e.sent, seq) {
		return
	}
	if at := e.sent + r.rtt + window; at > now {
		r.deadline = max(r.deadline, at)
		return
	}
	if e.flags&retransInFlight != 0 {
		b.markRetransLost(seq, e)
	}
	b.markLost(seq, e)
}

// markLost runs loss detection, and starts the reordering timer (Linux: tcp_rack_mark_lost).
func (r *rack) markLost(s *Sim, f *sender) {
	r.detect(s.now, &f.board, &f.retrans.rtt, f.state)
	if r.deadline != 0 {
		f.wake(s, r.deadline)
	}
}

// timeout handles the reordering timer (section 6.3; Linux: tcp_rack_reo_timeout).
func (r *rack) timeout(s *Sim, f *sender) {
	r.markLost(s, f)
	if f.state == caOpen && f.board.lost > 0 {
		f.cc.InFlight = float64(f.board.outstanding())
		f.enterRecovery(s)
	}
	if f.state == caRecovery {
		f.prr.reduce(f, 1, false)
	}
	f.retransmitLost(s)
	f.refresh(s)
	f.c.schedule(s)
}
