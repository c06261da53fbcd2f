package relay

import (
	"net/netip"
	"testing"
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
