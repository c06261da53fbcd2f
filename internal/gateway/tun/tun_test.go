package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// host is a namespace with a device.
type host struct {
	namespace string
	device    *Device
}

func newHost(t testing.TB, number, mtu int) host {
	t.Helper()
	h := host{namespace: netnstest.New(t)}
	if err := netns.Do(h.namespace, func() (err error) {
		h.device, err = Open("tun0", mtu)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.device.Close() })
	for _, c := range []string{
		"ip link set lo up", "ip link set tun0 up",
		fmt.Sprintf("ip -4 addr add 10.0.0.%d/24 dev tun0", number),
		fmt.Sprintf("ip -6 addr add fd00::%d/64 dev tun0", number),
	} {
		if _, err := netnstest.TryIP(t, h.namespace, c); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
	return h
}

// pump carries the frames of one device to another, and counts them and their packets.
type pump struct {
	frames, packets, refused atomic.Int64
	done                     chan error
}

func (p *pump) run(from, to *Device) {
	buffers := make([][]byte, 512)
	for i := range buffers {
		buffers[i] = make([]byte, 2048)
	}
	for {
		all := make([][]byte, 0, len(buffers))
		for wait := true; len(all) < len(buffers)/2; wait = false {
			f, err := from.Read(wait)
			if errors.Is(err, ErrMalformed) {
				p.done <- err
				return
			}
			if err != nil {
				p.done <- nil
				return
			}
			if f == nil {
				break
			}
			p.frames.Add(1)
			for i := range f.Len() {
				b := buffers[len(all)]
				all = append(all, b[:f.Packet(i, b)])
			}
		}
		p.packets.Add(int64(len(all)))
		refused, err := to.Write(all)
		p.refused.Add(int64(refused))
		if err != nil {
			p.done <- nil
			return
		}
	}
}

func connect(t testing.TB, mtu int) (a, b host, there, back *pump) {
	t.Helper()
	a, b = newHost(t, 1, mtu), newHost(t, 2, mtu)
	there, back = &pump{done: make(chan error, 1)}, &pump{done: make(chan error, 1)}
	go there.run(a.device, b.device)
	go back.run(b.device, a.device)
	t.Cleanup(func() {
		a.device.Close()
		b.device.Close()
		for _, p := range []*pump{there, back} {
			if err := <-p.done; err != nil {
				t.Error(err)
			}
			if n := p.refused.Load(); n > 0 {
				t.Errorf("the kernel refused %d packets", n)
			}
		}
	})
	return a, b, there, back
}

// TCP between two devices comes whole: the kernel verifies each checksum, and counts wrong ones.
func TestTCPGoesInSuperPackets(t *testing.T) {
	netnstest.Need(t)
	for _, address := range []string{"10.0.0.2:80", "[fd00::2]:80"} {
		t.Run(address, func(t *testing.T) {
			a, b, there, _ := connect(t, 1400)
			var l net.Listener
			listen := func() (err error) {
				for range 300 { // an address of IPv6 is tentative at first
					if l, err = net.Listen("tcp", address); err == nil {
						return nil
					}
					time.Sleep(10 * time.Millisecond)
				}
				return err
			}
			if err := netns.Do(b.namespace, listen); err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			data := bytes.Repeat([]byte("0123456789abcdef!"), 1<<20/17*8)
			go func() {
				netns.Do(a.namespace, func() error {
					c, err := net.DialTimeout("tcp", address, 5*time.Second)
					if err == nil {
						c.Write(data)
						c.Close()
					}
					return err
				})
			}()
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d of %d bytes: %v", len(got), len(data), err)
			}
			if f, p := there.frames.Load(), there.packets.Load(); p < 5*f {
				t.Errorf("%d packets in %d frames: no super-packets", p, f)
			}
			var errs string
			if err := netns.Do(b.namespace, func() (err error) { errs, err = wrongChecksums(); return err }); err != nil || errs != "0" {
				t.Errorf("wrong checksums: %s %v", errs, err)
			}
		})
	}
}

// wrongChecksums returns Tcp: InCsumErrors of the thread's namespace.
func wrongChecksums() (string, error) {
	b, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return "", err
	}
	var names [][]byte
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		if string(fields[0]) != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, n := range names {
			if string(n) == "InCsumErrors" {
				return string(fields[i]), nil
			}
		}
	}
	return "", errors.New("no counter of wrong checksums")
}

