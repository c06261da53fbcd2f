package flowcount

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func newRun(packet, context []byte) *ebpf.RunOptions {
	return &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: context, Repeat: 1}
}

// BenchmarkProgram measures the program per packet, the test harness of the kernel included; "arp"
// is hardly more than that.
func BenchmarkProgram(b *testing.B) {
	t := tcp(80, 40000, 12, 1000)
	inner := ipv6(6, server, client, t)
	for _, bb := range []struct {
		name   string
		packet []byte
	}{
		{"arp", ethernet(0x0806, make([]byte, 1000))},
		{"plain", ethernet(0x86dd, inner)},
		{"no-srh", ethernet(0x86dd, ipv6(41, router, sid, inner))},
		{"srh", ethernet(0x86dd, ipv6(43, router, sid, segments(41, []netip.Addr{sid}, inner)))},
		{"ipv4-no-srh", ethernet(0x86dd, ipv6(4, router, sid, ipv4(6, 0, v4from, v4to, t)))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			f := newCounter(b, Options{})
			const repeat = 1 << 20
			var total time.Duration
			n := 0
			for b.Loop() {
				_, d, err := f.objects.Sent.Benchmark(bb.packet, repeat, nil)
				if err != nil {
					b.Fatal(err)
				}
				total += d
				n++
			}
			b.ReportMetric(float64(total.Nanoseconds())/float64(n), "ns/packet")
		})
	}
}

// BenchmarkEach reads 10,000 flows.
func BenchmarkEach(b *testing.B) {
	for _, size := range []int{1 << 14, DefaultMaxFlows, 1 << 16} {
		b.Run(fmt.Sprintf("room-for-%d", size), func(b *testing.B) {
			f := newCounter(b, Options{MaxFlows: size})
			fill(b, f, 10000)
			n, rounds := 0, 0
			var before, after unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
			for b.Loop() {
				n = 0
				f.Each(func(int, *Key, Count) { n++ })
				rounds++
			}
			_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
			b.ReportMetric(float64(n), "flows")
			b.ReportMetric(float64(after.Utime.Nano()-before.Utime.Nano())/float64(rounds), "user-ns/op")
			b.ReportMetric(float64(after.Stime.Nano()-before.Stime.Nano())/float64(rounds), "system-ns/op")
		})
	}
}

// BenchmarkNewFlow measures the program when every packet begins a flow, and what giving the slot
// back costs.
func BenchmarkNewFlow(b *testing.B) {
	f := newCounter(b, Options{})
	packet := ethernet(0x86dd, ipv6(41, router, sid, ipv6(6, server, client, tcp(80, 40000, 12, 1000))))
	var counted, given time.Duration
	rounds := 0
	for b.Loop() {
		_, d, err := f.objects.Sent.Benchmark(packet, 1, nil)
		if err != nil {
			b.Fatal(err)
		}
		counted += d
		start := time.Now()
		if err := errors.Join(f.Remove(0), f.Reuse(0)); err != nil {
			b.Fatal(err)
		}
		given += time.Since(start)
		rounds++
	}
	b.ReportMetric(float64(counted.Nanoseconds())/float64(rounds), "ns/packet")
	b.ReportMetric(float64(given.Nanoseconds())/float64(rounds), "ns/reuse")
}
