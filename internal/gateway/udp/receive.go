package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// BufferLen is the length of a buffer that holds whatever the kernel merges (UDP_GRO).
	BufferLen = 1 << 16
	// receiveBatch is the number of buffers that one system call fills.
	receiveBatch = 8
	// controlLen has room for the control messages of segment size, traffic class and address.
	controlLen = 96
)

// Received is what the kernel merged: datagrams of one sender with equal length, but the last may
// be shorter.
type Received struct {
	// Data is the datagrams, Size the length of each but the last.
	Data []byte
	Size int
	From netip.AddrPort
	// To is the address of this host that they were sent to.
	To netip.Addr
	// Class is the traffic class (RFC 2474, RFC 3168) of all.
	Class uint8
}

// mmsghdr is struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

type receiver struct {
	batch   [receiveBatch]mmsghdr
	vector  [receiveBatch]unix.Iovec
	name    [receiveBatch][unix.SizeofSockaddrInet6]byte
	control [receiveBatch][controlLen]byte
	used    int
	n       int
	err     unix.Errno
	once    func(fd uintptr) bool
}

func (r *receiver) init(*Socket) {
	for i := range r.batch {
		h := &r.batch[i].hdr
		h.Name, h.Iov, h.Control = &r.name[i][0], &r.vector[i], &r.control[i][0]
		h.SetIovlen(1)
	}
	r.once = func(fd uintptr) bool {
		for {
			n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.batch[0])), uintptr(r.used), unix.MSG_DONTWAIT, 0, 0)
			if e == unix.EINTR {
				continue
			}
			r.n, r.err = int(n), e
			return e != unix.EAGAIN
		}
	}
}

// Receive waits for datagrams and fills buffers, which have BufferLen bytes each, in their order.
// It returns how many entries of got it wrote; entry i is in buffer i. An error of the network is
// returned and ends nothing: the caller continues. fs.ErrClosed is final.
func (s *Socket) Receive(buffers [][]byte, got []Received) (int, error) {
	r := &s.receiver
	r.used = min(len(buffers), len(got), receiveBatch)
	for i := range r.used {
		h := &r.batch[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(controlLen)
		r.vector[i].Base = unsafe.SliceData(buffers[i])
		r.vector[i].SetLen(len(buffers[i]))
	}
	err := s.raw.Read(r.once)
	for i := range r.used {
		r.vector[i].Base = nil
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("receive: %w", closed(err))
	case r.err != 0:
		return 0, fmt.Errorf("receive: %w", r.err)
	}
	for i := range r.n {
		h := &r.batch[i].hdr
		g := &got[i]
		*g = Received{Data: buffers[i][:r.batch[i].n], Size: int(r.batch[i].n), From: address(&r.name[i])}
		g.control(r.control[i][:h.Controllen])
	}
	return r.n, nil
}

// control reads the control messages.
func (g *Received) control(b []byte) {
	for len(b) >= unix.SizeofCmsghdr {
		n := binary.NativeEndian
		length := int(n.Uint64(b)) // size_t: 64 bits on all that Go has batches for here
		level, kind := int(n.Uint32(b[8:])), int(n.Uint32(b[12:]))
		if length < unix.SizeofCmsghdr || length > len(b) {
			return
		}
		data := b[unix.SizeofCmsghdr:length]
		switch {
		case level == unix.IPPROTO_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			if size := int(n.Uint32(data)); size > 0 {
				g.Size = size
			}
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			g.To = netip.AddrFrom4([4]byte(data[8:]))
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			g.To = netip.AddrFrom16([16]byte(data)).Unmap()
		case level == unix.IPPROTO_IP && kind == unix.IP_TOS && len(data) >= 1:
			g.Class = data[0]
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS && len(data) >= 4:
			g.Class = uint8(n.Uint32(data))
		}
		b = b[min(len(b), unix.CmsgSpace(len(data))):]
	}
}
