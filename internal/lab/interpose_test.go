package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// echo is a TCP connection over a lab's wire, from a to b.
type echo struct {
	tb             testing.TB
	client, server net.Conn
}

func dialEcho(tb testing.TB, l *Lab) *echo {
	tb.Helper()
	e := &echo{tb: tb}
	var listener net.Listener
	err := netns.Do(namespaceOf(l.Name(), "b"), func() (err error) {
		listener, err = net.Listen("tcp", "[2001:db8:1::b]:7")
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	defer listener.Close()
	err = netns.Do(namespaceOf(l.Name(), "a"), func() (err error) {
		e.client, err = net.Dial("tcp", "[2001:db8:1::b]:7")
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { e.client.Close() })
	if e.server, err = listener.Accept(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { e.server.Close() })
	return e
}

// send writes a byte at one end.
func (e *echo) send(from net.Conn) {
	e.tb.Helper()
	if _, err := from.Write([]byte{0}); err != nil {
		e.tb.Fatal(err)
	}
}

// receive reads a byte at one end.
func (e *echo) receive(at net.Conn) {
	e.tb.Helper()
	err := at.SetReadDeadline(time.Now().Add(time.Minute))
	if err == nil {
		_, err = at.Read(make([]byte, 1))
	}
	if err != nil {
		e.tb.Fatal(err)
	}
}

// trip has a byte go to the server and back, and returns how long that took.
func (e *echo) trip() time.Duration {
	e.tb.Helper()
	begun := time.Now()
	e.send(e.client)
	e.receive(e.server)
	e.send(e.server)
	e.receive(e.client)
	return time.Since(begun)
}

// TestInterpose: a wire gets an emulator while a connection is open, and its ends do not change.
// The process that made the lab and one that opened it see the same state. BenchmarkInterposed
// measures what an emulator adds.
func TestInterpose(t *testing.T) {
	l := start(t, options(t, "emulate", labtest.Plain()))
	e := dialEcho(t, l)
	e.trip()
	const state = "addr show dev wire; route show; link show wire"
	before := labtest.IP(t, l.Name(), "a", state)
	other, err := Open(l.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Links().Set("wire", scenario.Shape{Rate: 10e6, Delay: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if d := e.trip(); d < 40*time.Millisecond {
		t.Errorf("a round trip over 20 ms each way took %s", d)
	}
	if after := labtest.IP(t, l.Name(), "a", state); after != before {
		t.Errorf("the end has changed from\n%s\nto\n%s", before, after)
	}
	// The owner has not yet read the changed state.
	const oneWay = time.Second
	if err := l.Links().Set("wire", scenario.Shape{Rate: 10e6, Delay: oneWay, Backward: &linkmodel.Change{Delay: new(time.Duration)}}); err != nil {
		t.Fatal(err)
	}
	if d := e.trip(); d < oneWay {
		t.Errorf("a round trip over %s and back over none took %s", oneWay, d)
	}
	// What is sent later in the direction without a delay arrives earlier.
	e.send(e.client)
	e.send(e.server)
	e.receive(e.client)
	if err := e.server.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := e.server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes that were sent over %s arrived before what was sent later over none: %v", n, oneWay, err)
	}
	e.receive(e.server)
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
	// A busy machine delays some round trips for as long, the removed delay all.
	trips := 1
	for ; e.trip() >= oneWay && trips < 20; trips++ {
	}
	if trips == 20 {
		t.Errorf("%d round trips took %s and more after the delay was removed", trips, oneWay)
	}
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

// BenchmarkInterposed measures a round trip over a wire, without an emulator and with one that
// delays by a microsecond.
func BenchmarkInterposed(b *testing.B) {
	l := start(b, options(b, "interposed", labtest.Plain()))
	e := dialEcho(b, l)
	for _, name := range []string{"a wire", "a wire with an emulator"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				e.trip()
			}
		})
		if err := l.Links().Set("wire", scenario.Shape{Delay: time.Microsecond}); err != nil {
			b.Fatal(err)
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
	e := dialEcho(t, l)
	index := strings.TrimSpace(labtest.Run(t, l, "b", "cat /sys/class/net/wire/ifindex"))
	labtest.IP(t, l.Name(), "b", "link add emulator"+index+" type veth peer name other")
	delay := scenario.Shape{Delay: 20 * time.Millisecond}
	if err := l.Links().Set("wire", delay); err == nil || !strings.Contains(err.Error(), `make the detour of interface "wire"`) {
		t.Fatalf("a detour in the place of another interface: %v", err)
	}
	e.trip()
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
	if d := e.trip(); d < 40*time.Millisecond {
		t.Errorf("a round trip over 20 ms each way took %s", d)
	}
}
