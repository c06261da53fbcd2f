package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacy is the iptables-legacy of an IP version (linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter_ipv6/ip6_tables.h).
type legacy struct {
	command, nft  string // of rules that the kernel has in its own form, and of those in nftables
	family        string // as that of a Chain of nftables
	names         string // of tables in use, in /proc
	domain, level int
	header, entry int  // lengths of what a rule compares in IP headers, and of a rule without matches
	interfaces    int  // where that has names of interfaces: in, out, and the masks of both
	inverted      int  // and where the first bits say that the names must differ
	protocol      int  // and where it has the protocol
	leaves        byte // what the byte before inverted has if a rule does not come back from its chain
}

var legacies = []legacy{
	{"iptables-legacy", "iptables-nft", "ip", "ip_tables_names", unix.AF_INET, unix.SOL_IP, 84, 112, 16, 83, 80, 2},
	{"ip6tables-legacy", "ip6tables-nft", "ip6", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 136, 168, 64, 132, 128, 4},
}

const (
	getInfo, getEntries = 64, 65 // IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES, the same in IPv6
	entriesAt           = 40     // in the answer to the latter
	extension           = 32     // the header of a match or target

	verdictDrop, verdictAccept, verdictReturn = -1, -2, -5
)

// legacyHooks are the chains that packets pass, by the number of their hook.
var legacyHooks = [...]string{unix.NF_INET_PRE_ROUTING: "PREROUTING", unix.NF_INET_LOCAL_IN: "INPUT", unix.NF_INET_FORWARD: "FORWARD"}

// legacyInfo is struct ipt_getinfo.
type legacyInfo struct {
	Table            [32]byte
	Hooks            uint32
	Entry, Underflow [5]uint32
	Entries, Size    uint32
}

// untracked is Untracked for iptables-legacy.
func (l *legacy) untracked(p *Packets) ([]Chain, error) {
	return l.chains(p, func(r *legacyRules, hook, first, last int) bool {
		return hook != unix.NF_INET_LOCAL_IN && r.untracked(first, last)
	})
}

// blocking is Blocking for iptables-legacy.
func (l *legacy) blocking(passages []Passage) (list []Block, err error) {
	for _, p := range passages {
		if p.Version != l.family {
			continue
		}
		chains, err := l.chains(&Packets{}, func(r *legacyRules, hook, first, last int) bool {
			return hook == int(p.hook()) && r.follow(p, first, last, map[int]outcome{}) == dropped
		})
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			list = append(list, Block{Chain: c, Passage: p})
		}
	}
	return list, nil
}

// chains returns the chains that are as wanted, by the numbers of their hooks and their first and
// last rules.
func (l *legacy) chains(p *Packets, wanted func(r *legacyRules, hook, first, last int) bool) ([]Chain, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + l.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list tables of %s: %w", l.command, err)
	}
	fd, err := unix.Socket(l.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // needs no CAP_NET_RAW, which a proxy lacks
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var list []Chain
	for name := range strings.FieldsSeq(string(names)) {
		info, rules, err := l.read(fd, name)
		if err != nil {
			return nil, fmt.Errorf("read table %q of %s: %w", name, l.command, err)
		}
		r := legacyRules{legacy: l, rules: rules, packets: p, drops: map[int]bool{}}
		for hook, chain := range legacyHooks {
			if chain != "" && name != "nat" && info.Hooks>>hook&1 != 0 && wanted(&r, hook, int(info.Entry[hook]), int(info.Underflow[hook])) {
				list = append(list, Chain{l.command, name, chain})
			}
		}
	}
	return list, nil
}

// read returns the rules of a table.
func (l *legacy) read(fd int, table string) (info legacyInfo, rules []byte, err error) {
	b := make([]byte, binary.Size(info))
	copy(b, table)
	if err := l.get(fd, getInfo, b); err != nil {
		return info, nil, err
	}
	if _, err := binary.Decode(b, binary.NativeEndian, &info); err != nil {
		return info, nil, err
	}
	b = make([]byte, entriesAt+info.Size)
	copy(b, table)
	binary.NativeEndian.PutUint32(b[len(info.Table):], info.Size)
	err = l.get(fd, getEntries, b)
	return info, b[entriesAt:], err
}

