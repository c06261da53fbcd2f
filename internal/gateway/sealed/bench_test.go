package sealed

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/testkit/wireguard"
)

// site is two gateways with a host behind each.
type site struct {
	a, b     *gateway
	hosts    [2]string
	planes   bool
	readings readings
}

// newSite makes hosts 10.0.1.2 and 10.0.2.2 behind gateways 10.0.1.1 and 10.0.2.1 with links
// between. Without super-packets, the LANs carry frames as on a wire, and no kernel merges or
// splits them for the gateways.
func newSite(b *testing.B, links int, super bool) *site {
	s := &site{readings: readings{}}
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
			if err := errors.Join(netns.Do(host, func() error { return offload.Prepare("eth0") }), netns.Do(g.namespace, func() error { return offload.Prepare("lan") })); err != nil {
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
func (s *site) seal(b *testing.B, discipline string, hold dataplane.ResequenceMode, rate unit.Bandwidth) {
	// The gateway with endpoints is the last: its first initiation is answered.
	for _, g := range []*gateway{s.b, s.a} {
		g.state.Policy = dataplane.Policy{{Discipline: dataplane.Discipline{Name: discipline}, Resequence: dataplane.Resequence{Mode: hold}}}
		for i := range g.state.Paths {
			r := dataplane.Rate{Bandwidth: rate}
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
		b.Cleanup(wireguard.Start(b, g.namespace, "tun0", g.key, wireguard.Peer{
			Public:   other.key.Public(),
			Endpoint: netip.MustParseAddrPort(fmt.Sprintf("192.168.0.%d:4790", other.number)),
			Hosts:    netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", other.number)),
		}))
		ip(b, g.namespace, "ip link set tun0 up")
		ip(b, g.namespace, "ip -4 route add 10.0.%d.0/24 dev tun0", other.number)
	}
}

// tcp measures the goodput of one connection from host to host for a time.
func (s *site) tcp(b *testing.B, length time.Duration) {
	l, err := netnstest.TCP(s.hosts[0], s.hosts[1], netip.MustParseAddrPort("10.0.2.2:80"), length)
	if err != nil {
		b.Fatal(err)
	}
	s.report(b, l, l.Bytes/1400)
	s.readings.add(b, float64(l.Bytes)*8/l.Took.Seconds()/1e9, "Gbit/s")
}

// udp offers datagrams of 1000 bytes at a rate for a time, and measures the share that arrives.
func (s *site) udp(b *testing.B, rate int, length time.Duration) {
	l, err := netnstest.UDP(s.hosts[0], s.hosts[1], netip.MustParseAddrPort("10.0.2.2:99"), 1000, rate, length)
	if err != nil {
		b.Fatal(err)
	}
	s.report(b, l, l.Received)
	s.readings.add(b, float64(l.Sent)/l.Took.Seconds()/1000, "kpps-offered")
	s.readings.add(b, float64(l.Received)/l.Took.Seconds()/1000, "kpps")
	s.readings.add(b, 100*float64(l.Received)/float64(l.Sent), "%whole")
	s.readings.add(b, 100*float64(l.Late)/float64(max(l.Received, 1)), "%late")
}

// report reports what the process has used, which has the hosts and the gateways.
func (s *site) report(b *testing.B, l netnstest.Load, packets int) {
	s.readings.add(b, l.CPU.Seconds()/max(float64(l.Bytes)/1e9, 1e-9), "cpu-s/GB")
	s.readings.add(b, float64(l.Mallocs)/float64(max(packets, 1)), "allocs/packet")
}

// BenchmarkStranger is the cost of an initiation of somebody who does not know the public key.
func BenchmarkStranger(b *testing.B) {
	key, err := handshake.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	p := withoutDevice(Options{}, nil)
	p.guard.Store(handshake.NewGuard(key.Public(), rand.Reader))
	message := make([]byte, handshake.InitiationLen)
	message[0] = 1
	b.ReportAllocs()
	for b.Loop() {
		p.checkHandshake(nil, message, netip.AddrPort{}, netip.Addr{})
	}
}

// unshaped is a rate beyond which paths are not shaped.
const unshaped = 10 * unit.GbitPerSecond

// BenchmarkShaped measures a connection over paths that are shaped to 0.97 of 50 Mbit/s with all
// headers: a packet of 1400 bytes has 1348 of 1472 bytes of payload, so each path carries 44.4
// Mbit/s.
func BenchmarkShaped(b *testing.B) {
	for _, links := range []int{1, 2, 3} {
		for _, discipline := range []string{"dq", "auto"} {
			b.Run(fmt.Sprintf("%s-%d", discipline, links), func(b *testing.B) {
				s := newSite(b, links, true)
				s.seal(b, discipline, dataplane.ResequenceAuto, 50*unit.MbitPerSecond)
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

// way is a way from site to site that is measured.
type way struct {
	name, title string
	links       int
	start       func(*site, *testing.B)
}

// ways are, in the order of one run: what the kernel forwards without a gateway, one path of
// wireguard-go, and the plane with one and two.
var ways = []way{
	{"kernel", "kernel forwarding, nothing sealed", 1, (*site).forward},
	{"wireguard-go", "wireguard-go, one path", 1, (*site).wireguard},
	{"sealed-1", "gateway, one path", 1, func(s *site, b *testing.B) { s.seal(b, "dq", dataplane.ResequenceAuto, unshaped) }},
	{"sealed-dq-2", "gateway, `dq` over two paths, order restored", 2, func(s *site, b *testing.B) { s.seal(b, "dq", dataplane.ResequenceAuto, unshaped) }},
	{"sealed-dq-2-unordered", "gateway, `dq` over two paths, order not restored", 2, func(s *site, b *testing.B) { s.seal(b, "dq", dataplane.ResequenceOff, unshaped) }},
}

// load is traffic that is measured. Its title is the head of a column, and cell a cell of it.
type load struct {
	name, title string
	super       bool
	run         func(*site, *testing.B)
	cell        func(readings) string
}

const loadTime = 1500 * time.Millisecond

// rateCell is a goodput, and what it costs.
func rateCell(r readings) string {
	return fmt.Sprintf("%.1f (%.1f)", r.median("Gbit/s"), r.median("cpu-s/GB"))
}

var loads = []load{
	{"tcp-super", "TCP, super-packets: Gbit/s (CPU s/GB)", true, func(s *site, b *testing.B) { s.tcp(b, loadTime) }, rateCell},
	{"tcp-single", "TCP, frames", false, func(s *site, b *testing.B) { s.tcp(b, loadTime) }, rateCell},
	{"udp-100k", "datagrams that arrive, % (CPU s/GB)", false, func(s *site, b *testing.B) { s.udp(b, 100_000, loadTime) }, func(r readings) string {
		return fmt.Sprintf("%.1f (%.1f)", r.median("%whole"), r.median("cpu-s/GB"))
	}},
}

// BenchmarkPlane compares the ways in one run. All of them share the host's cores with both ends.
func BenchmarkPlane(b *testing.B) {
	head, rows, runs := []string{""}, make([][]string, len(ways)), 0
	for _, l := range loads {
		head = append(head, l.title)
		for i, w := range ways {
			b.Run(l.name+"/"+w.name, func(b *testing.B) {
				s := newSite(b, w.links, l.super)
				w.start(s, b)
				for b.Loop() {
					l.run(s, b)
				}
				b.ReportMetric(0, "ns/op")
				if testing.Verbose() && s.planes {
					b.Logf("a: %+v", s.a.plane.Status())
					b.Logf("b: %+v", s.b.plane.Status())
				}
				if rows[i] == nil {
					rows[i] = []string{w.title}
				}
				rows[i], runs = append(rows[i], l.cell(s.readings)), b.N
			})
		}
	}
	publish(b, "plane", runs, loadTime, head, rows)
}

// pinged are ways whose round trips are measured: what the kernel forwards, and paths that are
// shaped.
var pinged = []struct {
	title string
	links int
	start func(*site, *testing.B)
}{
	{"kernel forwarding, no rate", 1, (*site).forward},
	{"gateway, one path of 50 Mbit/s, `best`", 1, func(s *site, b *testing.B) { s.seal(b, "best", dataplane.ResequenceAuto, 50*unit.MbitPerSecond) }},
	{"gateway, two paths of 50 Mbit/s, `auto`", 2, func(s *site, b *testing.B) { s.seal(b, "auto", dataplane.ResequenceAuto, 50*unit.MbitPerSecond) }},
}

// BenchmarkPing measures echoes between the hosts, idle and beside a download that fills the paths.
func BenchmarkPing(b *testing.B) {
	const echoes, grows = 300, 700 * time.Millisecond
	var rows [][]string
	runs := 0
	for _, w := range pinged {
		b.Run(w.title, func(b *testing.B) {
			s := newSite(b, w.links, true)
			w.start(s, b)
			time.Sleep(time.Second) // paths are measured
			ping := func(when string) {
				e, err := netnstest.Echo(s.hosts[0], netip.MustParseAddr("10.0.2.2"), echoes, 56)
				if err != nil || e.Received < echoes*9/10 {
					b.Fatalf("%d of %d echoes: %v", e.Received, echoes, err)
				}
				slices.Sort(e.Times)
				s.readings.add(b, milliseconds(e.Times[len(e.Times)/2]), "ms-"+when)
				s.readings.add(b, milliseconds(e.Times[len(e.Times)*99/100]), "ms-99-"+when)
			}
			for b.Loop() {
				ping("idle")
				loaded := make(chan error, 1)
				go func() {
					_, err := netnstest.TCP(s.hosts[0], s.hosts[1], netip.MustParseAddrPort("10.0.2.2:80"), grows+echoes*12*time.Millisecond)
					loaded <- err
				}()
				time.Sleep(grows)
				ping("busy")
				if err := <-loaded; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
			cell := func(when string) string {
				return fmt.Sprintf("%.2f (%.2f)", s.readings.median("ms-"+when), s.readings.median("ms-99-"+when))
			}
			rows, runs = append(rows, []string{w.title, cell("idle"), cell("busy")}), b.N
		})
	}
	publish(b, "ping", runs, echoes*10*time.Millisecond, []string{"round trip of an echo, median and 99th percentile, ms", "idle", "beside a download"}, rows)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// floods are 10,000 messages per second to a gateway, or to a socket that nobody reads.
var floods = []struct {
	name, title string
	port        int
	message     func(to handshake.PublicKey) []byte
}{
	{"nobody", "to a port that no gateway reads", 99, func(handshake.PublicKey) []byte { return make([]byte, handshake.InitiationLen) }},
	{"strangers", "from a sender that does not know the public key", 4790, func(handshake.PublicKey) []byte {
		m := make([]byte, handshake.InitiationLen)
		m[0] = 1
		return m
	}},
	{"knowing", "from a sender that knows the public key and is no peer", 4790, func(to handshake.PublicKey) []byte {
		own := handshake.PrivateKey{9}
		_, m, err := handshake.Initiate(own, handshake.Peer{Public: to}, 1, handshake.TimestampOf(time.Now()), 3, random{})
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return m
	}},
}

// BenchmarkStrangers measures the CPU time of the process, the sender of the flood and two idle
// gateways, in percent of one core.
func BenchmarkStrangers(b *testing.B) {
	var rows [][]string
	runs := 0
	for i := range floods {
		b.Run(floods[i].name, func(b *testing.B) {
			core := strangers(b, i)
			rows, runs = append(rows, []string{floods[i].title, fmt.Sprintf("%.1f", core)}), b.N
		})
	}
	publish(b, "strangers", runs, loadTime, []string{"10,000 messages in a second", "CPU, % of a core"}, rows)
}

// strangers returns the median of the CPU time in a flood, in percent of a core.
func strangers(b *testing.B, flood int) float64 {
	const rate = 10_000
	f := &floods[flood]
	s := newSite(b, 1, true)
	s.seal(b, "dq", dataplane.ResequenceAuto, unshaped)
	var sink *net.UDPConn
	if err := netns.Do(s.b.namespace, func() (err error) {
		sink, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 99})
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	c := dialFrom(b, s.a, fmt.Sprintf("192.168.0.2:%d", f.port))
	m := f.message(s.b.key.Public())
	for b.Loop() {
		before, sent := netnstest.CostNow(), 0
		for start := time.Now(); time.Since(start) < loadTime; time.Sleep(time.Millisecond) {
			for due := int(time.Since(start).Seconds() * rate); sent < due; sent++ {
				if _, err := c.Write(m); err != nil {
					b.Fatal(err)
				}
			}
		}
		s.readings.add(b, 100*netnstest.CostNow().Since(before).CPU.Seconds()/loadTime.Seconds(), "%core")
		s.readings.add(b, float64(sent)/loadTime.Seconds(), "messages/s")
	}
	b.ReportMetric(0, "ns/op")
	return s.readings.median("%core")
}

// manyPeers are how many peers a gateway has, with 16 paths to each.
var manyPeers = []int{1, 8, 63}

// BenchmarkManyPaths measures a gateway with many paths: how long until all are up, what they cost
// without traffic, all gateways together, and a connection over those of one peer.
func BenchmarkManyPaths(b *testing.B) {
	var rows [][]string
	runs := 0
	for _, peers := range manyPeers {
		b.Run(fmt.Sprint(dataplane.MaxPaths*peers), func(b *testing.B) {
			r := manyPaths(b, peers)
			rows, runs = append(rows, []string{
				fmt.Sprintf("%d to %d", dataplane.MaxPaths*peers, peers), fmt.Sprintf("%.1f", r.median("s-until-up")), fmt.Sprintf("%.0f", r.median("%core-idle")),
				fmt.Sprintf("%.0f", r.median("MB")), rateCell(r),
			}), b.N
		})
	}
	publish(b, "paths", runs, loadTime, []string{"paths to peers", "all up after s", "CPU without traffic, % of a core", "memory, MB", "TCP to one peer: Gbit/s (CPU s/GB)"}, rows)
}

// spokes returns so many gateways at the links of another one, and makes them peers of this one.
func (g *gateway) spokes(at *gateway, count int) (list []*gateway) {
	g.t.Helper()
	for i := range count {
		o := *at
		var err error
		if o.key, err = handshake.GenerateKey(rand.Reader); err != nil {
			g.t.Fatal(err)
		}
		o.state.Key, o.state.Port = o.key, at.state.Port+uint16(i+1)
		hub := dataplane.Peer{Name: "hub", Public: g.key.Public(), Prefixes: at.state.Peers[0].Prefixes}
		for j := range dataplane.MaxPaths {
			hub.Endpoints = append(hub.Endpoints, netip.MustParseAddrPort(fmt.Sprintf("192.168.%d.1:4790", j)))
		}
		o.state.Peers = []dataplane.Peer{hub}
		g.state.Peers = append(g.state.Peers, dataplane.Peer{
			Name: fmt.Sprint("peer", i), Public: o.key.Public(), Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/24", i+1))},
		})
		list = append(list, &o)
	}
	return list
}

func manyPaths(b *testing.B, peers int) readings {
	s := newSite(b, dataplane.MaxPaths, true)
	before := occupied()
	others := s.a.spokes(s.b, peers-1)
	start := time.Now()
	s.seal(b, "dq", dataplane.ResequenceAuto, unshaped)
	for i, o := range others {
		o.open(fmt.Sprint("tun", i+1), o.state)
	}
	for _, o := range others {
		o.up(dataplane.MaxPaths)
	}
	s.readings.add(b, time.Since(start).Seconds(), "s-until-up")
	for b.Loop() {
		time.Sleep(time.Second) // probes are those of idle paths
		before := netnstest.CostNow()
		time.Sleep(loadTime)
		s.readings.add(b, 100*netnstest.CostNow().Since(before).CPU.Seconds()/loadTime.Seconds(), "%core-idle")
		s.tcp(b, loadTime)
	}
	s.readings.add(b, (occupied()-before)/1e6, "MB")
	b.ReportMetric(0, "ns/op")
	return s.readings
}

// occupied returns the bytes of heap and stacks in use.
func occupied() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}
