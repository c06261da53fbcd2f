package request

import (
	"encoding/binary"
	"net/netip"
)

// The values of SOCKS5 (RFC 1928).
const (
	socksVersion       = 5
	socksNoAuth        = 0
	socksNoMethod      = 0xff
	socksConnect       = 1
	socksIPv4          = 1
	socksName          = 3
	socksIPv6          = 4
	socksHeader        = 4 // VER, CMD, RSV, ATYP
	socksPort          = 2
	socksFailed        = 1
	socksDenied        = 2
	socksNetwork       = 3
	socksHost          = 4
	socksRefused       = 5
	socksExpired       = 6
	socksNoCommand     = 7
	socksNoAddressType = 8
)

// DecodeGreeting decodes the first message of a SOCKS5 client, of n bytes (RFC 1928 section 3). The
// answer goes to the client also if there is an error.
func DecodeGreeting(b []byte) (answer []byte, n int, err error) {
	if len(b) < 2 {
		return nil, 0, ErrShort
	}
	if b[0] != socksVersion {
		return nil, 0, malformed(SOCKS5, "version is %d", b[0])
	}
	n = 2 + int(b[1])
	if len(b) < n {
		return nil, 0, ErrShort
	}
	for _, method := range b[2:n] {
		if method == socksNoAuth {
			return []byte{socksVersion, socksNoAuth}, n, nil
		}
	}
	return []byte{socksVersion, socksNoMethod}, n, &Error{SOCKS5, Denied, "client offers no method without authentication"}
}

// DecodeSOCKS decodes the request of a SOCKS5 client, of n bytes (RFC 1928 section 4). What follows
// is data that the client sends before it has the answer.
func DecodeSOCKS(b []byte) (d Destination, n int, err error) {
	if len(b) < socksHeader+1 {
		return d, 0, ErrShort
	}
	if b[0] != socksVersion {
		return d, 0, malformed(SOCKS5, "version is %d", b[0])
	}
	var length int
	at := socksHeader
	switch b[3] {
	case socksIPv4:
		length = 4
	case socksIPv6:
		length = 16
	case socksName:
		length, at = int(b[socksHeader]), socksHeader+1
	default:
		return d, 0, &Error{SOCKS5, BadAddress, "address type is unknown"}
	}
	n = at + length + socksPort
	if len(b) < n {
		return d, 0, ErrShort
	}
	if b[1] != socksConnect {
		return d, n, &Error{SOCKS5, BadCommand, "command is not CONNECT"}
	}
	host, port := b[at:at+length], binary.BigEndian.Uint16(b[at+length:])
	if b[3] == socksName {
		d, err = destination(SOCKS5, string(host), port)
		return d, n, err
	}
	a, _ := netip.AddrFromSlice(host) // it has the length of an address
	if port == 0 {
		return d, n, malformed(SOCKS5, "port is 0")
	}
	return Destination{Address: a.Unmap(), Port: port}, n, nil
}

// socksCode is the REP field of each failure (RFC 1928 section 6).
var socksCode = map[Failure]byte{
	General: socksFailed, Denied: socksDenied, NetworkUnreachable: socksNetwork, HostUnreachable: socksHost,
	Refused: socksRefused, TimedOut: socksExpired, BadCommand: socksNoCommand, BadAddress: socksNoAddressType, Malformed: socksFailed,
}

// socksAnswer returns a reply with the address that the proxy has at the connection.
func socksAnswer(code byte, bound netip.AddrPort) []byte {
	a := bound.Addr().Unmap()
	if !a.IsValid() {
		a = netip.IPv4Unspecified()
	}
	kind := byte(socksIPv4)
	if a.Is6() {
		kind = socksIPv6
	}
	b := append([]byte{socksVersion, code, 0, kind}, a.AsSlice()...)
	return binary.BigEndian.AppendUint16(b, bound.Port())
}
