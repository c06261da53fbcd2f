package openbpf

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// router is between a line and a LAN without Ethernet headers. It forwards packets to 10.2.0.0/16
// and 2001:db8:2::/48 that have the mark.
type router struct {
	ns        string
	line, lan *os.File
	index     int              // of the line
	address   net.HardwareAddr // of the line, none if it has no Ethernet headers
}

// newRouter makes a router whose line is IFF_TUN or IFF_TAP.
func newRouter(t *testing.T, kind uint16) *router {
	t.Helper()
	netnstest.Need(t)
	r := &router{ns: netnstest.New(t)}
	open := func(name string, kind uint16) (*os.File, error) {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return nil, err
		}
		request.SetUint16(kind | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
		f := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { f.Close() })
		return f, nil
	}
	netnstest.Do(t, r.ns, func() (err error) {
		if r.line, err = open("line", kind); err != nil {
			return err
		}
		if r.lan, err = open("lan", unix.IFF_TUN); err != nil {
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
		if _, err := netnstest.TryIP(t, "", "ip link set line up; ip link set lan up; ip -4 addr add 203.0.113.9/32 dev lan; "+
			"ip -4 rule add fwmark 4791 lookup 100; ip -4 route add 10.2.0.0/16 dev lan table 100; "+
			"ip -6 rule add fwmark 4791 lookup 100; ip -6 route add 2001:db8:2::/48 dev lan table 100"); err != nil {
			return err
		}
		i, err := net.InterfaceByName("line")
		if err != nil {
			return err
		}
		r.index, r.address = i.Index, i.HardwareAddr
		return nil
	})
	return r
}

func (r *router) attach(t *testing.T, attach func(string) (bpf.Attachment, error)) {
	t.Helper()
	netnstest.Do(t, r.ns, func() error {
		a, err := attach("line")
		if err == nil {
			t.Cleanup(func() { _ = a.Detach() })
		}
		return err
	})
}

// pass sends over the line, and fails the test unless what a message has arrives on the LAN, after
// one more hop.
func (r *router) pass(t *testing.T, sent []byte, m message) {
	t.Helper()
	if _, err := r.line.Write(sent); err != nil {
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
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1000, DstPort: 2000}, hops: 9, payload: 30}
	if ipv6 {
		m.Src, m.Dst = from6, to6
	}
	return m
}

// TestRawLines: packets of peers arrive over interfaces without Ethernet headers as over others, in
// all modes.
func TestRawLines(t *testing.T) {
	for name, outside := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		t.Run("tunnel over "+name, func(t *testing.T) {
			r, e := newRouter(t, unix.IFF_TUN), newEnds(t, "ratio", 1, outside[0], outside[1])
			r.attach(t, e.far.Join)
			for _, ipv6 := range []bool{false, true} {
				m := datagram(ipv6)
				frame := m.frame()
				setChecksum(frame)
				_, out := e.near.run(t, frame)
				m.hops--
				r.pass(t, out[14:], m)
			}
			if arrived, err := e.far.Arrived(cookieOf(0)); err != nil || arrived[0].Packets != 2 || arrived[0].Lost != 0 {
				t.Errorf("arrived %+v, %v", arrived[0], err)
			}
		})
		t.Run("NAT of "+name, func(t *testing.T) {
			r, s := newRouter(t, unix.IFF_TUN), newSites(t, outside[0].Addr())
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
			r.pass(t, out[14:], m)
		})
		t.Run("plain, "+name, func(t *testing.T) {
			const peer, path = 3, 1
			r, s := newRouter(t, unix.IFF_TUN), newSites(t)
			r.attach(t, s.far.Count)
			if err := s.far.SetLines(map[Line]int{{r.index, peer}: path}); err != nil {
				t.Fatal(err)
			}
			m := datagram(outside[0].Addr().Is6())
			frame := m.frame()
			setChecksum(frame)
			r.pass(t, frame[14:], m)
			if counted, err := s.far.Counted(peer); err != nil || counted[path] != (dataplane.Count{Packets: 1, Bytes: uint64(len(frame) - 14)}) {
				t.Errorf("counted %+v, %v", counted[path], err)
			}
		})
	}
}

// tagged is a frame to the router's line that has a tag (IEEE 802.1Q) with these two bytes.
func (r *router) tagged(first, second byte, frame []byte) []byte {
	b := append(bytes.Clone(r.address), make([]byte, 6)...)
	return append(append(b, 0x81, 0, first, second), frame[12:]...)
}

