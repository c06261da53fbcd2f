package pathmanager

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/mptcp"
)

var (
	start       = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	defaultAt   = netip.MustParseAddrPort("[2001:db8:1::10]:80")
	clientAt    = netip.MustParseAddrPort("[2001:db8:c::10]:40000")
	elsewhereAt = netip.MustParseAddrPort("[2001:db8:d::10]:40000")
	onA, onB    = netip.MustParseAddrPort("[2001:db8:1::a]:80"), netip.MustParseAddrPort("[2001:db8:1::b]:80")
)

// errNoMemory is a refusal that says nothing of what is there.
var errNoMemory = errors.New("no memory")

// fakeKernel is the kernels of the server and of all clients. Clients use every address that
// is advertised to them.
type fakeKernel struct {
	there  map[uint32]*fakeConn
	events []mptcp.Event
	port   uint16
	// refuse, when set, may refuse a request.
	refuse func(mptcp.Request) error
	// deaf clients do not receive that an address is withdrawn or a subflow closed.
	deaf bool
	// lose and loseRemovals are how many announcements and removals more do not reach their client.
	lose, loseRemovals int
	log                []string
	// limit is the most subflows that a client joins, beside the first; 0 means any number.
	limit int
	// allBackups counts the requests that left no subflow of a connection to carry data.
	allBackups int
}

type fakeConn struct {
	announced map[uint8]netip.Addr
	subflows  []*mptcp.Subflow
	// known are the subflows that the client believes in.
	known map[mptcp.Ends]uint8
	// missed are the address IDs whose removal the client did not receive, nor the end of the
	// subflows to them, which used the same path.
	missed map[uint8]bool
}

func newFakeKernel() *fakeKernel { return &fakeKernel{there: map[uint32]*fakeConn{}, port: 50000} }

func (k *fakeKernel) connect(token uint32, local, remote netip.AddrPort) {
	s := &mptcp.Subflow{Token: token, Local: local, Remote: remote}
	k.there[token] = &fakeConn{announced: map[uint8]netip.Addr{}, missed: map[uint8]bool{}, subflows: []*mptcp.Subflow{s}, known: map[mptcp.Ends]uint8{{Local: local, Remote: remote}: 0}}
	k.events = append(k.events, mptcp.Created{Token: token, Local: local, Remote: remote, ServerSide: true},
		mptcp.Established{Token: token, Local: local, Remote: remote, ServerSide: true})
}

func (k *fakeKernel) disconnect(token uint32) {
	c := k.there[token]
	for _, s := range c.subflows {
		k.closed(s)
	}
	delete(k.there, token)
	k.events = append(k.events, mptcp.Closed{Token: token})
}

func (k *fakeKernel) closed(s *mptcp.Subflow) {
	k.events = append(k.events, mptcp.SubClosed{Token: s.Token, Local: s.Local, Remote: s.Remote, LocalID: s.LocalID})
}

// drop closes the subflows for which which says so. With the last one the connection ends.
func (k *fakeKernel) drop(c *fakeConn, which func(*mptcp.Subflow) bool) (n int) {
	token := c.subflows[0].Token
	defer func() {
		if len(c.subflows) == 0 {
			k.disconnect(token)
		}
	}()
	c.subflows = slices.DeleteFunc(c.subflows, func(s *mptcp.Subflow) bool {
		if !which(s) {
			return false
		}
		n++
		// The end of a first subflow arrives in the end: the kernel repeats it, and nothing else
		// informs the client.
		if !k.deaf && !c.missed[s.LocalID] || !s.Joined {
			delete(c.known, mptcp.Ends{Local: s.Local, Remote: s.Remote})
		}
		k.closed(s)
		return true
	})
	return n
}

