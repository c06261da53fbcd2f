package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxSegments is UDP_MAX_SEGMENTS of kernels before 6.9, maxMessage the payload of a datagram
	// that is segmented.
	maxSegments = 64
	maxMessage  = 65507 - 40
	// sendBatch is the number of messages, and sendParts that of datagrams, of a system call.
	sendBatch, sendParts = 64, 512
)

// Datagram is a datagram to be sent. Its bytes are not changed, and not kept.
type Datagram struct {
	Data []byte
	To   netip.AddrPort
	// From is the source, of the IP version of To. The kernel selects it if this is the zero
	// address, or none of this host any more.
	From netip.Addr
	// Class is the traffic class.
	Class uint8
	// Fragment permits fragments: routers make them in IPv4, and the kernel as its route wants
	// them, which ICMP messages may change.
	Fragment bool
	// Failed is set if it was not sent.
	Failed bool
}

type sender struct {
	mu      sync.Mutex
	batch   [sendBatch]mmsghdr
	parts   [sendParts]unix.Iovec
	name    [sendBatch][unix.SizeofSockaddrInet6]byte
	control [sendBatch][controlLen]byte
	counts  [sendBatch]int // of datagrams
	sourced [sendBatch]int // length of the source in control, which it ends with
	from    int
	used    int
	n       int
	err     unix.Errno
	once    func(fd uintptr) bool
}

func (w *sender) init(*Socket) {
	w.once = func(fd uintptr) bool {
		for {
			n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&w.batch[w.from])), uintptr(w.used-w.from), unix.MSG_DONTWAIT, 0, 0)
			if e == unix.EINTR {
				continue
			}
			// A full buffer is like a full queue: the message is lost. Waiting for this path would
			// hold up the others.
			w.n, w.err = int(n), e
			return true
		}
	}
}

// Send sends datagrams. Consecutive ones of one receiver, class and length leave as one message. It
// returns how many were not sent, those that are Failed, and the first reason; the others are sent
// nevertheless.
func (s *Socket) Send(all []Datagram) (failed int, err error) {
	s.sender.mu.Lock()
	defer s.sender.mu.Unlock()
	for len(all) > 0 {
		n := s.fill(all)
		flush := s.flush
		if all[0].Fragment {
			flush = s.flushFragments
		}
		f, e := flush(all[:n])
		if failed += f; e != nil && err == nil {
			err = e
		}
		all = all[n:]
	}
	return failed, err
}

// flushFragments sends the messages in fragments where they need them. The sender's mutex is
// locked: no other datagram is sent meanwhile.
func (s *Socket) flushFragments(all []Datagram) (failed int, err error) {
	before := s.discover(unix.IP_PMTUDISC_DONT)
	failed, err = s.flush(all)
	return failed, errors.Join(err, before, s.discover(unix.IP_PMTUDISC_PROBE))
}

// discover sets whether the kernel and routers fragment datagrams.
func (s *Socket) discover(value int) error {
	var err error
	if e := s.raw.Control(func(fd uintptr) { err = s.setDiscover(int(fd), value) }); e != nil {
		err = closed(e)
	}
	if err != nil {
		return fmt.Errorf("permit fragments: %w", err)
	}
	return nil
}

