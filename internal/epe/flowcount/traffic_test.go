package flowcount

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf"
)

// BenchmarkTraffic measures the programs where a server sends over so many connections at once,
// each sent packet encapsulated, with the kernel's own clock. That clock costs as much as a short
// program does: so a program that does nothing takes turns with them in the same place, and net is
// what they take more. Figures are medians of the turns. Give it -benchtime 20x.
func BenchmarkTraffic(b *testing.B) {
	for _, flows := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			p := newPair(b)
			p.connect(b, "encap.red")
			statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			if err != nil {
				b.Fatal(err)
			}
			defer statistics.Close()
			f := newCounter(b, Options{})
			turns := []*turn{{received: emptyProgram(b), sent: emptyProgram(b)}, {received: f.objects.Received, sent: f.objects.Sent}}
			defer p.load(b, flows)()
			for b.Loop() {
				for _, t := range turns {
					t.take(b, p.server)
				}
			}
			empty, ours := turns[0], turns[1]
			for _, side := range []struct {
				name        string
				empty, ours []float64
			}{{"received", empty.ofReceived, ours.ofReceived}, {"sent", empty.ofSent, ours.ofSent}} {
				b.ReportMetric(median(side.empty), "ns-"+side.name+"-empty")
				b.ReportMetric(median(side.ours), "ns-"+side.name)
				b.ReportMetric(median(side.ours)-median(side.empty), "ns-"+side.name+"-net")
			}
			b.ReportMetric(median(ours.rate), "received/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkThroughput has a server send over eight connections as fast as it can, in turn without
// and with flows being counted where it sends. Figures are quartiles of the ratio, with to without,
// of neighboring turns. Give it -benchtime 20x.
func BenchmarkThroughput(b *testing.B) {
	p := newPair(b)
	p.connect(b, "encap.red")
	f := newCounter(b, Options{})
	defer p.load(b, 8)()
	carried := func() float64 {
		start := time.Now()
		before, _ := statistics(b, p.client)
		time.Sleep(400 * time.Millisecond)
		after, _ := statistics(b, p.client)
		return float64(after.Bytes-before.Bytes) * 8 / time.Since(start).Seconds()
	}
	var ratios, rates []float64
	for b.Loop() {
		without := carried()
		detach := attached(b, p.server, f.objects.Received, f.objects.Sent)
		with := carried()
		detach()
		ratios, rates = append(ratios, with/without), append(rates, without/1e9)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rates), "Gbit/s-without")
	for name, q := range map[string]float64{"q1": 0.25, "median": 0.5, "q3": 0.75} {
		b.ReportMetric(quantile(ratios, q), name+"-ratio")
	}
}

func quantile(v []float64, q float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[int(q*float64(len(v)))]
}

func median(v []float64) float64 { return quantile(v, 0.5) }

// emptyProgram lets packets pass.
func emptyProgram(t testing.TB) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// turn is a pair of programs and what they took, in nanoseconds a packet, each time that it was
// theirs.
type turn struct {
	received, sent     *ebpf.Program
	ofReceived, ofSent []float64
	rate               []float64 // received packets per second
}

// take attaches the programs for a while.
func (t *turn) take(b *testing.B, ns string) {
	detach := attached(b, ns, t.received, t.sent)
	// What follows a change of programs is not what is measured.
	time.Sleep(20 * time.Millisecond)
	start := time.Now()
	received, sent := spent(b, t.received), spent(b, t.sent)
	time.Sleep(120 * time.Millisecond)
	received, sent = spent(b, t.received).minus(received), spent(b, t.sent).minus(sent)
	elapsed := time.Since(start)
	detach()
	if received.runs == 0 || sent.runs == 0 {
		return
	}
	t.ofReceived = append(t.ofReceived, received.each())
	t.ofSent = append(t.ofSent, sent.each())
	t.rate = append(t.rate, float64(received.runs)/elapsed.Seconds())
}

// attached puts programs on eth0 of the namespace until the returned function is called.
func attached(b *testing.B, ns string, received, sent *ebpf.Program) (detach func()) {
	b.Helper()
	var a bpf.Attachment
	inside(b, ns, func() (err error) {
		a, err = bpf.Attach(bpf.AttachOptions{Link: "eth0", Ethernet: bpf.Programs{Ingress: received, Egress: sent}})
		return err
	})
	return func() {
		if err := a.Detach(); err != nil {
			b.Fatal(err)
		}
	}
}

// usage is how often a program ran, and for how long.
type usage struct {
	runs uint64
	time time.Duration
}

func spent(b *testing.B, p *ebpf.Program) usage {
	s, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	return usage{s.RunCount, s.Runtime}
}

func (u usage) minus(o usage) usage { return usage{u.runs - o.runs, u.time - o.time} }

func (u usage) each() float64 { return float64(u.time.Nanoseconds()) / float64(u.runs) }

// load has the server send over n connections as fast as it can, until the returned function is
// called.
func (p pair) load(t testing.TB, n int) (stop func()) {
	t.Helper()
	var l net.Listener
	inside(t, p.server, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(t.Context(), "tcp", "[2001:db8:1::b]:80")
		return err
	})
	defer l.Close()
	var clients, servers []net.Conn
	inside(t, p.client, func() error {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("2001:db8:c::2")}}
		d.SetMultipathTCP(false)
		for range n {
			c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				return err
			}
			clients = append(clients, c)
			s, err := l.Accept()
			if err != nil {
				return err
			}
			servers = append(servers, s)
		}
		return nil
	})
	// With a thousand that all have something to send it takes long until each has found its
	// connection closed.
	var ended atomic.Bool
	var busy sync.WaitGroup
	for i := range n {
		busy.Go(func() {
			chunk := make([]byte, 64<<10)
			for !ended.Load() {
				if _, err := servers[i].Write(chunk); err != nil {
					return // it is closed
				}
			}
		})
		busy.Go(func() {
			// Neither end may take a shortcut within the kernel.
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{clients[i]}, make([]byte, 64<<10))
		})
	}
	return func() {
		ended.Store(true)
		for _, c := range slices.Concat(clients, servers) {
			c.Close()
		}
		busy.Wait()
	}
}
