package message

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error codes (RFC 4271 section 4.5).
const (
	CodeHeader        = 1
	CodeOpen          = 2
	CodeUpdate        = 3
	CodeHoldTimer     = 4
	CodeFSM           = 5
	CodeCease         = 6
	CodeRouteRefresh  = 7 // RFC 7313
	CodeSendHoldTimer = 8 // RFC 9687
)

// Subcodes of CodeHeader.
const (
	SubcodeNotSynchronized = 1
	SubcodeBadLength       = 2
	SubcodeBadType         = 3
)

// Subcodes of CodeOpen.
const (
	SubcodeUnsupportedVersion   = 1
	SubcodeBadPeerAS            = 2
	SubcodeBadIdentifier        = 3
	SubcodeUnsupportedParameter = 4
	SubcodeHoldTime             = 6
	SubcodeCapability           = 7  // RFC 5492
	SubcodeRoleMismatch         = 11 // RFC 9234
)

// Subcodes of CodeUpdate.
const (
	SubcodeAttributeList     = 1
	SubcodeUnknownWellKnown  = 2
	SubcodeOptionalAttribute = 9
	SubcodeInvalidNetwork    = 10
)

// Subcodes of CodeFSM (RFC 6608).
const (
	SubcodeInOpenSent    = 1
	SubcodeInOpenConfirm = 2
	SubcodeInEstablished = 3
)

// Subcodes of CodeCease (RFC 4486).
const (
	SubcodeMaxPrefixes     = 1
	SubcodeShutdown        = 2
	SubcodeDeconfigured    = 3
	SubcodeReset           = 4
	SubcodeRejected        = 5
	SubcodeConfigChange    = 6
	SubcodeCollision       = 7
	SubcodeOutOfResources  = 8
	SubcodeHardReset       = 9  // RFC 8538
	SubcodeBFDDown         = 10 // RFC 9384
	maxCommunication       = 255
	subcodeRefreshBadWidth = 1 // of CodeRouteRefresh
)

// Notification is the content of a NOTIFICATION message (RFC 4271 section 4.5).
type Notification struct {
	Code, Subcode uint8
	Data          []byte
}

// Shutdown is the NOTIFICATION of an administrative shutdown or reset with a text for the
// operator of the neighbor (RFC 9003), which is cut at 255 bytes of UTF-8.
func Shutdown(subcode uint8, text string) Notification {
	n := Notification{Code: CodeCease, Subcode: subcode}
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) > maxCommunication {
		cut := maxCommunication
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	if text != "" {
		n.Data = append([]byte{byte(len(text))}, text...)
	}
	return n
}

// ParseNotification decodes the body of a NOTIFICATION, of at least two bytes. The data is a copy.
func ParseNotification(body []byte) Notification {
	n := Notification{Code: body[0], Subcode: body[1]}
	if len(body) > 2 {
		n.Data = append(n.Data, body[2:]...)
	}
	return n
}

// Append appends the message. Data that exceeds MaxLen is cut.
func (n Notification) Append(b []byte) []byte {
	start := len(b)
	b = append(begin(b, TypeNotification), n.Code, n.Subcode)
	return finish(append(b, n.Data[:min(len(n.Data), MaxLen-len(b)+start)]...), start)
}

// Communication returns the neighbor's text in a shutdown or reset (RFC 9003). It is untrusted,
// but valid UTF-8. It is empty for other messages and if the data is malformed.
func (n Notification) Communication() string {
	if n.Code != CodeCease || n.Subcode != SubcodeShutdown && n.Subcode != SubcodeReset || len(n.Data) == 0 {
		return ""
	}
	size := int(n.Data[0])
	if size >= len(n.Data) {
		return ""
	}
	return strings.ToValidUTF8(string(n.Data[1:1+size]), "\uFFFD")
}

// String returns the name of the error with its numbers, and the text of a shutdown or reset:
// `Cease/Administrative Shutdown (6/2): "maintenance"`.
func (n Notification) String() string {
	s := ErrorName(n.Code, n.Subcode)
	if text := n.Communication(); text != "" {
		s += fmt.Sprintf(": %q", text)
	}
	return s
}

// notificationErrors has the error names by code, from RFC 4271 section 4.5 and from later RFCs as
// registered by IANA.
var notificationErrors = map[uint8]struct {
	name     string
	subcodes map[uint8]string
}{
	CodeHeader: {"Message Header Error", map[uint8]string{
		SubcodeNotSynchronized: "Connection Not Synchronized", SubcodeBadLength: "Bad Message Length", SubcodeBadType: "Bad Message Type",
	}},
	CodeOpen: {"OPEN Message Error", map[uint8]string{
		SubcodeUnsupportedVersion: "Unsupported Version Number", SubcodeBadPeerAS: "Bad Peer AS",
		SubcodeBadIdentifier: "Bad BGP Identifier", SubcodeUnsupportedParameter: "Unsupported Optional Parameter",
		SubcodeHoldTime: "Unacceptable Hold Time", SubcodeCapability: "Unsupported Capability",
		SubcodeRoleMismatch: "Role Mismatch",
	}},
	CodeUpdate: {"UPDATE Message Error", map[uint8]string{
		SubcodeAttributeList: "Malformed Attribute List", SubcodeUnknownWellKnown: "Unrecognized Well-known Attribute",
		3: "Missing Well-known Attribute", 4: "Attribute Flags Error", 5: "Attribute Length Error", 6: "Invalid ORIGIN Attribute",
		8: "Invalid NEXT_HOP Attribute", SubcodeOptionalAttribute: "Optional Attribute Error",
		SubcodeInvalidNetwork: "Invalid Network Field", 11: "Malformed AS_PATH",
	}},
	CodeHoldTimer: {"Hold Timer Expired", nil},
	CodeFSM: {"Finite State Machine Error", map[uint8]string{
		SubcodeInOpenSent:    "Receive Unexpected Message in OpenSent State",
		SubcodeInOpenConfirm: "Receive Unexpected Message in OpenConfirm State",
		SubcodeInEstablished: "Receive Unexpected Message in Established State",
	}},
	CodeCease: {"Cease", map[uint8]string{
		SubcodeMaxPrefixes: "Maximum Number of Prefixes Reached", SubcodeShutdown: "Administrative Shutdown",
		SubcodeDeconfigured: "Peer De-configured", SubcodeReset: "Administrative Reset", SubcodeRejected: "Connection Rejected",
		SubcodeConfigChange: "Other Configuration Change", SubcodeCollision: "Connection Collision Resolution",
		SubcodeOutOfResources: "Out of Resources", SubcodeHardReset: "Hard Reset", SubcodeBFDDown: "BFD Down",
	}},
	CodeRouteRefresh:  {"ROUTE-REFRESH Message Error", map[uint8]string{subcodeRefreshBadWidth: "Invalid Message Length"}},
	CodeSendHoldTimer: {"Send Hold Timer Expired", nil},
}

// ErrorName returns the name of an error with its numbers: "Cease/Administrative Shutdown (6/2)".
func ErrorName(code, subcode uint8) string {
	e, known := notificationErrors[code]
	if !known {
		e.name = "unknown error"
	}
	name := e.name
	switch sub, known := e.subcodes[subcode]; {
	case known:
		name += "/" + sub
	case subcode != 0:
		name += "/unknown subcode"
	}
	return fmt.Sprintf("%s (%d/%d)", name, code, subcode)
}
