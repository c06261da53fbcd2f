package role

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// Here returns an address at which this host serves itself: at, or 127.0.0.1 with its port if at is
// on ::1 and this host has no ::1, because IPv6 is switched off.
func Here(at netip.AddrPort) netip.AddrPort {
	if at.Addr() != netip.IPv6Loopback() || hasLoopback() {
		return at
	}
	return Without6(at)
}

// Without6 returns the same port of 127.0.0.1.
func Without6(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
}

// hasLoopback reports whether a socket can have the address ::1. It opens one for that, and sends
// nothing.
func hasLoopback() bool {
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err == nil {
		_ = c.Close() // it has received nothing
	}
	// The address is missing, or the kernel runs without IPv6.
	return !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EAFNOSUPPORT)
}
