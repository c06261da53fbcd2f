package mptcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Subflow is an established subflow of an MPTCP connection with its TCP state.
type Subflow struct {
	// Token is the local token of the connection (RFC 8684 section 3.2).
	Token             uint32
	Local, Remote     netip.AddrPort
	LocalID, RemoteID uint8
	// Joined is set if it was opened by MP_JOIN, i.e. is not the initial subflow; Active, if
	// this host opened it.
	Joined, Active bool
	// BackupHere and BackupThere are the backup flags of this end and of the peer (RFC 8684 section
	// 3.3.8).
	BackupHere, BackupThere bool

	// InFlight is the number of segments sent and not acknowledged, including lost ones.
	InFlight uint32
	// Queued is the number of unacknowledged bytes in the send queue, sent or unsent.
	Queued uint32
	// Acked counts bytes that were cumulatively acknowledged, Delivered segments that were
	// acknowledged cumulatively or selectively. Delivered wraps around.
	Acked     uint64
	Delivered uint32
	// RTT is the smoothed round-trip time, Deviation its mean deviation (RFC 6298).
	RTT, Deviation time.Duration
	// MinRTT is the least round-trip time of the last minutes (tcp_min_rtt_wlen).
	MinRTT time.Duration
	// SegmentSize is the send MSS in bytes.
	SegmentSize uint32
	// Window is the congestion window and Threshold the slow start threshold, in segments.
	Window, Threshold uint32
	// NotSent is the number of bytes in the send queue that were never sent.
	NotSent uint32
	// SendWindow is the window that the peer advertised, in bytes; 0 before Linux 5.4.
	SendWindow uint32
	// Busy is the time with data to send, in steps of a jiffy.
	Busy time.Duration
	// Mark is that of the socket (SO_MARK), Cgroup the ID of its cgroup of version 2, which is that
	// of the process which opened the listening socket; 0 before Linux 5.9.
	Mark   uint32
	Cgroup uint64
}

// Diag reads the subflows of a network namespace from sock_diag. It is safe for concurrent use.
type Diag struct {
	mu     sync.Mutex
	fd     int
	buffer []byte
	seq    uint32
}

const (
	// diagBuffer is larger than the largest message of a dump (32 KiB).
	diagBuffer = 64 << 10
	// diagPatience is the receive timeout. The kernel normally answers at once.
	diagPatience = 5 * time.Second
)

// DialDiag opens sock_diag in the network namespace that the calling thread is in. Close it.
func DialDiag() (*Diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	patience := unix.NsecToTimeval(diagPatience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return nil, errors.Join(fmt.Errorf("bound wait for sock_diag: %w", err), unix.Close(fd))
	}
	return &Diag{fd: fd, buffer: make([]byte, diagBuffer)}, nil
}

// Close closes the socket.
func (d *Diag) Close() error { return unix.Close(d.fd) }

// Family is the address family of a socket. An IPv6 socket may have IPv4-mapped addresses; they are
// returned as IPv4 addresses.
type Family uint8

// The families.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// Subflows calls f for each subflow of the family that can send data. The kernel reports MPTCP
// attributes only to processes with CAP_NET_ADMIN. Subflows that are opened or closed during the
// dump may be missing.
func (d *Diag) Subflows(family Family, f func(Subflow)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.dump(family, unix.IPPROTO_TCP, diagExtInfo, 1<<tcpEstablished|1<<tcpCloseWait, nil, each(f))
	if err != nil {
		return fmt.Errorf("list mptcp subflows: %w", err)
	}
	return nil
}

// each returns a function that decodes a socket and calls f if it is a subflow.
func each(f func(Subflow)) func(body []byte) error {
	return func(body []byte) error {
		s, ok, err := decodeSubflow(body)
		if ok && err == nil {
			f(s)
		}
		return err
	}
}

