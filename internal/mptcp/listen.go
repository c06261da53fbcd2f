package mptcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Listen opens a listening socket in the network namespace of the calling thread. Clients may
// connect over MPTCP or TCP, or only over TCP if the kernel has no MPTCP. Port 0 selects a free
// one. [::] means all addresses, including IPv4.
//
// congestion is the congestion control of the connections; empty means the namespace's default.
// Subflows that join a connection have that of the listening socket.
func Listen(at netip.AddrPort, congestion string) (*net.TCPListener, error) {
	return listen(at, congestion, true)
}

// ListenTCP is Listen without MPTCP: clients that ask for it fall back to TCP.
func ListenTCP(at netip.AddrPort, congestion string) (*net.TCPListener, error) {
	return listen(at, congestion, false)
}

func listen(at netip.AddrPort, congestion string, multipath bool) (*net.TCPListener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(multipath)
	if congestion != "" {
		lc.Control = func(_, _ string, raw syscall.RawConn) error { return SetCongestion(raw, congestion) }
	}
	network := "tcp"
	if at.Addr().Is4() {
		network = "tcp4" // or Go takes 0.0.0.0 for all addresses of both families
	}
	l, err := lc.Listen(context.Background(), network, at.String())
	if errors.Is(err, unix.EAFNOSUPPORT) && at.Addr() == netip.IPv6Unspecified() {
		// The kernel runs without IPv6, so all addresses are those of IPv4.
		l, err = lc.Listen(context.Background(), "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()).String())
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", at, err)
	}
	return l.(*net.TCPListener), nil
}

// SetCongestion sets the congestion control of a TCP or MPTCP socket.
func SetCongestion(raw syscall.RawConn, name string) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	})
	if failed != nil {
		failed = fmt.Errorf("set congestion control %q: %w", name, failed)
	}
	return errors.Join(err, failed)
}

// mptcpInfoOption is the socket option MPTCP_INFO of SOL_MPTCP (include/uapi/linux/mptcp.h).
const mptcpInfoOption = 1

// SubflowCount returns the number of subflows of an MPTCP socket, the initial one included
// (MPTCP_INFO, Linux 5.16). It needs no privilege.
func SubflowCount(raw syscall.RawConn) (int, error) {
	var info [mptcpInfoLen]byte
	var failed error
	err := raw.Control(func(fd uintptr) {
		length := uint32(len(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_MPTCP, mptcpInfoOption, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
		if errno != 0 {
			failed = os.NewSyscallError("getsockopt", errno)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("query subflows: %w", err)
	}
	return int(info[0]) + 1, nil
}
