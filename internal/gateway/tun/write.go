package tun

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
)

// Packets of one flow that follow each other are written as one super-packet. The packets stay
// where they are: the headers of the first and the payloads of all are gathered by writev.

const (
	// maxGroups is the number of flows that are merged at a time, maxSegments that of packets in a
	// super-packet, as UDP_SEGMENT has it.
	maxGroups   = 16
	maxSegments = 64
)

// group is packets that are written at once. All but the last have size bytes of payload.
type group struct {
	first    []byte
	gso      uint8
	start    int // of the transport header
	data     int // of the payload
	size     int
	length   int    // of the whole
	next     uint32 // sequence number of TCP
	step     uint16 // of IPv4 IDs, from the second packet on
	closed   bool
	checked  bool // the checksum of the first packet is right
	payloads int  // after the first
	payload  [maxSegments][]byte
}

type writer struct {
	groups []*group // in the order in which they are written
	free   []*group
	head   [virtioLen]byte
	parts  []unix.Iovec
	err    error
	once   func(fd uintptr) bool
}

func (w *writer) init(*Device) {
	w.parts = make([]unix.Iovec, 0, maxSegments+2)
	w.once = func(fd uintptr) bool {
		for {
			_, _, e := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&w.parts[0])), uintptr(len(w.parts)))
			switch e {
			case 0:
				w.err = nil
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			default:
				w.err = e
			}
			return true
		}
	}
}

// Write writes packets in their order within each flow. It changes the headers of packets. What the
// kernel refuses is counted; the error is that of a device that is closed or down.
func (d *Device) Write(packets [][]byte) (refused int, err error) {
	w := &d.writer
	for _, p := range packets {
		if w.merge(p, d.udp) {
			continue
		}
		if len(w.groups) == maxGroups {
			n, err := d.flush()
			if refused += n; err != nil {
				return refused, err
			}
		}
		w.add(p, d.udp)
	}
	n, err := d.flush()
	return refused + n, err
}

// flush writes the groups.
func (d *Device) flush() (refused int, err error) {
	w := &d.writer
	for _, g := range w.groups {
		if err != nil {
			break
		}
		w.prepare(g)
		switch e := d.raw.Write(w.once); {
		case d.closed.Load(), w.err == unix.EBADFD:
			err = fs.ErrClosed
		case e != nil:
			err = fmt.Errorf("write TUN device %q: %w", d.name, e)
		case w.err == unix.EIO: // the interface is down
			err = fmt.Errorf("write TUN device %q: %w", d.name, w.err)
		case w.err != nil:
			refused += 1 + g.payloads
		}
	}
	for _, g := range w.groups {
		clear(g.payload[:g.payloads])
		g.first = nil
	}
	w.free = append(w.free, w.groups...)
	w.groups = w.groups[:0]
	clear(w.parts[:cap(w.parts)])
	return refused, err
}

// prepare makes the parts of a group and completes the headers of a super-packet.
func (w *writer) prepare(g *group) {
	var h header
	if g.payloads > 0 {
		h = header{
			flags: unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, gso: g.gso, length: uint16(g.data), size: uint16(g.size),
			start: uint16(g.start), field: 16,
		}
		p, protocol := g.first, byte(unix.IPPROTO_TCP)
		if g.gso == unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
			protocol, h.field = unix.IPPROTO_UDP, 6
			put16(p[g.start+4:], uint16(g.length-g.start))
		}
		if p[0]>>4 == 4 {
			put16(p[2:], uint16(g.length))
			put16(p[10:], 0)
			put16(p[10:], checksum.Of(p[:g.start]))
		} else {
			put16(p[4:], uint16(g.length-40))
		}
		put16(p[g.start+int(h.field):], checksum.Fold(checksum.Pseudo(p, protocol, g.length-g.start)))
	}
	h.put(w.head[:])
	w.parts = append(w.parts[:0], vector(w.head[:]), vector(g.first))
	for _, b := range g.payload[:g.payloads] {
		w.parts = append(w.parts, vector(b))
	}
}

