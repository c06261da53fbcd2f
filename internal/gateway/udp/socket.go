package udp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// bufferSize is the size of the kernel's buffers: the default loses bursts.
const bufferSize = 8 << 20

// Socket is a UDP socket for IPv4 and IPv6. Receive is for one goroutine at a time, all else is
// safe for concurrent use.
type Socket struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	v6   bool // addresses of the socket are IPv6, those of IPv4 mapped
	// segment and gro: the kernel has the offloads.
	segment, gro bool

	receiver receiver
	sender   sender
}

// Options configure a Socket.
type Options struct {
	// Local is the address and port to listen on. The zero address is all addresses of both
	// families, port 0 any free one.
	Local netip.AddrPort
	// Interface is the only interface to send and receive on. Empty: any.
	Interface string
	// Mark is that of the datagrams in the kernel (SO_MARK), for policy rules. It needs
	// CAP_NET_ADMIN unless it is 0.
	Mark uint32
}

// Listen opens a socket in the network namespace of the calling thread. An interface that does not
// exist is an error that matches unix.ENODEV.
func Listen(o Options) (*Socket, error) {
	s, err := listen(o)
	if err != nil {
		return nil, fmt.Errorf("open socket of the tunnel: %w", err)
	}
	return s, nil
}

func listen(o Options) (*Socket, error) {
	network, address := "udp", ""
	switch {
	case !o.Local.Addr().IsValid() || o.Local.Addr().IsUnspecified():
		address = fmt.Sprintf(":%d", o.Local.Port())
	case o.Local.Addr().Is4():
		network, address = "udp4", o.Local.String()
	default:
		network, address = "udp6", o.Local.String()
	}
	s := new(Socket)
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = s.set(int(fd), o) }); e != nil {
			return e
		}
		return err
	}}
	conn, err := config.ListenPacket(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	s.conn = conn.(*net.UDPConn)
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s.receiver.init(s)
	s.sender.init(s)
	return s, nil
}

// set sets the options of the unbound socket.
func (s *Socket) set(fd int, o Options) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	s.v6 = domain == unix.AF_INET6
	if o.Interface != "" {
		if err := unix.BindToDevice(fd, o.Interface); err != nil {
			return fmt.Errorf("bind to interface %q: %w", o.Interface, err)
		}
	}
	if o.Mark != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(o.Mark)); err != nil {
			return fmt.Errorf("set mark of datagrams: %w", err)
		}
	}
	for _, b := range []struct{ force, plain int }{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.force, bufferSize) != nil {
			// Without CAP_NET_ADMIN it is bounded by net.core.rmem_max and wmem_max.
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.plain, bufferSize); err != nil {
				return err
			}
		}
	}
	// Datagrams have the size that the caller gives them: they are not fragmented, and an ICMP
	// message, which anybody can send, does not change that.
	err = s.setDiscover(fd, unix.IP_PMTUDISC_PROBE)
	if s.v6 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1))
		// The same for addresses of IPv4; a socket of IPv6 alone refuses it.
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	} else {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1))
	}
	if err = errors.Join(err, receiveDestination(fd, s.v6)); err != nil {
		return err
	}
	s.gro = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	_, err = unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	s.segment = err == nil
	return nil
}

// ReceiveDestination has datagrams come with the address that they were sent to, in a control
// message that has an answer sent from there.
func ReceiveDestination(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		var domain int
		if domain, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil {
			err = receiveDestination(int(fd), domain == unix.AF_INET6)
		}
	}); e != nil {
		return e
	}
	return err
}

func receiveDestination(fd int, v6 bool) error {
	if v6 { // of IPv4 packets, too
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// setDiscover sets how datagrams fit the MTU of their path: IP_MTU_DISCOVER, which has the same
// values in IPv6.
func (s *Socket) setDiscover(fd, value int) error {
	if !s.v6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, value)
	}
	// For addresses of IPv4; a socket of IPv6 alone refuses it.
	unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, value)
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, value)
}

// Interface returns the index of an interface and its MTU in bytes. One that does not exist is an
// error that matches unix.ENODEV. Unlike net.InterfaceByName, it does not list all interfaces.
func Interface(name string) (index, mtu int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	var values [2]int
	for i, request := range [...]uint{unix.SIOCGIFINDEX, unix.SIOCGIFMTU} {
		ifr, err := unix.NewIfreq(name)
		if err == nil {
			err = unix.IoctlIfreq(fd, request, ifr)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("interface %q: %w", name, err)
		}
		values[i] = int(ifr.Uint32())
	}
	return values[0], values[1], nil
}

// Source returns the source address of datagrams that a socket with these options sends to a
// destination, in the network namespace of the calling thread. It sends none.
func Source(o Options, to netip.AddrPort) (netip.Addr, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = new(Socket).set(int(fd), o) }); e != nil {
			return e
		}
		return err
	}}
	conn, err := d.Dial("udp", netip.AddrPortFrom(to.Addr().WithZone(""), to.Port()).String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find source of datagrams: %w", err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

// Probe returns which offloads the kernel has; those that are missing are *feature.Errors.
func Probe() (segment, gro error) {
	s, err := Listen(Options{Local: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)})
	if err != nil {
		return err, err
	}
	defer s.Close()
	if !s.segment {
		segment = &feature.Error{Feature: "UDP_SEGMENT", Remedy: "use Linux 4.18 or newer; packets are sent one by one"}
	}
	if !s.gro {
		gro = &feature.Error{Feature: "UDP_GRO", Remedy: "use Linux 5.0 or newer; packets are received one by one"}
	}
	return segment, gro
}

// Local returns the address and port of the socket.
func (s *Socket) Local() netip.AddrPort {
	a := s.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Close closes the socket. A Receive that waits returns fs.ErrClosed.
func (s *Socket) Close() error { return s.conn.Close() }

// closed maps the error of a closed socket.
func closed(err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
		return fs.ErrClosed
	}
	return err
}

// putAddress writes a socket address and returns its length.
func (s *Socket) putAddress(to netip.AddrPort, b *[unix.SizeofSockaddrInet6]byte) uint32 {
	if !s.v6 {
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], to.Port())
		a := to.Addr().Unmap().As4()
		copy(b[4:], a[:])
		clear(b[8:16])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(b[:], unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], to.Port())
	clear(b[4:8])
	a := to.Addr().As16()
	copy(b[8:], a[:])
	clear(b[24:]) // the interface of the socket is that of link-local addresses
	return unix.SizeofSockaddrInet6
}

// address reads a socket address.
func address(b *[unix.SizeofSockaddrInet6]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	if binary.NativeEndian.Uint16(b[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
}