// Layout of sock_diag requests and answers (include/uapi/linux/inet_diag.h, tcp.h and mptcp.h).
const (
	diagRequestLen = unix.NLMSG_HDRLEN + 56
	diagExtInfo    = 1 << (diagAttrInfo - 1)
	diagMessageLen = 72
	// diagOffsetQueued is the offset of idiag_wqueue.
	diagOffsetQueued = 60

	diagAttrInfo    = 2
	diagAttrMark    = 15
	diagAttrCgroup  = 21
	diagAttrULP     = 19
	diagAttrMPTCP   = 3
	subflowTokenLoc = 2
	subflowFlags    = 8
	subflowIDRemote = 9
	subflowIDLocal  = 10

	subflowFlagActive    = 1<<1 | 1<<3 // MPTCP_SUBFLOW_FLAG_MCAP_LOC and _JOIN_LOC
	subflowFlagJoined    = 1<<2 | 1<<3 // MPTCP_SUBFLOW_FLAG_JOIN_REM and _LOC
	subflowFlagBackupRem = 1 << 4
	subflowFlagBackupLoc = 1 << 5

	// tcpInfoLen is the length of tcp_info up to and including tcpi_delivered (Linux 4.18).
	tcpInfoLen = 196

	tcpEstablished = 1
	tcpCloseWait   = 8
)

// Ends are the local and remote address and port of a socket.
type Ends struct{ Local, Remote netip.AddrPort }

// Query requests the given IPv6 subflows one by one and calls f for each that still exists, in any
// state. For a few subflows this is much cheaper than Subflows, which dumps the kernel's socket
// table.
func (d *Diag) Query(at []Ends, f func(Subflow)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(at) > 0 {
		n := min(len(at), queryBatch)
		if err := d.query(at[:n], f); err != nil {
			return fmt.Errorf("query mptcp subflows: %w", err)
		}
		at = at[n:]
	}
	return nil
}

// queryBatch is the number of requests sent at a time; it bounds the answers in the socket's
// receive buffer.
const queryBatch = 64

