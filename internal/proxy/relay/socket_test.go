package relay

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestMatches: a socket matches what it was opened with and nothing else.
func TestMatches(t *testing.T) {
	all := []SocketOptions{
		{At: netip.MustParseAddrPort("[::1]:0")}, {At: netip.MustParseAddrPort("[::]:0")},
		{At: netip.MustParseAddrPort("127.0.0.1:0")}, {At: netip.MustParseAddrPort("[::]:0"), Only6: true},
	}
	for i, o := range all {
		fd, err := OpenSocket(o)
		if err != nil {
			t.Fatal(err)
		}
		defer closeSocket(fd)
		for j, other := range all {
			if got := Matches(fd, other); got != (i == j) {
				t.Errorf("socket %+v matches %+v: %v", o, other, got)
			}
		}
		o.At = LocalAddress(fd)
		if !Matches(fd, o) {
			t.Errorf("%+v does not match itself", o)
		}
	}
}

// TestPace: a socket that is used again loses its pacing rate.
func TestPace(t *testing.T) {
	fd, err := OpenSocket(SocketOptions{At: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer closeSocket(fd)
	for _, rate := range []uint64{1_000_000, 0} {
		if err := pace(fd, rate); err != nil {
			t.Fatal(err)
		}
		want := rate
		if rate == 0 {
			want = unpaced
		}
		if got, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); err != nil || got != want {
			t.Errorf("after a rate of %d the socket has %d, %v", rate, got, err)
		}
	}
}

// TestNoPort: that no port is free for a destination is another error than that this host has no
// address to reach it from.
func TestNoPort(t *testing.T) {
	netnstest.NeedIsolation(t)
	sysctl := func(name, value string) {
		t.Helper()
		path := "/proc/sys/net/" + name
		before, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(value), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(path, before, 0); err != nil {
				t.Error(err)
			}
		})
	}
	server, err := OpenSocket(SocketOptions{At: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer closeSocket(server)
	try := func(to netip.AddrPort) error {
		fd, err := socket(to.Addr(), false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeSocket(fd) })
		return connect(fd, to)
	}
	sysctl("ipv4/ip_local_port_range", "40000 40003")
	to := LocalAddress(server)
	for range 5 {
		if err = try(to); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrNoPort) {
		t.Errorf("without a free port: %v", err)
	}
	sysctl("ipv6/conf/all/disable_ipv6", "1")
	if err := try(netip.MustParseAddrPort("[::1]:9")); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("without IPv6: %v", err)
	}
}
