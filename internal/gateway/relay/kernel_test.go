package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

const next, drop, redirect = ^uint32(0), 2, 7 // TCX_NEXT, TC_ACT_SHOT, TC_ACT_REDIRECT

func load(t testing.TB, o Options) *Program {
	t.Helper()
	netnstest.Need(t)
	p, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// loopback is the interface that programs run on in tests without packets of others.
const loopback = 1

// relayOf returns a relay between addresses of an IP version.
func relayOf(ipv6 bool) dataplane.OpenRelay {
	end := func(local, remote string) dataplane.RelayEnd {
		return dataplane.RelayEnd{Interface: "lo", Index: loopback, Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort(remote)}
	}
	r := dataplane.OpenRelay{
		Short: end("172.16.0.2:4790", "172.16.0.1:40001"), Line: end("192.168.0.2:40002", "198.51.100.1:4790"),
		Up: unit.GbitPerSecond, Down: unit.GbitPerSecond,
	}
	if ipv6 {
		r.Short, r.Line = end("[fd00::2]:4790", "[fd00::1]:40001"), end("[2001:db8:1::2]:40002", "[2001:db8::1]:4790")
	}
	return r
}

// message is a UDP datagram to be built, as an Ethernet frame for the loopback interface.
type message struct {
	from, to netip.AddrPort
	class    uint8
	hops     uint8
	protocol uint8
	checksum uint16
	fragment uint16
	body     []byte
}

// open is an open message of a length.
func open(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	b[0] = 6
	return b
}

func of(from, to netip.AddrPort, body []byte) message {
	return message{from: from, to: to, hops: 60, class: 0xb8, protocol: unix.IPPROTO_UDP, body: body}
}

func (m message) frame() []byte {
	be := binary.BigEndian
	udp := be.AppendUint16(be.AppendUint16(nil, m.from.Port()), m.to.Port())
	udp = append(be.AppendUint16(be.AppendUint16(udp, uint16(8+len(m.body))), m.checksum), m.body...)
	b := make([]byte, 12, 14)
	if m.from.Addr().Is4() {
		b = be.AppendUint16(b, unix.ETH_P_IP)
		ip := be.AppendUint16([]byte{0x45, m.class}, uint16(20+len(udp)))
		ip = append(be.AppendUint16(append(ip, 0x12, 0x34), m.fragment), m.hops, m.protocol, 0, 0)
		ip = append(append(ip, m.from.Addr().AsSlice()...), m.to.Addr().AsSlice()...)
		be.PutUint16(ip[10:], checksum.Of(ip))
		return append(append(b, ip...), udp...)
	}
	b = be.AppendUint16(b, unix.ETH_P_IPV6)
	ip := be.AppendUint32(nil, 6<<28|uint32(m.class)<<20|0x12345)
	ip = append(be.AppendUint16(ip, uint16(len(udp))), m.protocol, m.hops)
	ip = append(append(ip, m.from.Addr().AsSlice()...), m.to.Addr().AsSlice()...)
	return append(append(b, ip...), udp...)
}

// run runs the program on a frame.
func (p *Program) run(t testing.TB, frame []byte) (uint32, []byte) {
	t.Helper()
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+128), Repeat: 1}
	verdict, err := p.objects.Relay.Run(&o)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, o.DataOut
}