func (d *Diag) query(at []Ends, f func(Subflow)) error {
	requests := make([]byte, len(at)*diagRequestLen)
	d.seq++
	native := binary.NativeEndian
	for i, ends := range at {
		b := requests[i*diagRequestLen:][:diagRequestLen]
		native.PutUint32(b, diagRequestLen)
		native.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
		native.PutUint16(b[6:], unix.NLM_F_REQUEST)
		native.PutUint32(b[8:], d.seq)
		body := b[unix.NLMSG_HDRLEN:]
		body[0], body[1], body[2] = byte(IPv6), unix.IPPROTO_TCP, diagExtInfo
		id := b[unix.NLMSG_HDRLEN+8:]
		local, remote := ends.Local.Addr().As16(), ends.Remote.Addr().As16()
		binary.BigEndian.PutUint16(id, ends.Local.Port())
		binary.BigEndian.PutUint16(id[2:], ends.Remote.Port())
		copy(id[4:], local[:])
		copy(id[20:], remote[:])
		for i := range 8 {
			id[40+i] = 0xff // INET_DIAG_NOCOOKIE
		}
	}
	if err := d.send(requests); err != nil {
		return err
	}
	// Each request is answered with a socket or an error.
	for range at {
		b, err := d.receive()
		if err != nil {
			return err
		}
		if _, err := eachMessage(b, d.seq, each(f)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// send discards unread answers of an earlier exchange and sends requests.
func (d *Diag) send(b []byte) error {
	for {
		_, _, err := unix.Recvfrom(d.fd, d.buffer, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	return unix.Sendto(d.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive returns one datagram from the kernel, which is valid until the next call.
func (d *Diag) receive() ([]byte, error) {
	for {
		n, from, err := unix.Recvfrom(d.fd, d.buffer, unix.MSG_TRUNC)
		switch sender, _ := from.(*unix.SockaddrNetlink); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n > len(d.buffer):
			return nil, fmt.Errorf("answer of %d bytes, want at most %d", n, len(d.buffer))
		case sender == nil || sender.Pid != 0:
			// not from the kernel
		default:
			return d.buffer[:n], nil
		}
	}
}

// decodeSubflow decodes one socket; ok is false if it is not an MPTCP subflow or does not belong to
// a connection yet.
func decodeSubflow(b []byte) (s Subflow, ok bool, err error) {
	if len(b) < diagMessageLen {
		return s, false, fmt.Errorf("socket of %d bytes, want %d", len(b), diagMessageLen)
	}
	end := func(port, addr []byte) netip.AddrPort {
		var a netip.Addr
		if Family(b[0]) == IPv4 {
			a, _ = netip.AddrFromSlice(addr[:4])
		} else {
			a, _ = netip.AddrFromSlice(addr[:16])
		}
		return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(port))
	}
	s.Local, s.Remote = end(b[4:], b[8:]), end(b[6:], b[24:])
	var info []byte
	err = eachAttr(b[diagMessageLen:], func(kind uint16, v []byte) error {
		switch kind {
		case diagAttrInfo:
			info = v
		case diagAttrMark:
			if len(v) >= 4 {
				s.Mark = binary.NativeEndian.Uint32(v)
			}
		case diagAttrCgroup:
			if len(v) >= 8 {
				s.Cgroup = binary.NativeEndian.Uint64(v)
			}
		case diagAttrULP:
			return eachAttr(v, func(kind uint16, v []byte) error {
				if kind != diagAttrMPTCP {
					return nil
				}
				return eachAttr(v, s.attr)
			})
		}
		return nil
	})
	if err != nil || s.Token == 0 {
		return s, false, err
	}
	if len(info) < tcpInfoLen {
		return s, false, fmt.Errorf("tcp_info of %d bytes, want %d", len(info), tcpInfoLen)
	}
	s.sending(b, info)
	return s, true, nil
}

// sending sets the send state of the subflow from inet_diag_msg and tcp_info.
func (s *Subflow) sending(b, info []byte) {
	native := binary.NativeEndian
	s.Queued, s.InFlight = native.Uint32(b[diagOffsetQueued:]), native.Uint32(info[24:])
	s.RTT = time.Duration(native.Uint32(info[68:])) * time.Microsecond
	s.Deviation = time.Duration(native.Uint32(info[72:])) * time.Microsecond
	s.Acked = native.Uint64(info[120:])
	s.Delivered = native.Uint32(info[192:])
	s.SegmentSize, s.Threshold, s.Window = native.Uint32(info[16:]), native.Uint32(info[76:]), native.Uint32(info[80:])
	s.NotSent = native.Uint32(info[144:])
	s.MinRTT = time.Duration(native.Uint32(info[148:])) * time.Microsecond
	s.Busy = time.Duration(native.Uint64(info[168:])) * time.Microsecond
	if len(info) >= tcpInfoSendWindow+4 {
		s.SendWindow = native.Uint32(info[tcpInfoSendWindow:])
	}
}

// attr decodes one attribute of the subflow's MPTCP information (INET_ULP_INFO_MPTCP).
func (s *Subflow) attr(kind uint16, v []byte) error {
	var size int
	switch kind {
	case subflowTokenLoc, subflowFlags:
		size = 4
	case subflowIDLocal, subflowIDRemote:
		size = 1
	}
	if len(v) < size {
		return fmt.Errorf("attribute %d has %d bytes, want %d", kind, len(v), size)
	}
	switch kind {
	case subflowTokenLoc:
		s.Token = binary.NativeEndian.Uint32(v)
	case subflowFlags:
		flags := binary.NativeEndian.Uint32(v)
		s.Joined, s.Active = flags&subflowFlagJoined != 0, flags&subflowFlagActive != 0
		s.BackupHere, s.BackupThere = flags&subflowFlagBackupLoc != 0, flags&subflowFlagBackupRem != 0
	case subflowIDLocal:
		s.LocalID = v[0]
	case subflowIDRemote:
		s.RemoteID = v[0]
	}
	return nil
}

// eachAttr calls f for each attribute in b. It does not copy, because a dump has tens of thousands
// of attributes.
func eachAttr(b []byte, f func(kind uint16, v []byte) error) error {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return fmt.Errorf("attribute says it has %d bytes, there are %d", size, len(b))
		}
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if err := f(kind, b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil
}
