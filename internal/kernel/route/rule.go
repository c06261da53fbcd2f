package route

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ruleFlags are the parts of a rule that are yes or no.
type ruleFlags uint8

const (
	ruleSpecific ruleFlags = 1 << iota // Rule.Specific
	ruleNotMark                        // the mark of the key is Rule.NotMark
)

// A Rule is a policy rule: it looks matching packets up in a table, or drops them and sends an ICMP
// error. It matches packets by source prefix (From) or destination prefix (To), not both, by
// incoming or outgoing interface, not both, and by mark, or alone by having another mark; a zero
// field matches all packets. The family is that of the prefix: 0.0.0.0/0 matches all IPv4 packets,
// and without a prefix the rule is for IPv6. All fields are its key.
type Rule struct {
	Priority    uint32 // lower is tried first
	From, To    netip.Prefix
	Iif         string // incoming interface
	Oif         string // interface that the sending socket is bound to
	Mark        uint32 // of the packet in the kernel, as Route.Mark sets it
	NotMark     uint32 // matches packets that do not have this mark
	Table       uint32
	Unreachable bool // send an ICMP error instead of looking up Table
	// Specific ignores default routes of Table (suppress_prefixlength 0).
	Specific bool
}

// ruleTo distinguishes the key of a rule with a destination from one with a source, ruleOif an
// outgoing interface from an incoming one; they cannot be in a link's name.
const ruleTo, ruleOif = "to/", "oif/"

// Key returns the key of the rule.
func (r Rule) Key() Key {
	k := Key{class: ClassRule, link: r.Iif, a: r.Priority, b: r.Table, mark: r.Mark}
	if r.Specific {
		k.flags |= ruleSpecific
	}
	if r.NotMark != 0 {
		k.mark, k.flags = r.NotMark, k.flags|ruleNotMark
	}
	if r.Oif != "" {
		k.link = ruleOif + r.Oif
	}
	switch {
	case r.From.IsValid() && r.From.Bits() > 0:
		k.prefix = r.From
	case r.To.IsValid() && r.To.Bits() > 0:
		k.prefix, k.link = r.To, ruleTo+k.link
	case r.From.Addr().Is4() || r.To.Addr().Is4():
		k.prefix = anyIPv4
	}
	return k
}

// anyIPv4 is the source prefix of a rule for all IPv4 packets.
var anyIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// rule returns the rule with this key; Table is 0 for an unreachable rule.
func (k Key) rule() Rule {
	r := Rule{Priority: k.a, Table: k.b, Unreachable: k.b == 0, Mark: k.mark, Specific: k.flags&ruleSpecific != 0}
	if k.flags&ruleNotMark != 0 {
		r.Mark, r.NotMark = 0, k.mark
	}
	link, to := strings.CutPrefix(k.link, ruleTo)
	if to {
		r.To = k.prefix
	} else {
		r.From = k.prefix
	}
	if name, out := strings.CutPrefix(link, ruleOif); out {
		r.Oif = name
	} else {
		r.Iif = link
	}
	return r
}

func (r Rule) String() string {
	var b strings.Builder
	from := r.From
	if !from.IsValid() && r.To.Addr().Is4() {
		from = anyIPv4
	}
	not := ""
	if r.NotMark != 0 {
		not = "not "
	}
	fmt.Fprintf(&b, "priority %d %sfrom %s", r.Priority, not, prefixText(from, "all"))
	if r.To.IsValid() {
		fmt.Fprintf(&b, " to %s", r.To)
	}
	if r.Iif != "" {
		fmt.Fprintf(&b, " iif %s", r.Iif)
	}
	if r.Oif != "" {
		fmt.Fprintf(&b, " oif %s", r.Oif)
	}
	if mark := r.Mark | r.NotMark; mark != 0 {
		fmt.Fprintf(&b, " fwmark %#x", mark)
	}
	if r.Unreachable {
		b.WriteString(" unreachable")
	} else {
		fmt.Fprintf(&b, " table %s", tableText(r.Table))
	}
	if r.Specific {
		b.WriteString(" suppress_prefixlength 0")
	}
	return b.String()
}

// Normal implements Object.
func (r Rule) Normal() Object { return r.Key().rule() }

// Check implements Object.
func (r Rule) Check() error {
	switch {
	case r.Table == 0 && !r.Unreachable:
		return errors.New("table is missing")
	case r.Table != 0 && r.Unreachable:
		return errors.New("unreachable rule has a table")
	case r.Specific && r.Unreachable:
		return errors.New("unreachable rule suppresses routes")
	case r.NotMark != 0 && (r.Mark != 0 || r.Iif != "" || r.Oif != "" || r.From.Bits() > 0 || r.To.Bits() > 0):
		return errors.New("rule has a mark to exclude and another condition")
	case r.Iif != "" && r.Oif != "":
		return errors.New("rule has an incoming and an outgoing interface")
	case r.From.IsValid() && r.To.IsValid():
		return errors.New("rule has a source and a destination")
	case r.From.IsValid():
		if err := checkPrefix("source", r.From); err != nil {
			return err
		}
	case r.To.IsValid():
		if err := checkPrefix("destination", r.To); err != nil {
			return err
		}
	}
	if link := cmp.Or(r.Iif, r.Oif); link != "" {
		return checkLink(link)
	}
	return nil
}
