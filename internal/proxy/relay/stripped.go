package relay

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A router that begins to remove MPTCP's options from a connection that carries data corrupts it:
// the receiver, with one subflow, falls back to TCP, and the sender, which gets no DATA_ACK,
// retransmits by its MPTCP timer what the receiver has and takes for new data. Such a connection is
// reset: as a receiver before anything that arrived without options is passed on, as a sender before
// the timer expires, which is after at least 200 ms (TCP_RTO_MIN). A fallback in the handshake is
// harmless: nothing was retransmitted by then.

// transport is what carries the data of a socket.
type transport uint8

const (
	// overTCP: TCP, also after a fallback in the handshake.
	overTCP transport = iota
	// requested: MPTCP, whose peer has not sent data or a DATA_ACK yet.
	requested
	// established: MPTCP, whose peer has.
	established
)

const (
	// ackEvery is how often a loop looks for the DATA_ACKs of what it has sent; ackCost bounds what
	// that takes of a processor where many sockets wait, to a few percent.
	ackEvery = 5 * time.Millisecond
	ackCost  = 10 * time.Microsecond
	// ackDelay is the time for which acknowledgments come without DATA_ACKs before the connection is
	// reset: more than a tick of the kernel's clock (HZ is 100 or more), in which it counts their age.
	ackDelay = 12 * time.Millisecond
)

// errStripped is the error of a connection that has lost MPTCP's options. No socket returns it.
const errStripped = unix.EILSEQ

// confirm looks whether what was read of an MPTCP socket arrived as MPTCP.
func (s *side) confirm() syscall.Errno {
	switch {
	case s.transport == overTCP:
	case multipath(int(s.fd)):
		s.transport = established
	case s.transport == established:
		return errStripped
	default:
		s.transport = overTCP
	}
	return 0
}

// sent is a socket with data that may not have a DATA_ACK.
type sent struct {
	slot       int32
	generation uint32
	side       uint8
}

// await has the loop look for the DATA_ACKs of what was sent to a side.
func (l *loop) await(c *connection, i int) {
	if s := &c.sides[i]; s.transport != overTCP && !s.awaited {
		s.awaited = true
		l.awaited = append(l.awaited, sent{c.slot, c.generation, uint8(i)})
	}
}

// acknowledged looks for the DATA_ACKs of all sockets that lack some.
func (l *loop) acknowledged() {
	l.acks = l.now.Add(max(ackEvery, time.Duration(len(l.awaited))*ackCost))
	list := l.awaited
	l.awaited = l.awaited[:0]
	for _, a := range list {
		c := l.find(a.slot, a.generation)
		if c == nil || c.state != relaying {
			continue
		}
		l.current = c
		s := &c.sides[a.side]
		waits, errno := s.acknowledged()
		if errno != 0 {
			l.failed(c, errno)
			continue
		}
		if s.awaited = waits; waits {
			l.awaited = append(l.awaited, a)
		}
	}
}

// acknowledged reports whether data lacks its DATA_ACK, and as an error that acknowledgments arrive
// without it.
func (s *side) acknowledged() (waits bool, errno syscall.Errno) {
	m, ok := dataAcks(int(s.fd))
	if !ok {
		return false, s.confirm()
	}
	if m.bytes > 0 {
		s.transport = established
	}
	if m.all || s.transport != established || !m.dated {
		return !m.all && m.dated, 0
	}
	if m.age < ackDelay {
		return true, 0
	}
	// What the subflow has is read first: a DATA_ACK of its last acknowledgment is in what is read
	// then. The time between the two counts against the fault.
	begin := time.Now()
	t, ok := subflowAcks(int(s.fd))
	if !ok {
		return true, 0
	}
	if m, ok = dataAcks(int(s.fd)); !ok {
		return false, s.confirm()
	}
	if took := time.Since(begin); !m.all && t.bytes > m.bytes+1 && m.age-t.age-took >= ackDelay {
		return false, errStripped
	}
	return !m.all, 0
}

// acks is what was acknowledged of a connection, or of its only subflow.
type acks struct {
	bytes uint64
	age   time.Duration // of the last acknowledgment
	dated bool          // age is known
	all   bool          // nothing is missing
}

// Offsets in struct mptcp_info of include/uapi/linux/mptcp.h. mptcpi_last_ack_recv is of Linux 6.10.
const (
	infoWriteSeq   = 16
	infoSndUna     = 24
	infoBytesAcked = 72
	infoLastAck    = 92
	infoLength     = 96
)

// dataAcks returns what an MPTCP socket has of DATA_ACKs; false after a fallback.
func dataAcks(fd int) (acks, bool) {
	var info [infoLength / 8]uint64
	length := uint32(infoLength)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), solMPTCP, mptcpInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return acks{}, false
	}
	a := acks{dated: length == infoLength, bytes: info[infoBytesAcked/8], all: info[infoSndUna/8] == info[infoWriteSeq/8]}
	a.age = milliseconds(*(*uint32)(unsafe.Add(unsafe.Pointer(&info), infoLastAck)))
	return a, true
}

func milliseconds(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

// mptcpTCPInfo is MPTCP_TCPINFO of include/uapi/linux/mptcp.h.
const mptcpTCPInfo = 2

// subflowInfo is struct mptcp_subflow_data and the struct tcp_info of the first subflow.
type subflowInfo struct {
	sizeSubflowData, subflows, sizeKernel, sizeUser uint32
	tcp                                             unix.TCPInfo
}

// subflowAcks returns what the only subflow of an MPTCP socket has of acknowledgments; false if
// there is not exactly one. Linux falls back to TCP in mid-connection only with a single subflow.
func subflowAcks(fd int) (acks, bool) {
	info := subflowInfo{sizeSubflowData: uint32(unsafe.Offsetof(subflowInfo{}.tcp)), sizeUser: uint32(unsafe.Sizeof(unix.TCPInfo{}))}
	length := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), solMPTCP, mptcpTCPInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
	return acks{bytes: info.tcp.Bytes_acked, age: milliseconds(info.tcp.Last_ack_recv), dated: true}, errno == 0 && info.subflows == 1
}
