package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// HeaderLen is the length of a Header in bytes, StampLen that of a Stamp, and TagLen that of
	// the authentication tag at the end.
	HeaderLen, StampLen, TagLen = 16, 12, 16
	// Offset is where a tunneled packet begins in a message, Overhead what the tunnel adds to it
	// under UDP. With UDP and IP it is 72 bytes over IPv4 and 92 over IPv6.
	Offset   = HeaderLen + StampLen
	Overhead = Offset + TagLen
	// MaxPaths is the number of paths between two gateways.
	MaxPaths = 16
)

// Type is the type of a message.
type Type uint8

const (
	// Compatible is a CompatibleProbe or CompatibleReply, in the clear.
	Compatible Type = iota
	// Initiation, Response and Cookie are messages of the handshake, in their own formats.
	Initiation
	Response
	Cookie
	// Data carries an IP packet, Control a control record. They begin with a Header and are sealed,
	// as Retransmission is.
	Data
	Control
	// OpenData carries an IP packet that is not sealed, for the open plane: bpf/gateway/open has
	// its header.
	OpenData
	// Retransmission carries the IP packet of a Data message that was lost, under a counter of its
	// own.
	Retransmission
	// Join is a request of package join. No gateway takes one.
	Join
)

func (t Type) String() string {
	switch t {
	case Compatible:
		return "compatible probe"
	case Initiation:
		return "initiation"
	case Response:
		return "response"
	case Cookie:
		return "cookie"
	case Data:
		return "data"
	case Control:
		return "control"
	case OpenData:
		return "open data"
	case Retransmission:
		return "retransmission"
	case Join:
		return "join"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Header is the part of a sealed message that is sent in clear: the type in one byte, the epoch in
// three, the receiver in four, and in eight the path (4 bits) and the counter (60 bits),
// big-endian. The last twelve bytes are the nonce.
type Header struct {
	Type Type
	Path uint8
	// Epoch is the low 24 bits of the number of the key.
	Epoch uint32
	// Receiver is the index that the receiver gave the session.
	Receiver uint32
	// Counter counts the messages of the path under this key, from 0 to MaxCounter-1. Never is one
	// used twice.
	Counter uint64
}

const (
	counterBits = 60
	// MaxCounter bounds the counters of a path under one key. It is out of reach: a key is replaced
	// after a time.
	MaxCounter = 1 << counterBits
	epochMask  = 1<<24 - 1
)

var errShort = errors.New("message is too short")

// ParseHeader parses the beginning of a sealed message.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < Overhead {
		return Header{}, errShort
	}
	first, last := binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[8:])
	h := Header{
		Type: Type(b[0]), Epoch: first & epochMask, Receiver: binary.BigEndian.Uint32(b[4:]),
		Path: uint8(last >> counterBits), Counter: last & (MaxCounter - 1),
	}
	if h.Type != Data && h.Type != Control && h.Type != Retransmission {
		return Header{}, fmt.Errorf("%v is not a sealed message", h.Type)
	}
	return h, nil
}

// put writes the header to the first HeaderLen bytes.
func (h Header) put(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(h.Type)<<24|h.Epoch&epochMask)
	binary.BigEndian.PutUint32(b[4:], h.Receiver)
	binary.BigEndian.PutUint64(b[8:], uint64(h.Path)<<counterBits|h.Counter)
}
