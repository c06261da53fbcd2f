package request

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
)

// DecodeConnect decodes a CONNECT request of n bytes, the empty line included (RFC 9112). Its
// header fields are not interpreted. What follows is data that the client sends before it has the
// answer.
func DecodeConnect(b []byte) (d Destination, n int, err error) {
	line, _, complete := bytes.Cut(b[:min(len(b), MaxLength)], []byte("\r\n"))
	if !complete {
		return d, 0, short(b, "has no end of its first line")
	}
	method, rest, ok := strings.Cut(string(line), " ")
	target, version, also := strings.Cut(rest, " ")
	if !ok || !also || !strings.HasPrefix(version, "HTTP/1.") || len(version) != len("HTTP/1.1") {
		return d, 0, malformed(CONNECT, "first line %q is not one of HTTP/1", clip(string(line)))
	}
	end := bytes.Index(b[:min(len(b), MaxLength)], []byte("\r\n\r\n"))
	if end < 0 {
		return d, 0, short(b, "has no end of its header")
	}
	n = end + len("\r\n\r\n")
	if method != "CONNECT" {
		return d, n, &Error{CONNECT, BadCommand, "method is " + strconv.Quote(clip(method)) + ", not CONNECT"}
	}
	host, port, err := splitTarget(target)
	if err != nil {
		return d, n, err
	}
	d, err = destination(CONNECT, host, port)
	return d, n, err
}

func short(b []byte, what string) error {
	if len(b) >= MaxLength {
		return malformed(CONNECT, "%s within %d bytes", what, MaxLength)
	}
	return ErrShort
}

// splitTarget splits the authority form of a request target (RFC 9112 section 3.2.3).
func splitTarget(target string) (host string, port uint16, err error) {
	host, text, ok := cutLast(target, ':')
	n, wrong := strconv.ParseUint(text, 10, 16)
	if !ok || wrong != nil {
		return "", 0, malformed(CONNECT, "target %q is not host and port", clip(target))
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if a, err := netip.ParseAddr(inner); !ok || err != nil || !a.Is6() {
			return "", 0, malformed(CONNECT, "target %q is not host and port", clip(target))
		}
		host = inner
	} else if strings.Contains(host, ":") {
		return "", 0, malformed(CONNECT, "target %q has an IPv6 address without brackets", clip(target))
	}
	return host, uint16(n), nil
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// httpStatus is the status line of each failure.
var httpStatus = map[Failure]string{
	General: "502 Bad Gateway", Denied: "403 Forbidden", NetworkUnreachable: "502 Bad Gateway", HostUnreachable: "502 Bad Gateway",
	Refused: "502 Bad Gateway", TimedOut: "504 Gateway Timeout", BadCommand: "405 Method Not Allowed", BadAddress: "400 Bad Request", Malformed: "400 Bad Request",
}

// Succeeded returns the answer to a client that is connected now; bound is the proxy's own address
// of the connection.
func (p Protocol) Succeeded(bound netip.AddrPort) []byte {
	switch p {
	case SOCKS5:
		return socksAnswer(0, bound)
	case CONNECT:
		return []byte("HTTP/1.1 200 Connection established\r\n\r\n")
	default:
		return nil
	}
}

// Failed returns the answer to a client that is not connected.
func (p Protocol) Failed(f Failure) []byte {
	switch p {
	case SOCKS5:
		return socksAnswer(socksCode[f], netip.AddrPort{})
	case CONNECT:
		allow := ""
		if f == BadCommand {
			allow = "Allow: CONNECT\r\n"
		}
		return []byte("HTTP/1.1 " + httpStatus[f] + "\r\n" + allow + "Content-Length: 0\r\nConnection: close\r\n\r\n")
	default:
		return nil
	}
}