// TestRelayed: open messages of both directions leave with the addresses and ports of the relay's
// other end, and are otherwise as they were but for one hop.
func TestRelayed(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		p, r := load(t, Options{}), relayOf(ipv6)
		if err := p.Relay("alice", r); err != nil {
			t.Fatal(err)
		}
		var want dataplane.OpenRelayed
		for i := range 200 {
			m := of(r.Short.Remote, r.Short.Local, open(44+7*i))
			m.hops = uint8(2 + i)
			sent := of(r.Line.Local, r.Line.Remote, m.body)
			count := &want.Up
			if i%2 > 0 {
				m.from, m.to, sent.from, sent.to = r.Line.Remote, r.Line.Local, r.Short.Local, r.Short.Remote
				count = &want.Down
			}
			sent.hops = m.hops - 1
			frame := m.frame()
			verdict, got := p.run(t, frame)
			if verdict != redirect || !bytes.Equal(got, sent.frame()) {
				t.Fatalf("%+v: verdict %d\n%x, want\n%x", m, int32(verdict), got, sent.frame())
			}
			count.Packets++
			count.Bytes += uint64(len(frame) - 14)
		}
		if got := p.Relayed("alice"); got != want {
			t.Errorf("relayed %+v, want %+v", got, want)
		}
		if got := p.End("alice"); got != want {
			t.Errorf("relayed at the end %+v, want %+v", got, want)
		}
		if verdict, _ := p.run(t, of(r.Short.Remote, r.Short.Local, open(100)).frame()); verdict != next {
			t.Errorf("verdict %d after the end", int32(verdict))
		}
		if err := p.Relay("bob", r); err != nil {
			t.Fatal(err)
		}
		if got := p.Relayed("bob"); got != (dataplane.OpenRelayed{}) {
			t.Errorf("another leader begins with %+v", got)
		}
	}
}

// TestSuperPacket: what a super-packet is sent in on the line counts, segments with all their
// headers.
func TestSuperPacket(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		p, r := load(t, Options{}), relayOf(ipv6)
		if err := p.Relay("alice", r); err != nil {
			t.Fatal(err)
		}
		const segments, payload, size, options = 3, 2500, 1000, 12
		tcp := make([]byte, 20+options+payload)
		tcp[12] = (20 + options) / 4 << 4
		for i, inner := range [][]byte{append([]byte{0x45}, make([]byte, 19)...), append([]byte{6 << 4}, make([]byte, 39)...)} {
			body := slices.Concat(open(24), inner, tcp)
			context := make([]byte, 192)                           // struct __sk_buff
			binary.NativeEndian.PutUint32(context[164:], segments) // gso_segs
			binary.NativeEndian.PutUint32(context[176:], size)     // gso_size
			before, frame := p.Relayed("alice").Up, of(r.Short.Remote, r.Short.Local, body).frame()
			o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)), Context: context, Repeat: 1}
			verdict, err := p.objects.Relay.Run(&o)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Relayed("alice").Up
			headers := len(frame) - 14 - payload
			if want := uint64(segments*headers + payload); verdict != redirect || got.Packets-before.Packets != segments || got.Bytes-before.Bytes != want {
				t.Errorf("IPv6 %t, %d: verdict %d, %+v after %+v, want %d bytes", ipv6, i, int32(verdict), got, before, want)
			}
		}
	}
}

