package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dialFunc connects to the neighbor.
type dialFunc func(context.Context) (net.Conn, error)

const (
	// trafficClass is Internetwork Control, so that a full link does not drop keepalives first
	// (RFC 4594 section 3.1).
	trafficClass = 0xc0
	maxHops      = 255
)

// hops are the hop limit that a socket sends, and the least that it accepts; 0 is the kernel's
// default.
type hops struct{ send, least int }

func (c Config) hops() hops {
	switch {
	case c.GTSM:
		return hops{maxHops, maxHops + 1 - max(1, int(c.Multihop))}
	case c.internal():
		return hops{}
	}
	return hops{send: max(1, int(c.Multihop))}
}

// option is an integer socket option in both address families.
type option struct{ name4, name6 int }

var (
	hopLimit    = option{unix.IP_TTL, unix.IPV6_UNICAST_HOPS}
	minHopLimit = option{unix.IP_MINTTL, unix.IPV6_MINHOPCOUNT}
	class       = option{unix.IP_TOS, unix.IPV6_TCLASS}
)

func (o option) set(fd int, v4 bool, value int) error {
	if v4 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, o.name4, value)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, o.name6, value)
}

// setHops sets the hop limits of a socket.
func (h hops) set(fd int, v4 bool) error {
	var err error
	if h.send != 0 {
		err = hopLimit.set(fd, v4, h.send)
	}
	if h.least > 0 {
		err = errors.Join(err, minHopLimit.set(fd, v4, h.least))
	}
	return err
}

// control calls f with the file descriptor of a socket.
func control(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

const (
	// unsentMax is the number of bytes that wait in the send buffer without being on their way,
	// and nearWindow the receive window of a neighbor with a round-trip time of at most nearRTT. A
	// change that the handler regards as urgent waits for what is in these buffers. A neighbor that
	// is farther away needs a larger window.
	unsentMax  = 16 << 10
	nearWindow = 64 << 10
	nearRTT    = 2 * time.Millisecond
)

// limitBuffers keeps the buffers of a connection small. It has no effect on other connections than
// those of TCP.
func limitBuffers(c net.Conn) error {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && time.Duration(info.Rtt)*time.Microsecond <= nearRTT {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, nearWindow)
		}
		return errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMax))
	})
}

// dial connects to the neighbor with the options of the session, which apply from the SYN on.
func (c Config) dial(ctx context.Context) (net.Conn, error) {
	remote := c.Remote.Addr()
	v4 := remote.Is4()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return control(raw, func(fd int) error {
			err := errors.Join(class.set(fd, v4, trafficClass), c.hops().set(fd, v4))
			if c.Password != "" {
				err = errors.Join(err, setKey(fd, v4, netip.PrefixFrom(remote, remote.BitLen()), c.Password))
			}
			return err
		})
	}}
	d.SetMultipathTCP(false) // excludes MD5
	if c.Local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.Local.WithZone(remote.Zone()), 0))
	}
	return d.DialContext(ctx, "tcp", c.Remote.String())
}

// setKey sets the TCP MD5 key of a socket for the neighbors in a prefix, or deletes it if the
// password is empty. v4 is the family of the socket. The kernel knows no zones: neighbors with
// equal link-local addresses share the key.
func setKey(fd int, v4 bool, p netip.Prefix, password string) error {
	sig := unix.TCPMD5Sig{Flags: unix.TCP_MD5SIG_FLAG_PREFIX, Prefixlen: uint8(p.Bits()), Keylen: uint16(len(password))}
	copy(sig.Key[:], password)
	// The rest of a sockaddr_in is port and address, of a sockaddr_in6 port, flow, address and
	// scope.
	if v4 {
		sig.Addr.Family = unix.AF_INET
		a := p.Addr().As4()
		copy(sig.Addr.Data[2:], a[:])
	} else {
		sig.Addr.Family = unix.AF_INET6
		a := p.Addr().As16()
		copy(sig.Addr.Data[6:], a[:])
	}
	err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG_EXT, &sig)
	if password == "" && errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("set tcp md5 key for %q: %w", p, err)
	}
	return nil
}

// synHops returns the hop limit of the SYN that opened an accepted connection. The listening socket
// must have TCP_SAVE_SYN.
func synHops(fd int) (int, error) {
	// The saved SYN starts with its IP header. TCPInfo serves as a buffer, since package unix has
	// no function for options of any length.
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_SAVED_SYN)
	if err != nil {
		return 0, fmt.Errorf("read the saved SYN: %w", err)
	}
	header := (*[unix.SizeofTCPInfo]byte)(unsafe.Pointer(info))
	if header[0]>>4 == 4 {
		return int(header[8]), nil
	}
	return int(header[7]), nil
}
