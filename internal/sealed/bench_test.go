package sealed

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/unit"
)

// site is two gateways with a host behind each.
type site struct {
	a, b   *gateway
	hosts  [2]string
	planes bool
}

// newSite makes hosts 10.0.1.2 and 10.0.2.2 behind gateways 10.0.1.1 and 10.0.2.1 with links between.
func newSite(b *testing.B, links int, super bool) *site {
	s := new(site)
	s.a, s.b = pair(b, links)
	for i, g := range []*gateway{s.a, s.b} {
		host := netnstest.New(b)
		s.hosts[i] = host
		ip(b, g.namespace, "ip link add lan type veth peer name eth0 netns %s", host)
		ip(b, g.namespace, "ip link set lan up")
		ip(b, g.namespace, "ip -4 addr add 10.0.%d.1/24 dev lan", g.number)
		ip(b, host, "ip link set lo up")
		ip(b, host, "ip link set eth0 up")
		ip(b, host, "ip -4 addr add 10.0.%d.2/24 dev eth0", g.number)
		ip(b, host, "ip -4 route add 10.0.0.0/8 via 10.0.%d.1", g.number)
		if err := netns.Do(g.namespace, func() error {
			return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"))
		}); err != nil {
			b.Fatal(err)
		}
		if !super {
			if err := netns.Do(host, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetGSOMaxSegs(l, 1)
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	return s
}

// forward has the kernel forward between the hosts.
func (s *site) forward(b *testing.B) {
	ip(b, s.a.namespace, "ip -4 route add 10.0.2.0/24 via 192.168.0.2")
	ip(b, s.b.namespace, "ip -4 route add 10.0.1.0/24 via 192.168.0.1")
}

// seal runs planes with a discipline over paths of a rate.
func (s *site) seal(b *testing.B, discipline string, hold plane.ResequenceMode, rate unit.Bandwidth) {
	for _, g := range []*gateway{s.a, s.b} {
		g.state.Policy = plane.Policy{{Discipline: plane.Discipline{Name: discipline}, Resequence: plane.Resequence{Mode: hold}}}
		for i := range g.state.Paths {
			r := plane.Rate{Bandwidth: rate}
			g.state.Paths[i].Up, g.state.Paths[i].Down = r, r
		}
		g.run()
	}
	s.a.up(len(s.a.state.Paths))
	s.b.up(len(s.b.state.Paths))
	s.planes = true
}

// wireguard runs wireguard-go over the first link.
func (s *site) wireguard(b *testing.B) {
	for _, g := range []*gateway{s.a, s.b} {
		other := s.b
		if g == s.b {
			other = s.a
		}
		public := other.key.Public()
		var d *device.Device
		if err := netns.Do(g.namespace, func() error {
			t, err := wgtun.CreateTUN("tun0", 1420)
			if err != nil {
				return err
			}
			d = device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
			return errors.Join(d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=4790\npublic_key=%s\nendpoint=192.168.0.%d:4790\nallowed_ip=10.0.%d.0/24\n",
				hex.EncodeToString(g.key[:]), hex.EncodeToString(public[:]), other.number, other.number)), d.Up())
		}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(d.Close)
		ip(b, g.namespace, "ip link set tun0 up")
		ip(b, g.namespace, "ip -4 route add 10.0.%d.0/24 dev tun0", other.number)
	}
}

// tcp measures the goodput of one connection from host to host for a time.
func (s *site) tcp(b *testing.B, length time.Duration) {
	var l net.Listener
	if err := netns.Do(s.hosts[1], func() (err error) { l, err = net.Listen("tcp", "10.0.2.2:80"); return err }); err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- netns.Do(s.hosts[0], func() error {
			c, err := net.DialTimeout("tcp", "10.0.2.2:80", 5*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			for data := make([]byte, 1<<18); ; {
				select {
				case <-stop:
					return nil
				default:
				}
				if _, err := c.Write(data); err != nil {
					return err
				}
			}
		})
	}()
	c, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10*time.Second + length))
	data := make([]byte, 1<<18)
	bytes, start := 0, time.Now()
	warm := false
	cost := costNow()
	for took := time.Duration(0); took < length; took = time.Since(start) {
		n, err := c.Read(data)
		if err != nil {
			b.Fatal(err)
		}
		bytes += n
		if !warm && time.Since(start) > length/4 {
			warm, bytes, start, cost = true, 0, time.Now(), costNow()
		}
	}
	cost.report(b, bytes, bytes/1400)
	b.ReportMetric(float64(bytes)*8/time.Since(start).Seconds()/1e9, "Gbit/s")
	close(stop)
	io.Copy(io.Discard, c)
	<-ended
}

