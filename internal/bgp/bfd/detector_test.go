package bfd

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// daemon is the environment variable that makes the test program a daemon with a session.
const daemon = "TABANE_TEST_BFD"

var (
	here  = netip.MustParseAddr("fd00::1")
	there = netip.MustParseAddr("fd00::2")
)

func TestMain(m *testing.M) {
	Process()
	if os.Getenv(daemon) != "" {
		d := New(slog.New(slog.DiscardHandler), func(string) {}, func(string) {})
		if err := d.Add(Neighbor{Name: "here", Local: there, Remote: here, Config: patient}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(netnstest.Isolate(m, "fd00::1/128", "fd00::2/128"))
}

// A neighbor of slow has a detection time of 3 s, one of patient 90 s.
var (
	slow    = Config{Interval: time.Second}
	patient = Config{Interval: time.Second, Multiplier: 90}
)

// TestDeathIsSignaled: the neighbor of a daemon that is killed learns it before the detection time,
// and a session whose process is killed comes up again.
func TestDeathIsSignaled(t *testing.T) {
	netnstest.NeedIsolation(t)
	cameUp, down := make(chan string, 8), make(chan string, 1)
	d := New(slog.New(slog.DiscardHandler), func(name string) { cameUp <- name }, func(name string) { down <- name })
	defer d.Close()
	if err := d.Add(Neighbor{Name: "there", Local: here, Remote: there, Config: slow}); err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stderr = append(os.Environ(), daemon+"=1"), os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	up := func(want bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); d.Up("there") != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the session is up: %t", !want)
			}
		}
	}
	neighbor := start()
	up(true)
	if name := <-cameUp; name != "there" {
		t.Errorf("%s came up", name)
	}
	if err := neighbor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case name := <-down:
		if name != "there" {
			t.Errorf("%s is down", name)
		}
	case <-time.After(60 * time.Second): // before the detection time has passed
		t.Fatal("the death is not signaled")
	}
	up(false)

	start()
	up(true)
	d.calls.Lock()
	process := d.process
	d.calls.Unlock()
	if err := syscall.Kill(process.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-process.ended
	up(false)
	up(true)
	d.Remove("there")
	if d.Up("there") {
		t.Error("a removed session is up")
	}
}

