// Package header decodes and encodes the PROXY protocol, versions 1 and 2: the line or block at the
// beginning of a connection with which a proxy reports the address of its client
// (https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt).
//
// It does not decide who may be believed. TLVs of version 2 are skipped.
package header

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Version is a version of the protocol.
type Version uint8

// The versions.
const (
	V1 Version = 1
	V2 Version = 2
)

const (
	// MaxLength is the longest header in bytes: version 2 permits 64 kB, of which addresses take at
	// most 232, and TLVs some hundred.
	MaxLength = 4 << 10
	// maxLine is the longest line of version 1, with its end.
	maxLine = 107
)

// ErrShort means that the bytes are the beginning of a header.
var ErrShort = errors.New("PROXY header is not complete")

// Header is a decoded header. Both addresses are invalid if the proxy speaks for itself (LOCAL), or
// does not know them (UNKNOWN, UNSPEC, AF_UNIX).
type Header struct{ Source, Destination netip.AddrPort }

// prefix1 and prefix2 begin headers of the versions.
const (
	prefix1 = "PROXY "
	prefix2 = "\r\n\r\n\x00\r\nQUIT\n"
)

// The fixed part of version 2, and its values.
const (
	fixed       = 16
	version2    = 0x20
	local       = 0
	proxied     = 1
	familyIPv4  = 0x10
	familyIPv6  = 0x20
	stream      = 0x01
	blockIPv4   = 12
	blockIPv6   = 36
	versionBits = 0xf0
)

// Decode decodes a header of n bytes of either version. ErrShort requests more bytes.
func Decode(b []byte) (h Header, n int, err error) {
	switch {
	case startsWith(b, prefix1):
		return decode1(b)
	case startsWith(b, prefix2):
		return decode2(b)
	}
	return h, 0, errors.New("decode PROXY header: it begins like neither version")
}

// startsWith reports whether b and the prefix are equal as far as both reach.
func startsWith(b []byte, prefix string) bool {
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n]
}

func decode1(b []byte) (h Header, n int, err error) {
	line, _, ok := bytes.Cut(b[:min(len(b), maxLine)], []byte("\r\n"))
	if !ok {
		if len(b) >= maxLine {
			return h, 0, fmt.Errorf("decode PROXY header: version 1 has no end of line within %d bytes", maxLine)
		}
		return h, 0, ErrShort
	}
	n = len(line) + len("\r\n")
	f := strings.Split(string(line[len(prefix1):]), " ")
	if f[0] == "UNKNOWN" {
		return h, n, nil
	}
	if len(f) != 5 || f[0] != "TCP4" && f[0] != "TCP6" {
		return h, 0, fmt.Errorf("decode PROXY header: version 1 %q is neither TCP4, TCP6 nor UNKNOWN with addresses and ports", line)
	}
	source, err1 := parse1(f[1], f[3], f[0] == "TCP6")
	destination, err2 := parse1(f[2], f[4], f[0] == "TCP6")
	if err := errors.Join(err1, err2); err != nil {
		return h, 0, fmt.Errorf("decode PROXY header: version 1 %q: %w", line, err)
	}
	return Header{source, destination}, n, nil
}

func parse1(address, port string, six bool) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(address)
	if err != nil || a.Is6() != six || a.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("address %q is not of its family", address)
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil || len(port) > 1 && port[0] == '0' {
		return netip.AddrPort{}, fmt.Errorf("port %q is not a number up to 65535", port)
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}

func decode2(b []byte) (h Header, n int, err error) {
	if len(b) < fixed {
		return h, 0, ErrShort
	}
	command, family := b[12], b[13]
	length := int(binary.BigEndian.Uint16(b[14:]))
	n = fixed + length
	switch {
	case command&versionBits != version2:
		return h, 0, fmt.Errorf("decode PROXY header: version is %d", command>>4)
	case n > MaxLength:
		return h, 0, fmt.Errorf("decode PROXY header: it has %d bytes, more than %d", n, MaxLength)
	case len(b) < n:
		return h, 0, ErrShort
	}
	switch command &^ versionBits {
	case local:
		return h, n, nil
	case proxied:
	default:
		return h, 0, fmt.Errorf("decode PROXY header: command is %d", command&^versionBits)
	}
	block := b[fixed:n]
	switch family {
	case familyIPv4 | stream:
		if length < blockIPv4 {
			return h, 0, fmt.Errorf("decode PROXY header: %d bytes are too few for IPv4", length)
		}
		return Header{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte(block)), binary.BigEndian.Uint16(block[8:])),
			netip.AddrPortFrom(netip.AddrFrom4([4]byte(block[4:])), binary.BigEndian.Uint16(block[10:])),
		}, n, nil
	case familyIPv6 | stream:
		if length < blockIPv6 {
			return h, 0, fmt.Errorf("decode PROXY header: %d bytes are too few for IPv6", length)
		}
		return Header{
			netip.AddrPortFrom(netip.AddrFrom16([16]byte(block)), binary.BigEndian.Uint16(block[32:])),
			netip.AddrPortFrom(netip.AddrFrom16([16]byte(block[16:])), binary.BigEndian.Uint16(block[34:])),
		}, n, nil
	}
	return h, n, nil
}

// Append appends the header in a version. Addresses of different families are both written as IPv6.
func (h Header) Append(b []byte, v Version) []byte {
	source, destination := unmap(h.Source), unmap(h.Destination)
	known := source.IsValid() && destination.IsValid()
	six := source.Addr().Is6() || destination.Addr().Is6()
	if v == V1 {
		if !known {
			return append(b, "PROXY UNKNOWN\r\n"...)
		}
		name, one, two := "TCP4", source.Addr(), destination.Addr()
		if six {
			name, one, two = "TCP6", netip.AddrFrom16(one.As16()), netip.AddrFrom16(two.As16())
		}
		return fmt.Appendf(b, "PROXY %s %s %s %d %d\r\n", name, one, two, source.Port(), destination.Port())
	}
	b = append(b, prefix2...)
	switch {
	case !known:
		return append(b, version2|local, 0, 0, 0)
	case six:
		b = append(b, version2|proxied, familyIPv6|stream, 0, blockIPv6)
		one, two := source.Addr().As16(), destination.Addr().As16()
		b = append(append(b, one[:]...), two[:]...)
	default:
		b = append(b, version2|proxied, familyIPv4|stream, 0, blockIPv4)
		one, two := source.Addr().As4(), destination.Addr().As4()
		b = append(append(b, one[:]...), two[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, source.Port())
	return binary.BigEndian.AppendUint16(b, destination.Port())
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
