package flows

import (
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/mptcp"
)

// BenchmarkTrack makes a snapshot of 10,000 flows, of which all or a tenth carried packets.
func BenchmarkTrack(b *testing.B) {
	for name, part := range map[string]int{"all-busy": 1, "tenth-busy": 10} {
		b.Run(name, func(b *testing.B) {
			const n = 10000
			w := newWatch()
			for i := range n {
				w.kernel.carry(sent(serverA, uint16(i), sidA, 6), 1, 1500)
				w.host.sockets = append(w.host.sockets, socketOf(serverA, uint16(i), uint32(i/3)+1))
			}
			w.next(b, 100*time.Millisecond)
			// The cost of the fake kernel is not measured.
			still := still{make([]flowcount.Key, n), make([]flowcount.Count, n)}
			for i, slot := range w.kernel.slots {
				still.keys[i], still.counts[i] = slot.key, slot.count
			}
			w.counter = &still
			w.nextSockets = time.Now().Add(time.Hour * 1e6)
			for b.Loop() {
				b.StopTimer()
				for i := 0; i < n; i += part {
					still.counts[i].Packets++
					still.counts[i].Bytes += 1500
				}
				b.StartTimer()
				w.next(b, 100*time.Millisecond)
			}
		})
	}
}

// still is a fake kernel with a constant set of flows.
type still struct {
	keys   []flowcount.Key
	counts []flowcount.Count
}

func (s *still) Each(f func(int, *flowcount.Key, flowcount.Count)) {
	for i := range s.keys {
		f(i, &s.keys[i], s.counts[i])
	}
}

func (s *still) Reasons() (r [flowcount.NumReasons]flowcount.Count, err error) { return r, nil }

// BenchmarkSockets reads 10,000 sockets, both ends of 5,000 connections over loopback, and joins
// them with flows.
func BenchmarkSockets(b *testing.B) {
	ns := namespace(b)
	var d *mptcp.Diag
	w := newWatch()
	inside(b, ns, func() error {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(b.Context(), "tcp6", "[::1]:0")
		if err != nil {
			return err
		}
		b.Cleanup(func() { l.Close() })
		dialer := net.Dialer{}
		dialer.SetMultipathTCP(false)
		for range 5000 {
			c, err := dialer.Dial("tcp6", l.Addr().String())
			if err != nil {
				return err
			}
			b.Cleanup(func() { c.Close() })
			s, err := l.Accept()
			if err != nil {
				return err
			}
			b.Cleanup(func() { s.Close() })
			local, remote := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
			for _, ends := range [][2]netip.AddrPort{{local, remote}, {remote, local}} {
				w.kernel.carry(flowcount.Key{
					Source: ends[0].Addr().As16(), Destination: ends[1].Addr().As16(), SourcePort: ends[0].Port(), DestinationPort: ends[1].Port(),
					Family: 6, Protocol: 6, Direction: 1,
				}, 1, 100)
			}
		}
		d, err = mptcp.DialDiag()
		return err
	})
	defer d.Close()
	w.sockets = d
	w.next(b, 100*time.Millisecond)
	n := 0
	for _, f := range w.t.flows {
		if s, _ := f.Socket(); s != nil {
			n++
		}
	}
	for b.Loop() {
		w.nextSockets = time.Time{}
		w.join(w.now)
	}
	b.ReportMetric(float64(n), "sockets")
}

// BenchmarkWrite writes a snapshot of 10,000 busy flows.
func BenchmarkWrite(b *testing.B) {
	w := newWatch()
	for i := range 10000 {
		w.kernel.carry(sent(serverA, uint16(i), sidA, 6), 1, 1500)
		w.host.sockets = append(w.host.sockets, socketOf(serverA, uint16(i), uint32(i/3)+1))
	}
	s := w.next(b, 100*time.Millisecond)
	for name, write := range map[string]func(*Snapshot) error{
		"json": NewJSON(io.Discard, 0).Write, "csv": NewCSV(io.Discard, 0).Write, "json-top-20": NewJSON(io.Discard, 20).Write,
		"table": func(s *Snapshot) error { return NewTable(io.Discard, TableOptions{Top: 20, Every: 0}).Write(s, true) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := write(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWatch makes a snapshot of 10,000 flows from the kernel's real counters, all of which
// carried packets.
func BenchmarkWatch(b *testing.B) {
	ns := namespace(b)
	const n = 10000
	var w *Watcher
	var sockets []net.PacketConn
	inside(b, ns, func() (err error) {
		if w, err = New(Options{Interfaces: []string{"lo"}}); err != nil {
			return err
		}
		// Each is seen twice on loopback: sent and received.
		for range n / 2 / 1000 {
			c, err := net.ListenPacket("udp6", "[::1]:0")
			if err != nil {
				return err
			}
			sockets = append(sockets, c)
		}
		return nil
	})
	carry := func() {
		for _, c := range sockets {
			for port := range 1000 {
				// The port is closed; ICMP errors are ignored.
				_, _ = c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv6loopback, Port: 1000 + port})
			}
		}
	}
	b.Cleanup(func() {
		for _, c := range sockets {
			c.Close()
		}
		w.Close()
	})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	carry()
	var spent time.Duration
	rounds, flows := 0, 0
	for b.Loop() {
		b.StopTimer()
		carry()
		b.StartTimer()
		before := clock.Thread()
		if err := w.read(time.Now(), DefaultInterval); err != nil {
			b.Fatal(err)
		}
		spent += clock.Thread() - before
		rounds++
		flows = len(w.t.snapshot.Flows)
	}
	b.ReportMetric(float64(flows), "flows")
	b.ReportMetric(float64(spent.Nanoseconds())/float64(rounds), "cpu-ns/op")
	b.ReportMetric(100*spent.Seconds()/float64(rounds)/DefaultInterval.Seconds(), "%-of-a-core")
}
