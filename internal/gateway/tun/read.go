package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
)

// header is struct virtio_net_hdr in the byte order of the host.
type header struct {
	flags, gso                 uint8
	length, size, start, field uint16
}

func parseHeader(b []byte) header {
	n := binary.NativeEndian
	return header{b[0], b[1], n.Uint16(b[2:]), n.Uint16(b[4:]), n.Uint16(b[6:]), n.Uint16(b[8:])}
}

func (h header) put(b []byte) {
	n := binary.NativeEndian
	b[0], b[1] = h.flags, h.gso
	n.PutUint16(b[2:], h.length)
	n.PutUint16(b[4:], h.size)
	n.PutUint16(b[6:], h.start)
	n.PutUint16(b[8:], h.field)
}

// Frame is what one read of the device returned: a packet, or a super-packet that is several. It is
// valid until the next Read.
type Frame struct {
	packet []byte
	gso    uint8  // kind of super-packet without the ECN bit, GSO_NONE for a packet
	cwr    bool   // only the first segment has TCP's CWR
	sum    bool   // the transport checksum is to be completed
	start  int    // of the transport header
	field  int    // of the checksum
	data   int    // start of the payload
	size   int    // of the payload of a segment
	count  int    // of packets
	base   uint64 // sum of addresses and protocol
}

type reader struct {
	buf   []byte
	n     int
	err   error
	wait  bool
	once  func(fd uintptr) bool
	frame Frame
}

func (r *reader) init(d *Device) {
	r.buf = make([]byte, virtioLen+maxFrame)
	// One function value for all reads, so that none allocates.
	r.once = func(fd uintptr) bool {
		r.n, r.err = unix.Read(int(fd), r.buf)
		for r.err == unix.EINTR {
			r.n, r.err = unix.Read(int(fd), r.buf)
		}
		return r.err != unix.EAGAIN || !r.wait
	}
}

// ErrMalformed is the error of a frame whose header does not fit its packet. The caller may
// continue reading.
var ErrMalformed = errors.New("malformed packet")

// Read returns the next frame, or nil if wait is false and there is none. An interface that is down
// has none.
func (d *Device) Read(wait bool) (*Frame, error) {
	r := &d.reader
	r.wait = wait
	if err := d.raw.Read(r.once); err != nil {
		if d.closed.Load() {
			return nil, fs.ErrClosed
		}
		return nil, fmt.Errorf("read TUN device %q: %w", d.name, err)
	}
	switch {
	case r.err == unix.EAGAIN:
		return nil, nil
	case r.err == unix.EBADFD: // the device was removed
		return nil, fs.ErrClosed
	case r.err != nil:
		return nil, fmt.Errorf("read TUN device %q: %w", d.name, r.err)
	}
	if err := r.frame.parse(r.buf[:r.n]); err != nil {
		return nil, err
	}
	return &r.frame, nil
}

// parse checks the header of a frame.
func (f *Frame) parse(b []byte) error {
	if len(b) < virtioLen+20 {
		return ErrMalformed
	}
	h, packet := parseHeader(b), b[virtioLen:]
	*f = Frame{packet: packet, count: 1, start: int(h.start), field: int(h.start) + int(h.field)}
	f.sum = h.flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0
	if f.sum && f.field+2 > len(packet) {
		return ErrMalformed
	}
	f.gso = h.gso &^ unix.VIRTIO_NET_HDR_GSO_ECN
	if f.gso == unix.VIRTIO_NET_HDR_GSO_NONE {
		return nil
	}
	version := packet[0] >> 4
	protocol := byte(unix.IPPROTO_TCP)
	switch {
	case h.size == 0 || !f.sum || version != 4 && version != 6 || version == 6 && len(packet) < 40:
		return ErrMalformed
	case f.gso == unix.VIRTIO_NET_HDR_GSO_UDP_L4:
		protocol, f.data = unix.IPPROTO_UDP, f.start+8
	case f.gso == unix.VIRTIO_NET_HDR_GSO_TCPV4 && version == 4, f.gso == unix.VIRTIO_NET_HDR_GSO_TCPV6 && version == 6:
		if f.start+20 > len(packet) {
			return ErrMalformed
		}
		// The header's own length is not reliable for forwarded packets.
		words := int(packet[f.start+12] >> 4)
		if words < 5 {
			return ErrMalformed
		}
		f.data = f.start + 4*words
	default:
		return fmt.Errorf("%w: unknown kind of super-packet %d", ErrMalformed, h.gso)
	}
	if f.start < 20 || f.data > len(packet) || f.field+2 > f.data {
		return ErrMalformed
	}
	f.size = int(h.size)
	f.count = max(1, (len(packet)-f.data+f.size-1)/f.size)
	f.base = checksum.Pseudo(packet, protocol, 0)
	f.cwr = f.gso != unix.VIRTIO_NET_HDR_GSO_UDP_L4 && h.gso&unix.VIRTIO_NET_HDR_GSO_ECN != 0
	return nil
}

