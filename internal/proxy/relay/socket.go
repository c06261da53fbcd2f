package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of this file that loops make for each piece of data do not block, so that they bypass
// the scheduler of Go (RawSyscall). Those that move much data at once do so as well, although they
// can take half a millisecond: the scheduler would take the processor away from a loop after 20 us
// in such a call, look again every 20 us, and wake another thread each time.

// backlog is the length of the queue of connections that wait to be accepted; net.core.somaxconn
// bounds it.
const backlog = 4096

// solMPTCP and mptcpInfo are SOL_MPTCP and MPTCP_INFO of include/uapi/linux/mptcp.h.
const (
	solMPTCP  = 284
	mptcpInfo = 1
)

// SocketOptions describe a listening socket.
type SocketOptions struct {
	// At is the address; [::] includes IPv4 unless Only6 is set. Port 0 selects a free one.
	At    netip.AddrPort
	Only6 bool
	// Multipath accepts MPTCP as well as TCP.
	Multipath bool
	// ReusePort lets sockets of other processes of the same user listen at the address, too.
	ReusePort bool
	// Transparent accepts connections to addresses of others, which a rule of nf_tables gives to
	// the socket (TPROXY). It needs CAP_NET_ADMIN.
	Transparent bool
}

// OpenSocket opens a listening socket in the network namespace of the calling thread, and returns
// its file descriptor.
func OpenSocket(o SocketOptions) (fd int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen on %q: %w", o.At, err)
		}
	}()
	fd, err = openListening(o)
	if o.Multipath && (errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)) {
		o.Multipath = false // without MPTCP, or what this kernel lacks of it, clients come by TCP
		fd, err = openListening(o)
	}
	return fd, err
}

func openListening(o SocketOptions) (fd int, err error) {
	if fd, err = socket(o.At.Addr(), o.Multipath); err != nil {
		return -1, err
	}
	set := setter(fd, &err)
	set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if o.ReusePort {
		set(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	if o.At.Addr().Is6() {
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, boolean(o.Only6))
	}
	if o.Transparent && o.At.Addr().Is6() {
		set(unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	} else if o.Transparent {
		set(unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(o.At))
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// setter returns a function that sets options of a socket until one fails, with the error in err.
func setter(fd int, err *error) func(level, option, value int) {
	return func(level, option, value int) {
		if *err == nil {
			*err = unix.SetsockoptInt(fd, level, option, value)
		}
	}
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sendAtOnce has small segments not wait for acknowledgments of those before, and also those of
// connections that are accepted from the socket.
func sendAtOnce(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// probe has a peer that is silent asked whether it is alive, and also those of connections that are
// accepted from the socket.
func probe(fd int, keepAlive keepAlive) error {
	var err error
	set := setter(fd, &err)
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAlive.idle)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAlive.interval)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.count)
	return err
}

// Congestion returns the congestion control that new MPTCP connections have, "" without MPTCP, and
// whether they may have the one of that name.
func Congestion(name string) (host string, may bool) {
	fd, err := socket(netip.IPv4Unspecified(), true)
	if err != nil {
		return "", false
	}
	defer closeSocket(fd)
	host, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return host, err == nil && congest(fd, name) == nil
}

// congest sets the congestion control of a socket, of those that are accepted from it, and of
// subflows that join.
func congest(fd int, name string) error {
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
}

// unpaced as SO_MAX_PACING_RATE is the kernel's default (sk_max_pacing_rate in net/core/sock.c).
const unpaced = ^uint64(0)

// pace sets the pacing rate that connections inherit, in bytes per second; 0 is none, also of a
// socket that had one.
func pace(fd int, rate uint64) error {
	if rate > 0 {
		return unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate)
	}
	err := unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, unpaced)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // it cannot have one: MPTCP
	}
	return err
}

// keepAlive is when a peer that is silent is asked whether it is alive, in seconds, and how often
// before the connection ends.
type keepAlive struct{ idle, interval, count int }

// detect finds a dead peer within two minutes.
var detect = keepAlive{idle: 60, interval: 15, count: 4}

// socket opens a socket that does not block.
func socket(of netip.Addr, multipath bool) (int, error) {
	family, protocol := unix.AF_INET6, unix.IPPROTO_TCP
	if of.Is4() {
		family = unix.AF_INET
	}
	if multipath {
		protocol = unix.IPPROTO_MPTCP
	}
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, uintptr(protocol))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// ErrNoPort is the error of connecting when connections to the same destination have all local
// ports. The destination was not asked.
var ErrNoPort = errors.New("no local port is free; widen net.ipv4.ip_local_port_range")

// connect starts to connect; nil or EINPROGRESS is its begin.
func connect(fd int, to netip.AddrPort) error {
	var raw [unix.SizeofSockaddrInet6]byte
	n := putSockaddr(&raw, to)
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(n))
	switch {
	case errno == 0 || errno == unix.EINPROGRESS:
		return nil
	case errno == unix.EADDRNOTAVAIL && hasSource(to.Addr()):
		return ErrNoPort
	default:
		return errno
	}
}

// hasSource reports whether this host has an address from which it reaches another, whatever its
// ports: connecting to IPv6 where that is disabled fails as connecting without a free port does.
func hasSource(to netip.Addr) bool {
	family := unix.AF_INET6
	if to.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer closeSocket(fd)
	return unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, 9))) == nil
}