// fill makes messages of the first datagrams that all may be fragmented, or none, and returns how
// many datagrams.
func (s *Socket) fill(all []Datagram) (n int) {
	w := &s.sender
	w.used = 0
	parts := 0
	for n < len(all) && w.used < sendBatch && parts < sendParts && all[n].Fragment == all[0].Fragment {
		d := &all[n]
		count, size, total := 1, len(d.Data), len(d.Data)
		if s.segment && !d.Fragment {
			for n+count < len(all) && count < maxSegments && parts+count < sendParts {
				e := &all[n+count]
				if len(e.Data) > size || total+len(e.Data) > maxMessage || e.Class != d.Class || e.To != d.To || e.From != d.From || e.Fragment {
					break
				}
				count++
				total += len(e.Data)
				if len(e.Data) < size {
					break
				}
			}
		}
		for i := range count {
			v := &w.parts[parts+i]
			v.Base = unsafe.SliceData(all[n+i].Data)
			v.SetLen(len(all[n+i].Data))
		}
		h := &w.batch[w.used].hdr
		h.Name = &w.name[w.used][0]
		h.Namelen = s.putAddress(d.To, &w.name[w.used])
		h.Iov = &w.parts[parts]
		h.SetIovlen(count)
		h.Control = &w.control[w.used][0]
		length := 0
		if count > 1 {
			length += putControl(w.control[w.used][length:], unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2, uint32(size))
		}
		if d.To.Addr().Is4() || d.To.Addr().Is4In6() {
			if d.Class != 0 {
				length += putControl(w.control[w.used][length:], unix.IPPROTO_IP, unix.IP_TOS, 4, uint32(d.Class))
			}
		} else if d.Class != 0 {
			length += putControl(w.control[w.used][length:], unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, uint32(d.Class))
		}
		source := putSource(w.control[w.used][length:], d.From)
		length += source
		h.SetControllen(length)
		if length == 0 {
			h.Control = nil
		}
		w.sourced[w.used] = source
		w.counts[w.used] = count
		w.used++
		parts += count
		n += count
	}
	return n
}

// putControl writes a control message with a value of two or four bytes and returns its space.
func putControl(b []byte, level, kind, size int, value uint32) int {
	n := binary.NativeEndian
	n.PutUint64(b, uint64(unix.CmsgLen(size)))
	n.PutUint32(b[8:], uint32(level))
	n.PutUint32(b[12:], uint32(kind))
	if size == 2 {
		n.PutUint16(b[unix.CmsgLen(0):], uint16(value))
	} else {
		n.PutUint32(b[unix.CmsgLen(0):], value)
	}
	return unix.CmsgSpace(size)
}

// putSource writes a control message with the source, if it is valid, and returns its space.
func putSource(b []byte, from netip.Addr) int {
	var info [unix.SizeofInet6Pktinfo]byte
	level, kind, size := unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo
	switch from = from.Unmap(); {
	case !from.IsValid():
		return 0
	case from.Is4():
		level, kind, size = unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo
		copy(info[4:], from.AsSlice()) // ipi_spec_dst
	default:
		copy(info[:], from.AsSlice())
	}
	n := binary.NativeEndian
	n.PutUint64(b, uint64(unix.CmsgLen(size)))
	n.PutUint32(b[8:], uint32(level))
	n.PutUint32(b[12:], uint32(kind))
	copy(b[unix.CmsgLen(0):], info[:size])
	return unix.CmsgSpace(size)
}

// dropSource has the next message sent without its source, and reports whether it had one.
func (w *sender) dropSource() bool {
	h, source := &w.batch[w.from].hdr, w.sourced[w.from]
	if source == 0 {
		return false
	}
	w.sourced[w.from] = 0
	h.SetControllen(int(h.Controllen) - source)
	if h.Controllen == 0 {
		h.Control = nil
	}
	return true
}

// flush sends the messages of datagrams. One that is refused is skipped.
func (s *Socket) flush(all []Datagram) (failed int, err error) {
	w := &s.sender
	defer clear(w.parts[:])
	for w.from = 0; w.from < w.used; {
		if e := s.raw.Write(w.once); e != nil {
			failed += w.fail(all, w.used)
			return failed, fmt.Errorf("send: %w", closed(e))
		}
		if w.err == 0 {
			w.from += w.n
			continue
		}
		if (w.err == unix.EINVAL || w.err == unix.ENETUNREACH) && w.dropSource() { // of IPv6, of IPv4
			continue
		}
		if w.err == unix.EIO && w.counts[w.from] > 1 {
			// The interface cannot complete the checksums of segments. The datagrams are lost,
			// later ones go one by one.
			s.segment = false
		}
		if err == nil {
			err = fmt.Errorf("send: %w", w.err)
		}
		failed += w.fail(all, w.from+1)
		w.from++
	}
	return failed, err
}

// fail marks the datagrams of the messages up to another one that were not sent, and returns how
// many.
func (w *sender) fail(all []Datagram, end int) (n int) {
	at := 0
	for i, count := range w.counts[:end] {
		for j := range count {
			if i >= w.from {
				all[at+j].Failed = true
				n++
			}
		}
		at += count
	}
	return n
}
