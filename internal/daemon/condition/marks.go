package condition

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/kernel/route"
)

// MarkedPackets are packets of a daemon, which have one of Marks.
type MarkedPackets struct {
	// Of is what a problem calls them, and Remedy what mends it.
	Of, Remedy string
	Marks      []uint32
	// Bits are those that the daemon compares. A rule that compares all of them means these packets.
	Bits uint32
	// Before is the priority of the daemon's rules: those of others from there on have no effect. 0:
	// all have.
	Before uint32
}

// WholeMarks returns packets whose daemon compares all bits of their marks, by rules up to the
// priority last.
func WholeMarks(of string, last uint32, marks []uint32) MarkedPackets {
	return MarkedPackets{
		Of: of, Marks: marks, Bits: math.MaxUint32, Before: last,
		Remedy: fmt.Sprintf("have it compare all bits, as in fwmark 0x1/0xffffffff, or give it a priority above %d", last),
	}
}

// Marks is that no rules of other programs route packets, because a part of their mark is that of
// others.
func Marks(p MarkedPackets) Condition { return ofMarks(markRules, p) }

func markRules() ([]route.MarkRule, error) {
	conn, err := route.Dial()
	if err != nil {
		return nil, err
	}
	rules, err := conn.MarkRules()
	return rules, errors.Join(err, conn.Close())
}

func ofMarks(rules func() ([]route.MarkRule, error), p MarkedPackets) Condition {
	return Condition{
		Name: "marks", Good: "no rule of another program routes " + p.Of + " by a part of their mark",
		Examine: func() ([]health.Problem, error) {
			all, err := rules()
			var found []string
			for _, m := range p.Marks {
				for _, r := range all {
					if r.Matches(m) && r.Mask&p.Bits != p.Bits && (p.Before == 0 || r.Priority < p.Before) {
						found = append(found, fmt.Sprintf("%v also routes %s with mark %d (%#x)", r, p.Of, m, m))
					}
				}
			}
			if err != nil || len(found) == 0 {
				return nil, err
			}
			return []health.Problem{{Text: strings.Join(found, "; "), Remedy: p.Remedy}}, nil
		},
	}
}
