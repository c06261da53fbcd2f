// Package pathmanager is a user-space path manager for MPTCP servers (RFC 8684 section 3.4), based
// on the kernel's generic netlink API: it announces an EPE address to a client while its egress
// peer has a route to that client, withdraws it when the route is withdrawn, and closes stalled
// subflows.
//
// It configures no addresses, routes or rules, and does not select the subflow of a packet, which
// the scheduler does.
package pathmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// sampleBusy and sampleIdle are the intervals between samples of the subflows while a
	// connection with several of them has data in flight, and otherwise. Sampling uses at most
	// 1/sampleShare of one core, so the interval is longer with very many subflows.
	sampleBusy  = 40 * time.Millisecond
	sampleIdle  = 100 * time.Millisecond
	sampleShare = 5
	// sampleEach is the maximum number of subflows that are queried one by one, if they are more
	// than 1/sampleOf of all. With more it is cheaper to dump all sockets, which takes 1.3 ms plus
	// 2 us a subflow; a single query takes 6 us.
	sampleEach = 256
	sampleOf   = 3
	// resyncFirst and resyncMax are the minimum and maximum delay before a failed dump of the
	// connections is retried.
	resyncFirst = 100 * time.Millisecond
	resyncMax   = 5 * time.Second
	// resyncEvery is the interval of dumps of all connections even if no event was lost: the
	// kernel sends none for a connection that its client resets (MP_FASTCLOSE).
	resyncEvery = time.Minute
	// faultPause is the pause before all connections are dumped again after a panic.
	faultPause = time.Second
	// unjoinedEvery is the interval of counting the connections with unjoined addresses, which uses
	// at most 1/unjoinedShare of one core.
	unjoinedEvery = time.Second
	unjoinedShare = 200
	// eventsPause is the pause after events were read, in which further ones are collected: with
	// thousands of short connections each second, waking for each event costs more than all else.
	// The first event after a pause does not wait. Nothing is due so soon: new connections are
	// looked at after worthFirst, and no announcement is repeated before repeatAfter.
	eventsPause = 10 * time.Millisecond
	// rememberEvery is the interval of Options.Remember.
	rememberEvery = 10 * time.Second
)

// kernel is the part of the kernel's API that a Manager uses; *netlinkKernel implements it.
type kernel interface {
	Request(mptcp.Request) error
	Subflows(mptcp.Family, func(mptcp.Subflow)) error
	Query([]mptcp.Ends, func(mptcp.Subflow)) error
}

type netlinkKernel struct {
	*mptcp.Conn
	*mptcp.Diag
}

// eventSource delivers the kernel's events; *mptcp.Events implements it.
type eventSource interface {
	// Receive returns an error that matches os.ErrClosed after Close.
	Receive() ([]mptcp.Event, error)
	Close() error
}

// Peer is an egress peer: the EPE address that is announced for it, and whether its subflows are
// backups.
type Peer struct {
	Address netip.Addr
	Backup  bool
}

// Options configure a Manager.
type Options struct {
	Peers []Peer
	// Retired are EPE addresses of a previous configuration, on which no subflow is kept.
	Retired []netip.Addr
	// Restarted means that a previous instance was killed. Its announcements are kept until
	// RoutesComplete, and Restore selects the kernel's path manager, because the earlier setting is
	// unknown.
	Restarted bool
	// ShareDefault keeps the subflow on the default address in use; otherwise it becomes a
	// backup once the connection has a subflow to every egress peer.
	ShareDefault bool
	// Overflow makes one path of a connection carry data first; the others are backups until it is
	// saturated. All connections with several subflows are then sampled.
	Overflow bool
	// Rules assign other policies to connections; the first one that matches is used.
	Rules []Rule
	// Memory is what connections of a previous instance learned of paths; nil: nothing. The Manager
	// keeps it.
	Memory *selection.Memory
	// Remember, if set, is called with what connections learned of paths, within rememberEvery of a
	// change, and at the end of Run. It must not block, and owns the slice.
	Remember func([]selection.Entry)
	// Keep retains announcements when Run returns, and has Restore do nothing.
	Keep bool
	Log  *slog.Logger
}

