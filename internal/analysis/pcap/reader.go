package pcap

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
)

// Errors of New.
var (
	ErrEmpty      = errors.New("the file is empty")
	ErrNotCapture = errors.New("it is neither pcap nor pcapng")
	ErrCompressed = errors.New("its compression is not supported")
)

// Direction is whether the capturing interface received or sent a packet.
type Direction uint8

// The directions; most files do not record them.
const (
	DirectionUnknown Direction = iota
	Inbound
	Outbound
)

// Packet is one packet of a capture.
type Packet struct {
	// At is the time of capture, in nanoseconds since the Unix epoch; 0 if it is not recorded.
	At int64
	// Data is the captured part. It is valid until the next call of Next.
	Data []byte
	// Length is the length of the packet on the link; Data may be shorter.
	Length    int
	Link      LinkType
	Direction Direction
	// Interface counts the interfaces of a file, through all its sections.
	Interface int
	// Number counts the packets of the file, from 1.
	Number uint64

	bigEndian bool // of the file, for LinkNull
}

// Fault is a damaged part of a capture.
type Fault struct {
	// Offset is its position in the file in bytes, after decompression.
	Offset int64
	// Skipped is the number of skipped bytes.
	Skipped int64
	What    string
}

func (f Fault) String() string {
	return fmt.Sprintf("at byte %d: %s, %d bytes lost", f.Offset, f.What, f.Skipped)
}

const (
	// window is the read-ahead in bytes. Packets larger than maxRecord are skipped.
	window    = 1 << 20
	maxRecord = 1 << 19
	// maxFaults bounds the list of faults; all are counted.
	maxFaults = 20
)

// Stats are the counters of a reader.
type Stats struct {
	// Packets counts packets, Captured their bytes in the file, Wire their bytes on the link.
	Packets, Captured, Wire uint64
	// Dropped counts packets that the capturing program dropped; only pcapng records them.
	Dropped uint64
	// NoTime counts packets without a timestamp.
	NoTime uint64
	// Faults are the first ones, FaultCount is their total number.
	Faults     []Fault
	FaultCount int
	// Cut: the file is truncated.
	Cut        bool
	Gzip       bool
	Format     string
	Interfaces []string
}

// Reader reads a capture. It is not safe for concurrent use.
type Reader struct {
	in     *bufio.Reader
	offset int64
	skip   int // length of the last record, which is still in the buffer
	order  binary.ByteOrder
	stats  Stats
	next   func(*Packet) error
	ended  bool

	// pcap
	link     LinkType
	fraction int64 // nanoseconds of a unit of the second timestamp field
	fcs      int
	lastTime uint32

	// pcapng
	interfaces []iface // of the section
	base       int     // interfaces of the sections before
}

// iface is an interface of a pcapng section.
type iface struct {
	link    LinkType
	snaplen uint32
	units   uint64 // in a second
	offset  int64  // seconds
	fcs     int
	dropped uint64
}