func (k *fakeKernel) Request(r mptcp.Request) error {
	k.log = append(k.log, r.String())
	if k.refuse != nil {
		if err := k.refuse(r); err != nil {
			return err
		}
	}
	c := k.there[token(r)]
	if c == nil {
		return mptcp.ErrUnknownConnection
	}
	local, remote := ends(r)
	is := func(s *mptcp.Subflow) bool { return s.Local == local && s.Remote == remote }
	switch r := r.(type) {
	case mptcp.Announce:
		for id, a := range c.announced {
			if (id == r.ID) != (a == r.Address) {
				return mptcp.ErrAddressTaken
			}
		}
		c.announced[r.ID] = r.Address
		if k.lose > 0 {
			k.lose--
			return nil
		}
		k.join(r.Token, c, r.ID, r.Address)
	case mptcp.RemoveAddress:
		if _, ok := c.announced[r.ID]; !ok && r.ID != 0 {
			return mptcp.ErrUnknownAddress
		}
		delete(c.announced, r.ID)
		if k.deaf {
			return nil
		}
		if k.loseRemovals > 0 {
			k.loseRemovals--
			c.missed[r.ID] = true
			return nil
		}
		delete(c.missed, r.ID)
		for at, id := range c.known {
			if id == r.ID {
				delete(c.known, at)
			}
		}
		k.drop(c, func(s *mptcp.Subflow) bool { return s.LocalID == r.ID })
	case mptcp.DestroySubflow:
		if k.drop(c, is) == 0 {
			return mptcp.ErrUnknownSubflow
		}
		for id, a := range c.announced {
			if a == local.Addr() {
				delete(c.announced, id) // as the kernel does
			}
		}
	case mptcp.SetBackup:
		i := slices.IndexFunc(c.subflows, is)
		if i < 0 {
			return mptcp.ErrUnknownSubflow
		}
		c.subflows[i].BackupHere = r.Backup
		if !slices.ContainsFunc(c.subflows, func(s *mptcp.Subflow) bool { return !s.BackupHere }) {
			k.allBackups++
		}
	}
	return nil
}

// join has the client open a subflow to an address that it believes to have none to.
func (k *fakeKernel) join(token uint32, c *fakeConn, id uint8, a netip.Addr) {
	for at := range c.known {
		if at.Local.Addr() == a {
			return
		}
	}
	joined := 0
	for _, id := range c.known {
		if id != 0 {
			joined++
		}
	}
	if k.limit > 0 && joined >= k.limit {
		return
	}
	k.port++
	s := &mptcp.Subflow{
		Token: token, Local: netip.AddrPortFrom(a, 80), Remote: netip.AddrPortFrom(c.client(), k.port),
		LocalID: id, Joined: true,
	}
	c.subflows = append(c.subflows, s)
	c.known[mptcp.Ends{Local: s.Local, Remote: s.Remote}] = id
	k.events = append(k.events, mptcp.SubEstablished{Token: token, Local: s.Local, Remote: s.Remote, LocalID: id})
}

func (c *fakeConn) client() netip.Addr {
	if len(c.subflows) == 0 {
		return clientAt.Addr()
	}
	return c.subflows[0].Remote.Addr()
}

func (k *fakeKernel) Subflows(family mptcp.Family, f func(mptcp.Subflow)) error {
	if family == mptcp.IPv6 {
		for _, c := range k.there {
			for _, s := range c.subflows {
				f(*s)
			}
		}
	}
	return nil
}

func (k *fakeKernel) Query(at []mptcp.Ends, f func(mptcp.Subflow)) error {
	return k.Subflows(mptcp.IPv6, func(s mptcp.Subflow) {
		if slices.Contains(at, mptcp.Ends{Local: s.Local, Remote: s.Remote}) {
			f(s)
		}
	})
}

func (k *fakeKernel) all() []mptcp.Subflow {
	var all []mptcp.Subflow
	_ = k.Subflows(mptcp.IPv6, func(s mptcp.Subflow) { all = append(all, s) })
	return all
}

// on says which addresses a connection has subflows on, with a * for backups.
func (k *fakeKernel) on(token uint32) []string {
	var on []string
	for _, s := range k.there[token].subflows {
		name := s.Local.Addr().String()
		if s.BackupHere {
			name += "*"
		}
		on = append(on, name)
	}
	slices.Sort(on)
	return on
}

