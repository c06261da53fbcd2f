// Package request decodes what clients of a proxy ask for, SOCKS5 (RFC 1928) or HTTP CONNECT (RFC
// 9110 section 9.3.6), and encodes the answers.
//
// It opens no connections and decides nothing about destinations. Clients without authentication
// only.
package request

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// MaxLength is the longest request in bytes, greeting and header fields included: a client that
// sends more without an end is refused.
const MaxLength = 8 << 10

// ErrShort means that the bytes are the beginning of a request.
var ErrShort = errors.New("request is not complete")

// Protocol is the protocol of a request.
type Protocol uint8

// The protocols.
const (
	None Protocol = iota
	SOCKS5
	CONNECT
)

func (p Protocol) String() string {
	switch p {
	case SOCKS5:
		return "SOCKS5"
	case CONNECT:
		return "CONNECT"
	default:
		return "none"
	}
}

// Destination is where a client wants to be connected: an address, or a name if that is invalid.
type Destination struct {
	Address netip.Addr
	Name    string
	Port    uint16
}

func (d Destination) String() string {
	if d.Address.IsValid() {
		return netip.AddrPortFrom(d.Address, d.Port).String()
	}
	return d.Name + ":" + strconv.Itoa(int(d.Port))
}

// Failure is why a client is not connected.
type Failure uint8

// The failures.
const (
	// General is any other.
	General Failure = iota
	// Denied: the destination is not allowed.
	Denied
	// NetworkUnreachable and HostUnreachable: there is no route, or no such name or host.
	NetworkUnreachable
	HostUnreachable
	// Refused: the destination has answered with a reset.
	Refused
	// TimedOut: the destination has not answered.
	TimedOut
	// BadCommand: the request asks for something else than a connection.
	BadCommand
	// BadAddress: the type of the address is unknown.
	BadAddress
	// Malformed: the request is not one.
	Malformed
)

// Error is the fault of a request.
type Error struct {
	Protocol Protocol
	Failure  Failure
	Reason   string
}

func (e *Error) Error() string { return "decode " + e.Protocol.String() + " request: " + e.Reason }

func malformed(p Protocol, format string, a ...any) error {
	return &Error{p, Malformed, fmt.Sprintf(format, a...)}
}

// DetectProtocol returns the protocol by the first byte of what a client sends.
func DetectProtocol(first byte) (Protocol, error) {
	switch {
	case first == socksVersion:
		return SOCKS5, nil
	case first >= 'A' && first <= 'Z':
		return CONNECT, nil
	}
	return None, malformed(None, "first byte %#02x is neither of SOCKS5 nor of HTTP", first)
}

// destination makes a Destination of a host, which may be an address as text, and a port.
func destination(p Protocol, host string, port uint16) (Destination, error) {
	if port == 0 {
		return Destination{}, malformed(p, "port is 0")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return Destination{}, malformed(p, "address %q has a zone", host)
		}
		return Destination{Address: a.Unmap(), Port: port}, nil
	}
	if !ValidName(host) {
		return Destination{}, malformed(p, "%q is not the name of a host", clip(host))
	}
	return Destination{Name: host, Port: port}, nil
}

// maxName is the longest name of a host in bytes (RFC 1035 section 2.3.4, without the root).
const maxName = 253

// ValidName reports whether text can be the name of a host: labels of letters, digits, hyphens and
// underscores.
func ValidName(text string) bool {
	if text == "" || len(text) > maxName {
		return false
	}
	label := 0
	for i := range len(text) {
		c := text[i]
		switch {
		case c == '.' && label > 0:
			label = 0
		case c == '-', c == '_', c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			if label++; label > 63 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// clip shortens text of a client for an error.
func clip(text string) string {
	const maxShown = 64
	if len(text) > maxShown {
		return text[:maxShown] + "..."
	}
	return text
}