// New returns a reader of a capture, whose format it detects from the first bytes. Errors wrap
// ErrEmpty, ErrNotCapture, ErrCompressed, or the error of r.
func New(r io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(r, window)
	head, err := in.Peek(4)
	if len(head) == 0 {
		if err == io.EOF {
			err = ErrEmpty
		}
		return nil, err
	}
	d := &Reader{in: in}
	if len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		d.in, d.stats.Gzip = bufio.NewReaderSize(z, window), true
		if head, err = d.in.Peek(4); len(head) == 0 {
			if err == io.EOF {
				err = ErrEmpty
			}
			return nil, fmt.Errorf("decompress: %w", err)
		}
	}
	for name, magic := range map[string]string{"zstd": "\x28\xb5\x2f\xfd", "xz": "\xfd7zX", "bzip2": "BZh", "lz4": "\x04\x22\x4d\x18"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return nil, fmt.Errorf("%w: %s", ErrCompressed, name)
		}
	}
	if len(head) < 4 {
		return nil, ErrNotCapture
	}
	switch magic := binary.LittleEndian.Uint32(head); magic {
	case 0xa1b2c3d4, 0xa1b23c4d:
		err = d.pcapHeader(binary.LittleEndian, magic == 0xa1b2c3d4)
	case 0xd4c3b2a1, 0x4d3cb2a1:
		err = d.pcapHeader(binary.BigEndian, magic == 0xd4c3b2a1)
	case blockSection:
		d.stats.Format, d.next = "pcapng", d.nextBlock
	default:
		err = ErrNotCapture
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Stats returns the counters up to now. It shares its slices with the reader.
func (d *Reader) Stats() Stats {
	s := d.stats
	for _, i := range d.interfaces {
		s.Dropped += i.dropped
	}
	return s
}

// Next reads the next packet into p. At the end, also of a truncated file, it returns io.EOF;
// damaged parts are skipped and recorded in Stats. Any other error is an I/O error.
func (d *Reader) Next(p *Packet) error {
	if d.ended {
		return io.EOF
	}
	err := d.next(p)
	if err != nil {
		d.ended = true
		return err
	}
	d.stats.Packets++
	p.Number = d.stats.Packets
	d.stats.Captured += uint64(len(p.Data))
	d.stats.Wire += uint64(p.Length)
	if p.At == 0 {
		d.stats.NoTime++
	}
	return nil
}

// peek returns the next n bytes behind the last record. At the end of the file it returns fewer,
// and io.EOF when there are none. A compressed file that is truncated or damaged ends there, too.
func (d *Reader) peek(n int) ([]byte, error) {
	if d.skip > 0 {
		k, _ := d.in.Discard(d.skip)
		d.offset += int64(k)
		d.skip = 0
	}
	b, err := d.in.Peek(n)
	switch {
	case len(b) == n:
		return b, nil
	case errors.Is(err, io.EOF):
		if len(b) == 0 {
			return nil, io.EOF
		}
		return b, nil
	}
	if d.stats.Gzip && damaged(err) {
		// Nothing after this position can be decompressed.
		if !d.stats.Cut {
			d.stats.Cut = true
			what := "the compressed file is truncated"
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				what = "the compressed data is damaged (" + err.Error() + ")"
			}
			d.fault(Fault{Offset: d.offset + int64(len(b)), What: what})
		}
		if len(b) == 0 {
			return nil, io.EOF
		}
		return b, nil
	}
	return b, fmt.Errorf("read at byte %d: %w", d.offset, err)
}

// damaged reports whether an error of decompression is due to the data, and not an I/O error.
func damaged(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt)
}

func (d *Reader) fault(f Fault) {
	d.stats.FaultCount++
	if len(d.stats.Faults) < maxFaults {
		d.stats.Faults = append(d.stats.Faults, f)
	}
}

// cut ends a file whose last record is truncated to rest bytes.
func (d *Reader) cut(rest int) error {
	if !d.stats.Cut {
		d.stats.Cut = true
		d.fault(Fault{Offset: d.offset, Skipped: int64(rest), What: "the file ends in the middle of a packet"})
	}
	return io.EOF
}

// resume skips bytes up to the next place where good finds a record, and records a fault. It
// returns false at the end of the file.
func (d *Reader) resume(what string, good func([]byte) bool) (bool, error) {
	f := Fault{Offset: d.offset, What: what}
	for {
		b, err := d.peek(window)
		if errors.Is(err, io.EOF) {
			f.Skipped = d.offset - f.Offset
			d.fault(f)
			return false, nil
		}
		if err != nil {
			return false, err
		}
		// The last record of a full window may extend beyond it.
		last := len(b)
		if len(b) == window {
			last = window - maxRecord
		}
		for i := range last {
			if i == 0 && d.offset == f.Offset {
				continue
			}
			if good(b[i:]) {
				d.skip = i
				f.Skipped = d.offset + int64(i) - f.Offset
				d.fault(f)
				return true, nil
			}
		}
		d.skip = last
	}
}

// pcap

const (
	fileHeader   = 24
	recordHeader = 16
)