// Manager is the path manager of one network namespace. SetRoutes, RoutesComplete and Status are
// safe for concurrent use.
type Manager struct {
	machine *machine
	stalls  *stallDetector
	kernel  kernel
	keep    bool
	log     *slog.Logger

	events    eventSource
	restarted bool
	previous  mptcp.Manager

	mu     sync.Mutex // guards inbox.calls, index and status
	inbox  inbox
	index  map[netip.Addr]int // of the peers, retired ones included
	status Status

	// reports is nil where the kernel cannot report silent subflows.
	reports     reportSource
	watch       Watch
	standstills standstills
	learned     learned

	schedule schedule
	// evidence shows why addresses are not joined.
	evidence evidence
	pause    time.Duration   // before the next dump, after one that failed
	logged   map[string]bool // refused requests that were logged, by kind
}

// inbox is what other goroutines have the loop call.
type inbox struct {
	calls  []func(now time.Time) error
	posted chan struct{}
}

// learned passes what connections learned of paths to Options.Remember.
type learned struct {
	pass    func([]selection.Entry) // nil: nobody
	version uint64                  // of the memory at the last call
}

// Status is the state of a Manager.
type Status struct {
	// Connections counts the clients' connections, and Subflows their subflows on any address.
	Connections int `json:"connections"`
	Subflows    int `json:"subflows"`
	// Parked counts connections that keep an unused subflow without a route until it can be closed
	// without reinjection.
	Parked int `json:"parked"`
	// Watched counts connections whose progress is sampled because a subflow may be stalled.
	Watched int `json:"watched"`
	// Remembered counts the pairs of an egress peer and a prefix of clients of which something was
	// learned, with Options.Overflow.
	Remembered int `json:"remembered"`

	Watch Watch `json:"watch"`
	// Off is what does not work because the kernel lacks signals for it, with the reasons.
	Off      []string `json:"off,omitempty"`
	Unjoined Unjoined `json:"unjoined,omitzero"`
	Waiting  Waiting  `json:"waiting,omitzero"`
	Counts
}

// Unjoined describes the connections whose client joined fewer addresses than were announced to it.
// That is normal for clients whose limit of accepted addresses is lower; Linux' own default is 0
// (ip-mptcp(8), add_addr_accepted).
type Unjoined struct {
	Connections int `json:"connections"`
	// Client is the client with the most unjoined addresses, followed by the numbers of
	// addresses that it joined and that were announced to it.
	Client    netip.Addr `json:"client,omitzero"`
	Joined    int        `json:"joined"`
	Announced int        `json:"announced"`
	// Reset: this host resets the client's subflows.
	Reset bool `json:"reset,omitempty"`
	// Meaning is a one-line explanation with the remedy.
	Meaning string `json:"meaning"`
}

// Counts are counters since the start.
type Counts struct {
	// Announced, Removed and Destroyed count ADD_ADDRs, REMOVE_ADDRs and closed subflows, Backup
	// changes of priority.
	Announced uint64 `json:"announced"`
	Removed   uint64 `json:"removed"`
	Destroyed uint64 `json:"destroyed"`
	Backup    uint64 `json:"backup"`
	// Stalls counts subflows that made no progress while others of the connection did.
	Stalls uint64 `json:"stalls"`
	// Broken counts paths to networks that carried handshakes and no data.
	Broken uint64 `json:"broken"`
	// Standstills counts connections whose client had acknowledged data on their subflows and
	// dropped it (NoDSSInWindow), of which a subflow was closed so that it is reinjected at once.
	Standstills uint64 `json:"standstills"`
	// Unknown counts requests that came too late: for connections, subflows or addresses that no
	// longer existed, and announcements of addresses that the client was joining already. Failed
	// counts requests that the kernel rejected for other reasons; they are retried.
	Unknown uint64 `json:"unknown"`
	Failed  uint64 `json:"failed"`
	// Overruns counts losses of kernel events, each followed by a dump of all connections.
	Overruns uint64 `json:"overruns"`
	// Reports counts the kernel's reports of silent subflows. ReportsLost counts those that did not
	// fit into its buffer; after each loss all connections are sampled for a while.
	Reports     uint64 `json:"reports"`
	ReportsLost uint64 `json:"reports_lost"`
}

// New opens the kernel's path manager API in the network namespace of the calling thread. It
// changes nothing. The caller calls Close.
func New(o Options) (*Manager, error) {
	conn, err := mptcp.Dial()
	if err != nil {
		return nil, err
	}
	diag, err := mptcp.DialDiag()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	m := newManager(o, netlinkKernel{conn, diag})
	if m.evidence, err = openEvidence(diag); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	signals, err := mptcp.ReadSignals()
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if !m.disableUnsupported(signals) {
		return m, nil
	}
	data, err := openData(diag)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.standstills.data, m.machine.source = data, m.source
	return m, nil
}

