package simrun

import (
	"bufio"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/sim"
)

// ErrCells means that a capture was requested for a scenario of more than one cell.
var ErrCells = errors.New("a capture is of one cell")

// recorder writes a simulated connection as a pcap file, as captured at the client's interface: the
// Ethernet, IPv6 and TCP headers of each packet, without payload. Subflows established without a
// handshake (Model.AtOnce) are recorded with a handshake of zero duration.
type recorder struct {
	out *bufio.Writer
	w   *pcap.Writer
	err error

	mptcp bool
	scale uint // window scale of the client (RFC 7323, section 2.2)
	paths []recordedPath
	frame []byte
}

// recordedPath is the state of a subflow that the packets of the simulator do not contain.
type recordedPath struct {
	client, server netip.AddrPort
	begun          bool
	// offsets[i-1] is the sequence number of the first byte of segment i, relative to the
	// initial sequence number.
	offsets []uint32
	echo    uint32 // TSval of the client's last packet
}

// The MPTCP keys of all recorded connections (RFC 8684, section 3.1) and the random numbers of
// MP_JOIN (section 3.2).
const (
	clientKey, serverKey       = 0x7461_6261_6e65_0001, 0x7461_6261_6e65_0002
	clientRandom, serverRandom = 0x636c_6e74, 0x7372_7672
)

var recordingStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// keyDigest returns the token and the initial data sequence number of a key (RFC 8684, section
// 3.1).
func keyDigest(key uint64) (token uint32, idsn uint64) {
	h := sha256.Sum256(binary.BigEndian.AppendUint64(nil, key))
	return binary.BigEndian.Uint32(h[:]), binary.BigEndian.Uint64(h[24:])
}

// newRecorder starts a capture of a cell's connection.
func (p *plan) newRecorder(out io.Writer, k result.CellKey, c sim.Connection) (*recorder, error) {
	r := &recorder{out: bufio.NewWriterSize(out, 1<<20), mptcp: c.MPTCP, scale: 14}
	if c.ReceiveBuffer > 0 {
		r.scale = uint(max(bits.Len64(uint64(c.ReceiveBuffer))-16, 0))
	}
	for i := range c.Paths {
		var hops []cell.Hop
		if paths := p.cells.Paths(k.Transport); i < len(paths) {
			hops = paths[i].Hops
		}
		path := recordedPath{
			client: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 13: 0xc, 15: byte(i + 1)}), uint16(40000+i)),
			server: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 13: 0x5, 15: byte(i + 1)}), 80),
		}
		if len(hops) > 0 {
			if a, ok := p.addressOn(hops[len(hops)-1].To, hops[len(hops)-1].Link); ok {
				path.client = netip.AddrPortFrom(a, path.client.Port())
			}
			if a, ok := p.addressOn(hops[0].From, hops[0].Link); ok {
				path.server = netip.AddrPortFrom(a, path.server.Port())
			}
		}
		r.paths = append(r.paths, path)
	}
	var err error
	r.w, err = pcap.NewWriter(r.out, pcap.LinkEthernet, 1<<16)
	return r, err
}

// addressOn returns the first IPv6 address of a node on a link.
func (p *plan) addressOn(node, link string) (netip.Addr, bool) {
	for _, end := range p.spec.Links[link].Ends {
		if end.Node == node {
			for _, prefix := range end.Addresses {
				if prefix.Addr().Is6() {
					return prefix.Addr(), true
				}
			}
		}
	}
	return netip.Addr{}, false
}

// packet records a packet at the time at which it passes the client's interface.
func (r *recorder) packet(s sim.Packet) {
	p := &r.paths[s.Path]
	fromClient := s.Kind == sim.PacketAck || s.Kind == sim.PacketSYN || s.Kind == sim.PacketEstablish
	if s.Kind == sim.PacketData && s.First {
		if len(p.offsets) == 0 {
			p.offsets = append(p.offsets, 1)
		}
		p.offsets = append(p.offsets, p.offsets[len(p.offsets)-1]+uint32(s.Length))
	}
	if fromClient != s.Sent {
		return // seen at the server, not at the client
	}
	if s.Kind == sim.PacketData && !p.begun {
		for _, kind := range []sim.PacketKind{sim.PacketSYN, sim.PacketSYNACK, sim.PacketEstablish} {
			r.handshake(s.At, s.Path, kind)
		}
	}
	switch s.Kind {
	case sim.PacketData:
		r.data(s)
	case sim.PacketAck:
		r.ack(s)
	default:
		r.handshake(s.At, s.Path, s.Kind)
	}
}

// TCP flags.
const (
	flagSYN = 0x02
	flagPSH = 0x08
	flagACK = 0x10
)

// stamp returns a TCP timestamp (RFC 7323) in milliseconds.
func stamp(at time.Duration) uint32 { return uint32(at/time.Millisecond) + 1 }

// timestamps appends the timestamps option (RFC 7323) after two NOPs.
func timestamps(b []byte, value, echo uint32) []byte {
	b = append(b, 1, 1, 8, 10)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
}

// handshake records one packet of the three-way handshake.
func (r *recorder) handshake(at time.Duration, i int, kind sim.PacketKind) {
	p := &r.paths[i]
	p.begun = true
	if len(p.offsets) == 0 {
		p.offsets = append(p.offsets, 1)
	}
	now := stamp(at)
	var options []byte
	if kind == sim.PacketEstablish {
		options = timestamps(options, now, now)
	} else {
		scale := byte(r.scale)
		if kind == sim.PacketSYNACK {
			scale = 14
		}
		echo := uint32(0)
		if kind == sim.PacketSYNACK {
			echo = p.echo
		}
		options = append(options, 2, 4, 0x05, 0xa0, 4, 2, 8, 10) // MSS 1440, SACK permitted, timestamps
		options = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(options, now), echo)
		options = append(options, 1, 3, 3, scale)
	}
	if r.mptcp {
		options = r.joining(options, i, kind)
	}
	switch kind {
	case sim.PacketSYN:
		p.echo = now
		r.write(at, p, true, 0, 0, flagSYN, 65535, options, 0)
	case sim.PacketSYNACK:
		r.write(at, p, false, 0, 1, flagSYN|flagACK, 65535, options, 0)
	default:
		p.echo = now
		r.write(at, p, true, 1, 1, flagACK, 65535, options, 0)
	}
}

