package openbpf

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/testkit/programs"
	"github.com/tabane/tabane/internal/testkit/published"
)

// network is two hosts, each behind a gateway, and two links between the gateways.
type network struct {
	b           testing.TB
	hosts, gate [2]string
	links       [2][2]int // interface indices, by gateway
}

// hostAddress is that of a host behind gateway g.
func hostAddress(g int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(g + 1), 0, 1}) }

// linkAddress is that of gateway g on a link.
func linkAddress(g, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168, byte(i), byte(g + 1)})
}

// carried is what the LANs of a network carry.
type carried int

const (
	superPackets carried = iota
	frames               // as on a wire
	// framesWithRoom have 64 bytes or more in front of them, as those of a network interface's
	// driver (NET_SKB_PAD); those of veth have none.
	framesWithRoom
	// framesToBridge have as much, because the gateway's interface of the LAN is a bridge with a
	// port that needs it.
	framesToBridge
)

// newNetwork makes it.
func newNetwork(b testing.TB, lan carried) *network {
	n := &network{b: b, hosts: [2]string{netnstest.New(b), netnstest.New(b)}, gate: [2]string{netnstest.New(b), netnstest.New(b)}}
	for i := range 2 {
		n.ip(n.gate[0], "ip link add p%d type veth peer name p%d netns %s", i, i, n.gate[1])
		n.ip(n.gate[0], "ip link set p%d mtu 1600", i)
		n.ip(n.gate[1], "ip link set p%d mtu 1600", i)
	}
	for g := range 2 {
		n.ip(n.hosts[g], "ip link set lo up")
		n.ip(n.gate[g], "ip link add lan type veth peer name lan netns %s", n.hosts[g])
		for ns, has := range map[string]bool{n.hosts[g]: lan == framesWithRoom, n.gate[g]: lan == framesToBridge} {
			if has {
				netnstest.Do(b, ns, func() error { return makeRoom("lan") })
			}
		}
		n.ip(n.hosts[g], "ip link set lan up")
		n.ip(n.hosts[g], "ip -4 addr add %v/16 dev lan", hostAddress(g))
		n.ip(n.hosts[g], "ip -4 route add default via 10.%d.0.254", g+1)
		n.ip(n.gate[g], "ip link set lo up")
		n.ip(n.gate[g], "ip link set lan up")
		n.ip(n.gate[g], "ip -4 addr add 10.%d.0.254/16 dev lan", g+1)
		for i := range 2 {
			n.ip(n.gate[g], "ip link set p%d up", i)
			n.ip(n.gate[g], "ip -4 addr add %v/24 dev p%d", linkAddress(g, i), i)
		}
		netnstest.Do(b, n.gate[g], func() error {
			for i := range 2 {
				l, err := net.InterfaceByName(fmt.Sprint("p", i))
				if err != nil {
					return err
				}
				n.links[g][i] = l.Index
			}
			return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"))
		})
		if lan != superPackets {
			for _, ns := range []string{n.hosts[g], n.gate[g]} {
				netnstest.Do(b, ns, func() error { return offload.Prepare("lan") })
			}
		}
	}
	return n
}

// makeRoom replaces an interface by a bridge of its name that it is a port of. The ports of a
// bridge leave as much room as the one that needs the most, and so does the other end of one of
// veth.
func makeRoom(name string) error {
	port, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	const other = "port"
	if err := netlink.LinkSetName(port, other); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	attrs.Name = "room"
	vxlan := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 4789, Learning: true}
	if err := netlink.LinkAdd(vxlan); err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetMaster(vxlan, bridge), netlink.LinkSetMaster(port, bridge)); err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(port), offload.Prepare(other))
}

func (n *network) ip(ns, command string, args ...any) {
	n.b.Helper()
	if _, err := netnstest.TryIP(n.b, ns, fmt.Sprintf(command, args...)); err != nil {
		n.b.Fatalf(command+": %v", append(args, err)...)
	}
}

// forwarded has the kernel forward over the first link.
func (n *network) forwarded() {
	for g := range 2 {
		n.forward(g)
	}
}

func (n *network) forward(g int) {
	n.ip(n.gate[g], "ip -4 route add 10.%d.0.0/16 via %v", 2-g, linkAddress(1-g, 0))
}

