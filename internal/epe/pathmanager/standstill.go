package pathmanager

import (
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// A receiver acknowledges data on a subflow and then drops it, when it is beyond the window of the
// connection (NoDSSInWindow in its counters). No subflow retransmits it; the kernel's timer of the
// connection reinjects one fragment of up to 32 KiB, waits for the acknowledgment, and then for 200
// ms more. So a connection that lost megabytes like this stands still for seconds, while closing
// one of its subflows makes the kernel reinject everything at once.

const (
	// standstillEvery is the interval at which the kernel's counter of such reinjections is read.
	// Only when it has grown, connections are examined.
	standstillEvery = 100 * time.Millisecond
	// standstillShare bounds that to 1/50 of one core, if there are very many connections.
	standstillShare = 50
	// timerLeast is the kernel's wait without progress before it reinjects (TCP_RTO_MIN).
	timerLeast = 200 * time.Millisecond
	// standstillAfter is the least time without other progress that is a standstill.
	standstillAfter = 300 * time.Millisecond
	// standstillLeast is the least number of bytes that subflows have delivered, and the connection
	// has not, for which closing a subflow is worth it: more than two fragments.
	standstillLeast = 64 << 10
	// standstillArrival is the longest wait for what subflows had queued at the last progress: while
	// the client lacks that, the connection may wait for a slow path.
	standstillArrival = time.Second
	// standstillWatch is how long a connection is examined after its last reinjection.
	standstillWatch = 2 * time.Second
)

// dataSource reads the state of connections, which is above that of their subflows; *dataKernel
// implements it.
type dataSource interface {
	// Reinjections returns how many fragments were reinjected by the timers of all connections.
	Reinjections() (uint64, error)
	Connections(mptcp.Family, func(mptcp.Connection)) error
	Connection(token uint32) (c mptcp.Connection, ok bool, err error)
}

// dataKernel is the dataSource of a network namespace.
type dataKernel struct {
	*mptcp.Diag
	counters *mptcp.CounterReader
}

// Reinjections implements dataSource.
func (k *dataKernel) Reinjections() (uint64, error) {
	c, err := k.counters.Read()
	return c.Reinjected, err
}

// standstills finds connections that stand still.
type standstills struct {
	data dataSource // nil where the kernel does not count the bytes of connections
	off  string     // why standstills cannot be detected, "" if they can
	// reinjections is the last value of the kernel's counter.
	reinjections uint64
	// reinjected are the bytes that each connection had reinjected at the last dump.
	reinjected map[uint32]uint64
	suspects   map[uint32]*suspect
}

// suspect is the state of a connection that reinjects.
type suspect struct {
	// since is the time of the last progress other than by reinjection, acked and reinjected are
	// the counters of that time.
	since             time.Time
	acked, reinjected uint64
	last              mptcp.Connection
	reinjections      int // since then
	reinjectedAt      time.Time
	// awaited is what each subflow will have acknowledged when all that it had queued then has
	// arrived, by its number; nil: to be read from the next samples.
	awaited map[uint64]uint64
}

// addDump applies a dump of all connections, and returns those that began to reinject since the
// last one. ok reports whether a subflow of a connection could be closed.
func (d *standstills) addDump(now time.Time, all []mptcp.Connection, ok func(token uint32) bool) (began []uint32) {
	before := d.reinjected
	d.reinjected = make(map[uint32]uint64, len(all))
	if d.suspects == nil {
		d.suspects = map[uint32]*suspect{}
	}
	for _, c := range all {
		d.reinjected[c.Token] = c.Reinjected
		if !c.Counted || c.Outstanding == 0 || c.Reinjected <= before[c.Token] || d.suspects[c.Token] != nil || !ok(c.Token) {
			continue
		}
		d.suspects[c.Token] = &suspect{
			since: now.Add(-timerLeast), acked: c.Acked, reinjected: before[c.Token], last: c, reinjections: 1, reinjectedAt: now,
		}
		began = append(began, c.Token)
	}
	return began
}

// update applies the state of a suspect, which was read after its subflows were sampled. It reports
// whether the connection stands still: in 300 ms it progressed by no more than what was reinjected,
// at least twice if subflows have other data queued, and the subflows have delivered much more, and
// all that they had queued before. A client that does not read has no progress by reinjection.
func (d *standstills) update(now time.Time, c mptcp.Connection, subflows []*subflow) bool {
	s := d.suspects[c.Token]
	queued := uint64(0)
	for _, f := range subflows {
		queued += uint64(f.queued)
	}
	last := s.last
	s.last = c
	again := c.Reinjected > last.Reinjected
	if again {
		s.reinjections++
		s.reinjectedAt = now
	}
	acked, reinjected := c.Acked-s.acked, c.Reinjected-s.reinjected
	if c.Outstanding == 0 || acked > reinjected {
		s.since, s.acked, s.reinjected, s.reinjections = now, c.Acked, c.Reinjected, 0
		s.await(subflows)
		if c.Outstanding == 0 || now.Sub(s.reinjectedAt) >= standstillWatch {
			delete(d.suspects, c.Token)
		}
		return false
	}
	if s.awaited == nil {
		s.await(subflows)
	}
	need := 2
	if queued <= reinjected {
		need = 1
	}
	// What was sent since the last update is in neither.
	delivered := int64(min(last.Outstanding, c.Outstanding)) - int64(queued)
	stands := now.Sub(s.since) >= standstillAfter && s.reinjections >= need && !again && acked > 0 && 2*acked >= reinjected && delivered >= standstillLeast &&
		(s.arrived(subflows) || now.Sub(s.since) >= standstillArrival)
	if stands || now.Sub(s.reinjectedAt) >= standstillWatch {
		delete(d.suspects, c.Token)
	}
	return stands
}

// await notes what the subflows have queued.
func (s *suspect) await(subflows []*subflow) {
	s.awaited = make(map[uint64]uint64, len(subflows))
	for _, f := range subflows {
		s.awaited[f.number] = f.last.Acked + uint64(f.queued)
	}
}

// arrived reports whether what was awaited of the subflows has been acknowledged.
func (s *suspect) arrived(subflows []*subflow) bool {
	return !slices.ContainsFunc(subflows, func(f *subflow) bool { return f.last.Acked < s.awaited[f.number] })
}

// openData opens what standstills are found by, in the network namespace of the calling thread.
func openData(diag *mptcp.Diag) (*dataKernel, error) {
	counters, err := mptcp.OpenCounters()
	if err != nil {
		return nil, err
	}
	return &dataKernel{diag, counters}, nil
}

// suspectStandstills finds connections that began to reinject.
func (m *Manager) suspectStandstills(now time.Time) {
	start := time.Now()
	defer func() {
		m.schedule.set(standstillDue, now.Add(max(standstillEvery, standstillShare*time.Since(start))))
	}()
	n, err := m.standstills.data.Reinjections()
	if err == nil && n == m.standstills.reinjections {
		return
	}
	m.standstills.reinjections = n
	var all []mptcp.Connection
	for _, family := range families {
		if err == nil {
			err = m.standstills.data.Connections(family, func(c mptcp.Connection) { all = append(all, c) })
		}
	}
	if err != nil {
		m.logSampling(err)
		return
	}
	for _, token := range m.standstills.addDump(now, all, m.machine.mayStandStill) {
		c := m.machine.conns[token]
		c.watchUntil = now.Add(standstillWatch)
		m.machine.watched[c] = true
		m.schedule.advance(sampleDue, now)
	}
}

// endStandstills closes a subflow of each connection that stands still, after its subflows were
// sampled at that time.
func (m *Manager) endStandstills(at time.Time) {
	for token := range m.standstills.suspects {
		c := m.machine.conns[token]
		if c == nil {
			delete(m.standstills.suspects, token)
			continue
		}
		sampled := !slices.ContainsFunc(c.subflows, func(s *subflow) bool { return !s.sampled.Equal(at) })
		now, ok, err := m.standstills.data.Connection(token)
		if err != nil || !ok {
			m.logSampling(err)
			delete(m.standstills.suspects, token)
			continue
		}
		c.watchUntil = at.Add(standstillWatch)
		if sampled && m.standstills.update(at, now, c.subflows) {
			if closed := m.machine.closeStandstill(at, token); closed != nil {
				m.log.Warn("connection stood still: the client acknowledged data on its subflows and dropped it (NoDSSInWindow); closed a subflow to have it reinjected",
					"token", fmt.Sprintf("%08x", token), "client", c.client, "bytes", now.Outstanding, "local", closed.local)
			}
		}
	}
}

// mayStandStill reports whether a connection has a subflow that could be closed.
func (m *machine) mayStandStill(token uint32) bool {
	c := m.conns[token]
	return c != nil && c.closable() != nil
}

// closable returns the subflow that is closed to end a standstill, nil if there is none: the one
// that has most queued, or a backup.
func (c *connection) closable() (found *subflow) {
	for _, s := range c.subflows {
		if s.closing || s.initial || s.peer < 0 || len(c.subflows) < 2 {
			continue
		}
		if found == nil || s.queued > found.queued || s.queued == found.queued && s.backup && !found.backup {
			found = s
		}
	}
	return found
}

// closeStandstill closes a subflow of a connection that stands still, and returns it. Its address
// is held down as after a stall, because the connection may be one whose paths overrun its window
// again.
func (m *machine) closeStandstill(now time.Time, token uint32) *subflow {
	m.now = now
	c := m.conns[token]
	if c == nil {
		return nil
	}
	s := c.closable()
	if s == nil {
		return nil
	}
	m.counts.Standstills++
	if now.Sub(s.since) > holdDownReset {
		c.announcements[s.peer].stalls = 0
	}
	c.holdDown(s.peer)
	return s
}
