package bgp

import (
	"errors"
	"math"
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// Count is the number of routes that a neighbor advertises. Received is the sum of the others.
type Count struct {
	Received int `json:"received"`
	Accepted int `json:"accepted"`
	// Refused and Unused count the routes that are not accepted, by reason: unused ones are fine,
	// but of no use for this speaker.
	Refused map[RejectReason]int `json:"refused,omitempty"`
	Unused  map[RejectReason]int `json:"unused,omitempty"`
}

func (c *Count) add(d Count) {
	c.Received += d.Received
	c.Accepted += d.Accepted
	for reason, n := range d.Refused {
		c.reject(reason, n)
	}
	for reason, n := range d.Unused {
		c.reject(reason, n)
	}
}

func (c *Count) reject(reason RejectReason, n int) {
	m := &c.Refused
	if Unused(reason) {
		m = &c.Unused
	}
	if *m == nil {
		*m = map[RejectReason]int{}
	}
	(*m)[reason] += n
}

// count returns the number of routes of a family. Callers hold mu.
func (n *neighbor) count(f Family) (c Count) {
	if n.source == rib.Local {
		return c
	}
	c.Received, c.Accepted = n.speaker.rib.Received(f, n.source)
	for number, many := range n.speaker.rib.Rejected(f, n.source) {
		c.reject(n.speaker.reasons[number], many)
	}
	return c
}

// rejectPanic is the reason of a route at which the policy failed.
const rejectPanic RejectReason = "panic"

var errPanic = message.Reject(rejectPanic, "the import policy failed; see the log before")

// otherReason is that of routes for which there is no further number.
const otherReason RejectReason = "other"

// rejected returns the number of the reason of an error, which is logged once. Callers hold mu.
func (n *neighbor) rejected(k message.Key, err error) uint16 {
	reason := otherReason
	var why *RejectedError
	if errors.As(err, &why) {
		reason = why.Reason
	}
	number := slices.Index(n.speaker.reasons, reason)
	if number < 0 {
		if len(n.speaker.reasons) >= math.MaxUint16 { // rules have any name, and reloads change it
			number, reason = math.MaxUint16, otherReason
		} else {
			number = len(n.speaker.reasons)
		}
		n.speaker.reasons = append(n.speaker.reasons, reason)[:number+1]
	}
	if !n.reported[uint16(number)] {
		if n.reported == nil {
			n.reported = map[uint16]bool{}
		}
		n.reported[uint16(number)] = true
		verdict := "route refused"
		if Unused(reason) {
			verdict = "route unused"
		}
		n.speaker.log.Info(verdict+"; further ones for this reason are only counted", "neighbor", n.conf.Name, "route", k, "reason", err)
	}
	return uint16(number)
}

// NotAccepted returns the routes of all sessions that are not accepted, by reason.
func NotAccepted(sessions []SessionStatus) (refused, unused map[RejectReason]int) {
	sum := Count{Refused: map[RejectReason]int{}, Unused: map[RejectReason]int{}}
	for _, s := range sessions {
		sum.add(Count{Refused: s.Refused, Unused: s.Unused})
	}
	return sum.Refused, sum.Unused
}
