package capture

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

const ms = time.Millisecond

// MPTCP options in wire format.

func option(subtype, low byte, rest ...byte) []byte {
	return append([]byte{optionMPTCP, byte(3 + len(rest)), subtype<<4 | low}, rest...)
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// capableOption returns MP_CAPABLE with these keys.
func capableOption(version byte, keys ...uint64) []byte {
	rest := []byte{0x01}
	for _, k := range keys {
		rest = append(rest, be64(k)...)
	}
	return option(subCapable, version, rest...)
}

// joinOption returns MP_JOIN of a SYN.
func joinOption(token uint32, backup bool) []byte {
	low := byte(0)
	if backup {
		low = 1
	}
	return option(subJoin, low, slices.Concat([]byte{7}, be32(token), be32(0x01020304))...)
}

// signalOption is DSS.
type signalOption struct {
	ack, dsn        uint64
	hasAck, hasMap  bool
	short, checksum bool
	subflow         uint32
	length, sum     uint16
	fin             bool
}

func (s signalOption) bytes() []byte {
	number := func(v uint64) []byte {
		if s.short {
			return be32(uint32(v))
		}
		return be64(v)
	}
	var flags byte
	var rest []byte
	if s.hasAck {
		flags |= 1
		rest = append(rest, number(s.ack)...)
		if !s.short {
			flags |= 2
		}
	}
	if s.hasMap {
		flags |= 4
		if !s.short {
			flags |= 8
		}
		rest = slices.Concat(rest, number(s.dsn), be32(s.subflow), be16(s.length))
		if s.checksum {
			rest = append(rest, be16(s.sum)...)
		}
	}
	if s.fin {
		flags |= 16
	}
	return option(subDSS, 0, append([]byte{flags}, rest...)...)
}

// scene is a captured connection between two hosts with MPTCP.
type scene struct {
	version         int
	key             [2]uint64 // the client's and the server's
	short, checksum bool
	a               *Analysis
	subflows        []*sceneSubflow
}

type sceneSubflow struct {
	flow pcap.Flow // from the client
	isn  [2]uint32
}

func newScene(version int, o Options) *scene {
	return &scene{version: version, key: [2]uint64{0x1122334455667788, 0xffeeddccbbaa0099}, a: New(o)}
}

// idsn returns the initial data sequence number of a side; 0 is the client.
func (s *scene) idsn(side int) uint64 {
	_, idsn := digest(s.version, s.key[side])
	return idsn
}

func (s *scene) token(side int) uint32 {
	token, _ := digest(s.version, s.key[side])
	return token
}

// add adds a subflow without packets.
func (s *scene) add() int {
	i := len(s.subflows)
	client, server := netip.MustParseAddr("10.0.0.1").As16(), netip.MustParseAddr("10.0.0.2").As16()
	client[14] = byte(i) // connections are matched by 4-byte numbers only with a common address
	s.subflows = append(s.subflows, &sceneSubflow{
		flow: pcap.Flow{Source: client, Destination: server, SourcePort: uint16(40000 + i), DestinationPort: 80},
		isn:  [2]uint32{0xfffffff0 + uint32(i)*77, 1000 * uint32(i)}, // the client's wraps
	})
	return i
}

// packet adds a segment of one side of a subflow; seq is relative to the initial sequence number.
func (s *scene) packet(at time.Duration, subflow, side int, flags uint8, seq, ack uint32, payload int, options ...[]byte) {
	f := s.subflows[subflow]
	g := &pcap.Segment{
		At: int64(at) + 1e18, Flow: f.flow, Flags: flags, Seq: f.isn[side] + seq, Payload: payload, Options: slices.Concat(options...), HopLimit: 60, Window: 500,
	}
	if side == 1 {
		g.Flow = f.flow.Reverse()
	}
	if flags&pcap.ACK != 0 {
		g.Ack = f.isn[1-side] + ack
	}
	s.a.Add(g)
}

// open adds the first subflow with its handshake.
func (s *scene) open(at time.Duration) int {
	i := s.add()
	v := byte(s.version)
	if s.version == 0 {
		s.packet(at, i, 0, pcap.SYN, 0, 0, 0, capableOption(v, s.key[0]))
	} else {
		s.packet(at, i, 0, pcap.SYN, 0, 0, 0, capableOption(v))
	}
	s.packet(at+1*ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0, capableOption(v, s.key[1]))
	s.packet(at+1*ms, i, 0, pcap.ACK, 1, 1, 0, capableOption(v, s.key[0], s.key[1]))
	return i
}

// join adds a further subflow with its handshake.
func (s *scene) join(at time.Duration) int {
	i := s.add()
	s.packet(at, i, 0, pcap.SYN, 0, 0, 0, joinOption(s.token(1), false))
	s.packet(at+1*ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0, option(subJoin, 0, make([]byte, 13)...))
	s.packet(at+1*ms, i, 0, pcap.ACK, 1, 1, 0, option(subJoin, 0, make([]byte, 21)...))
	return i
}

// data adds a segment from the server with a mapping: seq starts at 1 on the subflow, offset at 0
// in the data.
func (s *scene) data(at time.Duration, subflow int, seq uint32, payload int, m mapped) {
	var options []byte
	if m.length > 0 {
		options = signalOption{
			hasMap: true, dsn: s.idsn(1) + 1 + m.offset, subflow: m.start, length: m.length, fin: m.fin, short: s.short, checksum: s.checksum,
		}.bytes()
	}
	s.packet(at, subflow, 1, pcap.ACK, seq, 1, payload, options)
}

// ack adds a segment from the client that acknowledges ack on the subflow and offset in the data.
func (s *scene) ack(at time.Duration, subflow int, ack uint32, offset uint64) {
	s.packet(at, subflow, 0, pcap.ACK, 1, ack, 0, signalOption{hasAck: true, ack: s.idsn(1) + 1 + offset, short: s.short}.bytes())
}

// mapped is the mapping argument of scene.data.
type mapped struct {
	start  uint32
	offset uint64
	length uint16
	fin    bool
}

// arrival is the arrival of bytes of a subflow.
type arrival struct {
	at      time.Duration
	subflow int
	seq     uint64 // the first byte is 1
	length  int
}

// sent maps bytes of a subflow to bytes of the data.
type sent struct {
	subflow       int
	start, offset uint64
	length        int
}

// never is the release time of data that does not arrive.
const never = time.Duration(math.MaxInt64)

// naiveRelease returns when each byte of the data is released, by a reference model: a byte is in
// order on its subflow when all earlier bytes of that subflow have arrived, and released when the
// same holds for all earlier data.
func naiveRelease(arrivals []arrival, maps []sent, bytes int) []time.Duration {
	came := map[int][]time.Duration{} // arrival times by subflow; the first byte has index 0
	for _, a := range arrivals {
		for i := int(a.seq) - 1; i < int(a.seq)-1+a.length; i++ {
			for len(came[a.subflow]) <= i {
				came[a.subflow] = append(came[a.subflow], never)
			}
			came[a.subflow][i] = min(came[a.subflow][i], a.at)
		}
	}
	for _, c := range came {
		for i := 1; i < len(c); i++ {
			c[i] = max(c[i], c[i-1])
		}
	}
	release := make([]time.Duration, bytes)
	for i := range release {
		release[i] = never
	}
	for _, m := range maps {
		for i := range m.length {
			from, to := int(m.start)-1+i, int(m.offset)+i
			if from < len(came[m.subflow]) && to < bytes {
				release[to] = min(release[to], came[m.subflow][from])
			}
		}
	}
	for i := 1; i < bytes; i++ {
		release[i] = max(release[i], release[i-1])
	}
	return release
}