// udp offers datagrams of 1000 bytes at a rate for a time, and measures the share that arrives.
func (s *site) udp(b *testing.B, rate int, length time.Duration) {
	const size = 1000
	var in, out *net.UDPConn
	if err := errors.Join(
		netns.Do(s.hosts[1], func() (err error) {
			in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.2.2:99")))
			return err
		}),
		netns.Do(s.hosts[0], func() error {
			c, err := net.Dial("udp", "10.0.2.2:99")
			if err == nil {
				out = c.(*net.UDPConn)
			}
			return err
		})); err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	raw, _ := in.SyscallConn()
	raw.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 16<<20) })
	var got, late atomic.Int64
	go func() {
		highest := uint32(0)
		for data := make([]byte, 2048); ; {
			n, err := in.Read(data)
			if err != nil {
				return
			}
			if n == size {
				got.Add(1)
				if v := binary.BigEndian.Uint32(data); v < highest {
					late.Add(1)
				} else {
					highest = v
				}
			}
		}
	}()
	sent := 0
	data := make([]byte, size)
	cost, start := costNow(), time.Now()
	for {
		took := time.Since(start)
		if took >= length {
			break
		}
		for due := int(took.Seconds() * float64(rate)); sent < due; sent++ {
			binary.BigEndian.PutUint32(data, uint32(sent))
			if _, err := out.Write(data); err != nil {
				b.Fatal(err)
			}
		}
		time.Sleep(100 * time.Microsecond)
	}
	took := time.Since(start)
	time.Sleep(200 * time.Millisecond)
	cost.report(b, int(got.Load())*size, int(got.Load()))
	b.ReportMetric(float64(sent)/took.Seconds()/1000, "kpps-offered")
	b.ReportMetric(float64(got.Load())/took.Seconds()/1000, "kpps")
	b.ReportMetric(100*float64(got.Load())/float64(sent), "%whole")
	b.ReportMetric(100*float64(late.Load())/float64(max(got.Load(), 1)), "%late")
}

// cost is the CPU time of the process, which has the hosts and the gateways, and its allocations. On a
// busy machine it says more than a rate.
type cost struct {
	cpu     time.Duration
	mallocs uint64
}

func costNow() cost {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return cost{time.Duration(u.Utime.Nano() + u.Stime.Nano()), m.Mallocs}
}

func (c cost) report(b *testing.B, bytes, packets int) {
	now := costNow()
	b.ReportMetric((now.cpu-c.cpu).Seconds()/max(float64(bytes)/1e9, 1e-9), "cpu-s/GB")
	b.ReportMetric(float64(now.mallocs-c.mallocs)/float64(max(packets, 1)), "allocs/packet")
}

// BenchmarkStranger is the cost of an initiation of somebody who does not know the public key.
func BenchmarkStranger(b *testing.B) {
	key, err := session.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	p := &Plane{guard: session.NewGuard(key.Public(), rand.Reader), start: time.Now()}
	message := make([]byte, session.InitiationLen)
	message[0] = 1
	b.ReportAllocs()
	for b.Loop() {
		p.knock(nil, message, netip.AddrPort{})
	}
}

// unshaped is a rate beyond which paths are not shaped.
const unshaped = 10 * unit.GbitPerSecond

// BenchmarkShaped measures a connection over paths that are shaped to 0.97 of 50 Mbit/s with all
// headers: a packet of 1400 bytes has 1348 of 1472 bytes of payload, so each path carries 44.4 Mbit/s.
func BenchmarkShaped(b *testing.B) {
	for _, links := range []int{1, 2, 3} {
		for _, discipline := range []string{"dq", "auto"} {
			b.Run(fmt.Sprintf("%s-%d", discipline, links), func(b *testing.B) {
				s := newSite(b, links, true)
				s.seal(b, discipline, plane.ResequenceAuto, 50*unit.MbitPerSecond)
				for b.Loop() {
					s.tcp(b, 4*time.Second)
				}
				b.ReportMetric(0, "ns/op")
				if testing.Verbose() {
					b.Logf("a: %+v", s.a.plane.Status())
					b.Logf("b: %+v", s.b.plane.Status())
				}
			})
		}
	}
}

// BenchmarkPlane compares, in one run, what the kernel forwards without a gateway with one path of
// wireguard-go and the plane with one and two. All of them share the host's cores with both ends.
func BenchmarkPlane(b *testing.B) {
	const length = 1500 * time.Millisecond
	for _, way := range []struct {
		name  string
		links int
		start func(*site, *testing.B)
	}{
		{"kernel", 1, (*site).forward},
		{"wireguard-go", 1, (*site).wireguard},
		{"sealed-1", 1, func(s *site, b *testing.B) { s.seal(b, "dq", plane.ResequenceAuto, unshaped) }},
		{"sealed-dq-2", 2, func(s *site, b *testing.B) { s.seal(b, "dq", plane.ResequenceAuto, unshaped) }},
		{"sealed-dq-2-unordered", 2, func(s *site, b *testing.B) { s.seal(b, "dq", plane.ResequenceOff, unshaped) }},
	} {
		for _, traffic := range []struct {
			name  string
			super bool
			run   func(*site, *testing.B)
		}{
			{"tcp-super", true, func(s *site, b *testing.B) { s.tcp(b, length) }},
			{"tcp-single", false, func(s *site, b *testing.B) { s.tcp(b, length) }},
			{"udp-100k", false, func(s *site, b *testing.B) { s.udp(b, 100_000, length) }},
		} {
			b.Run(traffic.name+"/"+way.name, func(b *testing.B) {
				s := newSite(b, way.links, traffic.super)
				way.start(s, b)
				for b.Loop() {
					traffic.run(s, b)
				}
				b.ReportMetric(0, "ns/op")
				if testing.Verbose() && s.planes {
					b.Logf("a: %+v", s.a.plane.Status())
					b.Logf("b: %+v", s.b.plane.Status())
				}
			})
		}
	}
}