// joining appends MP_CAPABLE on the first subflow and MP_JOIN on the others (RFC 8684, sections 3.1
// and 3.2).
func (r *recorder) joining(b []byte, i int, kind sim.PacketKind) []byte {
	be := binary.BigEndian
	if i == 0 {
		const capable, version, sha256Only = 0x00, 0x01, 0x01
		switch kind {
		case sim.PacketSYN:
			return append(b, 30, 4, capable|version, sha256Only)
		case sim.PacketSYNACK:
			return be.AppendUint64(append(b, 30, 12, capable|version, sha256Only), serverKey)
		default:
			return be.AppendUint64(be.AppendUint64(append(b, 30, 20, capable|version, sha256Only), clientKey), serverKey)
		}
	}
	const join = 0x10
	code := func(key, otherKey uint64, random, otherRandom uint32) []byte {
		h := hmac.New(sha256.New, be.AppendUint64(be.AppendUint64(nil, key), otherKey))
		h.Write(be.AppendUint32(be.AppendUint32(nil, random), otherRandom))
		return h.Sum(nil)
	}
	switch kind {
	case sim.PacketSYN:
		token, _ := keyDigest(serverKey)
		return be.AppendUint32(be.AppendUint32(append(b, 30, 12, join, byte(i)), token), clientRandom)
	case sim.PacketSYNACK:
		b = append(append(b, 30, 16, join, byte(i)), code(serverKey, clientKey, serverRandom, clientRandom)[:8]...)
		return be.AppendUint32(b, serverRandom)
	default:
		return append(append(b, 30, 24, join, 0), code(clientKey, serverKey, clientRandom, serverRandom)[:20]...)
	}
}

// data records a segment.
func (r *recorder) data(s sim.Packet) {
	p := &r.paths[s.Path]
	options := timestamps(nil, stamp(s.Timestamp), p.echo)
	seq := p.offsets[s.Segment-1]
	if r.mptcp {
		_, mine := keyDigest(serverKey)
		_, others := keyDigest(clientKey)
		be := binary.BigEndian
		options = append(options, 30, 26, 0x20, 0x0f)
		options = be.AppendUint64(be.AppendUint64(options, others+1), mine+1+s.Data)
		options = be.AppendUint16(be.AppendUint32(options, seq), uint16(s.Length))
		options = append(options, 1, 1)
	}
	r.write(s.At, p, false, seq, 1, flagACK|flagPSH, 65535, options, s.Length)
}

// ack records an acknowledgement, with as many SACK blocks as fit into the TCP options.
func (r *recorder) ack(s sim.Packet) {
	p := &r.paths[s.Path]
	be := binary.BigEndian
	now := stamp(s.At)
	p.echo = now
	options := timestamps(nil, now, stamp(s.Timestamp))
	if r.mptcp {
		_, idsn := keyDigest(serverKey)
		options = be.AppendUint64(append(options, 30, 12, 0x20, 0x03), idsn+1+s.Data)
	}
	if n := min(len(s.SACK), (40-len(options)-4)/8); n > 0 {
		options = append(options, 1, 1, 5, byte(2+8*n))
		for _, b := range s.SACK[:n] {
			options = be.AppendUint32(be.AppendUint32(options, p.offsets[b[0]-1]), p.offsets[b[1]-1])
		}
	}
	window := uint16(65535)
	if s.Window != sim.Unlimited {
		window = uint16(min(uint64(s.Window)>>r.scale, 65535))
	}
	r.write(s.At, p, true, 1, p.offsets[s.Segment-1], flagACK, window, options, 0)
}

// write writes the headers of a packet. payload is the length of the payload, which is all zeros
// for the checksum and is not captured.
func (r *recorder) write(at time.Duration, p *recordedPath, fromClient bool, seq, ack uint32, flags byte, window uint16, options []byte, payload int) {
	if r.err != nil {
		return
	}
	be := binary.BigEndian
	from, to := p.server, p.client
	macs := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if fromClient {
		from, to = to, from
		macs = []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	}
	length := 20 + len(options)
	b := append(r.frame[:0], macs...)
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
	b = be.AppendUint16(b, uint16(length+payload))
	b = append(b, 6, 64)
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	tcp := len(b)
	b = be.AppendUint16(be.AppendUint16(b, from.Port()), to.Port())
	b = be.AppendUint32(be.AppendUint32(b, seq), ack)
	b = append(b, byte(length/4)<<4, flags)
	b = be.AppendUint16(b, window)
	b = append(b, 0, 0, 0, 0)
	b = append(b, options...)
	sum := checksum.Pseudo(b[tcp-40:], 6, length+payload)
	be.PutUint16(b[tcp+16:], ^checksum.Fold(checksum.Sum(b[tcp:], sum)))
	r.frame = b
	r.err = r.w.Write(pcap.Packet{At: recordingStart.Add(at).UnixNano(), Data: b, Length: len(b) + payload})
}

// close flushes the buffer and returns the first error of writing.
func (r *recorder) close() error {
	if err := cmp.Or(r.err, r.out.Flush()); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}
