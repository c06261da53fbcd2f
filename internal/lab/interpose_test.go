package lab

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// roundTrips opens a TCP echo connection over a lab's wire and returns a function that measures a
// round trip. The test fails when the connection fails.
func roundTrips(t *testing.T, l *Lab) (measure func() time.Duration) {
	t.Helper()
	var listener net.Listener
	err := netns.Do(namespaceOf(l.Name(), "b"), func() (err error) {
		listener, err = net.Listen("tcp", "[2001:db8:1::b]:7")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	var c net.Conn
	err = netns.Do(namespaceOf(l.Name(), "a"), func() (err error) {
		c, err = net.Dial("tcp", "[2001:db8:1::b]:7")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func() time.Duration {
		t.Helper()
		begun, b := time.Now(), make([]byte, 1)
		_, err := c.Write(b)
		if err == nil {
			err = c.SetReadDeadline(begun.Add(10 * time.Second))
		}
		if err == nil {
			_, err = c.Read(b)
		}
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(begun)
	}
}

// TestInterpose: a wire gets an emulator while a connection is open, and its ends do not change.
// The process that made the lab and one that opened it see the same state.
func TestInterpose(t *testing.T) {
	l := start(t, options(t, "emulate", labtest.Plain()))
	trip := roundTrips(t, l)
	below := func(most time.Duration, what string) {
		t.Helper()
		// A busy machine delays some, a link all.
		for range 100 {
			if trip() < most {
				return
			}
		}
		t.Errorf("no round trip over %s took less than %s", what, most)
	}
	below(40*time.Millisecond, "a wire without a delay")
	const state = "addr show dev wire; route show; link show wire"
	before := labtest.IP(t, l.Name(), "a", state)
	other, err := Open(l.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Links().Set("wire", scenario.Shape{Rate: 10e6, Delay: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if d := trip(); d < 40*time.Millisecond {
		t.Errorf("a round trip over 20 ms each way took %s", d)
	}
	if after := labtest.IP(t, l.Name(), "a", state); after != before {
		t.Errorf("the end has changed from\n%s\nto\n%s", before, after)
	}
	// The owner has not yet read the changed state.
	if err := l.Links().Set("wire", scenario.Shape{Rate: 10e6, Delay: 40 * time.Millisecond, Backward: &linkmodel.Change{Delay: new(time.Duration)}}); err != nil {
		t.Fatal(err)
	}
	if d := trip(); d < 40*time.Millisecond {
		t.Errorf("a round trip over 40 ms and back over none took %s", d)
	}
	below(75*time.Millisecond, "40 ms and back over none")
	at := scenario.Port{Node: "a", Interface: "wire"}
	if err := l.Links().Blackhole(scenario.Hole{Node: at.Node, Interface: at.Interface, Direction: scenario.Out}); err != nil {
		t.Fatal(err)
	}
	if e := labtest.Echo(t, l.Name(), "a", "2001:db8:1::b", 1, 56); e.Received > 0 {
		t.Errorf("a black hole lets packets through: %+v", e)
	}
	if err := l.Links().Clear(at); err != nil {
		t.Fatal(err)
	}
	if err := l.Links().Set("wire", scenario.Shape{}); err != nil {
		t.Fatal(err)
	}
	below(40*time.Millisecond, "a wire whose delay was removed")
	if err := l.Links().Set("lan", scenario.Shape{Delay: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "it is a switch of 3 ends") {
		t.Errorf("a switch with a delay: %v", err)
	}
	infos, err := List()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.Name == l.Name() && i.Condition != Running {
			t.Errorf("the lab is %s", i.Condition)
		}
	}
}

// TestCaptureInterposed: a capture has each packet of a wire with an emulator once, under the name
// of its end.
func TestCaptureInterposed(t *testing.T) {
	l := start(t, options(t, "detour", labtest.Plain()))
	if err := l.Links().Set("wire", scenario.Shape{Delay: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	p, err := openPackets(namespaceOf(l.Name(), "a"), "wire", 256)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	count := func(x afpacket.Packet) error {
		if x.Length == 14+20+8+1000 { // the datagrams below
			seen[fmt.Sprintf("%s %t", p.names[x.Interface], x.Sent)]++
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx, afpacket.Handler{Packet: count}) }()
	labtest.IP(t, l.Name(), "a", "addr add 198.51.100.1/24 dev wire")
	labtest.IP(t, l.Name(), "b", "addr add 198.51.100.2/24 dev wire")
	if e := labtest.Echo(t, l.Name(), "a", "198.51.100.2", 3, 1000); e.Received != 3 {
		t.Fatalf("answers: %+v", e)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if seen["wire true"] != 3 || seen["wire false"] != 3 || len(seen) != 2 {
		t.Errorf("captured %v", seen)
	}
}

// TestInterposeFails: a failed attempt leaves nothing behind, the wire still works, and the next
// attempt succeeds.
func TestInterposeFails(t *testing.T) {
	l := start(t, options(t, "half", labtest.Plain()))
	trip := roundTrips(t, l)
	index := strings.TrimSpace(labtest.Run(t, l, "b", "cat /sys/class/net/wire/ifindex"))
	labtest.IP(t, l.Name(), "b", "link add emulator"+index+" type veth peer name other")
	delay := scenario.Shape{Delay: 20 * time.Millisecond}
	if err := l.Links().Set("wire", delay); err == nil || !strings.Contains(err.Error(), `make the detour of interface "wire"`) {
		t.Fatalf("a detour in the place of another interface: %v", err)
	}
	trip()
	if left, err := netns.List(namespaceOf(l.Name(), "link-")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if s, err := readState(l.Name()); err != nil || s.condition() != Running || len(s.Interposed) > 0 {
		t.Errorf("state %+v, %v", s, err)
	}
	labtest.IP(t, l.Name(), "b", "link del emulator"+index)
	if err := l.Links().Set("wire", delay); err != nil {
		t.Fatal(err)
	}
	if d := trip(); d < 40*time.Millisecond {
		t.Errorf("a round trip over 20 ms each way took %s", d)
	}
}
