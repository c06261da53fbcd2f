package sim

import "github.com/tabane/tabane/internal/mptcp/cc"

// linux24 is the loss recovery of Linux 2.4 and of 2.6 before 2.6.24, with what those had by
// default: selective acknowledgments, DSACK and timestamps. It counts segments as RFC 3517 does,
// but with a threshold that adapts to reordering, it undoes reductions that prove spurious, and
// until it has seen reordering it counts by FACK (Mathis and Mahdavi, Forward Acknowledgment,
// SIGCOMM 1996). Described in Sarolahti and Kuznetsov, Congestion Control in Linux TCP, USENIX
// 2002, FREENIX track; the names in parentheses are those of net/ipv4/tcp_input.c of that time.
type linux24 struct {
	// threshold is by how many segments a hole may be below the highest segment received before
	// it counts as a loss (tp->reordering).
	threshold int32
	// reordered: segments have been reordered, so FACK is off.
	reordered bool
	// disorder is the state TCP_CA_Disorder: segments above a hole have arrived, or a reduction can
	// still be undone. It ends when sender.recover is acknowledged.
	disorder bool
	// odd: the next acknowledgement in recovery reduces the window (snd_cwnd_cnt).
	odd bool
	// again is a segment that was received twice and retransmitted, 0 if there is none.
	again uint32
}

const (
	// maxReordering is TCP_MAX_REORDERING, maxBurst what tcp_max_burst returned.
	maxReordering = 127
	maxBurst      = 3
)

// span returns the number of segments up to the highest one that is selectively acknowledged
// (fackets_out).
func (l *linux24) span(b *scoreboard) int32 {
	if b.sacked == 0 {
		return 0
	}
	return int32(b.highest[0] - b.una + 1)
}

// top returns the highest segment that is selectively acknowledged, 0 if there is none.
func (b *scoreboard) top() uint32 {
	if b.sacked == 0 {
		return 0
	}
	return b.highest[0]
}

// displaced processes that a segment came so many segments late (tcp_update_reordering).
func (l *linux24) displaced(by int32) {
	if by > l.threshold {
		l.threshold, l.reordered = min(by, maxReordering), true
	}
}

// dsack processes a DSACK. One that no retransmission can have caused is of a segment that the
// network duplicated.
func (l *linux24) dsack(f *sender, p *packet) {
	u, b := &f.undo, &f.board
	if u.dsacks++; u.dsacks > f.result.Retransmissions {
		return
	}
	seq := b.sent(p.dsack)
	if seq < b.una {
		u.dsack(seq)
		return
	}
	e := b.at(seq)
	if e.flags&everRetrans == 0 {
		return
	}
	u.dsack(seq)
	if e.flags&sacked != 0 {
		l.again = seq
	}
	if e.flags&retransInFlight != 0 {
		b.markRetransLost(seq, e)
	}
}

// tag looks for reordering and lost retransmissions after selective acknowledgments
// (tcp_sacktag_write_queue).
func (l *linux24) tag(f *sender, p *packet, a *acked) {
	b := &f.board
	late := b.late
	if l.again != 0 {
		late, l.again = min(late, l.again), 0
	}
	if p.blocks == 0 && !p.duplicate {
		return
	}
	if f.state == caRecovery && b.retrans > 0 && a.selected > 0 {
		l.markRetransLost(b)
	}
	if a.top != 0 && late < a.top && f.state != caLoss {
		l.displaced(int32(max(a.top, b.highest[0]) - late + 1))
	}
}

// markRetransLost marks retransmissions lost after which new segments were sent that have arrived:
// any, or as many as the threshold once there was reordering.
func (l *linux24) markRetransLost(b *scoreboard) {
	behind := uint32(1)
	if l.reordered {
		behind = uint32(l.threshold)
	}
	for seq := b.una; seq <= b.highest[0]; seq++ {
		e := b.at(seq)
		if e.flags&retransInFlight != 0 && b.highest[0]+1 >= e.next+behind {
			b.markRetransLost(seq, e)
			b.markLost(seq, e)
		}
	}
}

