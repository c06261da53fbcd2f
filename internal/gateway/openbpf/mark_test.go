package openbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// marked has datagrams of IPv4 that the gateway's LAN interface receives marked with the lower byte
// of their destination port, as tc's skbedit or another program would.
func (s *site) marked() {
	s.t.Helper()
	const mark, portAt = 8, 14 + 20 + 3 // in struct __sk_buff, and in the packet
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(portAt, asm.Byte),
		asm.StoreMem(asm.R6, mark, asm.R0, asm.Word),
		asm.Mov.Imm(asm.R0, -1),
		asm.Return(),
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.Close() })
	netnstest.Do(s.t, s.gate, func() error {
		lan, err := net.InterfaceByName("lan")
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: lan.Index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		if err == nil {
			s.t.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
}

// portStream sends datagrams in turn to ports of the far host.
type portStream struct {
	t     *testing.T
	ports []uint16
	in    []*net.UDPConn
	out   []*net.UDPConn
	next  uint32
}

func (s *site) portStream(t *testing.T, ports ...uint16) *portStream {
	t.Helper()
	p := &portStream{t: t, ports: ports}
	for _, port := range ports {
		at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), port))
		var in, out *net.UDPConn
		if err := errors.Join(
			netns.Do(s.far, func() (err error) { in, err = net.ListenUDP("udp", at); return err }),
			netns.Do(s.host, func() (err error) { out, err = net.DialUDP("udp", nil, at); return err }),
		); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); out.Close() })
		p.in, p.out = append(p.in, in), append(p.out, out)
	}
	return p
}

// send sends so many datagrams to each port, and fails the test unless each arrives once.
func (p *portStream) send(n int) {
	p.t.Helper()
	first := p.next
	for range n {
		for _, out := range p.out {
			if _, err := out.Write(binary.BigEndian.AppendUint32(nil, p.next)); err != nil {
				p.t.Fatal(err)
			}
		}
		p.next++
	}
	for i, in := range p.in {
		got := map[uint32]bool{}
		for b := make([]byte, 8); len(got) < n; {
			if err := in.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				p.t.Fatal(err)
			}
			if _, err := in.Read(b); err != nil {
				p.t.Fatalf("of %d datagrams to port %d from number %d on, %d arrive: %v", n, p.ports[i], first, len(got), err)
			}
			k := binary.BigEndian.Uint32(b)
			if got[k] || k < first || k >= p.next {
				p.t.Fatalf("datagram %d to port %d arrives twice, or late", k, p.ports[i])
			}
			got[k] = true
		}
	}
}

// TestMarks: packets go over the path that the rule of their mark says. While the rules change,
// none is lost, and none is sent by rules of which some are new and some are old.
func TestMarks(t *testing.T) {
	s := newSite(t)
	netnstest.Do(t, s.gate, func() error { return netns.Sysctl("net.ipv4.ip_forward", "1") })
	// What the program leaves goes into the tunnel of the sealed plane; here the kernel forwards
	// it.
	s.ip(s.gate, "ip -4 route add 10.2.0.0/16 via 192.168.0.2")
	s.marked()
	p := load(t, Options{})
	if err := p.SetRoutes(map[netip.Prefix]int{netip.MustParsePrefix("10.2.0.0/16"): 0}); err != nil {
		t.Fatal(err)
	}
	netnstest.Do(t, s.gate, func() error {
		a, err := p.Attach("lan")
		if err == nil {
			t.Cleanup(func() {
				if err := netns.Do(s.gate, a.Detach); err != nil {
					t.Error(err)
				}
			})
		}
		return err
	})
	// set has packets with mark 9 sent over path on, those with mark 10 over the other one, and
	// those of other marks left.
	set := func(generation uint32, on int) error {
		policy := dataplane.Policy{
			{Match: dataplane.Match{Mark: 9, MarkMask: 0xff}}, {Match: dataplane.Match{Mark: 0x0a, MarkMask: 0x0f}}, {},
		}
		for i := range policy[:2] {
			planner, err := sched.NewPlanner("best", sched.Options{Size: 1500})
			if err != nil {
				return err
			}
			paths := []sched.Path{{Room: 1 << 30, Rate: 1e9}, {Room: 1 << 30, Rate: 1e9}}
			paths[(on+i)%2].Usable = true
			if err := p.SetPlan(Key{Generation: generation, Rule: i}, Plan{Choice: planner.Plan(paths), MTU: 1500, Table: NoTable, Ways: s.ways()}); err != nil {
				return err
			}
		}
		return errors.Join(p.SetPolicy(generation, policy), p.KeepPlans(generation))
	}
	stream := s.portStream(t, 9, 10, 11)
	sent := func() (list [2]uint64) {
		traffic, err := p.Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		return [2]uint64{traffic.Paths[0].Packets, traffic.Paths[1].Packets}
	}
	for g := range uint32(2) {
		if err := set(g+1, int(g)); err != nil {
			t.Fatal(err)
		}
		before, left := sent(), leftOf(t, p)
		stream.send(3)
		if after := sent(); after[0]-before[0] != 3 || after[1]-before[1] != 3 || leftOf(t, p)-left != 3 {
			t.Errorf("generation %d: the paths carry %d and %d packets of 3, %d are left", g, after[0]-before[0], after[1]-before[1], leftOf(t, p)-left)
		}
		// Of rule 0, all are on its path.
		traffic, err := p.Traffic(0)
		if err != nil || !traffic.Rules[0].Used.Has(int(g)) {
			t.Errorf("generation %d: %v, %v", g, traffic.Rules[0], err)
		}
	}
	stop, failed := make(chan bool), make(chan error, 1)
	changes := uint32(0)
	go func() {
		for generation := uint32(3); ; generation++ {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if err := set(generation, int(generation)%2); err != nil {
				failed <- err
				return
			}
			changes++
		}
	}()
	for range 150 {
		stream.send(10)
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	traffic, err := p.Traffic(0)
	if err != nil {
		t.Fatal(err)
	}
	sum := traffic.Rules[0].Sent.Packets + traffic.Rules[1].Sent.Packets
	if changes < 10 || sum < 1500 || traffic.Rules[2].Sent.Packets != 0 {
		t.Errorf("%d changes; the rules have sent %v", changes, fmt.Sprint(traffic.Rules[:3]))
	}
}

// leftOf returns how many packets were left for want of a path.
func leftOf(t *testing.T, p *Program) uint64 {
	t.Helper()
	left, err := p.Left()
	if err != nil {
		t.Fatal(err)
	}
	return left["no path"]
}
