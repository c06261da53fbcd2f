// Package message encodes and decodes BGP messages (RFC 4271): OPEN with capabilities, UPDATE of
// four address families, NOTIFICATION, KEEPALIVE and ROUTE-REFRESH. Malformed UPDATEs are handled
// as RFC 7606 requires.
//
// It opens no sockets, has no timers and keeps no tables of routes; the only state is the sharing
// of equal path attributes by Interner.
package message

import (
	"encoding/binary"
	"fmt"
)

// Type is the type of a message (RFC 4271 section 4.1).
type Type uint8

const (
	TypeOpen         Type = 1
	TypeUpdate       Type = 2
	TypeNotification Type = 3
	TypeKeepalive    Type = 4
	TypeRouteRefresh Type = 5 // RFC 2918
)

func (t Type) String() string {
	switch t {
	case TypeOpen:
		return "OPEN"
	case TypeUpdate:
		return "UPDATE"
	case TypeNotification:
		return "NOTIFICATION"
	case TypeKeepalive:
		return "KEEPALIVE"
	case TypeRouteRefresh:
		return "ROUTE-REFRESH"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Lengths of messages, in bytes.
const (
	HeaderLen   = 19
	MaxLen      = 4096
	MaxExtended = 65535 // with the extended message capability (RFC 8654)

	markerLen = 16
)

// minLen is the length of the shortest message of each type, including the header.
var minLen = [...]int{
	TypeOpen: 29, TypeUpdate: 23, TypeNotification: 21, TypeKeepalive: HeaderLen, TypeRouteRefresh: 23,
}

// Error is why a message is refused: the NOTIFICATION to send before the session is closed (RFC
// 4271 section 6).
type Error struct {
	Notification
	Detail string // what is wrong, for logs
}

func (e *Error) Error() string { return e.Notification.String() + ": " + e.Detail }

func refuse(code, subcode uint8, data []byte, format string, args ...any) *Error {
	return &Error{Notification{code, subcode, data}, fmt.Sprintf(format, args...)}
}

// ParseHeader decodes the first HeaderLen bytes of a message. length includes the header; it is at
// most limit, which is MaxLen or, if negotiated, MaxExtended. The error is an *Error.
func ParseHeader(b []byte, limit int) (t Type, length int, err error) {
	for _, m := range b[:markerLen] {
		if m != 0xff {
			return 0, 0, refuse(CodeHeader, SubcodeNotSynchronized, nil, "the marker is not all ones")
		}
	}
	t, length = Type(b[18]), int(binary.BigEndian.Uint16(b[16:]))
	if t < TypeOpen || t > TypeRouteRefresh {
		return 0, 0, refuse(CodeHeader, SubcodeBadType, []byte{b[18]}, "message of unknown %s", t)
	}
	if t == TypeOpen || t == TypeKeepalive {
		limit = min(limit, MaxLen) // RFC 8654 section 4
	}
	if length < minLen[t] || length > limit || t == TypeKeepalive && length != HeaderLen {
		return 0, 0, refuse(CodeHeader, SubcodeBadLength, []byte{b[16], b[17]}, "%s of %d bytes", t, length)
	}
	return t, length, nil
}

// AppendKeepalive appends a KEEPALIVE.
func AppendKeepalive(b []byte) []byte { return finish(begin(b, TypeKeepalive), len(b)) }

// begin appends a header without its length, which finish fills in. start is the length of b
// before begin.
func begin(b []byte, t Type) []byte {
	return append(b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0, 0, byte(t))
}

func finish(b []byte, start int) []byte {
	binary.BigEndian.PutUint16(b[start+markerLen:], uint16(len(b)-start))
	return b
}