// TestPriorityTags: packets of peers arrive in frames that have a tag with a priority and no
// virtual LAN (IEEE 802.1Q, VID 0), as some providers' lines have them.
func TestPriorityTags(t *testing.T) {
	// The padding of short frames is behind the packet then, too.
	tagged := func(r *router, frame []byte) []byte { return append(r.tagged(3<<5, 0, frame), 1, 2, 3) }
	m := datagram(false)
	frame := m.frame()
	setChecksum(frame)
	t.Run("tunnel", func(t *testing.T) {
		r, e := newRouter(t, unix.IFF_TAP), newEnds(t, "ratio", 1, local4, remote4)
		r.attach(t, e.far.Join)
		_, out := e.near.run(t, frame)
		m := m
		m.hops--
		r.pass(t, tagged(r, out), m)
	})
	t.Run("NAT", func(t *testing.T) {
		r, s := newRouter(t, unix.IFF_TAP), newSites(t, local4.Addr())
		r.attach(t, s.far.Restore)
		f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(m.Src, 1000), Destination: netip.AddrPortFrom(m.Dst, 2000)}
		if err := errors.Join(s.near.SetSession(This, f, true), s.far.SetSession(3, f, true)); err != nil {
			t.Fatal(err)
		}
		_, out := s.near.run(t, frame)
		m := m
		m.hops--
		r.pass(t, tagged(r, out), m)
	})
	t.Run("plain", func(t *testing.T) {
		const peer = 3
		r, s := newRouter(t, unix.IFF_TAP), newSites(t)
		r.attach(t, s.far.Count)
		if err := s.far.SetLines(map[Line]int{{r.index, peer}: 0}); err != nil {
			t.Fatal(err)
		}
		r.pass(t, tagged(r, frame), m)
	})
	// What is sent has none.
	t.Run("split", func(t *testing.T) {
		r, p := newRouter(t, unix.IFF_TAP), load(t, Options{})
		p.routes4and6(t)
		var lan *net.Interface
		netnstest.Do(t, r.ns, func() (err error) {
			lan, err = net.InterfaceByName("lan")
			return err
		})
		p.plans(t, dataplane.Policy{{}}, "ratio", 1500, 1, Way{Interface: lan.Index, IPv4: remote4.Addr()})
		r.attach(t, p.Attach)
		r.pass(t, tagged(r, frame), m)
	})
}

// TestVirtualLANs: frames of a virtual LAN that arrive at the interface of a trunk are of another
// interface, that of the virtual LAN, where they have no tag. The programs of the trunk leave them
// as they are.
func TestVirtualLANs(t *testing.T) {
	const peer = 3
	m := datagram(false)
	frame := m.frame()
	setChecksum(frame)
	for name, attach := range map[string]func(r *router) (frame []byte, counted func() uint64){
		"tunnel": func(r *router) ([]byte, func() uint64) {
			e := newEnds(t, "ratio", 1, local4, remote4)
			r.attach(t, e.far.Join)
			_, out := e.near.run(t, frame)
			return out, func() uint64 {
				arrived, err := e.far.Arrived(cookieOf(0))
				refused, e := e.far.Refused()
				if err := errors.Join(err, e); err != nil {
					t.Fatal(err)
				}
				return arrived[0].Packets + uint64(len(refused))
			}
		},
		"plain": func(r *router) ([]byte, func() uint64) {
			s := newSites(t)
			r.attach(t, s.far.Count)
			if err := s.far.SetLines(map[Line]int{{r.index, peer}: 0}); err != nil {
				t.Fatal(err)
			}
			return frame, func() uint64 {
				counted, err := s.far.Counted(peer)
				if err != nil {
					t.Fatal(err)
				}
				return counted[0].Packets
			}
		},
		"split": func(r *router) ([]byte, func() uint64) {
			p := load(t, Options{})
			p.routes4and6(t)
			p.plans(t, dataplane.Policy{{}}, "ratio", 1500, 1)
			r.attach(t, p.Attach)
			return frame, func() uint64 {
				traffic, err := p.Traffic(0)
				left, e := p.Left()
				if err := errors.Join(err, e); err != nil {
					t.Fatal(err)
				}
				return traffic.Paths[0].Packets + uint64(len(left))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouter(t, unix.IFF_TAP)
			frame, counted := attach(r)
			for _, id := range []byte{5, 0} {
				if _, err := r.line.Write(r.tagged(0, id, frame)); err != nil {
					t.Fatal(err)
				}
			}
			for end := time.Now().Add(5 * time.Second); counted() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the frame of no virtual LAN is not processed")
				}
			}
			if n := counted(); n != 1 {
				t.Errorf("%d frames are processed, one of them of a virtual LAN", n)
			}
		})
	}
}
