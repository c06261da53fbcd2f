package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// oob sends or receives one urgent byte.
func oob(t *testing.T, c *net.TCPConn, do func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var fault error
	if err := raw.Control(func(fd uintptr) { fault = do(int(fd)) }); err != nil || fault != nil {
		t.Fatal(err, fault)
	}
}

func sendUrgent(t *testing.T, c *net.TCPConn, b byte) {
	t.Helper()
	oob(t, c, func(fd int) error { return unix.Sendto(fd, []byte{b}, unix.MSG_OOB, nil) })
}

// urgentPair returns a client and the server that an engine has connected it to.
func urgentPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	r := &stub{}
	r.plan.Targets = []Target{{Address: netip.MustParseAddrPort(listener.Addr().String())}}
	_, _, at := start(t, r, ServiceOptions{})
	client = enter(t, at)
	if err := listener.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if err := server.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// TestUrgent: the byte of urgent data arrives at its place, what follows it arrives, too, and bulk
// data around it is whole, in both directions.
func TestUrgent(t *testing.T) {
	for _, down := range []bool{false, true} {
		from, to := urgentPair(t)
		if down {
			from, to = to, from
		}
		oob(t, to, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
		var want []byte
		piece := bytes.Repeat([]byte("a"), 100<<10)
		go func() {
			for range 20 {
				_, _ = from.Write(piece)
				sendUrgent(t, from, '!')
			}
			_, _ = from.Write([]byte("end"))
			_ = from.CloseWrite()
		}()
		for range 20 {
			want = append(append(want, piece...), '!')
		}
		want = append(want, "end"...)
		got, err := io.ReadAll(to)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("down %v: %d bytes arrived of %d, %d of them urgent: %v", down, len(got), len(want), bytes.Count(got, []byte("!")), err)
		}
	}
}

// TestUrgentMark: what telnet sends to interrupt is urgent at the server as well, and does not wait
// for more data.
func TestUrgentMark(t *testing.T) {
	client, server := urgentPair(t)
	for range 50 {
		if _, err := client.Write([]byte("sleep\xff")); err != nil {
			t.Fatal(err)
		}
		sendUrgent(t, client, 0xf2)
		if _, err := client.Write([]byte("ABOR\r\n")); err != nil {
			t.Fatal(err)
		}
		var got [6]byte
		if _, err := io.ReadFull(server, got[:]); err != nil || string(got[:]) != "sleep\xff" {
			t.Fatalf("%q, %v", got, err)
		}
		var b [1]byte
		for deadline := time.Now().Add(patience); ; {
			var err error
			oob(t, server, func(fd int) error {
				_, _, err = unix.Recvfrom(fd, b[:], unix.MSG_OOB|unix.MSG_DONTWAIT)
				return nil
			})
			if err == nil {
				break
			}
			// Before it arrives, none is known of.
			if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINVAL) || time.Now().After(deadline) {
				t.Fatalf("read the urgent byte: %v", err)
			}
		}
		if b[0] != 0xf2 {
			t.Fatalf("urgent byte is %#x", b[0])
		}
		if _, err := io.ReadFull(server, got[:]); err != nil || string(got[:]) != "ABOR\r\n" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}
