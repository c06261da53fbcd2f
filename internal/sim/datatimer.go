package sim

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/sched"
)

// dataTimer is the retransmission timer of a connection, above those of its subflows
// (__mptcp_retrans, mptcp_subflow_get_retrans): while data is not acknowledged, a fragment of the
// lowest is reinjected over a subflow that has nothing to send.
type dataTimer struct {
	acked    uint64        // the data acknowledgement when the timer was set
	deadline time.Duration // 0 while it does not run
}

// dataTimerLeast is its interval without a timer of a subflow (TCP_RTO_MIN).
const dataTimerLeast = 200 * time.Millisecond

// watchData sets the timer if new data was acknowledged or it does not run, and stops it when all
// is. The connection has send buffers and other subflows.
func (c *connection) watchData(s *Sim) {
	t := &c.timerOfData
	switch {
	case c.acked >= c.next:
		t.deadline = 0
	case t.deadline == 0 || c.acked != t.acked:
		c.setDataTimer(s)
	}
}

// setDataTimer sets the timer to the longest pending timeout of a subflow (mptcp_set_timeout).
func (c *connection) setDataTimer(s *Sim) {
	longest := time.Duration(0)
	for i := range c.flows {
		if f := &s.senders[int(c.first)+i]; f.state != caClosed {
			longest = max(longest, earlier(f.retrans.deadline, earlier(f.rack.deadline, f.tlp.deadline)))
		}
	}
	if longest <= s.now {
		longest = s.now + dataTimerLeast
	}
	c.timerOfData = dataTimer{c.acked, longest}
	c.wake(s, longest)
}

// retransmitData handles the expiry of the timer.
func (c *connection) retransmitData(s *Sim) {
	if f := c.nothingToSend(s); f != nil {
		// A segment that the end of a fragment is in belongs to the next one here, and is never split.
		for at, end := c.acked, min(((c.acked+uint64(c.Segment))/sched.Piece+1)*sched.Piece, c.next); at < end; {
			n := int(min(uint64(c.Segment), end-at))
			f.take(s, at, n, false)
			f.result.Reinjected++
			c.result.Reinjected++
			at += uint64(n)
		}
	}
	c.setDataTimer(s)
}

// nothingToSend returns the first usable subflow without unacknowledged or unsent data that is no
// backup, nil if there is none.
func (c *connection) nothingToSend(s *Sim) *sender {
	for i := range c.inOrder() {
		f := &s.senders[int(c.first)+i]
		if f.state != caClosed && f.board.una == f.board.next && f.backlog.bytes == 0 && f.path.Usable && !f.path.Backup {
			return f
		}
	}
	return nil
}