func newManager(o Options, k kernel) *Manager {
	machine := newMachine(o.Peers, o.Retired)
	machine.complete, machine.shareDefault, machine.overflow = !o.Restarted, o.ShareDefault, o.Overflow
	machine.memory = cmp.Or(o.Memory, machine.memory)
	machine.rules, machine.inCgroup = newRules(o.Rules), newCgroups().contains
	return &Manager{
		machine: machine, stalls: newStallDetector(), kernel: k, keep: o.Keep, log: o.Log, restarted: o.Restarted,
		watch: Watch{Method: WatchSamples, Reason: "not started"},
		inbox: inbox{posted: make(chan struct{}, 1)}, logged: map[string]bool{}, index: maps.Clone(machine.byAddress),
		learned: learned{pass: o.Remember, version: machine.memory.Version()},
	}
}

// disableUnsupported disables what needs more socket information than the kernel reports. It
// returns whether standstills can be detected.
func (m *Manager) disableUnsupported(s mptcp.Signals) (standstills bool) {
	if err := s.Choosing(); err != nil {
		m.machine.noChoice = err.Error()
		if m.machine.choiceConfigured() {
			m.log.Warn("paths are not chosen: all subflows carry data", "err", err)
		}
	}
	err := s.Standstills()
	if err != nil {
		m.standstills.off = err.Error()
		m.log.Warn("standstills of connections are not detected", "err", err)
	}
	return err == nil
}

// disabled returns why something is disabled, one reason each.
func (m *Manager) disabled() (reasons []string) {
	if why := m.machine.noChoice; why != "" && m.machine.choiceConfigured() {
		reasons = append(reasons, why)
	}
	if m.standstills.off != "" {
		reasons = append(reasons, m.standstills.off)
	}
	return reasons
}

// Close closes the sockets that New and Start opened. It must not be called while Run runs.
func (m *Manager) Close() error {
	var errs []error
	if m.events != nil {
		errs = append(errs, m.events.Close())
	}
	if m.reports != nil {
		errs = append(errs, m.reports.Close())
	}
	if m.evidence.counters != nil {
		errs = append(errs, m.evidence.counters.Close())
	}
	if k, ok := m.standstills.data.(*dataKernel); ok {
		errs = append(errs, k.counters.Close())
	}
	if k, ok := m.kernel.(netlinkKernel); ok {
		errs = append(errs, k.Conn.Close(), k.Diag.Close())
	}
	return errors.Join(errs...)
}

// Start selects the user-space path manager for new connections of the calling thread's network
// namespace, and subscribes to their events. Call Run after it.
func (m *Manager) Start() error {
	previous, err := mptcp.CurrentManager()
	if err != nil {
		return err
	}
	if m.restarted {
		previous = mptcp.KernelManager
	}
	events, err := mptcp.Subscribe()
	if err != nil {
		return err
	}
	if err := mptcp.SetManager(mptcp.UserManager); err != nil {
		return errors.Join(err, events.Close())
	}
	m.previous, m.events = previous, events
	m.startReports()
	return nil
}

// Run manages the connections until ctx ends. Then, unless Options.Keep, it withdraws all
// addresses. Call Restore after it.
func (m *Manager) Run(ctx context.Context) error {
	err := m.run(ctx, m.events)
	m.events, m.reports = nil, nil
	m.passMemory(time.Now())
	if !m.keep {
		m.withdrawAll()
	}
	return err
}

// Restore selects the path manager that was selected before Start again, unless Options.Keep. It is
// called in the same network namespace, once nothing selects the user-space one any more.
func (m *Manager) Restore() error {
	if m.keep {
		return nil
	}
	return mptcp.SetManager(m.previous)
}

// A Change is a change of the route of a peer, an index into Options.Peers or that of AddPeer.
type Change struct {
	Peer   int
	Prefix netip.Prefix
	Route  Route
}

// SetRoutes applies changes of routes. It keeps the slice.
func (m *Manager) SetRoutes(changes []Change) {
	m.post(func(now time.Time) error {
		for _, c := range changes {
			m.setRoute(now, c.Peer, c.Prefix, c.Route)
		}
		return nil
	})
}

