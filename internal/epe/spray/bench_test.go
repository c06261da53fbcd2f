package spray

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

// These are prefixes of clients behind a border router: packets to the first are only encapsulated, by
// the kernel, those to the second get a mark before, and those to the third pass the programs.
var plain, marked, sprayed = netip.MustParsePrefix("2001:db8:c::/64"), netip.MustParsePrefix("2001:db8:e::/64"), netip.MustParsePrefix("2001:db8:d::/64")

// bench is a server with its border router, which has the addresses of the clients.
type bench struct {
	server, router string
	sprayer        *Sprayer
}

func newBench(b testing.TB) *bench {
	b.Helper()
	netnstest.Need(b)
	n := &bench{server: netnstest.New(b), router: netnstest.New(b)}
	netnstest.IP(b, n.server, "link add lan type veth peer name lan netns "+n.router+`
link set lan up
link set lo up
address add 2001:db8:1::10/64 dev lan nodad`)
	netnstest.IP(b, n.router, `link set lan up
link set lo up
address add 2001:db8:1::1/64 dev lan nodad
address add 2001:db8:c::1/128 dev lo
address add 2001:db8:d::1/128 dev lo
address add 2001:db8:e::1/128 dev lo
route add fc00:1::/64 encap seg6local action End.DT6 table 255 dev lan
route add fc00:2::/64 encap seg6local action End.DT6 table 255 dev lan`)
	netnstest.Do(b, n.router, func() error { return netns.Sysctl("net.ipv6.conf.all.forwarding", "1") })
	// Ready are both ends only when their link-local addresses are.
	netnstest.IP(b, n.server, "route add fc00::/16 via 2001:db8:1::1")
	netnstest.Do(b, n.server, func() error {
		s, err := New([]string{"lan"})
		if err != nil {
			return err
		}
		n.sprayer = s
		b.Cleanup(func() {
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
		const first, second = 0x7ab50000, 0x7ab50001
		if err := s.Set(0, Plan{Rule: 1, Marks: [MaxPaths]uint32{first, second}}); err != nil {
			return err
		}
		program, err := s.Program(0)
		if err != nil {
			return err
		}
		c, err := route.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		var ops []route.Op
		for _, o := range []route.Object{
			route.Nexthop{ID: 1, Link: "lan", SID: netip.MustParseAddr("fc00:1::"), Encap: route.EncapRed},
			route.Nexthop{ID: 2, Link: "lan", SID: netip.MustParseAddr("fc00:2::"), Encap: route.EncapRed},
			route.Nexthop{ID: 3, Link: "lan", Mark: first},
			route.Rule{Priority: 1, To: netip.MustParsePrefix("fc00::/16"), Table: route.MainTable},
			route.Rule{Priority: 2, Mark: first, Table: 101}, route.Rule{Priority: 4, Mark: second, Table: 102},
			route.Route{Table: 101, Dst: marked, Metric: 20, Kind: route.Unicast, NexthopID: 1, MTU: 1484},
			route.Route{Table: route.MainTable, Dst: marked, Metric: 4095, Kind: route.Unicast, NexthopID: 3, MTU: 1460},
			route.Route{Table: 101, Dst: sprayed, Metric: 20, Kind: route.Unicast, NexthopID: 1, MTU: 1484},
			route.Route{Table: 102, Dst: sprayed, Metric: 20, Kind: route.Unicast, NexthopID: 2, MTU: 1484},
			route.Route{Table: route.MainTable, Dst: plain, Metric: 4095, Kind: route.Unicast, NexthopID: 1, MTU: 1484},
			route.Route{Table: route.MainTable, Dst: sprayed, Metric: 4095, Kind: route.Unicast, Link: "lan", Program: program, MTU: 1460},
		} {
			ops = append(ops, route.Op{Protocol: route.Edge, Object: o})
		}
		return errors.Join(c.Apply(ops)...)
	})
	return n
}

// BenchmarkPacket measures a datagram of 1,400 bytes: with a mark, and sprayed, it is routed again.
func BenchmarkPacket(b *testing.B) {
	n := newBench(b)
	for _, to := range []struct {
		name   string
		prefix netip.Prefix
	}{{"seg6", plain}, {"mark", marked}, {"spray", sprayed}} {
		b.Run(to.name, func(b *testing.B) {
			var c net.Conn
			netnstest.Do(b, n.server, func() (err error) {
				c, err = net.Dial("udp", netip.AddrPortFrom(to.prefix.Addr().Next(), 9).String())
				return err
			})
			defer c.Close()
			data := make([]byte, 1400)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			begun := clock.Thread()
			for b.Loop() {
				_, _ = c.Write(data) // nobody receives it, which an ICMP error says
			}
			b.ReportMetric(float64((clock.Thread()-begun).Nanoseconds())/float64(b.N), "cpu-ns/packet")
		})
	}
}

// BenchmarkBulk measures TCP over links without a limit, by the kernel's encapsulation, with a mark
// before, and sprayed, in turns: the throughput of all, the processor's time, and what the programs
// take for a segment
// of 1,400 bytes.
func BenchmarkBulk(b *testing.B) {
	n := newBench(b)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Skip(err)
	}
	defer stats.Close()
	var bytes, taken, cpu [3]float64
	port := uint16(8000)
	for b.Loop() {
		for i, prefix := range []netip.Prefix{plain, marked, sprayed} {
			port++
			l, err := netnstest.TCP(n.server, n.router, netip.AddrPortFrom(prefix.Addr().Next(), port), 2*time.Second)
			if err != nil {
				b.Fatal(err)
			}
			bytes[i] += float64(l.Bytes)
			taken[i] += l.Took.Seconds()
			cpu[i] += l.CPU.Seconds()
		}
	}
	for i, name := range []string{"seg6", "mark", "spray"} {
		b.ReportMetric(8*bytes[i]/taken[i]/1e9, name+"-Gbit/s")
		b.ReportMetric(cpu[i]/bytes[i]*1400e9, name+"-cpu-ns/segment")
	}
	var program, runs float64
	for _, p := range []*ebpf.Program{n.sprayer.programs[0], n.sprayer.objects.Receive} {
		s, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		program += float64(s.Runtime.Nanoseconds())
		runs += float64(s.RunCount)
	}
	// The first quarter of each time is not in bytes.
	b.ReportMetric(program/(bytes[2]/0.75)*1400, "program-ns/segment")
	b.ReportMetric(program/runs, "program-ns/run")
}