// managed is a path manager that is run against the fake kernel.
type managed struct {
	*machine
	*fakeKernel
	now       time.Time
	delivered uint32 // of each subflow that carried data all the time
}

func newManaged(backupB bool) *managed {
	peers := testPeers()
	peers[1].Backup = backupB
	return newManagedPeers(peers)
}

func newManagedPeers(peers []Peer) *managed {
	m := &managed{machine: newMachine(peers, nil), fakeKernel: newFakeKernel(), now: start}
	m.machine.complete = true
	return m
}

// work lets events and requests go back and forth until there are none.
func (m *managed) work() {
	for {
		for _, e := range m.fakeKernel.events {
			m.machine.event(m.now, e)
		}
		m.fakeKernel.events = nil
		if m.execute()+len(m.fakeKernel.events) == 0 {
			return
		}
	}
}

// execute brings the requests to the kernel, and returns how many there were.
func (m *managed) execute() int {
	requests := m.takeRequests()
	for _, r := range requests {
		m.done(m.now, r, m.Request(r))
	}
	return len(requests)
}

// pass lets time pass.
func (m *managed) pass(d time.Duration) {
	end := m.now.Add(d)
	m.work()
	for at, ok := m.nextTimer(); ok && !at.After(end); at, ok = m.nextTimer() {
		m.now = at
		m.runTimers(at)
		m.work()
	}
	m.now = end
}

func (m *managed) setRoute(peer int, prefix string, state RouteState) {
	m.machine.setRoute(m.now, peer, netip.MustParsePrefix(prefix), state)
	m.work()
}

// open opens a connection that is worth announcements.
func (m *managed) open(token uint32, local, remote netip.AddrPort) {
	m.connect(token, local, remote)
	m.work()
	m.machine.weigh(m.now, mptcp.Subflow{Token: token, Acked: worthBytes})
	m.work()
}

