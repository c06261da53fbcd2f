package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// The lengths of compatible probes and replies, which are 60 and 64 bytes with the headers of IPv4
// and UDP (paper D, section 3.2 and Fig. 5). The fields of the figure are followed by zero bytes.
const (
	CompatibleProbeLen = 60 - 28
	CompatibleReplyLen = 64 - 28
)

// CompatibleProbe measures a path. Nothing authenticates it. Its first byte is 0, because paths
// have numbers below MaxPaths, so that it is no message of another Type.
type CompatibleProbe struct {
	Path, Number uint16
	// Sent is the time of the sender's clock in microseconds, modulo 2^32.
	Sent uint32
	// Agent is the address of the sender, the home agent, Member that of the receiver, an alliance
	// member. They are 0.0.0.0 where the path has IPv6.
	Agent, Member netip.Addr
}

// CompatibleReply answers a CompatibleProbe. Path, Number, Sent and Member are the probe's.
type CompatibleReply struct {
	Path, Number uint16
	Sent         uint32
	Member       netip.Addr
	// Held is the time from the arrival of the probe to the reply, Jitter that of the probes at the
	// receiver (RFC 3550; paper D, equation 6), both in microseconds.
	Held, Jitter uint32
}

// Append appends the payload of the probe.
func (p CompatibleProbe) Append(b []byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, p.Path)
	b = binary.BigEndian.AppendUint16(b, p.Number)
	b = binary.BigEndian.AppendUint32(b, p.Sent)
	b = appendIPv4(b, p.Agent)
	b = appendIPv4(b, p.Member)
	return append(b, make([]byte, CompatibleProbeLen-(len(b)-at))...)
}

// Append appends the payload of the reply.
func (r CompatibleReply) Append(b []byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, r.Path)
	b = binary.BigEndian.AppendUint16(b, r.Number)
	b = binary.BigEndian.AppendUint32(b, r.Sent)
	b = appendIPv4(b, r.Member)
	b = binary.BigEndian.AppendUint32(b, r.Held)
	b = binary.BigEndian.AppendUint32(b, r.Jitter)
	return append(b, make([]byte, CompatibleReplyLen-(len(b)-at))...)
}

func appendIPv4(b []byte, a netip.Addr) []byte {
	if a = a.Unmap(); !a.Is4() {
		a = netip.IPv4Unspecified()
	}
	return append(b, a.AsSlice()...)
}

var errPadding = errors.New("padding of a compatible probe must be zero")

// ParseCompatibleProbe parses the payload of a probe.
func ParseCompatibleProbe(b []byte) (p CompatibleProbe, err error) {
	if p.Path, p.Number, p.Sent, err = parseCompatible(b, CompatibleProbeLen, 16); err != nil {
		return CompatibleProbe{}, err
	}
	p.Agent, p.Member = netip.AddrFrom4([4]byte(b[8:])), netip.AddrFrom4([4]byte(b[12:]))
	return p, nil
}

// ParseCompatibleReply parses the payload of a reply.
func ParseCompatibleReply(b []byte) (r CompatibleReply, err error) {
	if r.Path, r.Number, r.Sent, err = parseCompatible(b, CompatibleReplyLen, 20); err != nil {
		return CompatibleReply{}, err
	}
	r.Member = netip.AddrFrom4([4]byte(b[8:]))
	r.Held, r.Jitter = binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:])
	return r, nil
}

// parseCompatible checks the length and the padding from an offset on, and returns the first
// fields.
func parseCompatible(b []byte, length, padding int) (path, number uint16, sent uint32, err error) {
	if len(b) != length {
		return 0, 0, 0, fmt.Errorf("compatible probe must have %d bytes, got %d", length, len(b))
	}
	if path = binary.BigEndian.Uint16(b); path >= MaxPaths {
		return 0, 0, 0, fmt.Errorf("path must be 0 to %d, got %d", MaxPaths-1, path)
	}
	for _, c := range b[padding:] {
		if c != 0 {
			return 0, 0, 0, errPadding
		}
	}
	return path, binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]), nil
}