// masqueraded has the kernel translate the first host's packets to the address of the first link.
func (n *network) masqueraded() {
	nft := programs.Need(n.b, "nft")
	n.forward(0)
	netnstest.Do(n.b, n.gate[0], func() error {
		out, err := exec.Command(nft, "add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; add rule ip t c oifname p0 masquerade").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// open has the program send over a number of paths, all of which lead over the two links in turn.
func (n *network) open(paths int, discipline string, mode dataplane.Mode) (list [2]*Program) {
	for g := range 2 {
		p := load(n.b, Options{})
		if err := p.SetRoutes(map[netip.Prefix]int{
			netip.PrefixFrom(hostAddress(1-g), 16).Masked(): 0, netip.PrefixFrom(hostAddress(g), 16).Masked(): Kernel,
		}); err != nil {
			n.b.Fatal(err)
		}
		ways := make([]Way, paths)
		origins := map[netip.Addr]Origin{}
		for i := range ways {
			ways[i] = Way{Interface: n.links[g][i%2], IPv4: linkAddress(1-g, i%2)}
			if mode != dataplane.Plain {
				ways[i].Local = netip.AddrPortFrom(linkAddress(g, i%2), 4790)
			}
			if mode == dataplane.Unsealed {
				ways[i].Remote = netip.AddrPortFrom(linkAddress(1-g, i%2), 4790)
			}
			origins[linkAddress(1-g, i%2)] = Origin{Path: i % 2}
		}
		p.plans(n.b, dataplane.Policy{{}}, discipline, 1500, paths, ways...)
		n.attach(g, p.Attach, "lan")
		// The sealed plane carries the packets that begin a connection; here it is the kernel.
		n.forward(g)
		switch mode {
		case dataplane.Unsealed:
			if err := errors.Join(p.Listen(4790), p.Accept(cookieOf(0), 0)); err != nil {
				n.b.Fatal(err)
			}
			n.attach(g, p.Join, "p0")
			n.attach(g, p.Join, "p1")
		case dataplane.NAT:
			if err := p.SetOrigins(origins, func(int) bool { return false }); err != nil {
				n.b.Fatal(err)
			}
			n.attach(g, p.Restore, "p0")
			n.attach(g, p.Restore, "p1")
		case dataplane.Plain, dataplane.Tunnel:
		}
		list[g] = p
	}
	if mode == dataplane.NAT {
		n.agree(list)
	}
	return list
}

// agree opens the NAT sessions that the gateways want, until the benchmark ends.
func (n *network) agree(list [2]*Program) {
	for g, p := range list {
		wants, err := p.Wants()
		if err != nil {
			n.b.Fatal(err)
		}
		n.b.Cleanup(func() { _ = wants.Close() })
		go func() {
			for {
				_, f, err := wants.Next()
				if err != nil {
					return
				}
				if err := errors.Join(list[1-g].SetSession(0, f, true), p.SetSession(This, f, true)); err != nil {
					n.b.Error(err)
				}
			}
		}()
	}
}

func (n *network) attach(g int, attach func(string) (bpf.Attachment, error), name string) {
	netnstest.Do(n.b, n.gate[g], func() error {
		a, err := attach(name)
		if err == nil {
			n.b.Cleanup(func() {
				if err := netns.Do(n.gate[g], a.Detach); err != nil {
					n.b.Error(err)
				}
			})
		}
		return err
	})
}

// plain is mode plain: what arrives at the other gateway is forwarded by its kernel.
func (n *network) plain(paths int) [2]*Program { return n.open(paths, "dq", dataplane.Plain) }

// nat is mode nat.
func (n *network) nat(paths int) [2]*Program { return n.open(paths, "dq", dataplane.NAT) }

// tunnel is mode tunnel with seal none.
func (n *network) tunnel(paths int) [2]*Program { return n.tunnelOf(paths, "dq") }

func (n *network) tunnelOf(paths int, discipline string) [2]*Program {
	return n.open(paths, discipline, dataplane.Unsealed)
}

// loadTime is short, so that there are many turns: connections of super-packets over the same way
// differ by a factor of two, depending on which processor does what, and keep their rate for as
// long as they last.
const loadTime = 100 * time.Millisecond

// datagrams measures a flood of datagrams, in thousands per second.
func (n *network) datagrams() (float64, netnstest.Load) {
	l, err := netnstest.UDP(n.hosts[0], n.hosts[1], netip.AddrPortFrom(hostAddress(1), 99), 1000, 0, loadTime)
	if err != nil {
		n.b.Fatal(err)
	}
	return float64(l.Received) / l.Took.Seconds() / 1e3, l
}

// connection measures a connection of TCP, in Gbit/s.
func (n *network) connection() (float64, netnstest.Load) {
	l, err := netnstest.TCP(n.hosts[0], n.hosts[1], netip.AddrPortFrom(hostAddress(1), 80), loadTime)
	if err != nil {
		n.b.Fatal(err)
	}
	return float64(l.Bytes) * 8 / l.Took.Seconds() / 1e9, l
}

// BenchmarkForward compares the modes with forwarding by the kernel, and by the kernel with a
// masquerade rule: the medians of as many rounds as it runs (-benchtime 60x), in each of which all
// take their turn, and of their ratios to the kernel's turn in the round. Hosts and gateways share
// the cores. A datagram has 1000 bytes.
func BenchmarkForward(b *testing.B) {
	ways := []struct {
		name, title string
		start       func(*network)
	}{
		{"kernel", "kernel forwarding", (*network).forwarded},
		{"masquerade", "kernel forwarding, nft masquerade", (*network).masqueraded},
		{"plain", "`mode: plain`, two paths", func(n *network) { n.plain(2) }},
		{"nat", "`mode: nat`, two paths", func(n *network) { n.nat(2) }},
		{"tunnel", "`seal: none`, two paths", func(n *network) { n.tunnel(2) }},
	}
	rows := make([][]string, len(ways))
	for i, w := range ways {
		rows[i] = []string{w.title}
	}
	runs := 0
	for _, l := range []struct {
		name, unit string
		lan        carried
		carry      func(*network) (float64, netnstest.Load)
	}{
		{"udp", "kpps", frames, (*network).datagrams}, {"udp-room", "kpps", framesWithRoom, (*network).datagrams},
		{"tcp-frames", "Gbit/s", frames, (*network).connection}, {"tcp-room", "Gbit/s", framesWithRoom, (*network).connection},
		{"tcp-super", "Gbit/s", superPackets, (*network).connection},
	} {
		b.Run(l.name, func(b *testing.B) {
			networks := make([]*network, len(ways))
			values, cpu := make([][]float64, len(ways)), make([][]float64, len(ways))
			for i, w := range ways {
				networks[i] = newNetwork(b, l.lan)
				w.start(networks[i])
			}
			for b.Loop() {
				for i, n := range networks {
					v, load := l.carry(n)
					values[i] = append(values[i], v)
					cpu[i] = append(cpu[i], load.CPU.Seconds()/float64(load.Bytes)*1e9)
				}
			}
			for i, w := range ways {
				b.ReportMetric(median(values[i]), w.name+"-"+l.unit)
				b.ReportMetric(median(cpu[i]), w.name+"-s/GB")
				ratios := make([]float64, len(values[i]))
				for round := range ratios {
					ratios[round] = values[i][round] / values[0][round]
				}
				b.ReportMetric(median(ratios), w.name+"-of-kernel")
				rows[i] = append(rows[i], fmt.Sprintf("%.1f (%.1f)", median(values[i]), median(cpu[i])))
				runs = len(values[i])
			}
			b.ReportMetric(0, "ns/op")
		})
	}
	publish(b, runs, []string{"", "datagrams of 1000 bytes, thousands per second (CPU s/GB)", "with room", "TCP, frames: Gbit/s", "with room", "TCP, super-packets"}, rows)
}

// BenchmarkFlows compares mode nat with one session and with 100,000, each packet of another one
// than that before: the medians of as many turns as it runs. The receiver reads nothing, so that a
// packet costs what the hosts' kernels and gateways take.
func BenchmarkFlows(b *testing.B) {
	const ports = 50_000
	n := newNetwork(b, frames)
	list := n.nat(2)
	to := []netip.Addr{hostAddress(1), hostAddress(1).Next()}
	n.ip(n.hosts[1], "ip -4 addr add %v/16 dev lan", to[1])
	const all = 100_000
	flow := func(i int) tunnel.Flow {
		return tunnel.Flow{Protocol: unix.IPPROTO_UDP, Source: netip.AddrPortFrom(hostAddress(0), uint16(1000+i%ports)), Destination: netip.AddrPortFrom(to[i/ports], 99)}
	}
	for i := range all {
		if err := errors.Join(list[1].SetSession(0, flow(i), true), list[0].SetSession(This, flow(i), true)); err != nil {
			b.Fatal(err)
		}
	}
	var in *net.UDPConn
	netnstest.Do(b, n.hosts[1], func() (err error) { in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 99}); return err })
	defer in.Close()
	var out int
	netnstest.Do(b, n.hosts[0], func() (err error) {
		out, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	defer unix.Close(out)
	arrived := func() (sum uint64) {
		counts, err := list[1].Counted(0)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range counts {
			sum += c.Packets
		}
		return sum
	}
	position := 0
	send := func(flows int) float64 {
		m := message{hops: 9, payload: 980, Packet: dataplane.Packet{Src: hostAddress(0), Dst: to[0], Protocol: unix.IPPROTO_UDP, DstPort: 99}}
		datagram := m.frame()[14:]
		binary.BigEndian.PutUint16(datagram[24:], uint16(len(datagram)-20))
		binary.BigEndian.PutUint16(datagram[26:], 0) // no checksum
		before, start, sent := arrived(), time.Now(), uint64(0)
		for time.Since(start) < loadTime {
			for range 64 {
				const stride = 7919 // so that neighbors in a map are not used one after the other
				f := flow(position * stride % flows)
				position++
				binary.BigEndian.PutUint16(datagram[20:], f.Source.Port())
				at := &unix.SockaddrInet4{Addr: f.Destination.Addr().As4()}
				copy(datagram[16:], at.Addr[:])
				if err := unix.Sendto(out, datagram, 0, at); err != nil {
					b.Fatal(err)
				}
				sent++
			}
		}
		took := time.Since(start)
		if n := arrived() - before; n < sent*99/100 {
			b.Fatalf("%d of %d datagrams arrive", n, sent)
		}
		return float64(sent) / took.Seconds() / 1e3
	}
	var one, many []float64
	for b.Loop() {
		one, many = append(one, send(1)), append(many, send(all))
	}
	b.ReportMetric(median(one), "one-kpps")
	b.ReportMetric(median(many), "100000-kpps")
	b.ReportMetric(median(many)/median(one), "100000-of-one")
	b.ReportMetric(0, "ns/op")
}

var writeTables = flag.Bool("update", false, "write the table of docs/gateway-measured.md")

// publish writes the table of docs/gateway-measured.md, below a line on how it was measured, with
// -update.
func publish(b *testing.B, runs int, head []string, rows [][]string) {
	if !*writeTables || b.Failed() {
		return
	}
	if runs == 0 {
		b.Fatal("nothing was measured: nft is not installed; see make programs")
	}
	table, err := published.Read("docs/gateway-measured.md", "open", "make bench-forward")
	if err == nil {
		err = table.WriteMeasured(runs, loadTime, head, rows)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// BenchmarkPrograms measures the programs by the statistics of the kernel, for each packet of a
// flood of datagrams.
func BenchmarkPrograms(b *testing.B) {
	for _, mode := range []struct {
		name  string
		lan   carried
		start func(n *network, paths int) [2]*Program
	}{
		{"plain", frames, (*network).plain}, {"nat", frames, (*network).nat},
		{"tunnel", frames, (*network).tunnel}, {"tunnel-room", framesWithRoom, (*network).tunnel},
		{"tunnel-bridge", framesToBridge, (*network).tunnel},
	} {
		for _, paths := range []int{2, 16} {
			b.Run(fmt.Sprintf("%s-%d", mode.name, paths), func(b *testing.B) {
				n := newNetwork(b, mode.lan)
				list := mode.start(n, paths)
				nothing := n.floor(asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()})
				runTimes(b, list[0], list[1], func() { n.datagrams() }, nothing)
			})
		}
	}
}

// BenchmarkRoom measures programs that make room for the headers of the tunnel, in two ways, and
// redirect, and one that only redirects.
func BenchmarkRoom(b *testing.B) {
	// Of bpf_skb_adjust_room: where, and its flags.
	const adjustRoomMAC, encapsulation = 1, 1<<0 | 1<<1 | 1<<4
	for _, by := range []struct {
		name         string
		instructions asm.Instructions
	}{
		{"redirect", nil},
		{"change-head", asm.Instructions{asm.Mov.Imm(asm.R2, OverheadIPv4), asm.Mov.Imm(asm.R3, 0), asm.FnSkbChangeHead.Call()}},
		{"adjust-room", asm.Instructions{
			asm.Mov.Imm(asm.R2, OverheadIPv4), asm.Mov.Imm(asm.R3, adjustRoomMAC), asm.Mov.Imm(asm.R4, encapsulation), asm.FnSkbAdjustRoom.Call(),
		}},
	} {
		for name, lan := range map[string]carried{"veth": frames, "room": framesWithRoom} {
			b.Run(by.name+"/"+name, func(b *testing.B) {
				n := newNetwork(b, lan)
				const protocolAt, ipv4 = 16, 0x0008 // in struct __sk_buff, and its value in the order of the network
				program := asm.Instructions{asm.LoadMem(asm.R2, asm.R1, protocolAt, asm.Word), asm.JNE.Imm(asm.R2, ipv4, "other")}
				program = append(program, by.instructions...)
				p := n.floor(append(
					program, asm.Mov.Imm(asm.R1, int32(n.links[0][0])), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
					asm.Mov.Imm(asm.R0, -1).WithSymbol("other"), asm.Return(),
				))
				n.forwarded()
				runTimes(b, nil, nil, func() { n.datagrams() }, p)
			})
		}
	}
}

// floor attaches a program to the first gateway's interface of the LAN, before others.
func (n *network) floor(instructions asm.Instructions) *ebpf.Program {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "floor", Type: ebpf.SchedCLS, License: "GPL", Instructions: instructions})
	if err != nil {
		n.b.Fatal(err)
	}
	n.b.Cleanup(func() { _ = p.Close() })
	n.attach(0, func(name string) (bpf.Attachment, error) {
		return bpf.Attach(bpf.AttachOptions{Link: name, Name: "floor", Ethernet: bpf.Programs{Ingress: p}})
	}, "lan")
	return p
}

// runTimes reports the mean times of the programs that send and receive in a benchmark's function,
// and of another one as the floor.
func runTimes(b *testing.B, sender, receiver *Program, run func(), more ...*ebpf.Program) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for b.Loop() {
		run()
	}
	measured := map[string]*ebpf.Program{}
	if sender != nil {
		measured = map[string]*ebpf.Program{"split": sender.objects.Split, "join": receiver.objects.Join, "restore": receiver.objects.Restore}
	}
	for _, p := range more {
		measured["floor"] = p
	}
	for name, p := range measured {
		s, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		if s.RunCount > 0 {
			b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), name+"-ns")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkProgramsFlows measures mode nat as BenchmarkPrograms, for packets of a number of
// sessions in random order. Each is given to the programs by a system call, so that they find less
// in the caches.
func BenchmarkProgramsFlows(b *testing.B) {
	const packets = 20_000 // of an iteration
	for _, flows := range []int{1, 100_000} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			s := newSites(b, linkAddress(0, 0), linkAddress(0, 1))
			flow := func(i int) tunnel.Flow {
				const ports = 50_000 // of a host: flows that differ in their hosts alone collide
				return tunnel.Flow{
					Protocol: unix.IPPROTO_UDP, Destination: netip.AddrPortFrom(to4, uint16(80+i/ports)),
					Source: netip.AddrPortFrom(from4, uint16(1000+i%ports)),
				}
			}
			for i := range flows {
				if err := errors.Join(s.far.SetSession(3, flow(i), true), s.near.SetSession(This, flow(i), true)); err != nil {
					b.Fatal(err)
				}
			}
			r := rand.New(rand.NewPCG(1, 1))
			runTimes(b, s.near, s.far, func() {
				for range packets {
					f := flow(r.IntN(flows))
					m := message{hops: 9, payload: 980, Packet: dataplane.Packet{
						Src: from4, Dst: to4, Protocol: unix.IPPROTO_UDP, SrcPort: f.Source.Port(), DstPort: f.Destination.Port(),
					}}
					frame := m.frame()
					setChecksum(frame)
					verdict, out := s.near.run(b, frame)
					if verdict != redirect {
						b.Fatalf("a packet of %v: verdict %d", f, int32(verdict))
					}
					if verdict, _ := s.far.restored(b, out); verdict != next {
						b.Fatalf("a packet of %v is not restored: verdict %d", f, int32(verdict))
					}
				}
			})
		})
	}
}
