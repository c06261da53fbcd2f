package pathmanager

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/epe/silence"
	"github.com/tabane/tabane/internal/mptcp"
)

// Only the subflows of watched connections are sampled: of those with a subflow that the kernel
// reports as silent, and of those in a transition that depends on what is queued. All others cost
// nothing. Where the kernel cannot report, all connections with several subflows are sampled.

const (
	// watchFor is the shortest time for which a connection is watched after a report: enough for
	// two samples of its other subflows.
	watchFor = 3 * sampleBusy
	// watchMore is how much longer than its timeout a silent subflow is watched. If no other
	// progresses by then, the client is probably gone; the kernel reports the subflow again with
	// each of its retransmissions, and when another one sends.
	watchMore = time.Second
	// sampleAllFor is how long all connections are sampled after reports were lost: longer than any
	// usual timeout.
	sampleAllFor = 2 * selection.StallMinShort
	// maxCompanions is the maximum number of a client's connections that are watched with a
	// reported one, because their progress shows that a path works.
	maxCompanions = 8
	// queryBatch is the number of connections whose queues are read at a time before a withdrawal.
	queryBatch = 64
)

// The methods of Watch.
const (
	WatchReports = "reports" // the kernel reports silent subflows
	WatchSamples = "samples" // all connections with several subflows are sampled
)

// Watch is how stalled subflows are detected.
type Watch struct {
	// Method is WatchReports or WatchSamples, Reason why it is not WatchReports.
	Method string `json:"method"`
	Reason string `json:"reason,omitempty"`
}

// reportSource delivers the kernel's reports; *silence.Watcher implements it.
type reportSource interface {
	// Receive returns an error that matches os.ErrClosed after Close.
	Receive() (reports []silence.Report, lost uint64, err error)
	Close() error
}

// NewReports starts reporting stalled subflows in the network namespace of the calling thread. It
// returns a *feature.Error when this host cannot do that. A Manager does the same in Start.
func NewReports() (*silence.Watcher, error) {
	return silence.New(silence.Options{Least: selection.StallMin, LeastShort: selection.StallMinShort, ShortFlight: selection.ShortFlight})
}

// startReports selects the method of detection.
func (m *Manager) startReports() {
	reports, err := NewReports()
	if err != nil {
		m.watch = Watch{Method: WatchSamples, Reason: err.Error()}
		m.log.Warn("stalled subflows are detected by sampling all connections, which costs more CPU time", "err", err)
		return
	}
	m.reports, m.watch = reports, Watch{Method: WatchReports}
}

// receiveReports reads reports in its own goroutine until the source is closed or fails.
func (m *Manager) receiveReports(source reportSource) {
	for {
		reports, lost, err := source.Receive()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		m.post(func(now time.Time) error {
			if err != nil {
				m.watch.Method, m.watch.Reason = WatchSamples, err.Error()
				m.log.Error("kernel's reports of stalled subflows failed, sampling all connections", "err", err)
				return nil
			}
			m.reported(now, reports, lost)
			return nil
		})
		if err != nil {
			return
		}
	}
}

// reported watches the connections of reported subflows.
func (m *Manager) reported(now time.Time, reports []silence.Report, lost uint64) {
	m.machine.counts.Reports += uint64(len(reports))
	if lost > 0 {
		m.machine.counts.ReportsLost += lost
		m.schedule.set(sampleAllUntil, now.Add(sampleAllFor))
		m.log.Warn("lost reports of stalled subflows, sampling all connections", "reports", lost)
	}
	for _, r := range reports {
		ends := mptcp.Ends{Local: r.Local, Remote: r.Remote}
		if m.machine.suspect(now, r.Token, ends) {
			m.stalls.report(now, subflowKey{r.Token, ends}, r.Silence)
			m.schedule.advance(sampleDue, now)
		}
	}
}