// TestNotRelayed: what is not exactly an open message between the ends of a relay is left to the
// kernel as it is.
func TestNotRelayed(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		p, r := load(t, Options{}), relayOf(ipv6)
		if err := p.Relay("alice", r); err != nil {
			t.Fatal(err)
		}
		other := relayOf(!ipv6)
		port := func(a netip.AddrPort, n int) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+uint16(n)) }
		up, down := of(r.Short.Remote, r.Short.Local, open(100)), of(r.Line.Remote, r.Line.Local, open(100))
		for name, change := range map[string]func() message{
			"another source":         func() message { m := up; m.from = netip.AddrPortFrom(m.from.Addr().Prev(), m.from.Port()); return m },
			"another source port":    func() message { m := up; m.from = port(m.from, 1); return m },
			"another port":           func() message { m := up; m.to = port(m.to, 1); return m },
			"the other end's port":   func() message { m := up; m.to = r.Line.Local; return m },
			"not the home agent":     func() message { m := down; m.from = r.Short.Remote; return m },
			"another home agent":     func() message { m := down; m.from = netip.AddrPortFrom(m.from.Addr().Next(), m.from.Port()); return m },
			"not the relay's socket": func() message { m := down; m.to = port(m.to, 1); return m },
			"for another host":       func() message { m := down; m.to = netip.AddrPortFrom(m.to.Addr().Next(), m.to.Port()); return m },
			"the other IP version":   func() message { return of(other.Short.Remote, other.Short.Local, open(100)) },
			"mapped into the other": func() message {
				m := up
				m.from = netip.AddrPortFrom(netip.AddrFrom16(other.Short.Remote.Addr().As16()), m.from.Port())
				return m
			},
			"with a checksum":          func() message { m := up; m.checksum = 1; return m },
			"TCP":                      func() message { m := up; m.protocol = unix.IPPROTO_TCP; return m },
			"no message":               func() message { m := up; m.body = nil; return m },
			"shorter than its header":  func() message { m := up; m.body = open(43); return m },
			"sealed":                   func() message { m := up; m.body = append([]byte{4}, m.body[1:]...); return m },
			"a handshake from the far": func() message { m := down; m.body = append([]byte{2}, m.body[1:]...); return m },
		} {
			frame := change().frame()
			if verdict, got := p.run(t, frame); verdict != next || !bytes.Equal(got, frame) {
				t.Errorf("IPv6 %t: %s: verdict %d", ipv6, name, int32(verdict))
			}
		}
		if !ipv6 {
			for _, field := range []uint16{0x2000, 1, 0x2001} {
				m := up
				m.fragment = field
				if verdict, _ := p.run(t, m.frame()); verdict != next {
					t.Errorf("fragment %#x: verdict %d", field, int32(verdict))
				}
			}
		}
		frame := up.frame()
		for n := range len(frame) {
			// The kernel runs programs on no shorter frames.
			if n > 14+40 {
				if verdict, _ := p.run(t, frame[:n]); verdict == redirect && n < 14+20+8+44 {
					t.Errorf("IPv6 %t: %d bytes are relayed", ipv6, n)
				}
			}
		}
		before := p.Relayed("alice")
		m := up
		m.hops = 1
		if verdict, _ := p.run(t, m.frame()); verdict != drop || p.Relayed("alice").Dropped != before.Dropped+1 {
			t.Errorf("IPv6 %t: verdict %d without hops left", ipv6, int32(verdict))
		}
		r.Up = 0
		if err := p.Relay("alice", r); err != nil {
			t.Fatal(err)
		}
		if verdict, _ := p.run(t, up.frame()); verdict != next {
			t.Errorf("IPv6 %t: verdict %d before the home agent has answered", ipv6, int32(verdict))
		}
		r.Short.Remote = port(r.Short.Remote, 5)
		if err := p.Relay("alice", r); err != nil {
			t.Fatal(err)
		}
		want := of(r.Short.Local, r.Short.Remote, down.body)
		want.hops--
		if verdict, got := p.run(t, down.frame()); verdict != redirect || !bytes.Equal(got, want.frame()) {
			t.Errorf("IPv6 %t: verdict %d after the leader has moved\n%x, want\n%x", ipv6, int32(verdict), got, want.frame())
		}
	}
}

// TestRateOfRelay: not more passes than the rate, sealed messages included, and these still pass
// when open ones exceed it.
func TestRateOfRelay(t *testing.T) {
	p, r := load(t, Options{}), relayOf(false)
	r.Up = 100 * unit.KbitPerSecond // its burst lasts for 10 s
	if err := p.Relay("alice", r); err != nil {
		t.Fatal(err)
	}
	const size = 20 + 8 + 1000
	pass := func(body []byte, want uint32) (n int) {
		for range 2 * burstLen / size {
			if verdict, _ := p.run(t, of(r.Short.Remote, r.Short.Local, body).frame()); verdict == want {
				n++
			}
		}
		return n
	}
	sealed := append([]byte{5}, open(1000)[1:]...)
	start := time.Now()
	openPassed, sealedPassed := pass(open(1000), redirect), pass(sealed, next)
	more := int(time.Since(start).Seconds()*float64(r.Up)/8)/size + 1
	if most := burstLen - burstLen/reserve; openPassed < most/size-1 || openPassed > most/size+more {
		t.Errorf("%d open messages pass, want about %d", openPassed, most/size)
	}
	if all := openPassed + sealedPassed; all < burstLen/size-2 || all > burstLen/size+more {
		t.Errorf("%d messages pass, want about %d", all, burstLen/size)
	}
	if got := p.Relayed("alice"); got.Up.Packets != uint64(openPassed) || got.Dropped != uint64(4*(burstLen/size)-openPassed-sealedPassed+offset(size)) {
		t.Errorf("relayed %+v, %d open and %d sealed ones have passed", got, openPassed, sealedPassed)
	}
	if verdict, _ := p.run(t, of(r.Line.Remote, r.Line.Local, open(1000)).frame()); verdict != redirect {
		t.Errorf("verdict %d in the other direction", int32(verdict))
	}
}

