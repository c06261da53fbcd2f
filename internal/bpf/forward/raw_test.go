package forward

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bpf"
	"github.com/tabane/tabane/internal/iproute"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/tunnel"
)

// rawLine is a router between two interfaces without Ethernet headers. It forwards packets to 10.2.0.0/16 and
// 2001:db8:2::/48 that have the mark.
type rawLine struct {
	ns        string
	line, lan *os.File
	index     int // of the line
}

func newRawLine(t *testing.T) *rawLine {
	t.Helper()
	netnstest.Need(t)
	r := &rawLine{ns: netnstest.New(t)}
	open := func(name string) (*os.File, error) {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return nil, err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
		f := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { f.Close() })
		return f, nil
	}
	netnstest.Do(t, r.ns, func() (err error) {
		if r.line, err = open("line"); err != nil {
			return err
		}
		if r.lan, err = open("lan"); err != nil {
			return err
		}
		for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			if err := netns.Sysctl(key, "1"); err != nil {
				return err
			}
		}
		for _, key := range []string{"all", "line"} {
			if err := netns.Sysctl("net.ipv4.conf."+key+".rp_filter", "0"); err != nil {
				return err
			}
		}
		if _, err := iproute.Run("ip link set line up; ip link set lan up; ip -4 addr add 203.0.113.9/32 dev lan; " +
			"ip -4 rule add fwmark 4791 lookup 100; ip -4 route add 10.2.0.0/16 dev lan table 100; " +
			"ip -6 rule add fwmark 4791 lookup 100; ip -6 route add 2001:db8:2::/48 dev lan table 100"); err != nil {
			return err
		}
		i, err := net.InterfaceByName("line")
		r.index = i.Index
		return err
	})
	return r
}

func (r *rawLine) attach(t *testing.T, attach func(string) (bpf.Attachment, error)) {
	t.Helper()
	netnstest.Do(t, r.ns, func() error {
		a, err := attach("line")
		if err == nil {
			t.Cleanup(func() { _ = a.Detach() })
		}
		return err
	})
}

// pass sends what a frame has in it over the line, and fails the test unless what a message has arrives on the LAN, after one more
// hop.
func (r *rawLine) pass(t *testing.T, frame []byte, m message) {
	t.Helper()
	if _, err := r.line.Write(frame[14:]); err != nil {
		t.Fatal(err)
	}
	m.hops--
	want := m.frame()
	setChecksum(want)
	if err := r.lan.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 2048); ; {
		n, err := r.lan.Read(b)
		if err != nil {
			t.Fatalf("%+v does not arrive: %v", m, err)
		}
		if bytes.Equal(b[:n], want[14:]) {
			return
		}
	}
}

// datagram is one of the hosts of the near site to those of the far one.
func datagram(ipv6 bool) message {
	m := message{Packet: plane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1000, DstPort: 2000}, hops: 9, payload: 30}
	if ipv6 {
		m.Src, m.Dst = from6, to6
	}
	return m
}

// TestRawLines: packets of peers arrive over interfaces without Ethernet headers as over others, in all modes.
func TestRawLines(t *testing.T) {
	for name, outside := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		t.Run("tunnel over "+name, func(t *testing.T) {
			r, e := newRawLine(t), newEnds(t, "ratio", 1, outside[0], outside[1])
			r.attach(t, e.far.Join)
			for _, ipv6 := range []bool{false, true} {
				m := datagram(ipv6)
				frame := m.frame()
				setChecksum(frame)
				_, out := e.near.run(t, frame)
				m.hops--
				r.pass(t, out, m)
			}
			if arrived, err := e.far.Arrived(cookieOf(0)); err != nil || arrived[0].Packets != 2 || arrived[0].Lost != 0 {
				t.Errorf("arrived %+v, %v", arrived[0], err)
			}
		})
		t.Run("NAT of "+name, func(t *testing.T) {
			r, s := newRawLine(t), newSites(t, outside[0].Addr())
			r.attach(t, s.far.Restore)
			m := datagram(outside[0].Addr().Is6())
			f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(m.Src, 1000), Destination: netip.AddrPortFrom(m.Dst, 2000)}
			if err := errors.Join(s.near.SetSession(This, f, true), s.far.SetSession(3, f, true)); err != nil {
				t.Fatal(err)
			}
			frame := m.frame()
			setChecksum(frame)
			_, out := s.near.run(t, frame)
			m.hops--
			r.pass(t, out, m)
		})
		t.Run("plain, "+name, func(t *testing.T) {
			const peer, path = 3, 1
			r, s := newRawLine(t), newSites(t)
			r.attach(t, s.far.Count)
			if err := s.far.SetLines(map[Line]int{{r.index, peer}: path}); err != nil {
				t.Fatal(err)
			}
			m := datagram(outside[0].Addr().Is6())
			frame := m.frame()
			setChecksum(frame)
			r.pass(t, frame, m)
			if counted, err := s.far.Counted(peer); err != nil || counted[path] != (plane.Count{Packets: 1, Bytes: uint64(len(frame) - 14)}) {
				t.Errorf("counted %+v, %v", counted[path], err)
			}
		})
	}
}