// Fits reports whether peers with these addresses can be added: a connection has 255 address IDs,
// and those of removed peers remain in use.
func (m *Manager) Fits(addresses []netip.Addr) bool {
	const maxPeers = 255
	m.mu.Lock()
	defer m.mu.Unlock()
	count := len(m.index)
	for _, a := range addresses {
		if _, known := m.index[a]; !known {
			count++
		}
	}
	return count <= maxPeers
}

// AddPeer adds an egress peer that Fits, and returns its index.
func (m *Manager) AddPeer(p Peer) int {
	m.mu.Lock()
	i, known := m.index[p.Address]
	if !known {
		i = len(m.index)
		m.index[p.Address] = i
	}
	m.mu.Unlock()
	m.post(func(time.Time) error {
		m.machine.addPeer(p)
		return nil
	})
	return i
}

// RemovePeer withdraws the address of a peer from all connections, which closes its subflows.
// AddPeer with the same address adds it again, under the same index.
func (m *Manager) RemovePeer(peer int) {
	m.post(func(now time.Time) error {
		m.machine.removePeer(now, peer)
		return nil
	})
}

// SetUse changes Options.Overflow and Options.Rules. What was learned of paths is forgotten.
func (m *Manager) SetUse(overflows bool, rules []Rule) {
	m.post(func(now time.Time) error {
		m.machine.setUse(now, overflows, rules)
		return nil
	})
}

// RoutesComplete is called after a restart once all routes are known: addresses without one are
// withdrawn.
func (m *Manager) RoutesComplete() {
	m.post(func(now time.Time) error {
		m.machine.routesComplete(now)
		return nil
	})
}

// Status returns the state as of the last event.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// post queues a function for the loop, which calls them in order.
func (m *Manager) post(f func(now time.Time) error) {
	m.mu.Lock()
	m.inbox.calls = append(m.inbox.calls, f)
	m.mu.Unlock()
	select {
	case m.inbox.posted <- struct{}{}:
	default:
	}
}

// run manages connections until ctx ends, and closes events. Announcements remain.
func (m *Manager) run(ctx context.Context, events eventSource) (err error) {
	var receiving sync.WaitGroup
	receiving.Go(func() { m.receive(events) })
	reports := m.reports
	if reports != nil {
		receiving.Go(func() { m.receiveReports(reports) })
	}
	defer func() {
		err = errors.Join(err, events.Close())
		if reports != nil {
			err = errors.Join(err, reports.Close())
		}
		receiving.Wait()
	}()
	m.schedule.set(resyncDue, time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.inbox.posted:
		case <-timer.C:
		}
		var err error
		fault := contain.Do(contain.PathManager, m.log, nil, func() { err = m.step() })
		switch {
		case err != nil:
			return err
		case fault != nil:
			m.schedule.set(resyncDue, time.Now().Add(faultPause))
			timer.Reset(faultPause)
			continue
		}
		timer.Stop()
		if at := m.next(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
	}
}

// withdrawAll withdraws all addresses; the connections continue on their initial subflows.
func (m *Manager) withdrawAll() {
	m.machine.withdrawAll(time.Now())
	m.execute()
}

// receive reads events in its own goroutine, so that a long step does not overflow the receive
// buffer.
func (m *Manager) receive(events eventSource) {
	for {
		var list []mptcp.Event
		var err error
		if fault := contain.Do(contain.PathManager, m.log, nil, func() { list, err = events.Receive() }); fault != nil {
			list = []mptcp.Event{mptcp.Overrun{Reason: fault}}
		}
		if errors.Is(err, os.ErrClosed) {
			return
		}
		m.post(func(now time.Time) error {
			for _, e := range list {
				m.event(now, e)
			}
			return err
		})
		if err != nil {
			return
		}
		time.Sleep(eventsPause)
	}
}

func (m *Manager) event(now time.Time, e mptcp.Event) {
	contain.Point(contain.PathManager, nil)
	o, lost := e.(mptcp.Overrun)
	if !lost {
		m.machine.event(now, e)
		return
	}
	m.machine.counts.Overruns++
	m.log.Warn("lost mptcp events, dumping all connections", "err", o.Reason)
	m.schedule.set(resyncDue, now)
}