// samplesAll reports whether all connections with several subflows are sampled.
func (m *Manager) samplesAll(now time.Time) bool {
	return m.machine.choosesAny() || m.watch.Method == WatchSamples || m.schedule.pending(sampleAllUntil, now)
}

// setRoute applies a change of a peer's route. How the subflows of a withdrawn route are treated
// depends on what is queued on them, which is read first where it is not sampled anyway.
func (m *Manager) setRoute(now time.Time, peer int, prefix netip.Prefix, r Route) {
	affected := m.machine.changeRoute(now, peer, prefix, r)
	if r.State != RouteAbsent || m.samplesAll(now) {
		m.machine.routeChanged(now, peer, affected)
		return
	}
	for batch := range slices.Chunk(affected, queryBatch) {
		var at []mptcp.Ends
		for _, c := range batch {
			at = c.queueEnds(at, peer)
		}
		m.logSampling(m.kernel.Query(at, func(s mptcp.Subflow) { m.machine.sample(now, s) }))
		m.machine.routeChanged(now, peer, batch)
		m.execute()
	}
}

// logSampling logs the first error of reading subflows.
func (m *Manager) logSampling(err error) {
	if err != nil && !m.logged["sample"] {
		m.logged["sample"] = true
		m.log.Error("read progress of subflows failed", "err", err)
	}
}

// suspect watches a connection for which a subflow is reported, and other connections of its
// client. It returns false if the subflow is unknown or the only one.
func (m *machine) suspect(now time.Time, token uint32, ends mptcp.Ends) bool {
	c := m.conns[token]
	if c == nil || len(c.subflows) < 2 || c.find(ends.Local, ends.Remote) == nil {
		return false
	}
	c.watchUntil = now.Add(watchFor)
	m.watched[c] = true
	return true
}

// watchedSubflows returns the subflows of the watched connections and of their companions.
func (m *machine) watchedSubflows() []mptcp.Ends {
	all := map[*connection]bool{}
	for c := range m.watched {
		all[c] = true
		companions, _ := m.clients.Get(hostPrefix(c.client))
		n := 0
		for other := range companions {
			if n++; n > maxCompanions {
				break
			}
			all[other] = true
		}
	}
	var ends []mptcp.Ends
	for c := range all {
		ends = c.ends(ends)
	}
	return ends
}

// multipath returns the subflows of connections that have more than one, or whose rule depends on a
// sample.
func (m *machine) multipath() []mptcp.Ends {
	var all []mptcp.Ends
	needs := m.needsSockets()
	for _, c := range m.conns {
		if len(c.subflows) > 1 || needs && !c.socket.known {
			all = c.ends(all)
		}
	}
	return all
}

// ends appends the subflows of the connection.
func (c *connection) ends(to []mptcp.Ends) []mptcp.Ends {
	for _, s := range c.subflows {
		to = append(to, mptcp.Ends{Local: s.local, Remote: s.remote})
	}
	return to
}

// queueEnds appends the subflows whose queue decides how the subflow of a peer without a route is
// treated (see routeLost and standby).
func (c *connection) queueEnds(to []mptcp.Ends, peer int) []mptcp.Ends {
	if here, elsewhere := c.subflowsOn(peer); len(here) == 0 || !elsewhere {
		return to
	}
	for _, s := range c.subflows {
		if s.peer < 0 || s.peer == peer && s.backup {
			to = append(to, mptcp.Ends{Local: s.local, Remote: s.remote})
		}
	}
	return to
}

// unwatch removes connections that need no more samples. silent reports whether a subflow of the
// connection with that token is still silent since it was reported.
func (m *machine) unwatch(now time.Time, silent func(token uint32) bool) {
	inTransition := func(s *subflow) bool { return s.stalled || s.parked || !s.standbyUntil.IsZero() }
	for c := range m.watched {
		if !now.Before(c.watchUntil) && !silent(c.token) && !slices.ContainsFunc(c.subflows, inTransition) {
			delete(m.watched, c)
		}
	}
}
