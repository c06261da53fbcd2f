package acceptance

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestWithdrawalWithoutLookup: with End.DX6 and End.DX4 a border router sends to the peer whatever
// arrives for its SID, so servers alone follow a withdrawal: at once, also for sockets that have
// cached their route, and as soon as it runs again by a daemon that was suspended. So they do for
// packets from their default addresses, which are delivered through the peer.
func TestWithdrawalWithoutLookup(t *testing.T) {
	t.Parallel()
	const (
		peer     = 1 // transit-b
		lookedUp = `id: 2, table: 102, rt: "65000:102"}`
	)
	b, err := os.ReadFile("testdata/three-peers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), lookedUp) {
		t.Fatalf("the scenario has no %q", lookedUp)
	}
	scenario := filepath.Join(t.TempDir(), "direct.yaml")
	text := strings.Replace(string(b), lookedUp, strings.Replace(lookedUp, "}", ", behavior: end.dx6}", 1), 1)
	if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lab := up(t, scenario)
	lab.edit("server", "edge", func(s section) { s["delivery"] = map[string]any{"default": map[string]any{"single": "transit-b"}} })
	lab.reloaded("server", "edge", "delivery changed")
	l := &leakTest{egressJudge: lab.judge(threePeers), daemons: lab.daemons("server edge", "transit-b router")}
	for range l.net.peers {
		l.networks = append(l.networks, map[string]bool{leakAlways[0]: true, leakAlways[1]: true})
	}
	p := l.net.peers[peer]
	// The last two targets are for packets from the default addresses.
	prefixes, targets := []string{"2001:db8:101::/48", "10.101.0.0/24"}, []string{"2001:db8:101::1", "10.101.0.1", "2001:db8:101::2", "10.101.0.2"}
	advertise := func(on bool) (at time.Time) {
		for _, prefix := range prefixes {
			l.networks[peer][prefix] = on
		}
		at = time.Now()
		l.advertise(peer)
		return at
	}
	// last returns how long after a time the last packet to each target arrived, 0 for none.
	last := func(since time.Time) (times [4]time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range l.seen {
			if i := slices.Index(targets, s.dst.String()); i >= 0 && s.peer == peer && s.at.After(since) {
				times[i] = s.at.Sub(since)
			}
		}
		return times
	}
	// connected sends from connected sockets until stop is called.
	connected := func() (stop func()) {
		var sockets []net.Conn
		for i, source := range []string{p.epe[0], p.epe4[0], l.net.servers[0].address, l.net.servers[0].address4} {
			l.in(t, "server", func() error {
				s, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(source), 0)),
					net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(targets[i]), 9)))
				sockets = append(sockets, s)
				return err
			})
		}
		ended, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for tick := time.NewTicker(2 * time.Millisecond); ; {
				select {
				case <-ended:
					tick.Stop()
					return
				case <-tick.C:
				}
				for _, s := range sockets {
					_, _ = s.Write([]byte("direct")) // fails without a route
				}
			}
		}()
		return sync.OnceFunc(func() {
			close(ended)
			<-done
			for _, s := range sockets {
				s.Close()
			}
		})
	}
	for n := range 4 {
		at := advertise(true)
		for _, table := range []string{"-6 route show table 102", "-4 route show table 102"} {
			l.eventually("the routes of the peer", 10*time.Second, l.shows(true, "101", "server", table))
		}
		stop := connected()
		defer stop()
		l.eventually("packets of both families arrive", 10*time.Second, func() (bool, string) {
			times := last(at)
			return slices.Min(times[:]) > 0, fmt.Sprint(times)
		})
		suspended := n == 3
		if suspended {
			l.daemons.signal("server edge", syscall.SIGSTOP)
			l.eventually("the daemon is suspended", 10*time.Second, func() (bool, string) {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.daemons.all["server edge"].pid))
				return strings.Contains(string(stat), ") T "), fmt.Sprint(string(stat), err)
			})
		}
		at = advertise(false)
		if suspended {
			// The reload of a peer takes longer than propagation on a busy machine.
			for i, family := range []string{"-6", "-4"} {
				l.eventually("the withdrawal", 10*time.Second,
					l.shows(false, strings.TrimSuffix(targets[i], "1"), "asbr1", family+" route show table main"))
			}
			time.Sleep(2 * propagation)
			if times := last(at); slices.Min(times[:]) < propagation {
				t.Errorf("the last packets arrived %s after the withdrawal although no daemon followed it: the test shows nothing", times)
			}
			at = time.Now()
			l.daemons.signal("server edge", syscall.SIGCONT)
		}
		time.Sleep(2 * propagation)
		times := last(at)
		t.Logf("the last packets arrived %s after the withdrawal", times)
		if slices.Max(times[:]) > propagation {
			t.Errorf("suspended %t: packets arrived until %s after the withdrawal", suspended, times)
		}
		stop()
	}
}
