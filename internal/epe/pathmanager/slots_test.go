package pathmanager

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
)

// manyPeers returns n peers with the addresses 2001:db8:1::1:0 and so on.
func manyPeers(n int) (peers []Peer) {
	for i := range n {
		a := defaultAt.Addr().As16()
		a[13], a[15] = 1, byte(i)
		peers = append(peers, Peer{Address: netip.AddrFrom16(a)})
	}
	return peers
}

// used returns the indexes of the peers that the connection has subflows to, with a * for backups,
// and "default" for the default address.
func (m *managed) used(token uint32) string {
	var names []string
	for _, on := range m.on(token) {
		name := strings.TrimPrefix(on, "2001:db8:1::1:")
		if strings.HasPrefix(on, defaultAt.Addr().String()) {
			name = strings.Replace(on, defaultAt.Addr().String(), "default", 1)
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func (m *managed) rank(peer int, localPref uint32, pathLength uint16) {
	r := Route{State: RoutePresent, LocalPref: localPref, PathLength: pathLength}
	prefix := netip.MustParsePrefix("::/0")
	m.machine.routeChanged(m.now, peer, m.machine.changeRoute(m.now, peer, prefix, r))
	m.work()
}

func newSlots(limit int) *managed {
	peers := manyPeers(11)
	peers[0].Backup = true
	m := newManagedPeers(peers)
	m.limit = limit
	for i := range peers {
		switch i {
		case 10:
			m.rank(i, 200, 5)
		case 9:
			m.rank(i, 100, 1)
		default:
			m.rank(i, 100, 2)
		}
	}
	m.connect(1, defaultAt, clientAt)
	m.pass(3 * time.Second)
	return m
}

func TestBestPeersGetTheSlots(t *testing.T) {
	m := newSlots(8)
	// The backup peer 0 is last, a (10) is first by LOCAL_PREF, 9 second by its AS path.
	if got, want := m.used(1), "default* 1 2 3 4 5 6 9 a"; got != want {
		t.Fatalf("uses %s, want %s", got, want)
	}
	if w := m.waiting(); w.Connections != 1 || w.Peers != 11 || w.Slots != 8 || w.Client != clientAt.Addr() {
		t.Errorf("waiting %+v", w)
	}
	if u := m.unjoined(m.now, accepts); u.Connections != 0 {
		t.Errorf("unjoined %+v", u)
	}
	for _, step := range []struct {
		change string
		do     func()
		want   string
	}{
		{"the best is lost", func() { m.setRoute(10, "::/0", RouteAbsent) }, "default* 1 2 3 4 5 6 7 9"},
		{"two more are", func() { m.setRoute(1, "::/0", RouteAbsent); m.setRoute(9, "::/0", RouteAbsent) }, "default* 0* 2 3 4 5 6 7 8"},
		{"there is no other", func() { m.setRoute(2, "::/0", RouteAbsent) }, "default* 0* 3 4 5 6 7 8"},
		{"one comes back", func() { m.rank(9, 100, 1) }, "default* 0* 3 4 5 6 7 8 9"},
		{"a better one comes back, but no slot is free", func() { m.rank(10, 200, 5) }, "default* 0* 3 4 5 6 7 8 9"},
		{"one is draining", func() { m.setRoute(9, "::/0", RouteDraining) }, "default* 0* 3 4 5 6 7 8 9*"},
		{"and is lost", func() { m.setRoute(9, "::/0", RouteAbsent) }, "default* 0* 3 4 5 6 7 8 a"},
	} {
		step.do()
		m.pass(3 * time.Second)
		if got := m.used(1); got != step.want {
			t.Errorf("%s: uses %s, want %s", step.change, got, step.want)
		}
	}
}

func TestStalledPeerLosesItsSlot(t *testing.T) {
	m := newSlots(8)
	for _, s := range m.there[1].subflows {
		if s.Local.Addr() == m.machine.peers[9].address {
			m.stalled(m.now, 1, []mptcp.Ends{{Local: s.Local, Remote: s.Remote}}, nil)
			break
		}
	}
	m.pass(removeHold)
	if got, want := m.used(1), "default* 1 2 3 4 5 6 7 a"; got != want {
		t.Errorf("uses %s, want %s", got, want)
	}
	m.pass(time.Minute)
	if got, want := m.used(1), "default* 1 2 3 4 5 6 7 a"; got != want {
		t.Errorf("after the hold-down uses %s, want %s", got, want)
	}
}

// A client with a lower limit joins what is announced first. A freed slot is offered again.
func TestSlotsOfALimitedClient(t *testing.T) {
	m := newSlots(2)
	if got, want := m.used(1), "default 9 a"; got != want {
		t.Fatalf("uses %s, want %s", got, want)
	}
	m.pass(time.Hour)
	if requests := len(m.log); requests > 60 {
		t.Errorf("%d requests", requests)
	}
	m.setRoute(10, "::/0", RouteAbsent)
	m.pass(10 * time.Second)
	if got, want := m.used(1), "default 1 9"; got != want {
		t.Errorf("uses %s, want %s", got, want)
	}
}

// The removal of a lost peer's address was sent over the path of that peer, or was lost otherwise.
// The client still counts the subflow, until the removal is repeated.
func TestSlotIsFreedAfterALostRemoval(t *testing.T) {
	for _, c := range []struct {
		limit, lost int
		within      time.Duration
		want        string
	}{
		{limit: 8, lost: 0, within: removeHold, want: "default* 1 2 3 4 5 6 7 9"},
		{limit: 8, lost: 1, within: 200 * time.Millisecond, want: "default* 1 2 3 4 5 6 7 9"},
		{limit: 8, lost: 3, within: time.Second, want: "default* 1 2 3 4 5 6 7 9"},
		// By then the client was offered all others; the last of them gets the slot.
		{limit: 8, lost: 10, within: 3 * time.Minute, want: "default* 0* 1 2 3 4 5 6 9"},
		{limit: 2, lost: 1, within: 200 * time.Millisecond, want: "default 1 9"},
	} {
		m := newSlots(c.limit)
		m.loseRemovals = c.lost
		m.setRoute(10, "::/0", RouteAbsent)
		m.pass(c.within)
		if got := m.used(1); got != c.want {
			t.Errorf("limit %d, %d removals lost: uses %s, want %s", c.limit, c.lost, got, c.want)
		}
		m.pass(3 * time.Second)
		requests := len(m.log)
		m.pass(time.Hour)
		if n := len(m.log) - requests; n > 0 {
			t.Errorf("limit %d, %d removals lost: %d more requests: %v", c.limit, c.lost, n, m.log[requests:])
		}
	}
}

// Two peers are lost at once, and the client receives one of the removals: that it joins another
// address does not confirm both.
func TestOneOfTwoRemovalsIsLost(t *testing.T) {
	m := newSlots(8)
	m.loseRemovals = 1
	m.setRoute(10, "::/0", RouteAbsent)
	m.setRoute(9, "::/0", RouteAbsent)
	m.pass(300 * time.Millisecond)
	if got, want := m.used(1), "default* 1 2 3 4 5 6 7 8"; got != want {
		t.Errorf("uses %s, want %s", got, want)
	}
}

// Whatever happens, a connection never has more addresses announced than slots, and ends with as
// many subflows as it can have.
func TestPropertySlotsAreFilled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSlots(8)
		present := map[int]bool{}
		for i := range m.machine.peers {
			present[i] = true
		}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			peer := rapid.IntRange(0, 10).Draw(t, "peer")
			if present[peer] = rapid.Bool().Draw(t, "present"); present[peer] {
				m.rank(peer, rapid.Uint32Range(0, 3).Draw(t, "pref"), 1)
			} else {
				m.setRoute(peer, "::/0", RouteAbsent)
			}
			m.loseRemovals = rapid.IntRange(0, 2).Draw(t, "lost removals")
			m.pass(time.Duration(rapid.IntRange(0, 200).Draw(t, "ms")) * time.Millisecond)
			if n := len(m.there[1].announced); n > MaxSlots {
				t.Fatalf("%d addresses announced", n)
			}
		}
		m.loseRemovals = 0
		m.pass(5 * time.Second)
		want := 1
		for _, p := range present {
			if p {
				want++
			}
		}
		if got := len(m.on(1)); got != min(want, MaxSlots+1) {
			t.Errorf("%d subflows, want %d: %s", got, want, m.used(1))
		}
	})
}