// Len returns the number of packets of the frame.
func (f *Frame) Len() int { return f.count }

// Head returns the beginning of the first packet: its addresses, ports and DSCP are those of all.
// Lengths and checksums in it are not.
func (f *Frame) Head() []byte { return f.packet }

// PacketLen returns the length of packet i.
func (f *Frame) PacketLen(i int) int {
	if f.gso == unix.VIRTIO_NET_HDR_GSO_NONE {
		return len(f.packet)
	}
	return f.data + min(f.size, len(f.packet)-f.data-i*f.size)
}

// The flags of TCP that not all segments of a super-packet have.
const (
	tcpFlags = 13
	flagFIN  = 1 << 0
	flagPSH  = 1 << 3
	flagACK  = 1 << 4
	flagECE  = 1 << 6
	flagCWR  = 1 << 7
)

// Packet writes packet i to b, which has room for PacketLen bytes, and returns its length.
func (f *Frame) Packet(i int, b []byte) int {
	n := f.PacketLen(i)
	b = b[:n]
	if f.gso == unix.VIRTIO_NET_HDR_GSO_NONE {
		copy(b, f.packet)
		if f.sum {
			// The field holds the sum of the pseudo header.
			put16(b[f.field:], nonzero(b, checksum.Of(b[f.start:])))
		}
		return n
	}
	copy(b, f.packet[:f.data])
	from := f.data + i*f.size
	copy(b[f.data:], f.packet[from:from+n-f.data])
	if b[0]>>4 == 4 {
		put16(b[2:], uint16(n))
		put16(b[4:], binary.BigEndian.Uint16(b[4:])+uint16(i))
		put16(b[10:], 0)
		put16(b[10:], checksum.Of(b[:f.start]))
	} else {
		put16(b[4:], uint16(n-40))
	}
	transport := b[f.start:]
	if f.gso == unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
		put16(transport[4:], uint16(len(transport)))
	} else {
		binary.BigEndian.PutUint32(transport[4:], binary.BigEndian.Uint32(transport[4:])+uint32(i*f.size))
		if i < f.count-1 {
			transport[tcpFlags] &^= flagFIN | flagPSH
		}
		if f.cwr && i > 0 {
			transport[tcpFlags] &^= flagCWR
		}
	}
	put16(b[f.field:], 0)
	c := ^checksum.Fold(checksum.Sum(transport, f.base+uint64(len(transport))))
	if f.gso == unix.VIRTIO_NET_HDR_GSO_UDP_L4 && c == 0 {
		c = 0xffff
	}
	put16(b[f.field:], c)
	return n
}

// nonzero returns a checksum of a packet; UDP has 0xffff instead of 0, which means none (RFC 768).
func nonzero(packet []byte, c uint16) uint16 {
	udp := packet[0]>>4 == 4 && packet[9] == unix.IPPROTO_UDP || packet[0]>>4 == 6 && packet[6] == unix.IPPROTO_UDP
	if c == 0 && udp {
		return 0xffff
	}
	return c
}

func put16(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
