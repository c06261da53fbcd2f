package bgp

import (
	"fmt"
	"strings"
)

// Notification is the content of a NOTIFICATION message (RFC 4271 section 4.5).
type Notification struct {
	Code, Subcode uint8
	// Communication is the neighbor's free text in a shutdown or reset (RFC 9003). It is
	// untrusted: String quotes it.
	Communication string
}

// Error codes and subcodes that are referred to by name.
const (
	openError        = 2
	badPeerAS        = 2 // of openError
	holdTimerExpired = 4
	stateError       = 5 // a message that the state of the session does not permit
)

// notificationError is an error code and its subcodes.
type notificationError struct {
	name     string
	subcodes map[uint8]string
}

// notificationErrors has the error names by code, from RFC 4271 section 4.5 and from later RFCs as
// registered by IANA.
var notificationErrors = map[uint8]notificationError{
	1: {"Message Header Error", map[uint8]string{
		1: "Connection Not Synchronized", 2: "Bad Message Length", 3: "Bad Message Type",
	}},
	openError: {"OPEN Message Error", map[uint8]string{
		1: "Unsupported Version Number", badPeerAS: "Bad Peer AS", 3: "Bad BGP Identifier",
		4: "Unsupported Optional Parameter", 6: "Unacceptable Hold Time",
		7:  "Unsupported Capability", // RFC 5492
		11: "Role Mismatch",          // RFC 9234
	}},
	3: {"UPDATE Message Error", map[uint8]string{
		1: "Malformed Attribute List", 2: "Unrecognized Well-known Attribute", 3: "Missing Well-known Attribute",
		4: "Attribute Flags Error", 5: "Attribute Length Error", 6: "Invalid ORIGIN Attribute",
		8: "Invalid NEXT_HOP Attribute", 9: "Optional Attribute Error", 10: "Invalid Network Field",
		11: "Malformed AS_PATH",
	}},
	holdTimerExpired: {"Hold Timer Expired", nil},
	stateError: {"Finite State Machine Error", map[uint8]string{ // RFC 6608
		1: "Receive Unexpected Message in OpenSent State", 2: "Receive Unexpected Message in OpenConfirm State",
		3: "Receive Unexpected Message in Established State",
	}},
	6: {"Cease", map[uint8]string{ // RFC 4486
		1: "Maximum Number of Prefixes Reached", 2: "Administrative Shutdown", 3: "Peer De-configured",
		4: "Administrative Reset", 5: "Connection Rejected", 6: "Other Configuration Change",
		7: "Connection Collision Resolution", 8: "Out of Resources",
		9:  "Hard Reset", // RFC 8538
		10: "BFD Down",   // RFC 9384
	}},
	7: {"ROUTE-REFRESH Message Error", map[uint8]string{1: "Invalid Message Length"}}, // RFC 7313
	8: {"Send Hold Timer Expired", nil},                                               // RFC 9687
}

// text is String, or empty for no message at all.
func (n Notification) text() string {
	if n.Code == 0 {
		return ""
	}
	return n.String()
}

// String returns the error in words with its numbers: `Cease/Administrative Shutdown (6/2):
// "maintenance"`.
func (n Notification) String() string {
	var b strings.Builder
	e, known := notificationErrors[n.Code]
	if !known {
		e.name = "unknown error"
	}
	b.WriteString(e.name)
	switch sub, known := e.subcodes[n.Subcode]; {
	case known:
		b.WriteString("/" + sub)
	case n.Subcode != 0:
		b.WriteString("/unknown subcode")
	}
	fmt.Fprintf(&b, " (%d/%d)", n.Code, n.Subcode)
	if n.Communication != "" {
		fmt.Fprintf(&b, ": %q", n.Communication)
	}
	return b.String()
}