// offset is what 2*burstLen/size is more than twice burstLen/size, for both kinds of messages.
func offset(size int) int { return 2 * (2*burstLen/size - 2*(burstLen/size)) }

// member is a member's network namespace between those of a leader and a home agent.
type member struct {
	t                  *testing.T
	leader, self, home string
	relay              dataplane.OpenRelay
}

func newMember(t *testing.T, ipv6 bool) *member {
	m := &member{t: t, leader: netnstest.New(t), self: netnstest.New(t), home: netnstest.New(t), relay: relayOf(ipv6)}
	version, bits := "-4", 24
	if ipv6 {
		version, bits = "-6", 64
	}
	m.ip(m.self, "ip link add radio type veth peer name radio netns %s", m.leader)
	m.ip(m.self, "ip link add line type veth peer name line netns %s", m.home)
	for _, c := range []struct {
		ns, link string
		address  netip.AddrPort
	}{{m.leader, "radio", m.relay.Short.Remote}, {m.self, "radio", m.relay.Short.Local}, {m.self, "line", m.relay.Line.Local}, {m.home, "line", m.relay.Line.Remote}} {
		m.ip(c.ns, "ip link set %s up", c.link)
		nodad := ""
		if ipv6 {
			nodad = " nodad"
		}
		m.ip(c.ns, "ip %s addr add %v/%d dev %s%s", version, c.address.Addr(), bits, c.link, nodad)
	}
	m.ip(m.self, "ip %s route add %v/%d dev line", version, m.relay.Line.Remote.Addr(), m.relay.Line.Remote.Addr().BitLen())
	m.ip(m.home, "ip %s route add %v/%d dev line", version, m.relay.Line.Local.Addr(), m.relay.Line.Local.Addr().BitLen())
	netnstest.Do(t, m.self, func() error {
		for _, e := range []*dataplane.RelayEnd{&m.relay.Short, &m.relay.Line} {
			e.Interface = "radio"
			if e == &m.relay.Line {
				e.Interface = "line"
			}
			l, err := net.InterfaceByName(e.Interface)
			if err != nil {
				return err
			}
			e.Index = l.Index
		}
		return nil
	})
	return m
}

func (m *member) ip(ns, command string, args ...any) {
	m.t.Helper()
	if _, err := netnstest.TryIP(m.t, ns, fmt.Sprintf(command, args...)); err != nil {
		m.t.Fatalf(command+": %v", append(args, err)...)
	}
}

// socket opens a socket without UDP checksums of its datagrams.
func (m *member) socket(ns string, local, remote netip.AddrPort) *net.UDPConn {
	m.t.Helper()
	var c *net.UDPConn
	netnstest.Do(m.t, ns, func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
		if err != nil {
			return err
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		set := func(fd uintptr) {
			if local.Addr().Is4() {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
			} else {
				const txZeroChecksum, rxZeroChecksum = 101, 102 // UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, txZeroChecksum, 1), unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, rxZeroChecksum, 1))
			}
		}
		return errors.Join(raw.Control(set), err)
	})
	m.t.Cleanup(func() { c.Close() })
	return c
}