func (d *Reader) pcapHeader(order binary.ByteOrder, micro bool) error {
	b, err := d.peek(fileHeader)
	if err != nil {
		return err
	}
	if len(b) < fileHeader {
		return fmt.Errorf("%w: its header is cut", ErrNotCapture)
	}
	if major := order.Uint16(b[4:]); major != 2 {
		return fmt.Errorf("%w of a version that is known: version %d", ErrNotCapture, major)
	}
	d.order, d.fraction = order, 1
	if micro {
		d.fraction = 1000
	}
	network := order.Uint32(b[20:])
	// The upper bits may say how long the frame check sequence is, in 16-bit words.
	d.link = LinkType(network)
	if network&(1<<26) != 0 {
		d.fcs = int(network>>28) * 2
	}
	d.skip = fileHeader
	d.stats.Format, d.next = "pcap", d.nextRecord
	d.stats.Interfaces = []string{""}
	return nil
}

// record is the header of a pcap record; ok is false when it cannot be one.
func (d *Reader) record(b []byte) (captured, length int, ok bool) {
	c, l, fraction := d.order.Uint32(b[8:]), d.order.Uint32(b[12:]), d.order.Uint32(b[4:])
	return int(c), int(l), l > 0 && c <= maxRecord-recordHeader && c <= l && l <= 1<<26 && int64(fraction)*d.fraction < 2e9
}

// near reports whether a time is plausible after the last one, behind a damaged part.
func (d *Reader) near(seconds uint32) bool {
	const week = 7 * 24 * 3600
	return d.stats.Packets == 0 || seconds-d.lastTime+week < 2*week
}

// chain reports whether b begins with a record and, as far as b goes, another one after it.
func (d *Reader) chain(b []byte) bool {
	for range 3 {
		if len(b) == 0 {
			return true
		}
		if len(b) < recordHeader {
			return false
		}
		n, _, ok := d.record(b)
		if !ok || !d.near(d.order.Uint32(b)) || len(b) < recordHeader+n {
			return false
		}
		b = b[recordHeader+n:]
	}
	return true
}

func (d *Reader) nextRecord(p *Packet) error {
	for {
		b, err := d.peek(recordHeader)
		if err != nil {
			return err
		}
		if len(b) < recordHeader {
			return d.cut(len(b))
		}
		captured, length, ok := d.record(b)
		if ok && !d.near(d.order.Uint32(b)) {
			// A leap in time is possible, but where a part of the file is missing,
			// arbitrary bytes look like a header.
			if b, err = d.peek(2*recordHeader + captured); err != nil {
				return err
			}
			if len(b) == 2*recordHeader+captured {
				_, _, ok = d.record(b[recordHeader+captured:])
			}
		}
		if !ok {
			ok, err := d.resume("not a packet record", d.chain)
			if err != nil {
				return err
			}
			if !ok {
				return io.EOF
			}
			continue
		}
		if b, err = d.peek(recordHeader + captured); err != nil {
			return err
		}
		if len(b) < recordHeader+captured {
			return d.cut(len(b))
		}
		seconds := d.order.Uint32(b)
		d.lastTime = seconds
		d.skip = len(b)
		*p = Packet{
			At:   int64(seconds)*1e9 + int64(d.order.Uint32(b[4:]))*d.fraction,
			Data: trim(b[recordHeader:], length, d.fcs), Length: length, Link: d.link, bigEndian: d.order == binary.BigEndian,
		}
		return nil
	}
}

// trim removes the frame check sequence if it was captured.
func trim(data []byte, length, fcs int) []byte {
	if fcs > 0 && len(data) > length-fcs {
		return data[:max(0, length-fcs)]
	}
	return data
}

// pcapng, draft-ietf-opsawg-pcapng

const (
	blockSection    = 0x0a0d0d0a // the same in both byte orders
	blockInterface  = 1
	blockPacket     = 2 // obsolete
	blockSimple     = 3
	blockStatistics = 5
	blockEnhanced   = 6
)

// block is the type and the whole length of the block that b begins with.
func (d *Reader) block(b []byte) (kind uint32, length int, ok bool) {
	order := d.order
	if binary.LittleEndian.Uint32(b) == blockSection {
		if order = sectionOrder(b); order == nil {
			return 0, 0, false
		}
	}
	if order == nil {
		return 0, 0, false
	}
	kind = order.Uint32(b)
	n := order.Uint32(b[4:])
	return kind, int(n), n >= 12 && n%4 == 0 && n < 1<<30
}

