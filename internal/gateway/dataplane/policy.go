package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/gateway/sched"
)

// Policy is a list of rules; the first that matches a packet decides. The last rule of a checked
// configuration matches all packets.
type Policy []Rule

// Rule has the packets that match carried by a discipline.
type Rule struct {
	Match      Match
	Discipline Discipline
	Resequence Resequence
}

// Match selects packets. The zero value selects all.
type Match struct {
	// Protocols are IP protocol numbers; empty selects all. Both of ICMP are named icmp in files.
	Protocols []uint8
	// Port is the source or destination port of TCP, UDP, UDP-Lite, DCCP or SCTP; 0 selects all
	// packets, others only first fragments and whole packets.
	Port uint16
	// HasDSCP: only packets with this differentiated services code point (RFC 2474).
	HasDSCP bool
	DSCP    uint8
	// Prefix has the source or the destination; an invalid one selects all.
	Prefix netip.Prefix
	// Mark is that of the packet in the kernel, in the bits of MarkMask; 0 selects all.
	Mark, MarkMask uint32
}

// Packet is what rules know of a packet: its addresses, IP protocol number, ports (0 where the
// packet has none, as in a later fragment) and DSCP, and the mark if that is known.
type Packet struct {
	Src, Dst         netip.Addr
	Protocol, DSCP   uint8
	SrcPort, DstPort uint16
	Mark             uint32
	HasMark          bool
}

// All reports whether all packets match.
func (m *Match) All() bool {
	return len(m.Protocols) == 0 && m.Port == 0 && !m.HasDSCP && !m.Prefix.IsValid() && m.MarkMask == 0
}

// Selects reports whether the packet matches.
func (m *Match) Selects(p *Packet) bool {
	return (len(m.Protocols) == 0 || slices.Contains(m.Protocols, p.Protocol)) &&
		(m.Port == 0 || m.Port == p.SrcPort || m.Port == p.DstPort) &&
		(!m.HasDSCP || m.DSCP == p.DSCP) &&
		(m.MarkMask == 0 || p.HasMark && (m.Mark^p.Mark)&m.MarkMask == 0) &&
		(!m.Prefix.IsValid() || m.Prefix.Contains(p.Src) || m.Prefix.Contains(p.Dst))
}

// First returns the index of the first rule that matches, or -1. It does not allocate.
func (l Policy) First(p *Packet) int {
	for i := range l {
		if l[i].Match.Selects(p) {
			return i
		}
	}
	return -1
}

// The disciplines that have parameters, the default one, and the one that copies all packets. All
// are those of sched.Disciplines.
const Ratio, Flow, Auto, Redundant = "ratio", "flow", "auto", "redundant"

// Discipline says how packets are distributed over paths.
type Discipline struct {
	// Name is one of sched.Disciplines.
	Name string
	// Ratio is how many consecutive packets each path gets, with Ratio, in the order of the paths:
	// 0 leaves a path out.
	Ratio []int
	// Choice is how the path of a new flow is chosen, with Flow.
	Choice sched.Choice
	// CopyCostlier: copies are also sent on paths of a higher cost, with Auto.
	CopyCostlier bool
}

func (d Discipline) String() string {
	switch d.Name {
	case Ratio:
		parts := make([]string, len(d.Ratio))
		for i, n := range d.Ratio {
			parts[i] = strconv.Itoa(n)
		}
		return d.Name + " " + strings.Join(parts, ":")
	case Flow:
		return d.Name + " " + d.Choice.String()
	case Auto:
		if d.CopyCostlier {
			return d.Name + ", copies on costlier paths"
		}
	}
	return d.Name
}

// ResequenceMode says whether packets are put into order.
type ResequenceMode uint8

const (
	// ResequenceAuto holds packets where reordering was measured, for as long as that says.
	ResequenceAuto ResequenceMode = iota
	// ResequenceOff holds none.
	ResequenceOff
	// ResequenceFixed holds packets for a fixed time at most.
	ResequenceFixed
)

// Resequence says how the receiver puts packets of a rule into order.
type Resequence struct {
	Mode ResequenceMode
	// Bound is the longest time that a packet is held, with ResequenceFixed.
	Bound time.Duration
}

func (r Resequence) String() string {
	switch r.Mode {
	case ResequenceAuto:
		return "auto"
	case ResequenceOff:
		return "off"
	case ResequenceFixed:
		return r.Bound.String()
	}
	return fmt.Sprintf("mode %d", uint8(r.Mode))
}