// ack processes an acknowledgement that the scoreboard has (tcp_ack).
func (l *linux24) ack(s *Sim, f *sender, p *packet, a *acked) {
	l.tag(f, p, a)
	dubious := a.segments == 0 || a.selected > 0 || f.state != caOpen || l.disorder
	if a.segments > 0 && f.state != caRecovery {
		// The window grows for an acknowledgement, not for each segment, and only if it was full.
		limited := a.flight-int32(a.selected) >= int32(f.cc.Cwnd)
		f.cc.InFlight = float64(f.board.inFlight())
		f.c.control.Acked(f.c.flows, f.index, cc.Ack{Now: s.now, Segments: 1, RTT: a.sample, Limited: limited})
	}
	if dubious {
		l.alert(s, f, p, a)
	}
}

// end ends what an acknowledgement completes: recovery, loss or disorder.
func (l *linux24) end(f *sender, p *packet) {
	b, u := &f.board, &f.undo
	switch {
	case f.state == caOpen && !l.disorder:
		u.first = 0
	case b.una < f.recover:
	case f.state == caOpen:
		l.undoDSACK(f)
		if u.marker == 0 || b.una != f.recover {
			u.marker, l.disorder = 0, false
		}
	default: // tcp_try_undo_recovery
		if l.spurious(u, p) {
			l.revert(f, true)
			u.marker = 0
		}
		if f.state == caRecovery {
			f.cc.Cwnd = min(f.cc.Cwnd, f.cc.Ssthresh)
		}
		f.state = caOpen
	}
}

// alert is the state machine of tcp_fastretrans_alert. What is to be sent is not decided here.
func (l *linux24) alert(s *Sim, f *sender, p *packet, a *acked) {
	b, u := &f.board, &f.undo
	if (f.state != caOpen || l.disorder) && b.una < f.recover && l.span(b) > l.threshold && reaches(p, f.recover) {
		l.markHead(b, l.span(b)-l.threshold, f.recover)
	}
	l.end(f, p)
	mark := a.segments == 0
	switch {
	case f.state == caRecovery && a.segments > 0: // tcp_try_undo_partial
		mark = l.span(b) > l.threshold
		if l.spurious(u, p) {
			if b.retrans == 0 {
				u.first = 0
			}
			l.displaced(l.span(b) + int32(a.segments))
			l.revert(f, false)
			mark = false
		}
	case f.state == caLoss && !l.spurious(u, p):
		l.moderate(f)
		return
	case f.state == caLoss: // tcp_try_undo_loss
		b.unmarkLost()
		l.revert(f, true)
		u.marker, f.state = 0, caOpen
	}
	if f.state == caOpen {
		if l.disorder {
			l.undoDSACK(f)
		}
		if !l.lossSeen(s, f) {
			l.open(f)
			return
		}
		l.recover(s, f)
	}
	if mark || f.headTimedOut(s) {
		l.markLost(s, f)
	}
	l.reduce(f)
}

// reaches reports whether a segment from seq on is selectively acknowledged.
func reaches(p *packet, seq uint32) bool {
	for _, k := range p.sack[:p.blocks] {
		if k.end > seq {
			return true
		}
	}
	return false
}

// lossSeen reports whether recovery begins (tcp_time_to_recover).
func (l *linux24) lossSeen(s *Sim, f *sender) bool {
	b := &f.board
	outstanding := int32(b.outstanding())
	switch {
	case b.lost > 0, l.span(b) > l.threshold, f.headTimedOut(s):
		return true
	case outstanding > l.threshold || b.sacked < max(outstanding/2, dupThresh):
		return false
	}
	// The segments that would pass the threshold cannot be sent.
	return f.c.newData(s) == 0 || !f.canSendNew()
}

// headTimedOut reports whether the first segment is in flight for longer than a timeout
// (tcp_head_timedout): acknowledgements have restarted the timer.
func (f *sender) headTimedOut(s *Sim) bool {
	return f.board.una != f.board.next && s.now-f.board.at(f.board.una).sent > f.retrans.rto
}

// open sets whether the connection is in disorder (tcp_try_to_open).
func (l *linux24) open(f *sender) {
	b := &f.board
	if b.retrans == 0 {
		f.undo.first = 0
	}
	if disorder := b.sacked > 0 || b.retrans > 0 || f.undo.marker != 0; disorder != l.disorder {
		l.disorder, f.recover = disorder, b.next
	}
	l.moderate(f)
}

