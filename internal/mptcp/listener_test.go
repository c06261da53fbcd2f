package mptcp

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
)

// TestListeners has sockets of both kinds listen at one address (SO_REUSEPORT), which the kernel
// lists.
func TestListeners(t *testing.T) {
	p := newPair(t)
	listen := func(network, address string, multipath bool) {
		t.Helper()
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			if err != nil {
				return err
			}
			return failed
		}}
		config.SetMultipathTCP(multipath)
		err := netns.Do(p.server, func() error {
			l, err := config.Listen(context.Background(), network, address)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	listen("tcp", net.JoinHostPort(defaultAddress.String(), "81"), true)
	listen("tcp", "[::]:82", true)
	listen("tcp", "[::]:82", false)
	listen("tcp6", "[::]:83", false)
	listen("tcp4", "0.0.0.0:83", true)
	all, err := p.diag.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range all {
		text := l.At.String()
		if l.Only6 {
			text += " only 6"
		}
		if l.Multipath {
			text += " mptcp"
		}
		if l.Inode == 0 {
			text += " without a number"
		}
		got = append(got, text)
	}
	slices.Sort(got)
	want := []string{"0.0.0.0:83 mptcp", "[2001:db8:1::10]:81 mptcp", "[::]:80 mptcp", "[::]:82", "[::]:82 mptcp", "[::]:83 only 6"}
	if !slices.Equal(got, want) {
		t.Errorf("listeners %q, want %q", got, want)
	}
	for at, want := range map[string]Answer{
		"[2001:db8::1]:80": JoinAccepted, "[2001:db8::1]:81": JoinOtherAddress, "[2001:db8:1::10]:81": JoinAccepted, "[2001:db8::1]:82": JoinMixed, "192.0.2.1:82": JoinMixed,
		"[2001:db8::1]:83": JoinOnlyTCP, "192.0.2.1:83": JoinAccepted, "192.0.2.1:84": JoinClosed,
	} {
		if got := AnswerTo(all, netip.MustParseAddrPort(at)); got != want {
			t.Errorf("answer to %s: %d, want %d", at, got, want)
		}
	}
}

func TestAnswerTo(t *testing.T) {
	for _, tt := range []struct {
		listeners string // of TCP, those with m of MPTCP, with 6 of IPv6 only
		at        string
		want      Answer
	}{
		{"", "192.0.2.1:80", JoinClosed},
		{"m[::]:80", "192.0.2.1:80", JoinAccepted},
		{"m6[::]:80", "192.0.2.1:80", JoinOtherAddress},
		{"m[::]:80 0.0.0.0:80", "192.0.2.1:80", JoinOnlyTCP},
		{"0.0.0.0:80 m[::]:80", "192.0.2.1:80", JoinOnlyTCP},
		{"m[::]:80 0.0.0.0:80", "[2001:db8::1]:80", JoinAccepted},
		{"m[::]:80 192.0.2.2:80", "192.0.2.1:80", JoinAccepted},
		{"192.0.2.2:80 m[::]:80", "192.0.2.2:80", JoinOnlyTCP},
		{"m192.0.2.2:80 m[::1]:80", "192.0.2.1:80", JoinOtherAddress},
		{"m[::]:80 m[::]:80", "192.0.2.1:80", JoinAccepted},
		{"m[::]:80 [::]:80", "192.0.2.1:80", JoinMixed},
		{"m[::]:81", "192.0.2.1:80", JoinClosed},
	} {
		var all []Listener
		for _, text := range strings.Fields(tt.listeners) {
			var l Listener
			text, l.Multipath = strings.CutPrefix(text, "m")
			text, l.Only6 = strings.CutPrefix(text, "6")
			l.At = netip.MustParseAddrPort(text)
			all = append(all, l)
		}
		at := netip.MustParseAddrPort(tt.at)
		got := AnswerTo(all, at)
		text, remedy := got.Problem(at)
		if got != tt.want || (text == "") != (got == JoinAccepted) || (remedy == "") != (got == JoinAccepted) {
			t.Errorf("%s, subflow to %s: answer %d (%q, %q), want %d", tt.listeners, tt.at, got, text, remedy, tt.want)
		}
	}
}

func FuzzDecodeListener(f *testing.F) {
	f.Add(append(make([]byte, diagMessageLen), 5, 0, diagAttrOnly6, 0, 1, 0, 0, 0))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = decodeListener(b) })
}