// TestThroughKernel: messages cross a member that forwards nothing and has no neighbors yet, with
// tcx and with cls_bpf, until the relay ends; nothing of it is left then.
func TestThroughKernel(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		m := newMember(t, ipv6)
		leader, home := m.socket(m.leader, m.relay.Short.Remote, m.relay.Short.Local), m.socket(m.home, m.relay.Line.Remote, m.relay.Line.Local)
		exchange := func(from, to *net.UDPConn) error {
			body := open(1400)
			if _, err := from.Write(body); err != nil {
				return err
			}
			to.SetReadDeadline(time.Now().Add(2 * time.Second))
			got := make([]byte, 2000)
			n, err := to.Read(got)
			if err == nil && !bytes.Equal(got[:n], body) {
				err = errors.New("the message is another one")
			}
			return err
		}
		for _, legacy := range []bool{false, true} {
			p := load(t, Options{Legacy: legacy})
			netnstest.Do(t, m.self, func() error { return p.Relay("alice", m.relay) })
			if n := attachedTo(t, m); n != 2 {
				t.Errorf("IPv6 %t, legacy %t: %d programs", ipv6, legacy, n)
			}
			for range 3 {
				if err := errors.Join(exchange(leader, home), exchange(home, leader)); err != nil {
					t.Errorf("IPv6 %t, legacy %t: %v", ipv6, legacy, err)
				}
			}
			netnstest.Do(t, m.self, func() error { p.End("alice"); return nil })
			if n := attachedTo(t, m); n > 0 {
				t.Errorf("IPv6 %t, legacy %t: %d programs are left", ipv6, legacy, n)
			}
		}
	}
}

// TestPriorityTags: messages of both IP versions are relayed in frames whose tag has a priority
// only (IEEE 802.1Q, VID 0), as those of some providers' lines are, and not those of a virtual LAN.
func TestPriorityTags(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		m := newMember(t, ipv6)
		home := m.socket(m.home, m.relay.Line.Remote, m.relay.Line.Local)
		p := load(t, Options{})
		var radio *net.Interface
		netnstest.Do(t, m.self, func() (err error) {
			radio, err = net.InterfaceByIndex(m.relay.Short.Index)
			return errors.Join(err, p.Relay("alice", m.relay))
		})
		const virtual, priority = 5, 7 << 13
		send := func(tag uint16, body []byte) {
			frame := of(m.relay.Short.Remote, m.relay.Short.Local, body).frame()
			copy(frame, radio.HardwareAddr)
			netnstest.Do(t, m.leader, func() error {
				near, err := net.InterfaceByName("radio")
				if err != nil {
					return err
				}
				fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				// A tagged frame with a trailer.
				tagged := append(slices.Insert(frame, 12, 0x81, 0, byte(tag>>8), byte(tag)), 1, 2, 3)
				return unix.Sendto(fd, tagged, 0, &unix.SockaddrLinklayer{Ifindex: near.Index})
			})
		}
		// The first frames can be lost while links come up and neighbors are resolved.
		got := make([]byte, 200)
		n, err := 0, os.ErrDeadlineExceeded
		for begun := time.Now(); errors.Is(err, os.ErrDeadlineExceeded) && time.Since(begun) < 5*time.Second; {
			send(priority|virtual, open(100))
			send(priority, open(101))
			if err := home.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err = home.Read(got)
		}
		if err != nil || !bytes.Equal(got[:n], open(101)) {
			t.Errorf("IPv6 %t: %d bytes, %v", ipv6, n, err)
		}
		netnstest.Do(t, m.self, func() error { p.End("alice"); return nil })
	}
}

// attachedTo counts the programs at ingress of a member's interfaces.
func attachedTo(t *testing.T, m *member) (n int) {
	t.Helper()
	netnstest.Do(t, m.self, func() error {
		for _, e := range []dataplane.RelayEnd{m.relay.Short, m.relay.Line} {
			all, err := link.QueryPrograms(link.QueryOptions{Target: e.Index, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			filters, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: e.Index}}, netlink.HANDLE_MIN_INGRESS)
			if err != nil {
				return err
			}
			n += len(all.Programs) + len(filters)
		}
		return nil
	})
	return n
}

