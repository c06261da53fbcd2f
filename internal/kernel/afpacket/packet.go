// Package afpacket reads the packets that a network namespace sends and receives from packet
// sockets (packet(7)), with the kernel's timestamps, and probes there whether other hosts have an
// address. It decodes nothing else, and writes no files.
package afpacket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MaxLength is the largest packet that is read whole, in bytes: an IPv6 GSO packet with room
	// for its headers.
	MaxLength = 1 << 18
	// receiveBuffer queues packets while a handler is busy, in bytes.
	receiveBuffer = 32 << 20
	// checkInterval is how often Handler.Check is called, and half of the longest time that Run
	// spends on packets that wait when its context ends.
	checkInterval = 250 * time.Millisecond
	// batch bounds how many packets are read before Run looks at its context again.
	batch = 256
)

// ethPAll is htons(ETH_P_ALL).
var ethPAll = binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})

// Options say what a Socket receives.
type Options struct {
	// Interface is the index of the interface to listen on, 0 for all.
	Interface int
	// SnapLength is the number of bytes kept of a packet; MaxLength unless given.
	SnapLength int
	// Cooked packets start with the network header (SOCK_DGRAM), others with the link header.
	Cooked bool
	// Filter is a classic BPF program that selects packets; without it all are received.
	Filter []unix.SockFilter
}

// Packet is one packet as an interface saw it.
type Packet struct {
	// Data holds the start of the packet, at most SnapLength bytes. It is valid until the handler
	// returns.
	Data []byte
	// Length is the length of the whole packet in bytes.
	Length int
	// Interface is the index of the interface.
	Interface int
	// At is the time at which the kernel saw the packet.
	At time.Time
	// Sent packets leave the host by the interface, others arrive by it.
	Sent bool
}

// Handler receives what a Socket reads, in the goroutine of Run. An error of any function ends Run.
type Handler struct {
	Packet func(Packet) error
	// Idle, unless nil, is called when no packet waits any more.
	Idle func() error
	// Check, unless nil, is called four times a second.
	Check func() error
}

// Socket is a packet socket. Its methods are not safe for concurrent use.
type Socket struct {
	file      *os.File
	data, oob []byte
	dropped   uint64
}

// Open opens a socket in the network namespace of the calling thread. It receives packets from the
// return of Open on.
func Open(o Options) (*Socket, error) {
	kind := unix.SOCK_RAW
	if o.Cooked {
		kind = unix.SOCK_DGRAM
	}
	snap := o.SnapLength
	if snap == 0 {
		snap = MaxLength
	}
	// Protocol 0 receives nothing until bind: no packet of another interface, and none that the
	// filter would reject, slips in.
	fd, err := unix.Socket(unix.AF_PACKET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	var filtered error
	if len(o.Filter) > 0 {
		filtered = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(o.Filter)), Filter: &o.Filter[0]})
	}
	err = errors.Join(
		filtered,
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: o.Interface}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	return &Socket{
		file: os.NewFile(uintptr(fd), "packet socket"), data: make([]byte, snap), oob: make([]byte, 128),
	}, nil
}

// Close closes the socket. Run must have returned.
func (s *Socket) Close() error { return s.file.Close() }

// Dropped is how many packets found no room in the socket's buffer, or waited in it for too long
// after the end. It is complete once Run has returned.
func (s *Socket) Dropped() uint64 { return s.dropped }

// Run passes packets to the handler until ctx ends, which is no error, and then those that still
// wait.
func (s *Socket) Run(ctx context.Context, h Handler) error {
	stop := context.AfterFunc(ctx, func() { s.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	defer s.countDrops(raw)
	next := time.Now().Add(checkInterval)
	for {
		if err := s.file.SetReadDeadline(next); err != nil {
			return err
		}
		// After the deadline is set, which must not replace the one that the end of ctx sets.
		if ctx.Err() != nil {
			return s.drain(raw, h)
		}
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			for ctx.Err() == nil && time.Now().Before(next) {
				var more bool
				if more, failed = s.read(int(fd), h); failed != nil {
					return true
				}
				if !more {
					if h.Idle != nil {
						failed = h.Idle()
					}
					return failed != nil
				}
			}
			return true
		})
		switch {
		case failed != nil:
			return failed
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if time.Now().Before(next) {
			continue
		}
		if h.Check != nil {
			if err := h.Check(); err != nil {
				return err
			}
		}
		next = time.Now().Add(checkInterval)
	}
}

// drain handles the packets that wait when Run ends, for a limited time: under a flood there is
// always one more. Those that still wait then count as dropped.
func (s *Socket) drain(raw syscall.RawConn, h Handler) error {
	var failed error
	end, more := time.Now().Add(checkInterval), true
	err := raw.Control(func(fd uintptr) {
		for more && failed == nil && time.Now().Before(end) {
			more, failed = s.read(int(fd), h)
		}
		end = time.Now().Add(checkInterval)
		unread := Handler{Packet: func(Packet) error { s.dropped++; return nil }}
		for more && failed == nil && time.Now().Before(end) {
			more, failed = s.read(int(fd), unread)
		}
	})
	return errors.Join(err, failed)
}

// read handles a batch of waiting packets. It reports whether there may be more.
func (s *Socket) read(fd int, h Handler) (more bool, err error) {
	for range batch {
		n, oobn, _, from, err := unix.Recvmsg(fd, s.data, s.oob, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		// An interface that went down may come back.
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		case err != nil:
			return false, fmt.Errorf("read packet socket: %w", err)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		p := Packet{
			Data: s.data[:min(n, len(s.data))], Length: n, Interface: ll.Ifindex,
			At: timestamp(s.oob[:oobn]), Sent: ll.Pkttype == unix.PACKET_OUTGOING,
		}
		if err := h.Packet(p); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (s *Socket) countDrops(raw syscall.RawConn) {
	// An error means that the socket is closed.
	_ = raw.Control(func(fd uintptr) {
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			s.dropped += uint64(st.Drops)
		}
	})
}

// timestamp is the kernel's time of a packet, or the present one where the kernel gave none.
func timestamp(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			sec := binary.NativeEndian.Uint64(m.Data)
			nsec := binary.NativeEndian.Uint64(m.Data[8:])
			if sec <= math.MaxInt64 && nsec < uint64(time.Second) {
				return time.Unix(int64(sec), int64(nsec))
			}
		}
	}
	return time.Now()
}