// step handles all due dumps, samples and timers.
func (m *Manager) step() error {
	m.mu.Lock()
	inbox := m.inbox.calls
	m.inbox.calls = nil
	m.mu.Unlock()
	for _, f := range inbox {
		var err error
		if contain.Do(contain.PathManager, m.log, nil, func() { err = f(time.Now()) }) != nil {
			m.schedule.set(resyncDue, time.Now().Add(faultPause))
		}
		if err != nil {
			return fmt.Errorf("manage paths: %w", err)
		}
	}
	now := time.Now()
	if needed := m.schedule.due(resyncDue, now); needed || m.schedule.due(dumpDue, now) {
		m.execute() // execute first, so that the dump includes the effect of the requests
		m.resync(now, needed)
	}
	m.machine.runTimers(now)
	m.execute()
	if m.machine.sampleSoon {
		m.machine.sampleSoon = false
		m.schedule.advance(sampleDue, now)
		m.schedule.postpone(sampleDue, sampleAllowed)
	}
	if m.schedule.due(standstillDue, now) {
		m.suspectStandstills(now)
	}
	if m.schedule.due(sampleDue, now) {
		m.sample()
		m.execute()
	}
	if m.schedule.due(weighDue, now) {
		m.weigh()
		m.execute()
	}
	m.logBroken()
	m.reschedule(now)
	m.updateStatus(now)
	return nil
}

// reschedule sets the deadlines that depend on the connections after a step.
func (m *Manager) reschedule(now time.Time) {
	if len(m.machine.conns) == 0 {
		m.schedule.cancel(sampleDue, dumpDue, standstillDue)
	} else {
		m.schedule.ensure(dumpDue, now.Add(resyncEvery))
		if m.standstills.data != nil {
			m.schedule.ensure(standstillDue, now.Add(standstillEvery))
		}
	}
	if len(m.machine.young) == 0 {
		m.schedule.cancel(weighDue)
	} else {
		m.schedule.ensure(weighDue, now.Add(worthFirst))
	}
	switch all := m.samplesAll(now); {
	case !all && len(m.machine.watched) == 0:
		m.schedule.cancel(sampleDue)
	case len(m.machine.conns) == 0:
	case all:
		m.schedule.ensure(sampleDue, now.Add(sampleIdle))
	default:
		m.schedule.ensure(sampleDue, now.Add(sampleBusy))
	}
	if m.schedule.due(rememberDue, now) {
		m.passMemory(now)
	} else if m.machine.memory.Version() != m.learned.version {
		m.schedule.ensure(rememberDue, now.Add(rememberEvery))
	}
}

// passMemory calls Options.Remember if there is something new.
func (m *Manager) passMemory(now time.Time) {
	m.schedule.cancel(rememberDue)
	if v := m.machine.memory.Version(); m.learned.pass != nil && v != m.learned.version {
		m.learned.pass(m.machine.memory.Entries(now))
		m.learned.version = v
	}
}