// TestCleared: what a process that was killed has left at cls_bpf is removed by the next one.
func TestCleared(t *testing.T) {
	m := newMember(t, false)
	home := m.socket(m.home, m.relay.Line.Remote, m.relay.Line.Local)
	leader := m.socket(m.leader, m.relay.Short.Remote, m.relay.Short.Local)
	p := load(t, Options{Legacy: true})
	netnstest.Do(t, m.self, func() error { return p.Relay("alice", m.relay) })
	body := make([]byte, 200)
	leader.Write(open(100))
	home.SetReadDeadline(time.Now().Add(time.Minute)) // ends a test that fails
	if n, err := home.Read(body); err != nil || n != 100 {
		t.Errorf("relayed are %d bytes, %v", n, err)
	}
	netnstest.Do(t, m.self, Clear)
	if n := attachedTo(t, m); n > 0 {
		t.Errorf("a sweep has left %d programs", n)
	}
	// Over a veth, a packet has been received when its sender returns from the system call, or soon
	// after.
	leader.Write(open(100))
	home.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := home.Read(body); err == nil {
		t.Error("messages are relayed by what a sweep has removed")
	}
}

// TestReattached: a program that another process has detached is attached again when the relay is
// set again, as the gateway does each second.
func TestReattached(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		m := newMember(t, false)
		home := m.socket(m.home, m.relay.Line.Remote, m.relay.Line.Local)
		leader := m.socket(m.leader, m.relay.Short.Remote, m.relay.Short.Local)
		p := load(t, Options{Legacy: legacy})
		relay := func() { netnstest.Do(t, m.self, func() error { return p.Relay("alice", m.relay) }) }
		relay()
		relay()
		netnstest.Do(t, m.self, func() error {
			if legacy {
				return Clear()
			}
			return bpftest.DetachIngress(m.relay.Short.Index)
		})
		relay()
		if n := attachedTo(t, m); n != 2 {
			t.Errorf("legacy %t: %d programs, want 2", legacy, n)
		}
		leader.Write(open(100))
		home.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := home.Read(make([]byte, 200)); err != nil {
			t.Errorf("legacy %t: %v", legacy, err)
		}
	}
}

// TestInterfaceOfAnotherLeader: when the interface of one leader is gone, its relay fails and keeps
// its counts until its end; those of others go on.
func TestInterfaceOfAnotherLeader(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		p, ns := load(t, Options{Legacy: legacy}), netnstest.New(t)
		alice, bob := relayOf(false), relayOf(false)
		moved := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+100) }
		bob.Short.Remote, bob.Line.Remote, bob.Line.Interface = moved(bob.Short.Remote), moved(bob.Line.Remote), "gone"
		if _, err := netnstest.TryIP(t, ns, "ip link add gone type veth peer name far"); err != nil {
			t.Fatal(err)
		}
		netnstest.Do(t, ns, func() error {
			l, err := net.InterfaceByName("gone")
			if err != nil {
				return err
			}
			bob.Line.Index = l.Index
			return errors.Join(p.Relay("alice", alice), p.Relay("bob", bob))
		})
		messageOf := func(r *dataplane.OpenRelay) []byte { return of(r.Short.Remote, r.Short.Local, open(100)).frame() }
		if verdict, _ := p.run(t, messageOf(&bob)); verdict != redirect {
			t.Fatalf("legacy %t: verdict %d", legacy, int32(verdict))
		}
		if _, err := netnstest.TryIP(t, ns, "ip link del gone"); err != nil {
			t.Fatal(err)
		}
		netnstest.Do(t, ns, func() error {
			for range 2 {
				if err := p.Relay("alice", alice); err != nil {
					t.Errorf("legacy %t: the relay of another leader: %v", legacy, err)
				}
				if err := p.Relay("bob", bob); err == nil {
					t.Errorf("legacy %t: no error of the interface that is gone", legacy)
				}
			}
			return nil
		})
		if verdict, _ := p.run(t, messageOf(&alice)); verdict != redirect {
			t.Errorf("legacy %t: verdict %d for the other leader", legacy, int32(verdict))
		}
		if verdict, _ := p.run(t, messageOf(&bob)); verdict != next {
			t.Errorf("legacy %t: verdict %d after an error", legacy, int32(verdict))
		}
		netnstest.Do(t, ns, func() error {
			if got := p.End("bob"); got.Up.Packets != 1 {
				t.Errorf("legacy %t: relayed at the end %+v", legacy, got)
			}
			p.End("alice")
			return nil
		})
	}
}