// TestDeathBesideAReport: a neighbor learns the death of a daemon that did not read the last
// reports any more.
func TestDeathBesideAReport(t *testing.T) {
	netnstest.NeedIsolation(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0], cmd.Stderr = processName, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := json.NewEncoder(in).Encode(request{Add: &Neighbor{Name: "here", Local: there, Remote: here, Config: patient}}); err != nil {
		t.Fatal(err)
	}
	for decoder, r := json.NewDecoder(out), (reply{}); !r.Done; {
		if err := decoder.Decode(&r); err != nil || r.Err != "" {
			t.Fatalf("%+v: %v", r, err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	all := make(chan transition, 8)
	e := newEngine(func(_ string, t transition) { all <- t }, func(err error) { panic(err) })
	defer e.die()
	if err := e.add(Neighbor{Name: "there", Local: here, Remote: there, Config: slow}); err != nil {
		t.Fatal(err)
	}
	if got := <-all; got != cameUp {
		t.Fatalf("transition %v", got)
	}
	// The process has reported that its session is up, or will.
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-all:
		if got != wentDown {
			t.Errorf("transition %v", got)
		}
	case <-time.After(60 * time.Second): // before the detection time has passed
		t.Error("the death is not signaled")
	}
}

// TestFamilies: sessions of both families come up, and packets with a lower hop limit are dropped.
func TestFamilies(t *testing.T) {
	netnstest.NeedIsolation(t)
	for _, pair := range [][2]netip.Addr{{here, there}, {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}} {
		t.Run(pair[0].String(), func(t *testing.T) {
			t.Parallel()
			up := make(chan transition, 8)
			for i, local := range pair {
				e := newEngine(func(_ string, t transition) { up <- t }, func(err error) { panic(err) })
				defer e.die()
				if err := e.add(Neighbor{Name: "other", Local: local, Remote: pair[1-i], Config: slow}); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				select {
				case now := <-up:
					if now != cameUp {
						t.Errorf("transition %d", now)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("no session")
				}
			}
		})
		t.Run(pair[0].String()+"HopLimit", func(t *testing.T) {
			l, err := listen(pair[1], func(err error) { panic(err) })
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			p := &peer{packets: make(chan packet, rxBacklog)}
			l.mu.Lock()
			l.peers[pair[0]] = p
			l.mu.Unlock()
			first, second := packet{multiplier: 3, my: 1, desiredTx: time.Second}, packet{multiplier: 3, my: 2, desiredTx: time.Second}
			source := net.UDPAddrFromAddrPort(netip.AddrPortFrom(pair[0], 0))
			far, err := net.DialUDP("udp", source, net.UDPAddrFromAddrPort(netip.AddrPortFrom(pair[1], port)))
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			if _, err := far.Write(first.encode()); err != nil {
				t.Fatal(err)
			}
			near := &sender{local: pair[0], remote: pair[1]}
			defer near.close()
			near.send(second)
			select {
			case got := <-p.packets:
				if got.my != second.my {
					t.Error("a packet with a hop limit below 255 was accepted")
				}
			case <-time.After(5 * time.Second):
				t.Error("a packet with the hop limit 255 did not arrive")
			}
		})
	}
}

// TestIgnoredPackets: why the packets of a neighbor are ignored is logged, once.
func TestIgnoredPackets(t *testing.T) {
	netnstest.NeedIsolation(t)
	reasons := make(chan string, 8)
	e := newEngine(func(string, transition) {}, func(err error) { panic(err) })
	e.ignored = func(neighbor, reason string) { reasons <- neighbor + ": " + reason }
	defer e.die()
	if err := e.add(Neighbor{Name: "other", Local: here, Remote: there, Config: slow}); err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(there, 0)), Control: onSocket(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hopLimit)
	})}
	c, err := dialer.Dial("udp", netip.AddrPortFrom(here, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	authenticated := append(packet{multiplier: 3, my: 1, desiredTx: time.Second}.encode(), 1, 4, 0, 'x') // a simple password
	authenticated[1] |= flagAuth
	authenticated[3] = byte(len(authenticated))
	for range 2 {
		if _, err := c.Write(authenticated); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case got := <-reasons:
		if !strings.HasPrefix(got, "other: they are authenticated") {
			t.Error(got)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("nothing is reported")
	}
	var log strings.Builder
	d := New(slog.New(slog.NewTextHandler(&log, nil)), nil, nil)
	d.report(reply{Neighbor: "other", Ignored: "reason"})
	if !strings.Contains(log.String(), "level=WARN") || len(reasons) > 0 {
		t.Errorf("%s, %d more", log.String(), len(reasons))
	}
}

// TestTransitionsThatWaited: packets that waited together cause each of their transitions.
func TestTransitionsThatWaited(t *testing.T) {
	got := make(chan transition, 3)
	e := newEngine(func(_ string, t transition) { got <- t }, func(err error) { panic(err) })
	s := newSession(slow, 1, func() float64 { return 0.5 })
	p := &peer{local: here, remote: there, packets: make(chan packet, rxBacklog), stop: make(chan struct{}), done: make(chan struct{})}
	for _, state := range []state{stateInit, stateDown, stateInit} {
		p.packets <- packet{state: state, multiplier: 3, my: 2, your: 1, desiredTx: time.Second, requiredRx: time.Second}
	}
	go func() {
		defer close(p.done)
		p.session(s, e)
	}()
	for _, want := range []transition{cameUp, wentDown, cameUp} {
		select {
		case now := <-got:
			if now != want {
				t.Errorf("transition %d, want %d", now, want)
			}
		case <-time.After(time.Second):
			t.Fatalf("transition %d is missing", want)
		}
	}
	close(p.stop)
	<-p.done
}
