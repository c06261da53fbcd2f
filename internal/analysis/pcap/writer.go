package pcap

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

var little = binary.LittleEndian

// check reports what neither format can hold.
func (p *Packet) check() error {
	if len(p.Data) > p.Length {
		return fmt.Errorf("write packet: %d bytes were captured of %d", len(p.Data), p.Length)
	}
	return nil
}

// Writer writes a pcap file in little-endian order, with timestamps in nanoseconds. It does not
// buffer.
type Writer struct {
	out  io.Writer
	head [recordHeader]byte
}

// NewWriter writes the header of a pcap file. The snap length is the largest number of bytes that
// is captured of a packet.
func NewWriter(out io.Writer, link LinkType, snapLength uint32) (*Writer, error) {
	b := little.AppendUint32(make([]byte, 0, fileHeader), 0xa1b23c4d)
	b = little.AppendUint16(little.AppendUint16(b, 2), 4) // version 2.4
	b = little.AppendUint64(b, 0)                         // reserved
	b = little.AppendUint32(little.AppendUint32(b, snapLength), uint32(link))
	_, err := out.Write(b)
	return &Writer{out: out}, err
}

// Write writes a packet: its At, Data and Length.
func (w *Writer) Write(p Packet) error {
	if err := p.check(); err != nil {
		return err
	}
	b := little.AppendUint32(w.head[:0], uint32(p.At/int64(time.Second)))
	b = little.AppendUint32(b, uint32(p.At%int64(time.Second)))
	b = little.AppendUint32(little.AppendUint32(b, uint32(len(p.Data))), uint32(p.Length))
	if _, err := w.out.Write(b); err != nil {
		return err
	}
	_, err := w.out.Write(p.Data)
	return err
}

// Options of pcapng blocks, also of those that are read.
const (
	optionEnd         = 0
	optionHardware    = 2 // of a section
	optionOS          = 3
	optionApplication = 4
	optionName        = 2 // of an interface
	optionResolution  = 9
	optionInterfaceOS = 12
	optionFCS         = 13
	optionOffset      = 14
	optionFlags       = 2 // of a packet
	optionLost        = 4
	optionDropped     = 5 // of interface statistics: a running total, so that a later one replaces it
	nanoseconds       = 9 // the resolution, as a negative power of 10
)

// Section describes what captured a pcapng file.
type Section struct {
	Hardware, OS, Application string
}

// Interface describes a capturing interface of a pcapng file.
type Interface struct {
	Name, OS string
	Link     LinkType
	// SnapLength is the largest number of bytes that is captured of a packet.
	SnapLength uint32
}

// NgWriter writes a pcapng file of one section (draft-ietf-opsawg-pcapng) in little-endian order,
// with timestamps in nanoseconds. It buffers: call Flush at the end.
type NgWriter struct {
	out        *bufio.Writer
	interfaces int
	block      []byte // that is being written, up to the data of a packet
}

// NewNgWriter writes the section header.
func NewNgWriter(out io.Writer, s Section) (*NgWriter, error) {
	w := &NgWriter{out: bufio.NewWriter(out)}
	w.begin(blockSection)
	w.block = little.AppendUint32(w.block, 0x1a2b3c4d)
	w.block = little.AppendUint16(little.AppendUint16(w.block, 1), 0) // version 1.0
	w.block = little.AppendUint64(w.block, ^uint64(0))                // the length is not known
	w.options(option{optionApplication, []byte(s.Application)}, option{optionHardware, []byte(s.Hardware)}, option{optionOS, []byte(s.OS)})
	return w, w.end()
}

// AddInterface writes the description of an interface and returns its number, which starts at 0.
func (w *NgWriter) AddInterface(i Interface) (int, error) {
	w.begin(blockInterface)
	w.block = little.AppendUint16(little.AppendUint16(w.block, uint16(i.Link)), 0)
	w.block = little.AppendUint32(w.block, i.SnapLength)
	w.options(option{optionName, []byte(i.Name)}, option{optionInterfaceOS, []byte(i.OS)}, option{optionResolution, []byte{nanoseconds}})
	w.interfaces++
	return w.interfaces - 1, w.end()
}

// Write writes a packet: its Interface, At, Data, Length, and Direction if it is known.
func (w *NgWriter) Write(p Packet) error {
	if err := p.check(); err != nil {
		return err
	}
	if err := w.known(p.Interface); err != nil {
		return err
	}
	w.begin(blockEnhanced)
	w.block = little.AppendUint32(w.block, uint32(p.Interface))
	w.time(p.At)
	w.block = little.AppendUint32(little.AppendUint32(w.block, uint32(len(p.Data))), uint32(p.Length))
	w.block = append(w.block, p.Data...)
	w.pad()
	if p.Direction != DirectionUnknown {
		w.options(option{optionFlags, []byte{byte(p.Direction), 0, 0, 0}})
	}
	return w.end()
}

// WriteDropped writes how many packets of an interface were lost up to a time, in nanoseconds since
// the Unix epoch.
func (w *NgWriter) WriteDropped(id int, at int64, dropped uint64) error {
	if err := w.known(id); err != nil {
		return err
	}
	w.begin(blockStatistics)
	w.block = little.AppendUint32(w.block, uint32(id))
	w.time(at)
	w.options(option{optionDropped, little.AppendUint64(nil, dropped)})
	return w.end()
}

// Flush writes what is buffered.
func (w *NgWriter) Flush() error { return w.out.Flush() }

func (w *NgWriter) known(id int) error {
	if id < 0 || id >= w.interfaces {
		return fmt.Errorf("write block of interface %d: it is not one of the %d that are described", id, w.interfaces)
	}
	return nil
}

// begin starts a block, without its length, which end fills in.
func (w *NgWriter) begin(kind uint32) {
	w.block = little.AppendUint32(little.AppendUint32(w.block[:0], kind), 0)
}

// end writes the block.
func (w *NgWriter) end() error {
	n := uint32(len(w.block) + 4)
	little.PutUint32(w.block[4:], n)
	w.block = little.AppendUint32(w.block, n)
	_, err := w.out.Write(w.block)
	return err
}

// time appends a timestamp, whose upper half comes first.
func (w *NgWriter) time(at int64) {
	w.block = little.AppendUint32(little.AppendUint32(w.block, uint32(at>>32)), uint32(at))
}

func (w *NgWriter) pad() {
	for len(w.block)%4 != 0 {
		w.block = append(w.block, 0)
	}
}

// option is one of a block. Its value has at most 65,535 bytes.
type option struct {
	code  uint16
	value []byte
}

// options appends those that have a value, and the end of the list if there are any.
func (w *NgWriter) options(all ...option) {
	before := len(w.block)
	for _, o := range all {
		if len(o.value) > 0 {
			w.block = little.AppendUint16(little.AppendUint16(w.block, o.code), uint16(len(o.value)))
			w.block = append(w.block, o.value...)
			w.pad()
		}
	}
	if len(w.block) > before {
		w.block = little.AppendUint32(w.block, optionEnd)
	}
}