func sectionOrder(b []byte) binary.ByteOrder {
	if len(b) < 12 {
		return nil
	}
	switch binary.LittleEndian.Uint32(b[8:]) {
	case 0x1a2b3c4d:
		return binary.LittleEndian
	case 0x4d3c2b1a:
		return binary.BigEndian
	}
	return nil
}

// whole reports whether b begins with a block of a known type whose two lengths are equal.
func (d *Reader) whole(b []byte) bool {
	if len(b) < 12 {
		return false
	}
	kind, n, ok := d.block(b)
	if !ok || n > len(b) || d.sectionOr(b).Uint32(b[n-4:]) != uint32(n) {
		return false
	}
	switch kind {
	case blockSection, blockInterface, blockPacket, blockSimple, blockStatistics, blockEnhanced:
		return true
	}
	return false
}

func (d *Reader) sectionOr(b []byte) binary.ByteOrder {
	if o := sectionOrder(b); o != nil && binary.LittleEndian.Uint32(b) == blockSection {
		return o
	}
	return d.order
}

func (d *Reader) nextBlock(p *Packet) error {
	for {
		b, err := d.peek(12)
		if err != nil {
			return err
		}
		if len(b) < 12 {
			return d.cut(len(b))
		}
		kind, n, ok := d.block(b)
		if ok && n > maxRecord {
			// A packet or a block of secrets that is too large to be looked at, unless
			// the length is wrong.
			ok = kind < 0x80000000
			if ok {
				d.fault(Fault{Offset: d.offset, Skipped: int64(n), What: fmt.Sprintf("a block of %d bytes is too large", n)})
				k, err := d.in.Discard(n)
				d.offset += int64(k)
				if err != nil {
					return d.cut(k)
				}
				continue
			}
		}
		what := "not a block"
		if ok {
			if b, err = d.peek(n); err != nil {
				return err
			}
			if len(b) < n {
				return d.cut(len(b))
			}
			if d.sectionOr(b).Uint32(b[n-4:]) != uint32(n) {
				ok, what = false, "the two lengths of a block differ"
			}
		}
		if ok {
			d.skip = n
			var found bool
			if found, what = d.take(p, kind, b[8:n-4], b); found {
				return nil
			}
			if what == "" {
				continue
			}
			d.fault(Fault{Offset: d.offset, Skipped: int64(n), What: what})
			continue
		}
		if ok, err = d.resume(what, d.whole); err != nil {
			return err
		}
		if !ok {
			return io.EOF
		}
	}
}

