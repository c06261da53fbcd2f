package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

const mtu = 1500

// pair is two hosts, and what the second one receives.
type pair struct {
	near, far string
	frames    chan []byte
}

func newPair(t *testing.T, o Options, offloads bool) *pair {
	t.Helper()
	netnstest.Need(t)
	p := &pair{near: netnstest.New(t), far: netnstest.New(t), frames: make(chan []byte, 4096)}
	program, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	netnstest.Do(t, p.near, func() error {
		_, err := netnstest.TryIP(t, "", "ip link set lo up; ip link add end type veth peer name end netns "+p.far)
		return err
	})
	for i, ns := range []string{p.near, p.far} {
		netnstest.Do(t, ns, func() error {
			host := strconv.Itoa(i + 1)
			if _, err := netnstest.TryIP(t, "", "ip -4 addr add 192.0.2."+host+"/24 dev end; ip -6 addr add 2001:db8::"+host+"/64 dev end nodad; ip link set end up"); err != nil {
				return err
			}
			if !offloads {
				if err := offload.Prepare("end"); err != nil {
					return err
				}
			}
			// Frames without options are the shortest.
			return errors.Join(netns.Sysctl("net.ipv4.tcp_timestamps", "0"), program.Attach("end"))
		})
	}
	// The program stays.
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	var s *afpacket.Socket
	netnstest.Do(t, p.far, func() (err error) {
		s, err = afpacket.Open(afpacket.Options{})
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- s.Run(ctx, afpacket.Handler{Packet: func(f afpacket.Packet) error {
			if !f.Sent {
				p.frames <- bytes.Clone(f.Data)
			}
			return nil
		}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// exchange has datagrams of all lengths and a connection arrive at the second host, whose kernel
// verifies checksums.
func (p *pair) exchange(t *testing.T, to netip.Addr) {
	t.Helper()
	at := netip.AddrPortFrom(to, 9)
	var datagrams *net.UDPConn
	var listener net.Listener
	netnstest.Do(t, p.far, func() (err error) {
		if datagrams, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", at.String())
		return err
	})
	defer datagrams.Close()
	defer listener.Close()
	var out, c net.Conn
	netnstest.Do(t, p.near, func() (err error) {
		if out, err = net.Dial("udp", at.String()); err != nil {
			return err
		}
		c, err = net.DialTimeout("tcp", at.String(), 10*time.Second)
		return err
	})
	defer out.Close()
	defer c.Close()
	data := make([]byte, mtu)
	for i := range data {
		data[i] = byte(1 + i)
	}
	b := make([]byte, 2*mtu)
	for _, n := range append(numbers(50), 1400, mtu-28-20, mtu-28) {
		if to.Is6() && n == mtu-28 {
			continue
		}
		if _, err := out.Write(data[:n]); err != nil {
			t.Fatal(err)
		}
		if err := datagrams.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, err := datagrams.Read(b); err != nil || !bytes.Equal(b[:got], data[:n]) {
			t.Fatalf("%v: of a datagram of %d bytes %d arrive: %v", to, n, got, err)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	if err := listener.(*net.TCPListener).SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	s, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(s.SetDeadline(deadline), c.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 40; n++ {
		if _, err := c.Write(data[:n]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, b[:n]); err != nil || !bytes.Equal(b[:n], data[:n]) {
			t.Fatalf("%v: %d bytes of a connection: %v", to, n, err)
		}
		// A super-packet, or as many frames.
		if _, err := s.Write(make([]byte, 5*mtu)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 5*mtu)); err != nil {
			t.Fatalf("%v: back: %v", to, err)
		}
	}
}

func numbers(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// lengthOf is the length of the IP packet in a frame by its header, 0 if it has none.
func lengthOf(frame []byte) int {
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		return int(binary.BigEndian.Uint16(frame[16:]))
	case unix.ETH_P_IPV6:
		return int(binary.BigEndian.Uint16(frame[18:])) + 40
	}
	return 0
}

// complete reports whether the checksum of a packet of TCP or UDP is right.
func complete(ip []byte) bool {
	at, protocol := 20, ip[9]
	if ip[0]>>4 == 6 {
		at, protocol = 40, ip[6]
	}
	return checksum.Fold(checksum.Sum(ip[at:], checksum.Pseudo(ip, protocol, len(ip)-at))) == 0xffff
}

// TestFrames: all frames are at least 60 bytes long, what follows the packet is not zero, the
// trailer is there unless the frame is of full size, and everything arrives, with offloads and
// without. Without them, checksums on the wire are right.
func TestFrames(t *testing.T) {
	for name, o := range map[string]Options{
		"padded": {MTU: mtu}, "trailer": {MTU: mtu, Trailer: 4}, "odd trailer": {MTU: mtu, Trailer: MaxTrailer - 1}, "tagged": {MTU: mtu, Tagged: true},
		"all": {MTU: mtu, Trailer: 7, Tagged: true},
	} {
		for _, offloads := range []bool{true, false} {
			t.Run(name+"/"+strconv.FormatBool(offloads), func(t *testing.T) {
				p := newPair(t, o, offloads)
				for _, to := range []string{"192.0.2.2", "2001:db8::2"} {
					p.exchange(t, netip.MustParseAddr(to))
				}
				checked, short := 0, 0
				for short < 30 || !offloads && checked < 100 || len(p.frames) > 0 {
					var f []byte
					select {
					case f = <-p.frames:
					case <-time.After(10 * time.Second):
						t.Fatalf("%d frames longer than their packets, %d checksums: the test tests little", short, checked)
					}
					packet := lengthOf(f)
					if len(f) < minFrame || packet == 0 && len(f) > minFrame+o.Trailer {
						t.Fatalf("a frame of %d bytes: %x", len(f), f)
					}
					if packet == 0 || len(f) > mtu+ethernetHeader { // ARP, or a super-packet
						continue
					}
					want := max(ethernetHeader+packet, minFrame)
					if want+o.Trailer <= mtu+ethernetHeader {
						want += o.Trailer
					}
					if len(f) != want || bytes.Count(f[ethernetHeader+packet:], []byte{0}) > 0 {
						t.Fatalf("a frame of %d bytes, want %d, with a packet of %d: %x", len(f), want, packet, f)
					}
					if want > ethernetHeader+packet {
						short++
					}
					ip := f[ethernetHeader : ethernetHeader+packet]
					protocol := ip[9]
					if ip[0]>>4 == 6 {
						protocol = ip[6]
					}
					if !offloads && (protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP) {
						checked++
						if !complete(ip) {
							t.Fatalf("wrong checksum: %x", f)
						}
					}
				}
			})
		}
	}
}

const minFrame = 60

// TestTags: frames have the tag with a priority, and no virtual LAN, that Options asks for.
func TestTags(t *testing.T) {
	for _, tagged := range []bool{true, false} {
		p := newPair(t, Options{MTU: mtu, Tagged: tagged}, false)
		var fd int
		netnstest.Do(t, p.far, func() (err error) {
			const ethPAll = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, ethPAll&0xffff); err != nil {
				return err
			}
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
		})
		defer unix.Close(fd)
		p.exchange(t, netip.MustParseAddr("192.0.2.2"))
		b, oob := make([]byte, 1<<16), make([]byte, 128)
		for {
			_, oobn, _, from, err := unix.Recvmsg(fd, b, oob, 0)
			if err != nil {
				t.Fatal(err)
			}
			if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_HOST {
				continue
			}
			messages, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil || len(messages) != 1 {
				t.Fatalf("%d control messages, %v", len(messages), err)
			}
			// struct tpacket_auxdata
			status, tci := binary.NativeEndian.Uint32(messages[0].Data), binary.NativeEndian.Uint16(messages[0].Data[16:])
			if valid := status&unix.TP_STATUS_VLAN_VALID != 0; valid != tagged || tagged && tci != priority<<13 {
				t.Errorf("tag %v %#x, want %v", valid, tci, tagged)
			}
			break
		}
	}
}