// Datagrams sent with UDP_SEGMENT come whole, in order, whatever their size.
func TestUDPArrivesInOrder(t *testing.T) {
	netnstest.Need(t)
	a, b, _, _ := connect(t, 1400)
	var in *net.UDPConn
	var out net.Conn
	if err := errors.Join(
		netns.Do(b.namespace, func() (err error) {
			in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.2:99")))
			return err
		}),
		netns.Do(a.namespace, func() (err error) { out, err = net.Dial("udp", "10.0.0.2:99"); return err })); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	raw, _ := out.(*net.UDPConn).SyscallConn()
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000) })
	next := uint32(0)
	for range 20 {
		b := make([]byte, 30*1000-300) // 29 segments and a shorter one
		for i := range 30 {
			binary.BigEndian.PutUint32(b[i*1000:], next+uint32(i))
		}
		if _, err := out.Write(b); err != nil {
			t.Fatal(err)
		}
		in.SetReadDeadline(time.Now().Add(5 * time.Second))
		for i := range 30 {
			got := make([]byte, 2000)
			n, err := in.Read(got)
			want := 1000
			if i == 29 {
				want = 700
			}
			if err != nil || n != want || binary.BigEndian.Uint32(got) != next {
				t.Fatalf("datagram %d: %d bytes, number %d, %v", next, n, binary.BigEndian.Uint32(got), err)
			}
			next++
		}
	}
}

func TestCloseEndsRead(t *testing.T) {
	h := newHost(t, 1, 1400)
	time.AfterFunc(20*time.Millisecond, func() { h.device.Close() })
	for {
		// The kernel sends router solicitations.
		if _, err := h.device.Read(true); err != nil {
			if !errors.Is(err, fs.ErrClosed) {
				t.Fatal(err)
			}
			return
		}
	}
}

func TestProbe(t *testing.T) {
	netnstest.Enter(t)
	if _, err := Probe(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	}
}

// FuzzFrame: what the kernel could say about a packet never takes a segment out of its bounds.
func FuzzFrame(f *testing.F) {
	packet := append([]byte{0x45, 0, 0, 60, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, make([]byte, 40)...)
	packet[32] = 5 << 4
	head := make([]byte, virtioLen)
	header{flags: 1, gso: unix.VIRTIO_NET_HDR_GSO_TCPV4, size: 7, start: 20, field: 16}.put(head)
	f.Add(append(head, packet...))
	short := bytes.Clone(packet)
	short[32] = 0 // a TCP header of no length
	f.Add(append(bytes.Clone(head), short...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var frame Frame
		if frame.parse(b) != nil {
			return
		}
		total := 0
		for i := range frame.Len() {
			n := frame.PacketLen(i)
			if got := frame.Packet(i, make([]byte, n)); got != n {
				t.Fatalf("packet %d has %d bytes, want %d", i, got, n)
			}
			total += n - frame.data
		}
		if want := len(frame.packet) - frame.data; total != want {
			t.Fatalf("payloads have %d bytes, want %d", total, want)
		}
	})
}

// FuzzWrite: packets that come out of a tunnel are anything; merged ones hold all their payloads.
func FuzzWrite(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 28}, uint8(20))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		var w writer
		w.init(nil)
		var total int
		for p := b; len(p) > 0; {
			n := min(len(p), int(cut)+1)
			one := bytes.Clone(p[:n])
			p = p[n:]
			total++
			if !w.merge(one, true) {
				w.add(one, true)
			}
		}
		for _, g := range w.groups {
			w.prepare(g)
			total -= 1 + g.payloads
		}
		if total != 0 {
			t.Fatalf("%d packets are missing", total)
		}
	})
}

func BenchmarkTCP(b *testing.B) {
	netnstest.Need(b)
	from, to, _, _ := connect(b, 1400)
	var l net.Listener
	if err := netns.Do(to.namespace, func() (err error) { l, err = net.Listen("tcp", "10.0.0.2:80"); return err }); err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		netns.Do(from.namespace, func() error {
			c, err := net.Dial("tcp", "10.0.0.2:80")
			if err != nil {
				return err
			}
			defer c.Close()
			for data := make([]byte, 1<<20); ; {
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
	data := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for b.Loop() {
		if _, err := io.ReadFull(c, data); err != nil {
			b.Fatal(err)
		}
	}
}