func TestAnAddressFollowsItsRoute(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "2001:db8:c::/64", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.open(2, defaultAt, elsewhereAt)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
	check(t, m.on(2), "2001:db8:1::10")

	m.setRoute(1, "::/0", RoutePresent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::b")

	m.setRoute(0, "2001:db8:c::/64", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
	if got := m.conns[1]; len(got.subflows) != 2 || m.counts.Removed != 1 {
		t.Errorf("%+v, %+v", got, m.counts)
	}
	// Back at once: only after the client had time to close what it had.
	m.setRoute(0, "2001:db8::/32", RoutePresent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
	m.pass(removeHold)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")

	// A longer prefix that goes uncovers the shorter one.
	m.setRoute(1, "2001:db8:c::/64", RoutePresent)
	m.setRoute(1, "2001:db8:c::/64", RouteAbsent)
	if m.conns[1] == nil {
		t.Fatal("forgotten")
	}
	m.disconnect(1)
	m.disconnect(2)
	m.work()
	if len(m.conns) != 0 || m.clients.Size() != 0 || m.subflows != 0 {
		t.Errorf("left: %v, %d clients, %d subflows", m.conns, m.clients.Size(), m.subflows)
	}
}

func TestLongerPrefixWithdrawn(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(0, "2001:db8:c::/64", RouteDraining)
	m.open(1, defaultAt, clientAt)
	check(t, m.on(1), "2001:db8:1::10")
	m.setRoute(0, "2001:db8:c::/64", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
	if m.counts.Removed != 0 {
		t.Errorf("%+v", m.counts)
	}
}

func TestTheAddressIsWithdrawnBeforeItsSubflow(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.deaf = true // so that the subflow is there to be destroyed
	m.fakeKernel.log = nil
	m.setRoute(0, "::/0", RouteAbsent)
	id := m.peers[0].id
	check(t, m.fakeKernel.log, fmt.Sprintf("remove address %d from connection 00000001", id),
		"destroy subflow [2001:db8:1::a]:80 to [2001:db8:c::10]:50001 of connection 00000001")
}

func TestBackup(t *testing.T) {
	m := newManaged(true)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b*")
	m.setRoute(0, "::/0", RouteDraining)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
	m.open(2, defaultAt, elsewhereAt)
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::b*")
	m.setRoute(0, "::/0", RoutePresent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b*")
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b*")
}

func TestAConnectionToAnEPEAddress(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.open(1, onA, clientAt)
	check(t, m.on(1), "2001:db8:1::a")
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::a") // all that it has
	m.setRoute(1, "::/0", RoutePresent)
	check(t, m.on(1), "2001:db8:1::b") // not any more
	m.pass(removeHold)
	m.setRoute(0, "::/0", RoutePresent)
	check(t, m.on(1), "2001:db8:1::a", "2001:db8:1::b")
}

func TestOtherConnectionsAreNotManaged(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.event(m.now, mptcp.Established{Token: 1, Local: defaultAt, Remote: clientAt})
	m.event(m.now, mptcp.SubEstablished{Token: 2, Local: netip.MustParseAddrPort("[2001:db8:1::77]:80"), Remote: clientAt})
	m.event(m.now, mptcp.SubClosed{Token: 3, Local: onA, Remote: clientAt})
	m.event(m.now, mptcp.Closed{Token: 3})
	m.stalled(m.now, 3, []mptcp.Ends{{Local: onA, Remote: clientAt}}, nil)
	m.recovered(m.now, 3, mptcp.Ends{Local: onA, Remote: clientAt})
	m.resync(m.now, []mptcp.Subflow{{Token: 4, Local: defaultAt, Remote: clientAt, Active: true}})
	if got := m.takeRequests(); len(got) != 0 || len(m.conns) != 0 {
		t.Errorf("requests %v, connections %v", got, m.conns)
	}
}

func TestLostRemoveAddr(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.deaf = true
	m.setRoute(0, "::/0", RouteAbsent)
	m.setRoute(0, "::/0", RoutePresent)
	m.pass(10 * time.Second)
	check(t, m.on(1), "2001:db8:1::10") // it believes that it has a subflow
	m.deaf = false
	m.pass(time.Minute)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
	if n := m.counts.Announced; n < 3 || n > 8 {
		t.Errorf("announced %d times in 70 s, want a few: it is done less and less often", n)
	}
}

func TestALostAnnouncementIsRepeated(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.lose = 2
	m.open(1, defaultAt, clientAt)
	m.pass(repeatAfter / 2)
	check(t, m.on(1), "2001:db8:1::10")
	m.pass(repeatAfter)
	check(t, m.on(1), "2001:db8:1::10")
	m.pass(2 * repeatAfter)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
	if m.counts.Announced != 3 {
		t.Errorf("announced %d times, want 3", m.counts.Announced)
	}
	// No more announcements go to a client that never answers, nor for a route that is gone.
	m.lose = 1000
	m.open(2, defaultAt, elsewhereAt)
	m.pass(time.Minute)
	if n := m.counts.Announced; n != 3+1+repeatTries {
		t.Errorf("announced %d times, want %d", n, 3+1+repeatTries)
	}
	m.open(3, defaultAt, netip.MustParseAddrPort("[2001:db8:e::10]:40000"))
	m.setRoute(0, "::/0", RouteAbsent)
	n := m.counts.Announced
	m.pass(time.Minute)
	if m.counts.Announced != n {
		t.Errorf("announced %d times after the route had gone", m.counts.Announced-n)
	}
}

func TestSubflowClosedByClientIsReannounced(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	c := m.there[1]
	m.drop(c, func(s *mptcp.Subflow) bool { return s.Joined })
	m.pass(answerTimeout / 2)
	check(t, m.on(1), "2001:db8:1::10")
	m.pass(answerTimeout)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
}

func TestAlarm(t *testing.T) {
	m := newManaged(false)
	m.shareDefault = true
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	stalled := func() (stalled []mptcp.Ends) {
		for _, s := range m.conns[1].subflows {
			if s.local != onB {
				stalled = append(stalled, mptcp.Ends{Local: s.local, Remote: s.remote})
			}
		}
		return stalled
	}
	m.fakeKernel.log = nil
	m.stalled(m.now, 1, stalled(), nil)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	check(t, m.fakeKernel.log[:1], "set backup true on subflow [2001:db8:1::10]:80 to [2001:db8:c::10]:40000 of connection 00000001")
	m.pass(holdDown - time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	m.pass(time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")

	// It swallows data again: twice as long.
	m.stalled(m.now, 1, stalled(), nil)
	m.pass(2*holdDown - time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	// The first subflow moves: so may the other path.
	m.recovered(m.now, 1, mptcp.Ends{Local: defaultAt, Remote: clientAt})
	m.work()
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")

	// After a long success the backoff starts from the beginning.
	m.pass(holdDownReset + time.Second)
	m.stalled(m.now, 1, stalled(), nil)
	m.pass(holdDown)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	if m.counts.Stalls != 5 {
		t.Errorf("%+v", m.counts)
	}
}

func TestIdleSubflowIsClosedFirst(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	var idle []mptcp.Ends
	for _, s := range m.there[1].subflows {
		if s.Local != onB {
			idle = append(idle, mptcp.Ends{Local: s.Local, Remote: s.Remote})
		}
	}
	m.stalled(m.now, 1, []mptcp.Ends{{Local: defaultAt, Remote: clientAt}}, idle)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	m.pass(removeHold)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	// Without an idle one nothing more can be done.
	m.recovered(m.now, 1, mptcp.Ends{Local: defaultAt, Remote: clientAt})
	m.stalled(m.now, 1, []mptcp.Ends{{Local: defaultAt, Remote: clientAt}}, nil)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
}

func TestUnknownIsCounted(t *testing.T) {
	m := newManaged(false)
	m.open(1, defaultAt, clientAt)
	delete(m.there, 1) // before the event comes
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	if m.counts.Unknown != 1 || m.counts.Failed != 0 || len(m.conns) != 0 {
		t.Errorf("%+v, %v", m.counts, m.conns)
	}
}

// TestClientJoinsFirst: the kernel has given an ID to an address that a client remembers, before
// the address is announced.
func TestClientJoinsFirst(t *testing.T) {
	m := newManaged(true)
	m.open(1, defaultAt, clientAt)
	m.there[1].announced[99] = m.peers[1].address
	m.setRoute(1, "::/0", RoutePresent)
	if m.counts.Unknown != 1 || m.counts.Failed != 0 {
		t.Errorf("%+v", m.counts)
	}
	m.join(1, m.there[1], 99, m.peers[1].address)
	m.pass(3 * retryAfter)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b*")
	if a := m.conns[1].announcements[1]; !a.announced || a.id != 99 || m.counts.Unknown > 2 {
		t.Errorf("%+v, %+v", a, m.counts)
	}
}

func TestRejectedRequestIsRetried(t *testing.T) {
	m := newManaged(true)
	m.setRoute(1, "::/0", RoutePresent)
	refused := map[string]bool{}
	m.refuse = func(r mptcp.Request) error {
		if kind := fmt.Sprintf("%T", r); !refused[kind] {
			refused[kind] = true
			return errNoMemory
		}
		return nil
	}
	m.open(1, defaultAt, clientAt)
	check(t, m.on(1), "2001:db8:1::10")
	m.pass(3 * retryAfter)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b*")
	m.deaf = true
	m.setRoute(1, "::/0", RouteAbsent)
	m.pass(3 * retryAfter)
	check(t, m.on(1), "2001:db8:1::10")
	if m.counts.Failed != 4 || len(m.there[1].announced) != 0 {
		t.Errorf("%+v, refused %v, left %v", m.counts, refused, m.there[1].announced)
	}
}

func TestRestart(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.pass(warmUp)
	m.fakeKernel.log = nil

	// Another life, which knows no route yet.
	m.machine = newMachine(testPeers(), nil)
	m.open(2, defaultAt, elsewhereAt)
	m.resync(m.now, m.all())
	m.pass(time.Minute)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	check(t, m.fakeKernel.log)
	m.setRoute(0, "::/0", RoutePresent)
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::a")
	if got := m.counts.Announced; got != 1 {
		t.Errorf("announced %d times, want once: the first connection has it", got)
	}
	m.routesComplete(m.now)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a")
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10")
}

func TestRetiredAddresses(t *testing.T) {
	m := newManaged(false)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.machine = newMachine(testPeers()[:1], []netip.Addr{onA.Addr(), onB.Addr()})
	m.machine.complete = true
	m.resync(m.now, m.all())
	m.work()
	check(t, m.on(1), "2001:db8:1::10")
}

// accepts is a host that accepts all subflows.
func accepts(netip.AddrPort) mptcp.Answer { return mptcp.JoinAccepted }

// TestUnjoinedHere: where this host resets subflows, its state is reported and not the client's.
func TestUnjoinedHere(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "2001:db8:d::/64", RoutePresent)
	m.lose = 1 << 30
	m.open(1, netip.AddrPortFrom(defaultAt.Addr(), 8080), clientAt) // one address, at a port that is closed
	m.open(2, defaultAt, elsewhereAt)                               // two, at one that is open
	m.pass(2 * answerTimeout)
	listeners := []mptcp.Listener{{At: netip.MustParseAddrPort("[::]:80"), Multipath: true}}
	answer := func(at netip.AddrPort) mptcp.Answer { return mptcp.AnswerTo(listeners, at) }
	const closed = "client has 0 of 1 addresses: nothing on this host listens on port 8080 any more, and subflows are reset; have the server listen while it has connections, or restart it"
	got := m.unjoined(m.now, answer)
	if want := (Unjoined{2, clientAt.Addr(), 0, 1, true, closed}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	listeners = append(listeners, mptcp.Listener{At: netip.MustParseAddrPort("[::]:8080"), Multipath: true})
	got = m.unjoined(m.now, answer)
	if want := m.unjoined(m.now, accepts); got != want || got.Reset {
		t.Errorf("got %+v, want %+v", got, want)
	}
	meaning := got.Meaning
	if got.arrived(mptcp.Counters{Joins: 3, Joined: 1}); got.Meaning != meaning {
		t.Errorf("with subflows of others: %q", got.Meaning)
	}
	if got.arrived(mptcp.Counters{Joins: 3}); !strings.Contains(got.Meaning, "0 of 2 addresses: 3 SYNs of subflows arrived here, and none was completed") {
		t.Errorf("with SYNs: %q", got.Meaning)
	}
}

// A client with add_addr_accepted 0 joins no address, one that lacks an answer for a moment is not
// counted yet.
func TestUnjoined(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "2001:db8:d::/64", RoutePresent)
	m.open(1, defaultAt, clientAt)
	if got := m.unjoined(m.now, accepts); got != (Unjoined{}) {
		t.Errorf("all joined: %+v", got)
	}
	m.lose = 1 << 30
	m.open(2, defaultAt, elsewhereAt)
	if got := m.unjoined(m.now, accepts); got != (Unjoined{}) {
		t.Errorf("just announced: %+v", got)
	}
	m.pass(2 * answerTimeout)
	const meaning = "client took 0 of 2 addresses; on the client: ip mptcp limits set subflows 8 add_addr_accepted 8"
	if got, want := m.unjoined(m.now, accepts), (Unjoined{1, elsewhereAt.Addr(), 0, 2, false, meaning}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m.setRoute(0, "::/0", RouteAbsent)
	if got := m.unjoined(m.now, accepts); got.Joined != 0 || got.Announced != 1 {
		t.Errorf("one withdrawn: got %+v, want 0 of 1", got)
	}
	m.disconnect(2)
	m.work()
	if got := m.unjoined(m.now, accepts); got != (Unjoined{}) {
		t.Errorf("closed: %+v", got)
	}
}

func TestLeave(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.open(2, onA, elsewhereAt)
	m.withdrawAll(m.now)
	m.work()
	check(t, m.on(1), "2001:db8:1::10")
	check(t, m.on(2), "2001:db8:1::a")
}

// In whatever order connections, routes, losses and refusals come, everybody has in the end what
// the routes say.
func TestPropertyAnyOrderConverges(t *testing.T) {
	prefixes := []string{"::/0", "2001:db8:c::/64", "2001:db8:c::/56", "2001:db8:d::/64"}
	clients := []netip.AddrPort{clientAt, elsewhereAt, netip.MustParseAddrPort("192.0.2.1:40000")}
	rapid.Check(t, func(t *rapid.T) {
		m := newManaged(rapid.Bool().Draw(t, "backup"))
		var next uint32
		anyConn := func() (uint32, bool) {
			tokens := slices.Sorted(maps.Keys(m.there))
			if len(tokens) == 0 {
				return 0, false
			}
			return rapid.SampledFrom(tokens).Draw(t, "connection"), true
		}
		failing := 0
		m.refuse = func(mptcp.Request) error {
			if failing > 0 {
				failing--
				return errNoMemory
			}
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"connect": func(t *rapid.T) {
				next++
				m.connect(next, rapid.SampledFrom([]netip.AddrPort{defaultAt, defaultAt, onA}).Draw(t, "local"), rapid.SampledFrom(clients).Draw(t, "client"))
			},
			"disconnect": func(t *rapid.T) {
				if token, ok := anyConn(); ok {
					m.disconnect(token)
				}
			},
			"client closes": func(t *rapid.T) {
				if token, ok := anyConn(); ok {
					c := m.there[token]
					left := len(c.subflows)
					m.drop(c, func(s *mptcp.Subflow) bool { left--; return s.Joined && left > 0 })
				}
			},
			"route": func(t *rapid.T) {
				m.machine.setRoute(m.now, rapid.IntRange(0, 1).Draw(t, "peer"), netip.MustParsePrefix(rapid.SampledFrom(prefixes).Draw(t, "prefix")),
					rapid.SampledFrom([]RouteState{RouteAbsent, RouteDraining, RoutePresent, RoutePresent}).Draw(t, "state"))
			},
			"alarm": func(t *rapid.T) {
				if token, ok := anyConn(); ok {
					if all := m.there[token].subflows; len(all) > 1 {
						one := rapid.SampledFrom(all).Draw(t, "subflow")
						idle := rapid.SampledFrom(all).Draw(t, "idle")
						m.stalled(m.now, token, []mptcp.Ends{{Local: one.Local, Remote: one.Remote}}, []mptcp.Ends{{Local: idle.Local, Remote: idle.Remote}})
					}
				}
			},
			"look": func(t *rapid.T) {
				queued := map[string]uint32{}
				for _, a := range []string{addressA, addressB, addressDefault} {
					queued[a] = rapid.SampledFrom([]uint32{0, 0, 1}).Draw(t, "queued")
				}
				m.look(queued)
			},
			"moved": func(t *rapid.T) {
				for token, c := range m.conns {
					for _, s := range c.subflows {
						m.recovered(m.now, token, mptcp.Ends{Local: s.local, Remote: s.remote})
					}
				}
			},
			"overrun": func(*rapid.T) {
				m.execute()
				m.fakeKernel.events = nil
				m.resync(m.now, m.all())
			},
			"review": func(*rapid.T) {
				m.work()
				m.dump(m.now, false, m.all())
			},
			"restart": func(*rapid.T) {
				old := m.machine
				m.machine = newManaged(old.peers[1].backup).machine
				m.fakeKernel.events = nil
				for i, p := range old.peers {
					for prefix, state := range p.routes.All() {
						m.machine.setRoute(m.now, i, prefix, state.State)
					}
				}
				m.resync(m.now, m.all())
			},
			"refuse":         func(t *rapid.T) { failing += rapid.IntRange(1, 3).Draw(t, "requests") },
			"receive or not": func(*rapid.T) { m.deaf = !m.deaf },
			"work":           func(*rapid.T) { m.work() },
			"pass":           func(t *rapid.T) { m.pass(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond) },
		})
		failing, m.deaf = 0, false
		m.execute()
		m.resync(m.now, m.all())
		for token, c := range m.conns {
			for _, s := range c.subflows {
				m.recovered(m.now, token, mptcp.Ends{Local: s.local, Remote: s.remote})
			}
		}
		m.look(nil)
		m.pass(10 * time.Minute)
		m.look(nil) // what was drained may have been parked since
		m.pass(10 * time.Minute)
		m.verify(t)
	})
}

// verify holds what is there against the routes.
func (m *managed) verify(t *rapid.T) {
	subflows := 0
	for token, c := range m.there {
		subflows += len(c.subflows)
		carry := 0
		for _, s := range c.subflows {
			if s.Local != defaultAt && !s.BackupHere {
				carry++
			}
		}
		for _, s := range c.subflows {
			if s.Local == defaultAt && (carry == 0 && s.BackupHere || carry == 2 && !s.BackupHere) {
				t.Errorf("connection %d: backup on the default address is %t beside %d others", token, s.BackupHere, carry)
			}
		}
		for i, p := range m.peers {
			state := p.state(c.client())
			on := slices.DeleteFunc(slices.Clone(c.subflows), func(s *mptcp.Subflow) bool { return s.Local.Addr() != p.address })
			only := len(on) > 0 && len(on) == len(c.subflows)
			switch {
			case state == RoutePresent && len(on) != 1:
				t.Errorf("connection %d has %d subflows to peer %d with a route: %+v", token, len(on), i, m.conns[token])
			case state == RouteAbsent && len(on) > 0 && !only:
				t.Errorf("connection %d has %d subflows to peer %d without a route", token, len(on), i)
			case state == RouteAbsent && !only && slices.Contains(slices.Collect(maps.Values(c.announced)), p.address):
				t.Errorf("connection %d received an announcement of peer %d without a route", token, i)
			}
			for _, s := range on {
				if want := p.backup || state == RouteDraining; s.BackupHere != want && state != RouteAbsent {
					t.Errorf("connection %d: backup to peer %d is %t", token, i, s.BackupHere)
				}
			}
		}
	}
	if len(m.conns) != len(m.there) || m.subflows != subflows || len(m.parked) > 0 {
		t.Errorf("manages %d connections, %d subflows, %d parked; there are %d and %d", len(m.conns), m.subflows, len(m.parked), len(m.there), subflows)
	}
}

func BenchmarkWithdrawal(b *testing.B) {
	const conns = 10_000
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	for i := range uint32(conns) {
		a := netip.MustParseAddr("2001:db8:c::").As16()
		a[14], a[15] = byte(i>>8), byte(i)
		m.connect(i+1, defaultAt, netip.AddrPortFrom(netip.AddrFrom16(a), 40000))
	}
	m.work()
	prefix := netip.MustParsePrefix("::/0")
	b.ResetTimer()
	for range b.N {
		m.machine.setRoute(m.now, 0, prefix, RouteAbsent)
		requests := m.takeRequests()
		b.StopTimer()
		if len(requests) != 2*conns {
			b.Fatalf("%d requests, want %d", len(requests), 2*conns)
		}
		for _, r := range requests {
			m.done(m.now, r, m.Request(r))
		}
		m.work()
		m.machine.setRoute(m.now, 0, prefix, RoutePresent)
		m.pass(time.Second)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/withdrawal")
}

// testPeers returns two egress peers, on the addresses onA and onB.
func testPeers() []Peer { return []Peer{{Address: onA.Addr()}, {Address: onB.Addr()}} }

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// setRoute applies a change of a peer's route to all connections at once.
func (m *machine) setRoute(now time.Time, peer int, prefix netip.Prefix, state RouteState) {
	m.routeChanged(now, peer, m.changeRoute(now, peer, prefix, Route{State: state}))
}

// resync applies a dump of all subflows after events were lost.
func (m *machine) resync(now time.Time, all []mptcp.Subflow) { m.dump(now, true, all) }

func (m *machine) dump(now time.Time, lost bool, all []mptcp.Subflow) {
	m.beginDump(lost)
	for _, s := range all {
		m.addDumped(s)
	}
	m.endDump(now)
}