func (m *Manager) updateStatus(now time.Time) {
	unjoined, waiting := m.status.Unjoined, m.status.Waiting // written by this goroutine alone
	if !m.schedule.pending(countDue, now) || len(m.machine.conns) == 0 {
		unjoined, waiting = m.machine.unjoined(now, m.evidence.answer()), m.machine.waiting()
		m.evidence.explain(&unjoined)
		m.schedule.set(countDue, now.Add(max(unjoinedEvery, unjoinedShare*time.Since(now))))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status = Status{
		Connections: len(m.machine.conns), Subflows: m.machine.subflows, Parked: len(m.machine.parked),
		Watched: len(m.machine.watched), Watch: m.watch, Off: m.disabled(), Unjoined: unjoined, Waiting: waiting,
		Remembered: m.machine.memory.Len(), Counts: m.machine.counts,
	}
}

// next returns the time of the next step, zero if none is scheduled.
func (m *Manager) next() time.Time {
	timer, _ := m.machine.nextTimer()
	return m.schedule.next(timer)
}

// execute sends the pending requests to the kernel. If the kernel rejects a request for a reason
// such as lack of memory, all connections are dumped and reconciled again.
func (m *Manager) execute() {
	for {
		requests := m.machine.takeRequests()
		if len(requests) == 0 {
			return
		}
		for _, r := range requests {
			err := m.kernel.Request(r)
			now, failed := time.Now(), m.machine.counts.Failed
			m.machine.done(now, r, err)
			if m.machine.counts.Failed == failed {
				continue
			}
			if kind := fmt.Sprintf("%T", r); !m.logged[kind] {
				m.logged[kind] = true
				m.log.Error("kernel refused a request, retrying; further ones of this kind are only counted", "err", err)
			}
			m.schedule.ensure(resyncDue, now.Add(retryAfter))
		}
	}
}

// resync dumps all connections; lost means that events may have been lost.
func (m *Manager) resync(now time.Time, lost bool) {
	m.machine.beginDump(lost)
	for _, family := range families {
		if err := m.kernel.Subflows(family, m.machine.addDumped); err != nil {
			if m.pause == 0 {
				m.log.Error("dump connections failed, retrying", "err", err)
			}
			m.pause = min(max(2*m.pause, resyncFirst), resyncMax)
			m.schedule.set(resyncDue, now.Add(m.pause))
			m.schedule.cancel(dumpDue)
			return
		}
	}
	m.pause = 0
	m.schedule.cancel(resyncDue, dumpDue)
	m.machine.endDump(now)
}

// families are those of subflows: those of a dual-stack listener are IPv6 sockets, with IPv4-mapped
// addresses for IPv4 clients, and those of an IPv4 listener are IPv4 sockets.
var families = []mptcp.Family{mptcp.IPv6, mptcp.IPv4}

// sample reads the progress of the subflows that are watched.
func (m *Manager) sample() {
	start := time.Now()
	m.stalls.begin()
	sample := func(s mptcp.Subflow) {
		m.stalls.sample(start, s)
		m.machine.sample(start, s)
	}
	at := m.machine.watchedSubflows()
	if m.samplesAll(start) {
		at = m.machine.multipath()
	}
	err := m.read(at, sample)
	every := sampleIdle
	m.logSampling(err)
	if err == nil {
		stalls := m.stalls.end(start)
		for _, s := range stalls {
			for _, ends := range s.recovered {
				m.machine.recovered(start, s.token, ends)
			}
			if len(s.stalled) > 0 {
				m.machine.stalled(start, s.token, s.stalled, s.idle)
			}
		}
		m.endStandstills(start)
		m.machine.decideAll(start)
		m.machine.closeParked(start)
		m.machine.unwatch(start, func(token uint32) bool { return m.stalls.silent(start, token) })
		m.logStalls(stalls)
		if m.stalls.inFlight && m.stalls.multiple || len(m.standstills.suspects) > 0 {
			every = sampleBusy
		}
	}
	m.schedule.set(sampleDue, start.Add(every))
	if deadline := m.stalls.deadline; !deadline.IsZero() {
		m.schedule.advance(sampleDue, deadline)
	}
	m.schedule.set(sampleAllowed, start.Add(sampleShare*time.Since(start)))
	m.schedule.postpone(sampleDue, sampleAllowed)
}

// read reads subflows, and possibly others.
func (m *Manager) read(at []mptcp.Ends, each func(mptcp.Subflow)) (err error) {
	if len(at) <= max(sampleEach, m.machine.subflows/sampleOf) {
		return m.kernel.Query(at, each)
	}
	for _, family := range families {
		err = errors.Join(err, m.kernel.Subflows(family, each))
	}
	return err
}

// source implements machine.source.
func (m *Manager) source(token uint32) (selection.Source, bool) {
	c, ok, err := m.standstills.data.Connection(token)
	m.logSampling(err)
	return selection.Source{Written: c.Written, Full: c.Full}, ok && c.Counted
}

// logBroken logs the paths that turned out to carry no data.
func (m *Manager) logBroken() {
	for _, b := range m.machine.broken {
		m.log.Warn("path carries handshakes but no data; its address is not announced to the network for an hour",
			"address", b.Peer, "network", b.Client, "cause", b.how, "do", "look for an MTU that is too large, or a middlebox, behind that peer")
	}
	m.machine.broken = nil
}

// logStalls logs one line with one connection as an example.
func (m *Manager) logStalls(stalls []stall) {
	count := 0
	var example stall
	for _, s := range stalls {
		if len(s.stalled) > 0 {
			count++
			example = s
		}
	}
	if count > 0 {
		m.log.Warn("subflows stalled", "connections", count,
			"token", fmt.Sprintf("%08x", example.token), "local", example.stalled[0].Local, "remote", example.stalled[0].Remote,
			"silence", example.silence, "in_flight", example.inFlight)
	}
}