func vector(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// shape is what decides whether a packet can be part of a super-packet.
type shape struct {
	gso         uint8
	start, data int
}

// shapeOf returns the shape of a packet; false means that it goes alone.
func shapeOf(p []byte, udp bool) (shape, bool) {
	var s shape
	var protocol byte
	switch {
	case len(p) >= 28 && p[0] == 0x45:
		if int(binary.BigEndian.Uint16(p[2:])) != len(p) || binary.BigEndian.Uint16(p[6:])&0x3fff != 0 {
			return s, false // not its length, or a fragment
		}
		protocol, s.start, s.gso = p[9], 20, unix.VIRTIO_NET_HDR_GSO_TCPV4
	case len(p) >= 48 && p[0]>>4 == 6:
		if int(binary.BigEndian.Uint16(p[4:]))+40 != len(p) {
			return s, false
		}
		protocol, s.start, s.gso = p[6], 40, unix.VIRTIO_NET_HDR_GSO_TCPV6
	default:
		return s, false
	}
	switch {
	case protocol == unix.IPPROTO_TCP && len(p) >= s.start+20:
		s.data = s.start + int(p[s.start+12]>>4)*4
		// SYN, RST, URG and others go alone, and so does CWR, which segmentation leaves to the
		// first segment: with AccECN (RFC 9768) it is part of a counter.
		if f := p[s.start+tcpFlags]; s.data < s.start+20 || f&^(flagPSH|flagFIN|flagECE) != flagACK {
			return s, false
		}
	case protocol == unix.IPPROTO_UDP && udp:
		s.gso, s.data = unix.VIRTIO_NET_HDR_GSO_UDP_L4, s.start+8
		if binary.BigEndian.Uint16(p[s.start+6:]) == 0 { // without a checksum
			return s, false
		}
	default:
		return s, false
	}
	return s, s.data < len(p)
}

// sameFlow reports whether two packets have the same addresses and ports. Both have shape s.
func (s shape) sameFlow(a, b []byte) bool {
	if a[0]>>4 != b[0]>>4 || string(a[s.start:s.start+4]) != string(b[s.start:s.start+4]) {
		return false
	}
	if s.start == 20 {
		return string(a[12:20]) == string(b[12:20])
	}
	return string(a[8:40]) == string(b[8:40])
}

// merge adds the packet to the group of its flow, if it can. A group of the flow that it cannot be
// added to is closed.
func (w *writer) merge(p []byte, udp bool) bool {
	s, ok := shapeOf(p, udp)
	if !ok {
		// A packet of the flow must not overtake it: nothing is added to the groups before.
		for _, g := range w.groups {
			g.closed = true
		}
		return false
	}
	for i := len(w.groups) - 1; i >= 0; i-- {
		g := w.groups[i]
		if g.closed || g.gso != s.gso || !s.sameFlow(g.first, p) {
			continue
		}
		if g.takes(p, s) {
			return true
		}
		g.closed = true
		return false
	}
	return false
}

// takes adds the packet to the group if it continues it: if segmentation gives the same packets
// again, as with GRO of the kernel (inet_gro_receive, tcp_gro_receive). Only the IPv4 IDs of
// packets that are not to be fragmented may all be the same, and count up afterwards: these have no
// meaning (RFC 6864, section 4).
func (g *group) takes(p []byte, s shape) bool {
	size := len(p) - s.data
	if g.data != s.data || size > g.size || g.payloads == maxSegments || g.length+size > maxFrame || !g.sameHeaders(p, s) {
		return false
	}
	if !g.checked {
		if !valid(g.first, s) {
			return false
		}
		g.checked = true
	}
	if !valid(p, s) {
		return false
	}
	if s.start == 20 {
		g.step = id(p) - id(g.first) - uint16(g.payloads)*g.step
	}
	g.payload[g.payloads] = p[s.data:]
	g.payloads++
	g.length += size
	g.next += uint32(size)
	g.closed = size < g.size
	// The last segment may be shorter, and has the flags that end a super-packet.
	if s.gso != unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
		last := p[s.start+tcpFlags] & (flagPSH | flagFIN)
		g.first[s.start+tcpFlags] |= last
		g.closed = g.closed || last != 0
	}
	return true
}

// id is the identification of an IPv4 packet.
func id(p []byte) uint16 { return binary.BigEndian.Uint16(p[4:]) }

// continues reports whether an IPv4 packet has the identification of the group's next segment.
func (g *group) continues(p []byte) bool {
	n := uint16(g.payloads)
	if n == 0 {
		const dontFragment = 0x40
		step := id(p) - id(g.first)
		return step == 1 || step == 0 && p[6]&dontFragment != 0
	}
	return id(p) == id(g.first)+(n+1)*g.step
}

// sameHeaders reports whether segmentation makes the headers of the packet from those of the
// group's first one.
func (g *group) sameHeaders(p []byte, s shape) bool {
	a := g.first
	if s.start == 20 {
		// Type of service, don't-fragment bit and time to live.
		if a[1] != p[1] || a[6] != p[6] || a[8] != p[8] || !g.continues(p) {
			return false
		}
	} else if string(a[:4]) != string(p[:4]) || a[7] != p[7] {
		return false
	}
	if s.gso == unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
		return true
	}
	// Acknowledgement, length and reserved bits, one of which is AE, other flags, window, urgent
	// pointer and options. FIN and PSH end a super-packet.
	t, u := a[s.start:s.data], p[s.start:s.data]
	const ends = flagPSH | flagFIN
	return binary.BigEndian.Uint32(u[4:]) == g.next && string(t[8:13]) == string(u[8:13]) && t[tcpFlags] == u[tcpFlags]&^ends &&
		string(t[14:16]) == string(u[14:16]) && string(t[18:]) == string(u[18:])
}

// valid reports whether the checksums are right: a super-packet gets new ones, which must not hide
// that a packet was damaged before the tunnel.
func valid(p []byte, s shape) bool {
	if s.start == 20 && checksum.Of(p[:s.start]) != 0 {
		return false
	}
	protocol := byte(unix.IPPROTO_TCP)
	if s.gso == unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
		protocol = unix.IPPROTO_UDP
	}
	return checksum.Fold(checksum.Sum(p[s.start:], checksum.Pseudo(p, protocol, len(p)-s.start))) == 0xffff
}

// add makes a new group of a packet.
func (w *writer) add(p []byte, udp bool) {
	var g *group
	if n := len(w.free); n > 0 {
		g, w.free = w.free[n-1], w.free[:n-1]
	} else {
		g = new(group)
	}
	g.first, g.length, g.payloads, g.checked, g.step = p, len(p), 0, false, 0
	s, ok := shapeOf(p, udp)
	g.gso, g.start, g.data, g.size = s.gso, s.start, s.data, len(p)-s.data
	g.closed = !ok
	if ok && s.gso != unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
		g.next = binary.BigEndian.Uint32(p[s.start+4:]) + uint32(g.size)
		g.closed = p[s.start+tcpFlags]&(flagPSH|flagFIN) != 0
	}
	w.groups = append(w.groups, g)
}
