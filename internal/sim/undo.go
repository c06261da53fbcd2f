package sim

import (
	"time"

	"github.com/tabane/tabane/internal/mptcp/cc"
)

// undo is the state needed to revert a reduction of the congestion window that proves spurious:
// segments were reordered or delayed, not lost. It is proven by an acknowledgement that echoes a
// timestamp older than the first retransmission (Eifel detection, RFC 3522), or by a DSACK for
// every retransmission (RFC 3708). Linux does the same in tcp_init_undo, tcp_packet_delayed,
// tcp_may_undo and tcp_undo_cwnd_reduction.
type undo struct {
	// marker is SND.UNA when the window was reduced (undo_marker), 0 when there is nothing to undo.
	marker uint32
	// retrans is the number of retransmissions without a DSACK (undo_retrans), -1 before the first.
	retrans int32
	// first is when the first retransmission was sent (retrans_stamp), 0 if there was none.
	first time.Duration
	// cwnd and ssthresh are the values before the reduction (prior_cwnd, prior_ssthresh).
	cwnd, ssthresh float64
	// dsacks counts DSACKs (dsack_dups).
	dsacks uint64
}

// begin records the state before a reduction. The first retransmission may belong to the previous
// reduction (tcp_retrans_stamp_cleanup).
func (u *undo) begin(b *scoreboard, w *cc.Subflow) {
	if !b.anyRetrans() {
		u.first = 0
	}
	u.marker, u.retrans = b.una, b.retrans
	u.cwnd, u.ssthresh = w.Cwnd, max(w.Ssthresh, w.Cwnd*3/4) // tcp_current_ssthresh
	if u.retrans == 0 {
		u.retrans = -1
	}
}

// retransmitted counts a retransmission.
func (u *undo) retransmitted(now time.Duration) {
	if u.first == 0 {
		u.first = now
	}
	u.retrans = max(u.retrans, 0) + 1
}

// dsack processes the DSACK of a segment.
func (u *undo) dsack(seq uint32) {
	if u.marker != 0 && u.retrans > 0 && seq >= u.marker {
		u.retrans--
	}
}

// delayed reports whether an acknowledgement of new data was triggered by a first transmission.
func (u *undo) delayed(echo time.Duration) bool {
	return u.marker != 0 && (u.first == 0 || echo < u.first)
}

// duplicated reports whether every retransmission had a DSACK.
func (u *undo) duplicated() bool { return u.marker != 0 && u.retrans == 0 }

// revert restores the congestion window and the threshold.
func (u *undo) revert(w *cc.Subflow) {
	w.Undo(u.cwnd, u.ssthresh)
	u.marker = 0
}

// ack processes an acknowledgement during recovery or loss, or after it, as tcp_fastretrans_alert
// does before loss detection. prior is SND.UNA before the acknowledgement. It returns false while
// an undo is pending on retransmissions in flight: until then no more segments are marked lost or
// retransmitted.
func (u *undo) ack(f *sender, p *packet, prior uint32) bool {
	advanced := f.board.una != prior
	over := f.state > caOpen && f.board.una >= f.recover
	switch {
	case over:
		if u.duplicated() || advanced && u.delayed(p.at) { // tcp_try_undo_recovery
			u.apply(f, f.state == caLoss)
		} else {
			f.rack.reordering.recovered()
		}
		f.state, f.rescued = caOpen, false
	case advanced && f.state == caRecovery && u.delayed(p.at): // tcp_try_undo_partial
		f.rack.reordered = f.rack.reordered || f.board.highest[0] > prior
		if f.board.retrans > 0 {
			return false
		}
		u.apply(f, true)
		f.state = caOpen
	case advanced && f.state == caLoss && (u.delayed(p.at) || u.duplicated()): // tcp_try_undo_loss
		u.apply(f, true)
		f.state = caOpen
	case f.state != caLoss && u.duplicated(): // tcp_try_undo_dsack
		u.apply(f, false)
		f.rack.reordering.persist = min(f.rack.reordering.persist+1, reoWndPersist)
		f.state = caOpen
	}
	return true
}

// dsackReceived processes an acknowledgement with a DSACK (RFC 2883). If no retransmission can have
// caused it, the network duplicated the segment, and it is ignored (Linux: tcp_dsack_seen).
func (u *undo) dsackReceived(f *sender, p *packet) {
	if u.dsacks++; u.dsacks > f.result.Retransmissions {
		return
	}
	seq := f.board.sent(p.dsack)
	if seq >= f.board.una && f.board.at(seq).flags&everRetrans == 0 {
		return
	}
	u.dsack(seq)
	if probe := f.tlp.sent && seq+1 == f.tlp.end; f.rack.reordered && !probe {
		f.rack.reordering.dsack(f.board.una, f.board.next)
	}
}

// apply undoes the last reduction; if unmark is set, it clears the lost mark of all segments
// (tcp_undo_cwnd_reduction).
func (u *undo) apply(f *sender, unmark bool) {
	if unmark {
		f.board.unmarkLost()
	}
	u.revert(f.cc)
	f.result.Undone++
}
