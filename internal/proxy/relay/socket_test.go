package relay

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
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