// recover starts fast recovery. The window is reduced by later acknowledgements.
func (l *linux24) recover(s *Sim, f *sender) {
	f.result.Recoveries++
	f.state, f.recover, l.disorder, l.odd = caRecovery, f.board.next, false, false
	f.undo.marker, f.undo.retrans = f.board.una, f.board.retrans
	before := f.cc.Cwnd
	l.remember(f)
	f.c.control.Lost(f.c.flows, f.index, s.now)
	f.cc.Cwnd = before
}

// remember keeps the slow-start threshold for an undo (prior_ssthresh, tcp_current_ssthresh). The
// reduction is of the window, whatever is in flight.
func (l *linux24) remember(f *sender) {
	f.undo.ssthresh = max(f.cc.Ssthresh, f.cc.Cwnd*3/4)
	f.cc.InFlight = f.cc.Cwnd
}

// timedOut reduces the window after a timeout (tcp_enter_loss). first: no other preceded it.
func (l *linux24) timedOut(s *Sim, f *sender, first bool) {
	u, b := &f.undo, &f.board
	if first && f.state != caRecovery {
		l.remember(f)
		f.c.control.TimedOut(f.c.flows, f.index, s.now)
	}
	f.cc.Cwnd = 1
	u.marker, u.retrans = b.una, 0
	for seq := b.una; seq != b.next; seq++ {
		if b.at(seq).flags&everRetrans != 0 {
			u.marker = 0
		}
	}
	l.threshold, l.disorder = min(l.threshold, dupThresh), false
}

// markHead marks lost what is neither received nor retransmitted of the first n segments below
// limit (tcp_mark_head_lost).
func (l *linux24) markHead(b *scoreboard, n int32, limit uint32) {
	for seq := b.una; n > 0 && seq < limit; seq++ {
		if e := b.at(seq); e.flags&retransInFlight == 0 {
			b.markLost(seq, e)
		}
		n--
	}
}

// markLost marks segments lost in recovery (tcp_update_scoreboard).
func (l *linux24) markLost(s *Sim, f *sender) {
	b := &f.board
	n := int32(1)
	if !l.reordered {
		n = max(n, l.span(b)-l.threshold)
	}
	l.markHead(b, n, f.recover)
	if !f.headTimedOut(s) {
		return
	}
	for seq := b.una; seq != b.next; seq++ {
		if e := b.at(seq); e.flags&retransInFlight == 0 && s.now-e.sent > f.retrans.rto {
			b.markLost(seq, e)
		}
	}
}

// forward retransmits in recovery what is not known to be lost, below the highest segment received,
// when there is nothing new to send (tcp_xmit_retransmit_queue).
func (l *linux24) forward(s *Sim, f *sender) {
	b := &f.board
	for seq := b.una; seq < b.top() && f.room() > 0; seq++ {
		if e := b.at(seq); e.flags&(sacked|lost|retransInFlight) == 0 {
			f.retransmit(s, seq, e)
		}
	}
}

// reduce removes a segment from the window with every other acknowledgement, down to half of the
// threshold, and what is not in flight (tcp_cwnd_down).
func (l *linux24) reduce(f *sender) {
	w := f.cc
	if l.odd && w.Cwnd > w.Ssthresh/2 {
		w.Cwnd--
	}
	l.odd = !l.odd
	w.Cwnd = min(w.Cwnd, float64(f.board.inFlight()+1))
}

// moderate bounds what the next acknowledgement may send at once (tcp_moderate_cwnd).
func (l *linux24) moderate(f *sender) {
	f.cc.Cwnd = min(f.cc.Cwnd, float64(f.board.inFlight()+maxBurst))
}

// spurious reports whether a reduction proves spurious (tcp_may_undo): the first transmissions have
// arrived.
func (l *linux24) spurious(u *undo, p *packet) bool {
	return u.marker != 0 && (u.retrans == 0 || u.delayed(p.at))
}

// undoDSACK undoes a reduction if all retransmissions were received twice (tcp_try_undo_dsack).
func (l *linux24) undoDSACK(f *sender) {
	if f.undo.duplicated() {
		l.revert(f, true)
		f.undo.marker = 0
	}
}

// revert undoes a reduction of the window and, if whole is set, of the slow-start threshold
// (tcp_undo_cwr).
func (l *linux24) revert(f *sender, whole bool) {
	threshold := 0.
	if whole {
		threshold = f.undo.ssthresh
	}
	f.cc.Undo(2*f.cc.Ssthresh, threshold)
	l.moderate(f)
	f.result.Undone++
}
