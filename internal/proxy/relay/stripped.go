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
	// ackEvery is the time from sending to a socket until a loop looks for its DATA_ACKs. It doubles
	// up to ackMost while none comes and nothing more is sent.
	ackEvery = 5 * time.Millisecond
	ackMost  = time.Second
	// ackCost bounds what looking takes of a processor where many sockets wait, to a few percent.
	ackCost = 30 * time.Microsecond
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
	s := &c.sides[i]
	if s.transport == overTCP {
		return
	}
	due := l.now.Add(ackPause(len(l.awaited)))
	if !s.awaited {
		l.awaited = append(l.awaited, sent{c.slot, c.generation, uint8(i)})
		s.awaited, s.ackDue = true, due
	}
	if due.Before(s.ackDue) {
		s.ackDue = due
	}
	s.ackWait = 0
	l.dueBy(s.ackDue)
}

// ackPause is the least time between two looks at a socket while n of them wait.
func ackPause(n int) time.Duration { return max(ackEvery, time.Duration(n)*ackCost) }

// dueBy has the loop look for DATA_ACKs at a time.
func (l *loop) dueBy(t time.Time) {
	if l.acks.IsZero() || t.Before(l.acks) {
		l.acks = t
	}
}

// acknowledged looks for the DATA_ACKs of the sockets whose time it is.
func (l *loop) acknowledged() {
	if l.acks.IsZero() || l.now.Before(l.acks) {
		return
	}
	list, pause := l.awaited, ackPause(len(l.awaited))
	l.awaited, l.acks = l.awaited[:0], time.Time{}
	for _, a := range list {
		c := l.find(a.slot, a.generation)
		if c == nil || c.state != relaying {
			continue
		}
		s := &c.sides[a.side]
		if !l.now.Before(s.ackDue) {
			l.current = c
			waits, age, errno := s.acknowledged()
			if errno != 0 {
				l.failed(c, errno)
				continue
			}
			if s.awaited = waits; !waits {
				continue
			}
			if age < s.ackWait {
				s.ackWait = 0 // one has come since the last look
			}
			s.ackWait = min(max(2*s.ackWait, pause), max(ackMost, pause))
			s.ackDue = l.now.Add(s.ackWait)
		}
		l.awaited = append(l.awaited, a)
		l.dueBy(s.ackDue)
	}
	if soonest := l.now.Add(pause); !l.acks.IsZero() && l.acks.Before(soonest) {
		l.acks = soonest
	}
}

// acknowledged reports whether data lacks its DATA_ACK, and the age of the last one. An error is
// that acknowledgments arrive without it.
func (s *side) acknowledged() (waits bool, age time.Duration, errno syscall.Errno) {
	m, ok := dataAcks(int(s.fd))
	if !ok {
		return false, 0, s.confirm()
	}
	if m.bytes > 0 {
		s.transport = established
	}
	if m.all || !m.dated {
		return false, 0, 0
	}
	if m.age < ackDelay || s.transport != established {
		return true, m.age, 0
	}
	// What the subflow has is read first: a DATA_ACK of its last acknowledgment is in what is read
	// then. The time between the two counts against the fault.
	begin := time.Now()
	t, ok := subflowAcks(int(s.fd))
	if !ok || m.age-t.age < ackDelay {
		return true, m.age, 0
	}
	if m, ok = dataAcks(int(s.fd)); !ok {
		return false, 0, s.confirm()
	}
	if took := time.Since(begin); !m.all && t.bytes > m.bytes+1 && m.age-t.age-took >= ackDelay {
		return false, 0, errStripped
	}
	return !m.all, m.age, 0
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