func (l *legacy) get(fd, option int, b []byte) error {
	n := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(l.level), uintptr(option), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// legacyRules are those of a table. drops are the chains that were read already, by their first
// rule.
type legacyRules struct {
	*legacy
	rules   []byte
	packets *Packets
	drops   map[int]bool
}

// legacyRule is a rule as far as it matters whether it drops packets.
type legacyRule struct {
	all, state bool   // it matches all packets, or by what is not known of those of half a connection
	remarks    bool   // it may replace the mark
	marked     bool   // it matches all packets with the mark
	target     string // empty: a verdict
	verdict    int    // if not negative, the first rule of the chain that it jumps to
	conditions []byte // what it compares in headers, and its matches
	next       int
}

// at returns the rule at an offset; false if there is none.
func (r *legacyRules) at(offset int) (rule legacyRule, ok bool) {
	if offset < 0 || offset+r.entry > len(r.rules) {
		return rule, false
	}
	b := r.rules[offset:]
	target, next := int(binary.NativeEndian.Uint16(b[r.header+4:])), int(binary.NativeEndian.Uint16(b[r.header+6:]))
	if target < r.entry || target+extension+4 > next || next > len(b) {
		return rule, false
	}
	rule.next = offset + next
	rule.target = extensionName(b[target:])
	rule.verdict = int(int32(binary.NativeEndian.Uint32(b[target+extension:])))
	rule.all = len(bytes.Trim(b[:r.header], "\x00")) == 0
	others := !rule.all
	for matches := b[r.entry:target]; len(matches) >= extension; {
		n := int(binary.NativeEndian.Uint16(matches))
		if n < extension || n > len(matches) {
			return rule, false
		}
		switch data := matches[extension:n]; extensionName(matches) {
		case "comment", "limit":
		case "mark":
			rule.all = false
			// struct xt_mark_mtinfo1: the mark, its mask, and whether it must differ.
			rule.marked = len(data) > 8 && data[8] == 0 && binary.NativeEndian.Uint32(data) == r.packets.Mark&binary.NativeEndian.Uint32(data[4:])
			others = others || !rule.marked
		case "conntrack", "state", "rpfilter":
			rule.all, rule.state, others = false, true, true
		default:
			rule.all, others = false, true
		}
		matches = matches[n:]
	}
	rule.marked = rule.marked && !others
	rule.conditions = b[:target]
	rule.remarks = r.onLine(b) && targetRemarks(rule.target, b[target+extension-1], b[target+extension:next], r.packets.Bits)
	return rule, true
}

// follow returns what a chain does with a passage: a base chain, whose last rule is its policy, or
// one up to the next chain. outcomes are those of chains that were followed already, by their first
// rules.
func (r *legacyRules) follow(p Passage, first, last int, outcomes map[int]outcome) outcome {
	if does, ok := outcomes[first]; ok && last < 0 {
		return does
	}
	outcomes[first] = passes // the kernel has no loops
	mayReturn := false       // some packets may have left the chain
	for at := first; last < 0 || at <= last; {
		rule, ok := r.at(at)
		if !ok || last < 0 && rule.target == "ERROR" {
			return passes
		}
		is, does := r.holds(p, rule.conditions), passes
		switch {
		case is == no:
		case rule.target == "REJECT", rule.target == "" && rule.verdict == verdictDrop:
			does = dropped
		case rule.target == "" && rule.verdict == verdictAccept:
			does = accepted
		case rule.target == "" && rule.verdict == verdictReturn:
			does = returned
		case rule.target == "" && rule.verdict >= 0 && rule.verdict != rule.next:
			does = r.follow(p, rule.verdict, -1, outcomes)
			if does == passes && rule.conditions[r.inverted-1]&r.leaves != 0 {
				does = returned
			}
		}
		if does == dropped && is == yes && mayReturn && at != last {
			does = returned
		}
		switch at = rule.next; {
		case does == accepted, does == dropped && is == yes:
			outcomes[first] = does
			return does
		case does == returned && is != yes:
			mayReturn = true
		case does == returned && last < 0:
			return passes
		case does == returned:
			at = max(at, last) // the policy
		}
	}
	return passes
}

// holds returns whether the conditions of a rule hold for a passage.
func (r *legacyRules) holds(p Passage, conditions []byte) truth {
	const size = unix.IFNAMSIZ
	const otherIn, otherOut, otherProtocol = 1, 2, 0x40 // bits of what must differ
	header, inverted := conditions[:r.header], conditions[r.inverted]
	is := yes
	for i, link := range []string{p.In, p.Out} {
		name, mask := header[r.interfaces+i*size:][:size], header[r.interfaces+(2+i)*size:][:size]
		if differs := !sameName(link, name, mask); differs != (inverted&(otherIn<<i) != 0) {
			return no
		}
	}
	if protocol := binary.NativeEndian.Uint16(header[r.protocol:]); protocol != 0 {
		switch {
		case p.Protocol == 0:
			is = maybe
		case (protocol == uint16(p.Protocol)) == (inverted&otherProtocol != 0):
			return no
		}
	}
	if len(bytes.Trim(header[:r.interfaces], "\x00")) > 0 || inverted&^(otherIn|otherOut|otherProtocol) != 0 {
		is = maybe
	}
	for matches := conditions[r.entry:]; len(matches) >= extension; {
		n := int(binary.NativeEndian.Uint16(matches)) // at has checked it
		if is = min(is, p.matchesRaw(extensionName(matches), matches[extension-1], matches[extension:n])); is == no {
			return no
		}
		matches = matches[n:]
	}
	return is
}

// sameName reports whether the name of an interface is that of a rule, as far as its mask has it.
func sameName(link string, name, mask []byte) bool {
	for i, b := range interfaceName(link) {
		if (b^name[i])&mask[i] != 0 {
			return false
		}
	}
	return true
}

func extensionName(b []byte) string {
	name, _, _ := bytes.Cut(b[2:extension-1], []byte{0})
	return string(name)
}

// untracked reports whether packets with the mark may be dropped in a base chain, whose last rule
// is its policy.
func (r *legacyRules) untracked(first, last int) bool {
	for at := first; at <= last; {
		rule, ok := r.at(at)
		if !ok || rule.marked && rule.target == "" && rule.verdict == verdictAccept {
			return false
		}
		if r.mayDrop(&rule) {
			return true
		}
		at = rule.next
	}
	return false
}

// onLine reports whether a rule may be for packets that arrive at one of the lines.
func (r *legacyRules) onLine(rule []byte) bool {
	const size = unix.IFNAMSIZ
	name, mask := rule[r.interfaces:][:size], rule[r.interfaces+2*size:][:size]
	return rule[r.inverted]&1 != 0 || slices.ContainsFunc(r.packets.Lines, func(line string) bool { return sameName(line, name, mask) })
}

// mayDrop reports whether a rule drops all packets, or by what is not known of these, or replaces
// their mark, or jumps to one that does.
func (r *legacyRules) mayDrop(rule *legacyRule) bool {
	switch {
	case rule.remarks:
		return true
	case rule.target == "REJECT", rule.target == "" && rule.verdict == verdictDrop:
		return rule.all || rule.state
	// A rule without a target goes on.
	case rule.target == "" && rule.verdict >= 0 && rule.verdict != rule.next:
		return r.chainDrops(rule.verdict)
	}
	return false
}

// chainDrops reports whether a rule of a chain that another one jumps to may drop packets, or
// replace their mark.
func (r *legacyRules) chainDrops(first int) bool {
	if drops, ok := r.drops[first]; ok {
		return drops
	}
	r.drops[first] = false // the kernel has no loops
	for at := first; ; {
		rule, ok := r.at(at)
		// ERROR begins the next chain.
		if !ok || rule.target == "ERROR" {
			return false
		}
		if r.mayDrop(&rule) {
			r.drops[first] = true
			return true
		}
		at = rule.next
	}
}
