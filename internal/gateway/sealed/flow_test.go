package sealed

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// flow is a TCP connection with cubic that always has more to send.
type flow struct {
	bytes atomic.Int64
	// gap is the longest time without data since it was set to 0, last when data came last.
	gap, last atomic.Int64
	failed    atomic.Value
	// wrong says that something else has arrived than was sent.
	wrong atomic.Bool
	stop  func()
}

// flowPeriod repeats in what a flow sends. Its length is a prime number, so that a lost or repeated
// packet changes what follows.
var flowPeriod = func() []byte {
	b := make([]byte, 251)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

func (g *gateway) flow(to *gateway) *flow {
	g.t.Helper()
	f := new(flow)
	l := to.listen(fmt.Sprintf("10.0.%d.1:0", to.number))
	var out net.Conn
	if err := netns.Do(g.namespace, func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") }), err)
		}}
		out, err = d.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		g.t.Fatal(err)
	}
	f.stop = func() { out.Close(); in.Close() }
	g.t.Cleanup(f.stop)
	start := time.Now()
	go func() {
		for b := bytes.Repeat(flowPeriod, 256); ; {
			if _, err := out.Write(b); err != nil {
				f.failed.CompareAndSwap(nil, err)
				return
			}
		}
	}()
	go func() {
		at := 0
		for b := make([]byte, 1<<16); ; {
			n, err := in.Read(b)
			if err != nil {
				f.failed.CompareAndSwap(nil, err)
				return
			}
			for rest := b[:n]; len(rest) > 0; {
				part := min(len(rest), len(flowPeriod)-at)
				if !bytes.Equal(rest[:part], flowPeriod[at:at+part]) {
					f.wrong.Store(true)
				}
				rest, at = rest[part:], (at+part)%len(flowPeriod)
			}
			now := int64(time.Since(start))
			f.gap.Store(max(f.gap.Load(), now-f.last.Load()))
			f.last.Store(now)
			f.bytes.Add(int64(n))
		}
	}()
	return f
}

// flowFaults are faults under a TCP connection over two lines. most bounds the gap in tests: a
// retransmission timeout doubles while nothing arrives.
var flowFaults = []struct {
	name  string
	most  time.Duration
	apply func(a, b *gateway)
}{
	{"a line is cut for 1 s", 3 * time.Second, func(a, b *gateway) { cut(a, b, time.Second, 1) }},
	{"a line is cut for 10 s", 3 * time.Second, func(a, b *gateway) { cut(a, b, 10*time.Second, 1) }},
	{"both lines are cut for 1 s", 6 * time.Second, func(a, b *gateway) { cut(a, b, time.Second, 0, 1) }},
	// Acknowledgments that were lost make a sample of the round trip of 10 s and more, and Linux may
	// take its timeout for spurious (F-RTO), also over a line without a gateway: it may retransmit the
	// rest of what was lost only after another timeout of 17 s.
	{"both lines are cut for 10 s", 60 * time.Second, func(a, b *gateway) { cut(a, b, 10*time.Second, 0, 1) }},
	{"the gateway of the receiver is killed and started", 6 * time.Second, func(_, b *gateway) { b.crash(); b.run() }},
	{"the gateway of the sender is killed and started", 6 * time.Second, func(a, _ *gateway) { a.crash(); a.run() }},
	{"the key of a gateway changes", 6 * time.Second, func(a, b *gateway) {
		key, err := handshake.GenerateKey(rand.Reader)
		if err != nil {
			a.t.Fatal(err)
		}
		b.key, b.state.Key = key, key
		a.state.Peers = []dataplane.Peer{a.state.Peers[0]}
		a.state.Peers[0].Public = key.Public()
		if err := errors.Join(b.plane.Apply(b.state), a.plane.Apply(a.state)); err != nil {
			a.t.Fatal(err)
		}
	}},
	{"the address of a line changes", 3 * time.Second, func(a, _ *gateway) {
		a.roam()
	}},
}

// cut has the lines lose all packets in both directions for a while.
func cut(a, b *gateway, lasts time.Duration, lines ...int) {
	for _, g := range []*gateway{a, b} {
		for _, i := range lines {
			g.lose(i)
		}
	}
	time.Sleep(lasts)
	for _, g := range []*gateway{a, b} {
		for _, i := range lines {
			g.deliver(i)
		}
	}
}

// interrupt applies a fault to a connection over two lines of 20 Mbit/s and returns how long
// nothing arrived at most, and what the connection carried in the second before the end, of what it
// did before the fault.
func interrupt(t testing.TB, most time.Duration, apply func(a, b *gateway)) (gap time.Duration, after float64) {
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		g.auto(20 * unit.MbitPerSecond)
		g.run()
	}
	a.up(2)
	b.up(2)
	f := a.flow(b)
	second := func() int64 {
		before := f.bytes.Load()
		time.Sleep(time.Second)
		return f.bytes.Load() - before
	}
	time.Sleep(time.Second)
	before := second()
	f.gap.Store(0)
	apply(a, b)
	end := f.bytes.Load()
	for start := time.Now(); f.bytes.Load() < end+before/2; time.Sleep(5 * time.Millisecond) {
		if err := f.failed.Load(); err != nil || time.Since(start) > most {
			t.Fatalf("the connection does not go on: %v", err)
		}
	}
	a.up(2)
	b.up(2)
	time.Sleep(2 * time.Second)
	gap, after = time.Duration(f.gap.Load()), float64(second())/float64(before)
	if f.wrong.Load() {
		t.Error("what arrives is not what was sent, in its order")
	}
	return gap, after
}

// TestFlowGoesOn: a TCP connection survives faults of lines and gateways: all that was sent arrives
// in its order, and more than was on its way follows. How long nothing arrives and how much it
// carries afterwards is measured by BenchmarkFlowGap.
func TestFlowGoesOn(t *testing.T) {
	t.Parallel()
	for _, o := range flowFaults {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			gap, after := interrupt(t, o.most, o.apply)
			t.Logf("nothing arrived for %v; then %.2f of the rate", gap, after)
		})
	}
}

// BenchmarkFlowGap measures how long a TCP connection stands still at most.
func BenchmarkFlowGap(b *testing.B) {
	for _, o := range flowFaults {
		b.Run(o.name, func(b *testing.B) {
			worst, least := time.Duration(0), 1e9
			for b.Loop() {
				gap, after := interrupt(b, o.most, o.apply)
				worst, least = max(worst, gap), min(least, after)
			}
			b.ReportMetric(float64(worst.Milliseconds()), "ms-still")
			b.ReportMetric(least, "of-rate")
			b.ReportMetric(0, "ns/op")
		})
	}
}