// putSockaddr writes struct sockaddr_in or sockaddr_in6 and returns its length.
func putSockaddr(raw *[unix.SizeofSockaddrInet6]byte, a netip.AddrPort) int {
	binary.BigEndian.PutUint16(raw[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(raw[:], unix.AF_INET)
		four := a.Addr().As4()
		copy(raw[4:], four[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(raw[:], unix.AF_INET6)
	sixteen := a.Addr().As16()
	copy(raw[8:], sixteen[:])
	return unix.SizeofSockaddrInet6
}

// address reads struct sockaddr_in or sockaddr_in6.
func address(raw *[unix.SizeofSockaddrInet6]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(raw[2:])
	if binary.NativeEndian.Uint16(raw[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])).Unmap(), port)
}

// accept accepts a connection.
func accept(listening int) (fd int, client netip.AddrPort, errno syscall.Errno) {
	var raw [unix.SizeofSockaddrInet6]byte
	length := uint32(len(raw))
	r, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listening), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&length)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, client, errno
	}
	return int(r), address(&raw), 0
}

// LocalAddress returns the own address of a socket; of a transparent one, that is where the client
// wanted to connect to.
func LocalAddress(fd int) netip.AddrPort {
	var raw [unix.SizeofSockaddrInet6]byte
	length := uint32(len(raw))
	_, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&length)))
	if errno != 0 {
		return netip.AddrPort{}
	}
	return address(&raw)
}

// keepUrgent has the byte of urgent data stay in the stream, where reading would leave it out.
func keepUrgent(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) // MPTCP has no urgent data
}

// atUrgent reports whether the next byte to read is urgent. Reading ends before it.
func atUrgent(fd int) bool {
	at, err := unix.IoctlGetInt(fd, unix.SIOCATMARK)
	return err == nil && at == 1
}

// receive reads what has arrived; 0 bytes are the end.
func receive(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

// send writes without SIGPIPE.
func send(fd int, b []byte) (int, syscall.Errno) { return sendWith(fd, b, 0) }

func sendWith(fd int, b []byte, flags uintptr) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT|flags, 0, 0)
	return int(n), errno
}

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// splice moves up to most bytes between a socket and a pipe. 0 bytes of a socket are the end, or
// what is next is urgent.
func splice(from, to, most int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), spliceFlags)
	return int(n), errno
}

// shutdownWrite sends FIN. An error is that of a connection that has ended already.
func shutdownWrite(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
}

// closeSocket closes a socket; what was sent is still delivered.
func closeSocket(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// resetSocket closes a socket with a reset.
func resetSocket(fd int) {
	linger := unix.Linger{Onoff: 1}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger) // then it is closed with FIN
	closeSocket(fd)
}

// pending returns and clears the error of a socket.
func pending(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if n != 0 {
		return syscall.Errno(n)
	}
	return nil
}

// multipath reports whether a connected MPTCP socket has not fallen back to TCP.
func multipath(fd int) bool {
	var info [64]byte
	length := uint32(len(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), solMPTCP, mptcpInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
	return errno == 0
}

// spliceable reports whether the kernel splices from a socket without copying. MPTCP has no
// splice_read: the kernel copies into new pages, as many as may be read, also of a connection that
// has fallen back.
func spliceable(fd int) bool {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && protocol == unix.IPPROTO_TCP
}

// segment returns the maximum segment size of a connection in bytes.
func segment(fd int) int {
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil || n <= 0 {
		return defaultSegment // MPTCP has none of its own
	}
	return n
}

// defaultSegment is the payload in bytes of a segment of IPv4 or IPv6 with timestamps over
// Ethernet.
const defaultSegment = 1440

// leastSegment is the least payload in bytes of a full segment where the MTU is that of IPv6
// (1280).
const leastSegment = 1280 - 40 - 20 - 40

// SetReusePort has other sockets listen at the address of a listening one, or not.
func SetReusePort(fd int, allowed bool) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, boolean(allowed)); err != nil {
		return fmt.Errorf("set reuse_port of the listener on %q: %w", LocalAddress(fd), err)
	}
	return nil
}

// Matches reports whether a listening socket is as OpenSocket makes it, but for ReusePort. Any port
// matches port 0.
func Matches(fd int, o SocketOptions) bool {
	at := LocalAddress(fd)
	get := func(level, option int) int {
		n, err := unix.GetsockoptInt(fd, level, option)
		if err != nil {
			return -1
		}
		return n
	}
	if at.Addr() != o.At.Addr() || o.At.Port() != 0 && at.Port() != o.At.Port() || get(unix.SOL_SOCKET, unix.SO_ACCEPTCONN) != 1 {
		return false
	}
	protocol := get(unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if protocol != unix.IPPROTO_TCP && (protocol != unix.IPPROTO_MPTCP || !o.Multipath) {
		return false
	}
	if o.At.Addr().Is6() {
		// The kernel sets IPV6_V6ONLY of sockets that are bound to one address.
		only6 := o.Only6 || !o.At.Addr().IsUnspecified()
		return get(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) == boolean(only6) && get(unix.SOL_IPV6, unix.IPV6_TRANSPARENT) == boolean(o.Transparent)
	}
	return get(unix.SOL_IP, unix.IP_TRANSPARENT) == boolean(o.Transparent)
}
