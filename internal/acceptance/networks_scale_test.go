package acceptance

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/testkit/published"
)

// networks is how many client networks TestNetworks delivers to.
var networks = flag.Int("networks", 0, "how many client networks TestNetworks delivers to; 0: it is skipped")

const (
	// probed is the number of networks that get a packet each probeEvery: often enough for gaps of
	// some ms, and rare enough to leave the processors to the daemons.
	probed     = 32
	probeEvery = 2 * time.Millisecond
	// probeFor is how long packets are sent after the peer has gone, at least.
	probeFor = 4 * time.Second
)

// deliveryRow is a delivery to all networks. The peer that withdraws is the first one that each of
// them uses.
type deliveryRow struct {
	name     string
	delivery map[string]any // nil: none
	// known: all networks are in the file of the daemon, with single as the best mode.
	known bool
	rss   float64 // MB
	// session is when the last packet arrived at a peer whose session ended, and routes at one that
	// withdrew all of its routes, since it was killed or reloaded. Gap is the longest time in which
	// nothing arrived of one of the probed networks anywhere.
	session, routes, sessionGap, routesGap time.Duration
}

// TestNetworks delivers to -networks client networks in each mode, and measures the memory of the
// edge and how long packets still leave to a peer that has gone. It writes a table with -update:
// make bench-networks.
func TestNetworks(t *testing.T) {
	if *networks == 0 {
		t.Skip("-networks is not set: see make bench-networks")
	}
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(scaleScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	l := up(t, file, "server.edge.log")
	s := &networksTest{lab: l, dir: t.TempDir(), b: l.process("transit-b", "router").PID}
	for _, transit := range []string{"transit-a", "transit-b"} {
		l.rewrite(transit, withTable(*networks))
		if err := syscall.Kill(l.process(transit, "router").PID, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.capture(t, transit)
	}
	s.full = l.settled(l.process("server", "edge").PID, 5)
	for line := range strings.Lines(l.ip("server", "-6 route show table 102")) {
		if p, err := netip.ParsePrefix(strings.Fields(line)[0]); err == nil {
			s.prefixes = append(s.prefixes, p)
		}
	}
	if len(s.prefixes) < *networks {
		t.Fatalf("%d routes of transit-b", len(s.prefixes))
	}
	l.end("server", "edge", syscall.SIGTERM)
	b, a := "transit-b", "transit-a"
	rows := []*deliveryRow{
		{name: "best"}, // its best paths are through transit-a
		{name: "single", delivery: map[string]any{"default": map[string]any{"single": b}}},
		{name: "spread", delivery: map[string]any{"default": map[string]any{"spread": map[string]int{a: 1, b: 1}}}},
		{name: "spray", delivery: map[string]any{"default": map[string]any{"spray": []string{b, a}}}},
		{name: "auto", delivery: map[string]any{"default": "auto"}, known: true},
	}
	var cells [][]string
	for _, row := range rows {
		if !t.Run(row.name, func(t *testing.T) { s.measure(t, row) }) || row.rss == 0 {
			continue
		}
		cells = append(cells, []string{row.name, fmt.Sprintf("%.0f", row.rss), fmt.Sprintf("%+.0f", row.rss-rows[0].rss),
			milliseconds(row.session), milliseconds(row.sessionGap), milliseconds(row.routes), milliseconds(row.routesGap)})
		if row.delivery == nil {
			copy(cells[0][3:], []string{"", "", "", ""})
		}
		t.Log(strings.Join(cells[len(cells)-1], " | "))
	}
	if t.Failed() || !*writeTables {
		return
	}
	table, err := published.Read("docs/delivery-measured.md", "networks", "make bench-networks")
	if err != nil {
		t.Fatal(err)
	}
	if err := table.WriteMeasured(1, probeFor, []string{"mode of all networks", "memory, MB", "more, MB", "session ends: last packet there", "longest gap", "all routes withdrawn: last packet there", "longest gap"}, cells); err != nil {
		t.Fatal(err)
	}
}

type networksTest struct {
	*lab
	dir      string // of the socket and the file of the edge
	prefixes []netip.Prefix
	full     int // routes in the kernel of the server with both tables
	b        int // process of transit-b
	probes   atomic.Pointer[probeRun]
}

// probeRun is what arrives of probes.
type probeRun struct {
	sync.Mutex
	targets map[netip.Addr]*probeTarget
}

type probeTarget struct {
	atB  time.Time // the last one at transit-b
	last time.Time // at any transit
	gap  time.Duration
}

// capture records the probes that arrive at a transit.
func (s *networksTest) capture(t *testing.T, transit string) {
	s.each(t, transit, "csp", func(p afpacket.Packet) {
		run := s.probes.Load()
		if p.Sent || run == nil || !bytes.HasSuffix(p.Data, marker) {
			return
		}
		dst, _, _ := destination(p.Data)
		run.Lock()
		defer run.Unlock()
		target := run.targets[dst]
		if target == nil {
			return
		}
		if !target.last.IsZero() {
			target.gap = max(target.gap, p.At.Sub(target.last))
		}
		target.last = p.At
		if transit == "transit-b" {
			target.atB = p.At
		}
	})
}

// measure measures a row with an instance of the edge of its own.
func (s *networksTest) measure(t *testing.T, row *deliveryRow) {
	s.edit("server", "edge", func(c section) {
		c["control"] = filepath.Join(s.dir, "edge.sock")
		delete(c, "delivery")
		if row.delivery != nil {
			c["delivery"] = row.delivery
		}
	})
	if row.known {
		s.know(t)
	}
	edge := s.start("server", "edge")
	defer s.stop(edge, time.Minute)
	want := s.full
	if row.delivery != nil {
		want += len(s.prefixes)
	}
	settle := func() {
		t.Helper()
		s.eventually("the server has all routes", 2*time.Minute, func() (bool, string) {
			n := s.settled(edge.Process.Pid, 2)
			return n >= want, fmt.Sprintf("%d routes, want %d", n, want)
		})
	}
	settle()
	time.Sleep(15 * time.Second)
	row.rss = memoryOf(t, edge.Process.Pid, "VmRSS")
	if row.delivery == nil {
		return
	}
	row.session, row.sessionGap = s.probe(t, func() {
		if err := syscall.Kill(s.b, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	s.b = s.start("transit-b", "router").Process.Pid
	settle()
	row.routes, row.routesGap = s.probe(t, func() {
		s.rewrite("transit-b", withTable(0))
		if err := syscall.Kill(s.b, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	})
	s.rewrite("transit-b", withTable(*networks))
	if err := syscall.Kill(s.b, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	settle()
}

// know writes the file of what is known of all networks, where the next instance of the edge reads
// it.
func (s *networksTest) know(t *testing.T) {
	f, err := os.Create(filepath.Join(s.dir, "edge.networks"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	now := time.Now()
	if err := belief.Write(f, func(yield func(*belief.Record) bool) {
		for _, p := range s.prefixes {
			r := &belief.Record{
				Prefix: p, Mode: "single transit-b", Why: "measured +35 % against best", Since: now, Seen: now, Noise: 0.05, Bulk: 1e9,
				Modes:   []belief.ModeRecord{{Mode: belief.Best, Trials: 1}, {Mode: "multipath", Trials: 1}, {Mode: "single transit-a", Trials: 1}, {Mode: "single transit-b", Mean: 0.3, Trials: 3}, {Mode: "spread", Trials: 1}},
				Related: []float32{0, 0, .01, 0, 0, .01, 0, 0, 0, .01, 0, 0, 0, 0, .01},
			}
			if !yield(r) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// probe sends packets to some networks while transit-b goes, and returns when the last one arrived
// there since, and the longest gap at any.
func (s *networksTest) probe(t *testing.T, gone func()) (last, gap time.Duration) {
	run := &probeRun{targets: map[netip.Addr]*probeTarget{}}
	for i := range probed {
		run.targets[s.prefixes[i*len(s.prefixes)/probed].Addr()] = &probeTarget{}
	}
	s.probes.Store(run)
	var socket *net.UDPConn
	s.in(t, "server", func() (err error) {
		socket, err = net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP("2001:db8:1::10")})
		return err
	})
	defer socket.Close()
	targets := slices.SortedFunc(maps.Keys(run.targets), netip.Addr.Compare)
	send := func(lasts time.Duration) {
		for begun, due := time.Now(), time.Now(); time.Since(begun) < lasts; due = due.Add(probeEvery) {
			for _, a := range targets {
				_, _ = socket.WriteToUDPAddrPort(marker, netip.AddrPortFrom(a, 9)) // one without a route is lost
			}
			time.Sleep(time.Until(due.Add(probeEvery)))
		}
	}
	send(time.Second)
	run.Lock()
	there := 0
	for _, target := range run.targets {
		if !target.atB.IsZero() {
			there++
		}
		target.gap = 0
	}
	run.Unlock()
	if there < probed/4 { // with spread, half of them are expected there
		t.Errorf("packets to %d of %d networks leave through transit-b", there, probed)
	}
	log := []string{filepath.Join("/run/tabane/lab", s.name, "asbr.asbr.log")}
	down, start := logged(t, log, bfdLost), time.Now()
	gone()
	send(probeFor)
	time.Sleep(100 * time.Millisecond)
	s.probes.Store(nil)
	if n := logged(t, log, bfdLost) - down; n > 0 {
		// Processors that are busy for 0.15 s end the session with the other transit, too.
		t.Logf("the border router lost %d BFD sessions", n)
	}
	run.Lock()
	defer run.Unlock()
	for _, target := range run.targets {
		last, gap = max(last, target.atB.Sub(start)), max(gap, target.gap, start.Add(probeFor).Sub(target.last))
	}
	return last, gap
}
