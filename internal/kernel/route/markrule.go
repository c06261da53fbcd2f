package route

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A MarkRule is a policy rule, of any program, for packets with a mark in the bits of Mask.
type MarkRule struct {
	IPv6                 bool
	Priority, Mark, Mask uint32
}

// String is as `ip rule` writes it, without what else the rule matches.
func (r MarkRule) String() string {
	version := "-4"
	if r.IPv6 {
		version = "-6"
	}
	return fmt.Sprintf("ip %s rule priority %d fwmark %#x/%#x", version, r.Priority, r.Mark, r.Mask)
}

// Matches reports whether packets with a mark have that of the rule.
func (r MarkRule) Matches(mark uint32) bool { return (mark^r.Mark)&r.Mask == 0 }

// MarkRules returns the rules for packets with a mark. Those for packets without one are not among
// them.
func (c *Conn) MarkRules() ([]MarkRule, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []MarkRule
	for _, d := range c.dumps(0, ClassRule) {
		before := len(list)
		err := c.dumpEach(d.request, func() { list = list[:before] }, func(b []byte) error {
			r, inverted, err := decodeMarkRule(b)
			if r.Mask != 0 && !inverted {
				list = append(list, r)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
	}
	return list, nil
}

func decodeMarkRule(b []byte) (r MarkRule, inverted bool, err error) {
	if len(b) < ruleHeader {
		return r, false, errShort
	}
	r.IPv6 = b[0] == unix.AF_INET6
	at := attrs{b: b[ruleHeader:], v4: !r.IPv6}
	for at.next() {
		switch at.typ {
		case unix.FRA_PRIORITY:
			r.Priority = at.uint32()
		case unix.FRA_FWMARK:
			r.Mark = at.uint32()
		case unix.FRA_FWMASK:
			r.Mask = at.uint32()
		}
	}
	return r, native.Uint32(b[8:])&unix.FIB_RULE_INVERT != 0, at.err
}
