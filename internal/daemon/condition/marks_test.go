package condition

import (
	"io/fs"
	"math"
	"testing"

	"github.com/tabane/tabane/internal/kernel/route"
)

// TestMarks: a rule that compares a part of the bits of a mark is a problem if it precedes that of
// the daemon.
func TestMarks(t *testing.T) {
	packets := MarkedPackets{Of: "sprayed packets", Remedy: "compare all bits", Marks: []uint32{0x7ab50000, 0x7ab50001}, Bits: math.MaxUint32, Before: 16002}
	for name, tt := range map[string]struct {
		rules []route.MarkRule
		err   error
		want  string
	}{
		"none":           {},
		"second mark":    {rules: []route.MarkRule{{Priority: 100, Mark: 1, Mask: 0xff}}, want: "ip -4 rule priority 100 fwmark 0x1/0xff also routes sprayed packets with mark 2058682369 (0x7ab50001): compare all bits"},
		"no mark at all": {rules: []route.MarkRule{{IPv6: true, Priority: 100, Mask: 0xff}}, want: "ip -6 rule priority 100 fwmark 0x0/0xff also routes sprayed packets with mark 2058682368 (0x7ab50000): compare all bits"},
		"later":          {rules: []route.MarkRule{{Priority: 16002, Mark: 1, Mask: 0xff}}},
		"meant":          {rules: []route.MarkRule{{Priority: 100, Mark: 0x7ab50001, Mask: math.MaxUint32}}},
		"unknown":        {err: fs.ErrPermission, want: "examine marks: permission denied"},
	} {
		x := Examine([]Condition{ofMarks(func() ([]route.MarkRule, error) { return tt.rules, tt.err }, packets)})
		got := ""
		switch {
		case len(x.Unknown) > 0:
			got = x.Unknown[0].Error()
		case len(x.Problems) > 0:
			got = x.Problems[0].Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