// take parses a block. It reports whether that is a packet, and its fault if it has one.
func (d *Reader) take(p *Packet, kind uint32, body, all []byte) (found bool, what string) {
	switch kind {
	case blockSection:
		d.order = sectionOrder(all)
		if len(body) < 16 {
			return false, "a section header is too short"
		}
		for _, i := range d.interfaces {
			d.stats.Dropped += i.dropped
		}
		d.base += len(d.interfaces)
		d.interfaces = d.interfaces[:0]
		if major := d.order.Uint16(body[4:]); major != 1 {
			return false, fmt.Sprintf("a section is of version %d, which is not known", major)
		}
	case blockInterface:
		return false, d.describe(body)
	case blockEnhanced, blockPacket:
		if len(body) < 20 {
			return false, "a packet block is too short"
		}
		id := int(d.order.Uint32(body))
		if kind == blockPacket {
			id = int(d.order.Uint16(body))
			if n := d.order.Uint16(body[2:]); n != math.MaxUint16 && id < len(d.interfaces) {
				d.interfaces[id].dropped += uint64(n)
			}
		}
		captured, length := d.order.Uint32(body[12:]), d.order.Uint32(body[16:])
		switch {
		case id >= len(d.interfaces):
			return false, fmt.Sprintf("a packet is of interface %d, which is not described", id)
		case uint64(captured) > uint64(len(body)-20):
			return false, "a packet is longer than its block"
		}
		i := &d.interfaces[id]
		units := uint64(d.order.Uint32(body[4:]))<<32 | uint64(d.order.Uint32(body[8:]))
		*p = Packet{
			At: i.time(units), Data: trim(body[20:20+captured], int(length), i.fcs), Length: max(int(length), int(captured)),
			Link: i.link, Interface: d.base + id, bigEndian: d.order == binary.BigEndian,
		}
		if rest := body[20+(captured+3)&^3:]; captured+3 >= captured && uint64((captured+3)&^3) <= uint64(len(body)-20) && len(rest) >= 8 {
			d.packetOptions(p, i, rest)
		}
		return true, ""
	case blockSimple:
		if len(body) < 4 || len(d.interfaces) == 0 {
			return false, "a simple packet block is too short, or without an interface"
		}
		i := &d.interfaces[0]
		length := int(d.order.Uint32(body))
		n := min(length, len(body)-4)
		if i.snaplen > 0 {
			n = min(n, int(i.snaplen))
		}
		*p = Packet{Data: trim(body[4:4+n], length, i.fcs), Length: length, Link: i.link, Interface: d.base, bigEndian: d.order == binary.BigEndian}
		return true, ""
	case blockStatistics:
		if len(body) < 12 {
			return false, "a statistics block is too short"
		}
		id := d.order.Uint32(body)
		if int64(id) >= int64(len(d.interfaces)) {
			return false, fmt.Sprintf("statistics are of interface %d, which is not described", id)
		}
		d.options(body[12:], func(code uint16, value []byte) {
			if code == optionDropped && len(value) == 8 {
				d.interfaces[id].dropped = d.order.Uint64(value)
			}
		})
	}
	return false, ""
}

func (d *Reader) packetOptions(p *Packet, i *iface, b []byte) {
	d.options(b, func(code uint16, value []byte) {
		switch {
		case code == optionFlags && len(value) == 4:
			p.Direction = Direction(d.order.Uint32(value) & 3 % 3)
		case code == optionLost && len(value) == 8:
			i.dropped += d.order.Uint64(value)
		}
	})
}

// options calls do for each option of a block.
func (d *Reader) options(b []byte, do func(code uint16, value []byte)) {
	for len(b) >= 4 {
		code, n := d.order.Uint16(b), int(d.order.Uint16(b[2:]))
		if code == optionEnd || n > len(b)-4 {
			return
		}
		do(code, b[4:4+n])
		b = b[min(len(b), 4+(n+3)&^3):]
	}
}

// describe reads an interface description block.
func (d *Reader) describe(body []byte) (what string) {
	if len(body) < 8 {
		return "an interface description is too short"
	}
	i := iface{link: LinkType(d.order.Uint16(body)), snaplen: d.order.Uint32(body[4:]), units: 1e6}
	name := ""
	d.options(body[8:], func(code uint16, value []byte) {
		switch {
		case code == optionName:
			name = string(value)
		case code == optionResolution && len(value) == 1:
			i.units = 0
			if e := int(value[0] & 0x7f); value[0]&0x80 != 0 && e < 64 {
				i.units = 1 << e
			} else if value[0]&0x80 == 0 && e <= 19 {
				i.units = uint64(math.Pow10(e))
			}
		case code == optionFCS && len(value) == 1:
			i.fcs = int(value[0])
		case code == optionOffset && len(value) == 8:
			i.offset = int64(d.order.Uint64(value))
		}
	})
	if i.units == 0 {
		what = fmt.Sprintf("the clock of interface %d has a resolution that is not known", len(d.interfaces))
		i.units = 1e6
	}
	d.interfaces = append(d.interfaces, i)
	d.stats.Interfaces = append(d.stats.Interfaces, name)
	return what
}

// time converts a timestamp to nanoseconds since the epoch.
func (i *iface) time(units uint64) int64 {
	if i.units == 1e9 {
		return i.offset*1e9 + int64(units)
	}
	seconds, rest := units/i.units, units%i.units
	hi, lo := bits.Mul64(rest, 1e9)
	fraction, _ := bits.Div64(hi, lo, i.units)
	return (i.offset+int64(seconds))*1e9 + int64(fraction)
}
