package pathmanager

import (
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// Addresses are announced only to connections that are worth it: a short one ends before a client's
// SYN for a further subflow has been answered, and would only have its SYNs, and the reset of each,
// compete with its data. A connection is worth it once it has more to send than the scheduler gives
// to one subflow at a time, or is so old that it may need another path when this one fails.
// Connections that are found in a dump, after a restart, are worth it.

const (
	// worthBytes is what a connection has been given to send. Less is all on the initial subflow,
	// because the scheduler gives 64 KiB to a subflow at once (MPTCP_SEND_BURST_SIZE).
	worthBytes = 64 << 10
	// worthAge is the age of a connection with less. It is many times what a small object takes,
	// and short beside the time for which a connection is kept for further ones.
	worthAge = time.Second
	// worthFirst is the age at which it is first looked at. It doubles each time.
	worthFirst = sampleBusy
)

// awaitWorth has a new connection be looked at until it is worth announcements.
func (c *connection) awaitWorth() {
	m := c.machine
	m.young[c] = m.now.Add(worthFirst)
	m.schedule(c, -1, c.since.Add(worthAge))
}

// announces reports whether addresses are announced to the connection.
func (c *connection) announces() bool {
	if c.machine.now.Sub(c.since) >= worthAge {
		delete(c.machine.young, c)
	}
	_, young := c.machine.young[c]
	return !young
}

// lookAt returns the subflows of the connections that are to be looked at, and schedules when they
// are looked at next.
func (m *machine) lookAt(now time.Time) (at []mptcp.Ends) {
	for c, due := range m.young {
		if !now.Before(due) {
			m.young[c] = now.Add(now.Sub(c.since))
			at = c.ends(at)
		}
	}
	return at
}

// weigh has addresses be announced to a connection if a subflow shows that it is worth it.
func (m *machine) weigh(now time.Time, s mptcp.Subflow) {
	c := m.conns[s.Token]
	if _, young := m.young[c]; !young || s.Acked+uint64(s.Queued) < worthBytes {
		return
	}
	m.now = now
	delete(m.young, c)
	c.reconcileAll()
}

// weigh looks at the connections that are not worth announcements yet. It uses at most
// 1/sampleShare of one core.
func (m *Manager) weigh() {
	start := time.Now()
	m.logSampling(m.read(m.machine.lookAt(start), func(s mptcp.Subflow) { m.machine.weigh(start, s) }))
	m.schedule.set(weighDue, start.Add(max(sampleBusy, sampleShare*time.Since(start))))
}