// The kernels of server and client move slots as the path manager says: of eleven peers, which are
// lost one by one, those that are left have all slots, and lost ones none.
func TestSlotsInTheKernel(t *testing.T) {
	with := addressingIPv6()
	s := newSite(t, with)
	s.peers = manyPeers(11)
	err := netns.Do(s.server, func() error {
		link, err := netlink.LinkByName(lan)
		for _, p := range s.peers {
			on := &net.IPNet{IP: p.Address.AsSlice(), Mask: net.CIDRMask(64, 128)}
			err = errors.Join(err, netlink.AddrAdd(link, &netlink.Addr{IPNet: on, Flags: unix.IFA_F_NODAD}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l, stop := s.manage()
	defer stop()
	for i := range s.peers {
		s.offerAll(l, i, RoutePresent)
	}
	l.RoutesComplete() // before, a subflow that a late client opens to a lost peer is kept
	client, server := s.connect()
	defer download(server, client, 1e6)()
	for lost := range s.peers {
		// A slot that a busy client does not take within answerTimeout goes to another peer, so
		// any peers that are left may have them.
		want := min(MaxSlots, len(s.peers)-lost)
		used, gone := map[int]bool{}, 0
		for deadline := time.Now().Add(30 * time.Second); (len(used) != want || gone > 0) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			used, gone = map[int]bool{}, 0
			err := s.kernel.Subflows(mptcp.IPv6, func(sub mptcp.Subflow) {
				i := slices.IndexFunc(s.peers, func(p Peer) bool { return p.Address == sub.Local.Addr() })
				switch {
				case i >= lost:
					used[i] = true
				case i >= 0:
					gone++
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(used) != want || gone > 0 {
			t.Fatalf("after the loss of %d peers, subflows to %v and %d to lost ones, want %d; %+v", lost, used, gone, want, l.Status())
		}
		s.offerAll(l, lost, RouteAbsent)
	}
}
