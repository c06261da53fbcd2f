package acceptance

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/afpacket"
)

// TestKilledSuspend: an edge that is killed while the kernel deletes the routes to a lost peer,
// those of deliveries already and EPE Routes not yet, leaves a state in which no packet is sent to
// that peer, nor while the next instance takes it over, which removes what is left. When the peer is
// back, its routes are too.
func TestKilledSuspend(t *testing.T) {
	const routes = 20_000 // which the kernel deletes in some 30 ms
	t.Parallel()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(scaleScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	l := up(t, file, "server.edge.log", "asbr.asbr.log")
	for _, transit := range []string{"transit-a", "transit-b"} {
		l.rewrite(transit, withTable(routes))
		if err := syscall.Kill(l.process(transit, "router").PID, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	l.edit("server", "edge", func(s section) {
		s["delivery"] = map[string]any{"default": map[string]any{"single": "transit-b"}}
	})
	l.reloaded("server", "edge", "delivery changed")
	edge, peer := l.process("server", "edge").PID, l.process("transit-b", "router").PID
	deliveries := func() int {
		return strings.Count(l.ip("server", "-6 route show table main metric 4095"), "nhid")
	}
	// epe is what is there for packets to transit-b.
	epe := func() int { return strings.Count(l.ip("server", "-6 route show table 102"), "nhid") }
	back := func() {
		t.Helper()
		l.eventually("all routes are there", time.Minute, func() (bool, string) {
			d, e := deliveries(), epe()
			return d >= routes && e >= routes, fmt.Sprintf("%d deliveries, %d EPE Routes", d, e)
		})
	}
	back()
	table := l.ip("server", "-6 route show table 102")
	sid := regexp.MustCompile(`segs 1 \[ (\S+) \]`).FindStringSubmatch(table)
	if sid == nil {
		t.Fatalf("no SID in table 102:\n%.500s", table)
	}
	var sent atomic.Int64 // probes to the SID
	l.each(t, "server", "lan", func(p afpacket.Packet) {
		if dst, _, ok := destination(p.Data); p.Sent && ok && dst.String() == sid[1] && bytes.HasSuffix(p.Data, marker) {
			sent.Add(1)
		}
	})
	var socket *net.UDPConn
	l.in(t, "server", func() (err error) {
		socket, err = net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP("2001:db8:1::10")})
		return err
	})
	defer socket.Close()
	var targets []netip.AddrPort
	for line := range strings.Lines(table) {
		if p, err := netip.ParsePrefix(strings.Fields(line)[0]); err == nil && len(targets) < 8 {
			targets = append(targets, netip.AddrPortFrom(p.Addr(), 9))
		}
	}
	probe := func(lasts time.Duration) int64 {
		before := sent.Load()
		for begun := time.Now(); time.Since(begun) < lasts; time.Sleep(5 * time.Millisecond) {
			for _, a := range targets {
				_, _ = socket.WriteToUDPAddrPort(marker, a) // one without a route is lost
			}
		}
		time.Sleep(100 * time.Millisecond)
		return sent.Load() - before
	}
	// What was sent is seen later on a machine with other work.
	isSent := func() (bool, string) { return probe(200*time.Millisecond) > 0, "no probe is sent" }
	l.eventually("probes are sent to transit-b", 5*time.Second, isSent)

	full := l.settled(edge, 2)
	if err := syscall.Kill(peer, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.wait(edge, time.Now(), time.Minute, func(now int) bool { return now < full-routes/20 })
	if err := syscall.Kill(edge, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.gone(edge, 20*time.Second)
	t.Logf("it is killed with %d deliveries and %d EPE Routes to a lost peer", deliveries(), epe())
	if n := probe(time.Second); n > 0 {
		t.Errorf("without a daemon, %d probes are sent to a lost peer", n)
	}
	next := l.start("server", "edge")
	if n := probe(5 * time.Second); n > 0 {
		t.Errorf("while the next instance takes over, %d probes are sent to a lost peer", n)
	}
	l.eventually("nothing is left for the lost peer", time.Minute, func() (bool, string) {
		d, e, objects := deliveries(), epe(), l.ip("server", "nexthop")
		return d == 0 && e == 0 && !strings.Contains(objects, " "+sid[1]+" "), fmt.Sprintf("%d deliveries, %d EPE Routes, objects:\n%s", d, e, objects)
	})
	if n := probe(200 * time.Millisecond); n > 0 {
		t.Errorf("%d probes are sent to a lost peer", n)
	}
	l.start("transit-b", "router")
	back()
	l.eventually("probes are sent to transit-b, which is back", 5*time.Second, isSent)
	l.stop(next, time.Minute)
	if left := l.ip("server", "nexthop; route show table main proto 117"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind:\n%.500s", left)
	}
}
