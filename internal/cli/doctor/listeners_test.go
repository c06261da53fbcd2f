package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/mptcp"
)

func TestListeners(t *testing.T) {
	// Those with m listen with MPTCP, the others with TCP; the number of each is its place.
	at := func(list ...string) func() ([]mptcp.Listener, error) {
		return func() (all []mptcp.Listener, err error) {
			for i, text := range list {
				address, multipath := strings.CutPrefix(text, "m")
				address, only6 := strings.CutPrefix(address, "6")
				all = append(all, mptcp.Listener{At: netip.MustParseAddrPort(address), Only6: only6, Multipath: multipath, Inode: uint32(i)})
			}
			return all, nil
		}
	}
	owners := func([]uint32) map[uint32]string { return map[uint32]string{1: "nginx (pid 12)"} }
	for _, test := range []struct {
		list         func() ([]mptcp.Listener, error)
		state        State
		want, remedy string
	}{
		{at("m[::]:80", "m0.0.0.0:443", "m[::1]:8080"), OK, "EPE addresses included", ""},
		{at("m[::]:80", "m192.0.2.1:443"), Limited, "192.0.2.1:443: subflows", "listen on [::]"},
		{at("m[::]:80", "[::]:80"), Limited, "nginx (pid 12) listens on [::]:80 with TCP beside", "tabane mptcpify), or stop: nginx (pid 12)"},
		{at("[::]:80", "m[::]:80"), Limited, "a process of port 80 listens on [::]:80 with TCP beside", "stop: a process of port 80"},
		{at("m[::]:80", "0.0.0.0:80"), Limited, "nginx (pid 12) listens on 0.0.0.0:80", "nginx (pid 12)"},
		{at("m[::]:80", "192.0.2.1:80"), Limited, "nginx (pid 12) listens on 192.0.2.1:80", "nginx (pid 12)"},
		{at("m[2001:db8::5]:80", "[2001:db8::5]:80"), Limited, "nginx (pid 12) listens on [2001:db8::5]:80", "; have the server listen on [::]"},
		{at("m[::]:80", "127.0.0.1:80", "[::]:22", "0.0.0.0:81"), OK, "EPE addresses included", ""},
		{at("m0.0.0.0:80", "6[::]:80"), OK, "EPE addresses included", ""},
		{func() ([]mptcp.Listener, error) { return nil, errors.New("no sock_diag") }, Unknown, "no sock_diag", ""},
	} {
		f := listeners(test.list, owners)
		if f.State != test.state || !strings.Contains(f.Meaning, test.want) || !strings.Contains(f.Remedy, test.remedy) || (f.Remedy == "") != (test.remedy == "") {
			t.Errorf("%+v, want %s: %s; %s", f, test.state, test.want, test.remedy)
		}
	}
}

// TestSharedPort has this process listen at one port with TCP and MPTCP, as examined by the kernel.
func TestSharedPort(t *testing.T) {
	if err := mptcp.Supported(); err != nil {
		if os.Getenv("TABANE_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	listen := func(address string, multipath bool) string {
		t.Helper()
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			return errors.Join(err, failed)
		}}
		config.SetMultipathTCP(multipath)
		l, err := config.Listen(context.Background(), "tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Addr().String()
	}
	at := listen("0.0.0.0:0", true)
	want := "(pid " + strconv.Itoa(os.Getpid()) + ") listens on " + at + " with TCP"
	if f := listeners(listening, processes); strings.Contains(f.Meaning, want) {
		t.Errorf("with MPTCP alone: %+v", f)
	}
	listen(at, false)
	if f := listeners(listening, processes); f.State != Limited || !strings.Contains(f.Meaning, want) {
		t.Errorf("%+v, want %q", f, want)
	}
}
