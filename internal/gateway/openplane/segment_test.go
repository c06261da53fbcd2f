package openplane

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// superPackets sends super-packets of 20 datagrams of 1000 bytes each to the far host until one
// arrives whole, and then so many more, one after the other. It returns how many packets both of
// the far host's interfaces receive of the latter.
func (s *site) superPackets(t *testing.T, n int) (received uint64) {
	t.Helper()
	const segments, size = 20, 1000
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.2.0.1:9"))
	var in, out *net.UDPConn
	if err := errors.Join(
		netns.Do(s.far, func() (err error) { in, err = net.ListenUDP("udp", to); return err }),
		netns.Do(s.host, func() (err error) { out, err = net.DialUDP("udp", nil, to); return err }),
	); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	raw, err := out.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	whole := func(wait time.Duration) bool {
		t.Helper()
		if _, err := out.Write(make([]byte, segments*size)); err != nil {
			t.Fatal(err)
		}
		got := 0
		for b := make([]byte, 2*size); got < segments; got++ {
			if err := in.SetReadDeadline(time.Now().Add(wait)); err != nil {
				t.Fatal(err)
			}
			if _, err := in.Read(b); err != nil {
				return false
			}
		}
		return true
	}
	for tries := 0; !whole(20 * time.Millisecond); tries++ {
		if tries == 300 {
			t.Fatal("no super-packet arrives")
		}
	}
	before := s.arrivedPackets(t)
	for range n {
		if !whole(5 * time.Second) {
			t.Fatal("a super-packet does not arrive")
		}
	}
	return s.arrivedPackets(t) - before
}

// arrivedPackets returns how many packets the far host's interfaces have received.
func (s *site) arrivedPackets(t *testing.T) (n uint64) {
	t.Helper()
	netnstest.Do(t, s.far, func() error {
		for _, name := range []string{"p0", "p1"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			n += l.Attrs().Statistics.RxPackets
		}
		return nil
	})
	return n
}

// TestSuperPacketsOnSlowPaths: a super-packet is sent whole over fast paths, and in segments over
// slow ones, each of which the discipline chooses a path for. A daemon that starts again takes the
// pair of interfaces over, makes it again when another program removes it, and a clean stop removes
// it.
func TestSuperPacketsOnSlowPaths(t *testing.T) {
	netnstest.Need(t)
	const n, segments = 8, 20
	for _, slow := range []string{"", "yes"} {
		t.Setenv(slowOf, slow)
		root := bpftest.Mount(t)
		s := newSite(t)
		c := s.daemon(filepath.Join(root, "gateway-1"))
		for start := range 2 {
			// A neighbor may be asked for again meanwhile.
			const others = 8
			got := s.superPackets(t, n)
			if want := uint64(n); slow == "" && (got < want || got > want+others) {
				t.Errorf("fast paths, start %d: %d super-packets arrive as %d", start, n, got)
			}
			if want := uint64(n * segments); slow != "" && (got < want || got > want+others) {
				t.Errorf("slow paths, start %d: %d super-packets of %d segments arrive as %d", start, n, segments, got)
			}
			if start == 0 {
				s.kill(c)
				c = s.daemon(filepath.Join(root, "gateway-1"))
				s.ip(s.gate, "ip link del tabane-seg0")
			}
		}
		if err := errors.Join(c.Process.Signal(syscall.SIGTERM), c.Wait()); err != nil {
			t.Errorf("daemon stops: %v", err)
		}
		netnstest.Do(t, s.gate, func() error {
			if _, err := net.InterfaceByName("tabane-seg1"); err == nil {
				t.Error("the pair of interfaces is left")
			}
			return nil
		})
	}
}
