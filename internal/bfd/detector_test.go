package bfd

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/netns/netnstest"
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
		if err := d.Add(Neighbor{Name: "here", Local: there, Remote: here, Config: slow}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(netnstest.Isolate(m, "fd00::1/128", "fd00::2/128"))
}

// slow has a detection time of 3 s.
var slow = Config{Interval: time.Second}

// TestDeathIsSignaled: the neighbor of a daemon that is killed learns it at once, and a session whose
// process is killed comes up again.
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
		for end := time.Now().Add(14 * time.Second); d.Up("there") != want; time.Sleep(10 * time.Millisecond) {
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
	began := time.Now()
	if err := neighbor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if name := <-down; name != "there" || time.Since(began) > 2*time.Second {
		t.Errorf("%s is down after %v", name, time.Since(began))
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

// TestTransitionsThatWaited: packets that waited together cause each of their transitions.
func TestTransitionsThatWaited(t *testing.T) {
	got := make(chan transition, 3)
	e := newEngine(func(_ string, t transition) { got <- t })
	s := newSession(slow, 1, func() float64 { return 0.5 })
	p := &peer{local: here, remote: there, packets: make(chan packet, rxBacklog), stop: make(chan struct{}), done: make(chan struct{})}
	for _, state := range []state{stateInit, stateDown, stateInit} {
		p.packets <- packet{state: state, multiplier: 3, my: 2, your: 1, desiredTx: time.Second, requiredRx: time.Second}
	}
	go p.run(s, e)
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
